"""One run of a recipe over any number of reports."""
