"""Arithmetic on half-open time intervals, as int64 arrays (starts_ns[n], ends_ns[n]) with end >= start.

Every function takes any number of intervals, none included, and changes none of its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np

Rows = TypeVar("Rows")


def by_start(starts_ns: np.ndarray) -> np.ndarray | slice:
    """What puts intervals in order of their start; ties stay in the order given.

    Indices, int64[n]; or a full slice when they are in order already, as reports mostly are: indexing with it copies
    nothing.
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
    if (starts_ns[1:] > latest_ns[:-1]).all():
        # Disjoint already, as the calls of one thread are: nothing to copy.
        return starts_ns, ends_ns
    opens = np.ones(len(starts_ns), dtype=bool)
    opens[1:] = starts_ns[1:] > latest_ns[:-1]
    first = np.flatnonzero(opens)
    last = np.append(first[1:], len(starts_ns)) - 1
    return starts_ns[first], latest_ns[last]


def joined(one: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray]) -> tuple:
    """The union of two unions, each (starts_ns, ends_ns), as `merge` gives it."""
    starts_ns, ends_ns = (np.concatenate(both) for both in zip(one, other, strict=True))
    order = by_start(starts_ns)
    return merge(starts_ns[order], ends_ns[order])


def exclusive(
    passes: Iterable[Rows], times_ns: Callable[[Rows], tuple[np.ndarray, np.ndarray]]
) -> Iterator[tuple[Rows, np.ndarray | slice, np.ndarray]]:
    """What each interval adds to the union of all before it: pass by pass, and in a pass by start.

    `times_ns` gives the intervals of a pass. Yields for each pass itself, the order by start, and the ns added, int64
    in that order; together they are the union's length. Passes are taken one at a time.
    """
    union: tuple[np.ndarray, np.ndarray] | None = None
    parts: tuple[np.ndarray, np.ndarray] | None = None
    for rows in passes:
        if parts is not None:
            union = parts if union is None else joined(union, parts)
        starts_ns, ends_ns = times_ns(rows)
        order = by_start(starts_ns)
        parts = added_ns(starts_ns[order], ends_ns[order])
        # These may be copies of long columns.
        del starts_ns, ends_ns
        lengths_ns = parts[1] - parts[0]
        if union is not None:
            lengths_ns -= covered_ns(*parts, union)
        yield rows, order, lengths_ns


def length_ns(starts_ns: np.ndarray, ends_ns: np.ndarray) -> int:
    """The summed length of the intervals, in ns; of disjoint ones, their union's."""
    return int(ends_ns.sum(dtype=np.int64) - starts_ns.sum(dtype=np.int64))


def union_ns(starts_ns: np.ndarray, ends_ns: np.ndarray) -> int:
    """The length of the union of intervals in any order, in ns."""
    order = by_start(starts_ns)
    return length_ns(*merge(starts_ns[order], ends_ns[order]))


def intersection(one: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray]) -> tuple:
    """What lies in both of two unions of disjoint intervals, as disjoint intervals in order."""
    # Between two neighbouring edges of either union nothing changes.
    edges = np.unique(np.concatenate([*one, *other]))
    starts_ns, ends_ns = edges[:-1], edges[1:]
    inside = (covered_ns(starts_ns, ends_ns, one) > 0) & (covered_ns(starts_ns, ends_ns, other) > 0)
    return merge(starts_ns[inside], ends_ns[inside])


class Coverage:
    """How much of any interval lies inside a union, given as `merge` or `added_ns` returns it."""

    def __init__(self, starts_ns: np.ndarray, ends_ns: np.ndarray) -> None:
        self.merged = starts_ns, ends_ns
        self._starts_ns, self._ends_ns = starts_ns, ends_ns
        self._before_ns = np.zeros(len(starts_ns) + 1, dtype=np.int64)
        np.cumsum(ends_ns - starts_ns, out=self._before_ns[1:])

    def of(self, starts_ns: np.ndarray, ends_ns: np.ndarray) -> np.ndarray:
        """The covered part of each interval, in ns, int64[n]."""
        if len(self._starts_ns) == 0:
            return np.zeros(len(starts_ns), dtype=np.int64)
        return self._until(ends_ns) - self._until(starts_ns)

    def _until(self, times_ns: np.ndarray) -> np.ndarray:
        entered = np.searchsorted(self._starts_ns, times_ns, side="right")
        beyond_ns = np.maximum(self._ends_ns[entered - 1] - times_ns, 0)
        return np.where(entered > 0, self._before_ns[entered] - beyond_ns, 0)


def covered_ns(starts_ns: np.ndarray, ends_ns: np.ndarray, merged: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """How much of each interval lies inside a union, in ns, int64[n], for a single question; see Coverage."""
    return Coverage(*merged).of(starts_ns, ends_ns)
