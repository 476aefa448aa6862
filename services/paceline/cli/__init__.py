"""The commands of `paceline` that need the serve extra."""
