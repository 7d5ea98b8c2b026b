"""What a step time that the user measured without the profiler is compared with."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from recipes.steps.phases import DECODE_PHASES

#: A step time that a user gives is measured, not exact: within this share of another one it is the same.
STEP_TIME_TOLERANCE = 0.05


def engine_step_ns(phase: str, phases: Collection[str], start_ns: np.ndarray, period_ns: np.ndarray) -> float | None:
    """The time of a step as an engine tells it, in ns: the median period, start to start, of some whole steps of a
    phase on one device; None where none has a next one.

    `phases` are those of all its steps. Where steps of other phases take turns with it, as in training, a step of the
    engine is one of each: from a step of the phase to its next. `start_ns` and `period_ns` have one entry per step
    (int64 or float); `period_ns` is negative or NaN for the last.
    """
    if phase in DECODE_PHASES or set(phases) <= {phase}:
        between_ns = period_ns[period_ns >= 0]
    else:
        between_ns = np.diff(np.sort(start_ns))
    return float(np.median(between_ns)) if len(between_ns) else None
