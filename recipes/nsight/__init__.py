"""Everything that knows Nsight Systems: finding it, exporting with it, running inside it."""
