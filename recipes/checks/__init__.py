"""Checks of a capture: what limits the numbers drawn from it, and what to do about it."""
