"""The recipe as Nsight Systems finds it: `nsys recipe llm_fleet`."""

import sys
from pathlib import Path

# Nsight puts the pack's folder last on the path, where another package called `recipes` could hide ours.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from recipes.run.framework import LlmRecipe


class LlmFleet(LlmRecipe):
    """All analyses of many reports, in one dataset."""
