"""Reading reports: one schema for every Nsight version and export format."""
