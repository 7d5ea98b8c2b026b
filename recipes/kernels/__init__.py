"""Kernels by family, and the GPUs that run them."""
