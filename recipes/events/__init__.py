"""What happened on GPUs and in the CUDA API, as columns."""
