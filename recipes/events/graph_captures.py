"""When CUDA graphs were captured: what a process launches meanwhile goes into a graph and has no work of its own."""

from __future__ import annotations

import numpy as np

from recipes.base.interval_lookup import Lookup
from recipes.events.devices import pid_of


def captures(thread: np.ndarray, at_ns: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Thread, begin and end of each capture: a begin and the next end on its thread. `ends` tells ends from begins."""
    order = np.lexsort((ends, at_ns, thread))
    thread, at_ns, ends = thread[order], at_ns[order], ends[order]
    pair = np.flatnonzero(~ends[:-1] & ends[1:] & (thread[:-1] == thread[1:]))
    return thread[pair], at_ns[pair], at_ns[pair + 1]


def while_capturing(pid: np.ndarray, at_ns: np.ndarray, spans: tuple[np.ndarray, np.ndarray, np.ndarray]) -> np.ndarray:
    """Which times of processes lie in the capture of a graph (as `captures` gives them) by any of their threads."""
    thread, begin_ns, end_ns = spans
    return Lookup(pid_of(thread), begin_ns, end_ns, np.zeros(len(thread), dtype=np.int64)).find(pid, at_ns) >= 0
