"""The commands of `python -m recipes`."""
