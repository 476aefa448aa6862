"""Paceline: drafter and target of a large language model as separate services."""

__version__ = "0.1.0"
