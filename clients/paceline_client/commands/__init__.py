"""Subcommands of `paceline`."""
