"""Whether the steps of a phase train: then no decode floor is theirs, whatever their ranges are called."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

#: A loop with gradient accumulation runs its optimizer in one of several steps; a decode loop never does.
_LEAST_SHARE = 0.1
# torch._foreach_copy_, with which compiled decode steps fill the inputs of their graphs, is no optimizer.
_COPIES = re.compile("copy", re.IGNORECASE)


def optimizer_names(names: Sequence[str], family: Sequence[str]) -> np.ndarray:
    """Which kernel names are an optimizer's, by name and its family: bool per name."""
    found = [one == "optimizer" and not _COPIES.search(name) for name, one in zip(names, family, strict=True)]
    return np.array(found, dtype=bool)


def is_training(steps: np.ndarray, optimized: np.ndarray) -> bool:
    """Whether optimizer kernels run in the steps of a phase: its steps, and all that have such kernels (int64, numbers
    of steps)."""
    return len(steps) > 0 and bool(np.isin(steps, optimized).mean() >= _LEAST_SHARE)
