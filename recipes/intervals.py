"""Arithmetic on half-open time intervals, as int64 arrays (starts_ns[n], ends_ns[n]) with end >= start.

Every function takes any number of intervals, none included, and changes none of its arguments.
"""

from __future__ import annotations

import numpy as np


def by_start(starts_ns: np.ndarray) -> np.ndarray | slice:
    """What puts intervals in order of their start; ties stay in the order given.

    A full slice when they are in order already, as reports mostly are: indexing with it copies nothing.
    """
    if (starts_ns[1:] >= starts_ns[:-1]).all():
        return slice(None)
    return np.argsort(starts_ns, kind="stable")


def added_ns(starts_ns: np.ndarray, ends_ns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The part of each interval beyond all intervals before it, as (starts_ns, ends_ns) of that part.

    The intervals come in order of start. The parts are disjoint, and together they are the union.
    A part of no length has start == end.
    """
    if len(ends_ns) == 0:
        return starts_ns, ends_ns
    latest_ns = np.maximum.accumulate(ends_ns)
    part_starts_ns = starts_ns.copy()
    np.maximum(starts_ns[1:], latest_ns[:-1], out=part_starts_ns[1:])
    # latest_ns is also where an interval ends that adds anything; the others get no length.
    return np.minimum(part_starts_ns, latest_ns, out=part_starts_ns), latest_ns


def merge(starts_ns: np.ndarray, ends_ns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The union as disjoint intervals in order; touching ones are joined. The intervals come in order of start."""
    if len(ends_ns) == 0:
        return starts_ns, ends_ns
    latest_ns = np.maximum.accumulate(ends_ns)
    opens = np.ones(len(starts_ns), dtype=bool)
    opens[1:] = starts_ns[1:] > latest_ns[:-1]
    first = np.flatnonzero(opens)
    last = np.append(first[1:], len(starts_ns)) - 1
    return starts_ns[first], latest_ns[last]


def length_ns(starts_ns: np.ndarray, ends_ns: np.ndarray) -> int:
    """The summed length of the intervals; of disjoint ones, their union's."""
    return int(ends_ns.sum(dtype=np.int64) - starts_ns.sum(dtype=np.int64))


def covered_ns(starts_ns: np.ndarray, ends_ns: np.ndarray, merged: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """How much of each interval lies inside a union, given as `merge` or `added_ns` returns it."""
    union_starts_ns, union_ends_ns = merged
    if len(union_starts_ns) == 0:
        return np.zeros(len(starts_ns), dtype=np.int64)
    before_ns = np.zeros(len(union_starts_ns) + 1, dtype=np.int64)
    np.cumsum(union_ends_ns - union_starts_ns, out=before_ns[1:])

    def covered_until(times_ns: np.ndarray) -> np.ndarray:
        entered = np.searchsorted(union_starts_ns, times_ns, side="right")
        beyond_ns = np.maximum(union_ends_ns[entered - 1] - times_ns, 0)
        return np.where(entered > 0, before_ns[entered] - beyond_ns, 0)

    return covered_until(ends_ns) - covered_until(starts_ns)
