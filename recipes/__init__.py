"""What all recipes of the pack share."""

__version__ = "0.1.0"
