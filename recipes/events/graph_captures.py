"""When CUDA graphs were captured: what a process launches meanwhile goes into a graph and has no work of its own."""

from __future__ import annotations

import numpy as np

from recipes.base.interval_lookup import Lookup
from recipes.events.devices import pid_of


def captures(thread: np.ndarray, at_ns: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Thread, begin and end (ns) of each capture, int64: a begin and the next end on its thread.

    The arguments have one entry per call that begins or ends a capture: its global thread id and time (int64), and
    whether it is an end (bool).
    """
    order = np.lexsort((ends, at_ns, thread))
    thread, at_ns, ends = thread[order], at_ns[order], ends[order]
    pair = np.flatnonzero(~ends[:-1] & ends[1:] & (thread[:-1] == thread[1:]))
    return thread[pair], at_ns[pair], at_ns[pair + 1]


def while_capturing(pid: np.ndarray, at_ns: np.ndarray, spans: tuple[np.ndarray, np.ndarray, np.ndarray]) -> np.ndarray:
    """Which times (ns) of processes, int64[n] both, lie in the capture of a graph by any of their threads, bool[n].

    `spans` as `captures` gives them. PackError when they lie farther apart than any capture lasts.
    """
    thread, begin_ns, end_ns = spans
    return Lookup(pid_of(thread), begin_ns, end_ns, np.zeros(len(thread), dtype=np.int64)).find(pid, at_ns) >= 0
