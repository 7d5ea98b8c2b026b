"""How to capture so that there is something to see: commands and code, by engine and version of Nsight."""
