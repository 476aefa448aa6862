"""Experiments over the services: equality with plain decoding, ratios of speed. Nothing imports this package."""
