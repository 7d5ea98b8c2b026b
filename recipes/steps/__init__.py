"""Steps and phases: from NVTX ranges, or from repetition, with the GPU work that is theirs."""
