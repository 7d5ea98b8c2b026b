"""How to capture so that there is something to see: commands, code and remedies, by engine and version of Nsight."""
