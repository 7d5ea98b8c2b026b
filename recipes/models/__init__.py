"""Language models: what a step must read and compute."""
