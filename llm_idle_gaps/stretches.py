"""Whose time it is: a device's window cut at the edges of its steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recipes.base.interval_lookup import Lookup
from recipes.steps.projection import Projection


@dataclass(frozen=True)
class Stretches:
    """Stretches of a device's time, in order and without holes: start_ns, end_ns int64; entry int64, the entry of the
    projection whose step it is (of several the one that started last), NONE where no step was open."""

    start_ns: np.ndarray
    end_ns: np.ndarray
    entry: np.ndarray

    def entry_at(self, time_ns: np.ndarray) -> np.ndarray:
        """The entry for each time (int64[n], ns) inside the window, int64[n]."""
        return self.entry[np.searchsorted(self.start_ns, time_ns, side="right") - 1]


def device_stretches(projection: Projection, device: int, first_ns: int, last_ns: int) -> Stretches:
    """The window of a device (an index), which lasts from `first_ns` to `last_ns`. PackError when times lie farther
    apart than any capture lasts."""
    entries = np.flatnonzero(projection.device == device)
    starts_ns, ends_ns = projection.start_ns[entries], projection.end_ns[entries]
    edges_ns = np.unique(np.concatenate([starts_ns, ends_ns, [first_ns, last_ns]]))
    steps = Lookup(np.zeros(len(entries), dtype=np.int64), starts_ns, ends_ns, entries)
    begins_ns = edges_ns[:-1]
    return Stretches(begins_ns, edges_ns[1:], steps.find(np.zeros(len(begins_ns), dtype=np.int64), begins_ns))
