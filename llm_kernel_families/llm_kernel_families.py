"""The recipe as Nsight Systems finds it: `nsys recipe llm_kernel_families`."""

import sys
from pathlib import Path

# Nsight puts the pack's folder last on the path, where another package called `recipes` could hide ours.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from recipes.run.framework import LlmRecipe


class LlmKernelFamilies(LlmRecipe):
    """Kernel families per report, device and phase."""
