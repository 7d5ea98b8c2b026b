"""A report as all recipes see it."""
