"""Making a drafter: text that the target writes itself, and a small model that learns to guess it."""
