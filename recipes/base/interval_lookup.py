"""Many time lines laid one behind the other, so that one search answers for all of them."""

from __future__ import annotations

import numpy as np

from recipes.base.errors import PackError

#: Half of what int64 holds, so that times on the line can be added and subtracted.
_LONGEST_NS, _DAY_NS = 1 << 62, 86_400 * 10**9


def side_by_side(group: np.ndarray, *times_ns: np.ndarray) -> tuple[np.ndarray, ...]:
    """Times of many groups on one line where the groups do not meet, and the order by first time on it.

    `group` and each array of times int64[n]. Returns each array of times moved and in that order, then the order
    (int64[n], indices into the arguments). PackError as `check_room` raises it.
    """
    offset_ns = _offsets(group, *times_ns)
    moved = [times + offset_ns for times in times_ns]
    order = np.lexsort((-moved[-1], moved[0]))
    return (*(times[order] for times in moved), order)


def _offsets(group: np.ndarray, *times_ns: np.ndarray) -> np.ndarray:
    lowest = min((int(times.min()) for times in times_ns if len(times)), default=0)
    length = max((int(times.max()) for times in times_ns if len(times)), default=0) - lowest + 1
    groups, number = np.unique(group, return_inverse=True)
    check_room(len(groups), length)
    return number.ravel() * length - lowest


def check_room(lines: int, length_ns: int) -> None:
    """PackError when so many lines of such a length, one behind the other, are more than a whole number holds."""
    if lines * length_ns > _LONGEST_NS:
        raise PackError(
            f"host times lie {length_ns / _DAY_NS:,.0f} days apart, which no capture lasts: the report is damaged; "
            "copy it again or capture again"
        )


def contained(start_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
    """Which intervals (int64[n]), in order of start and the longer first, lie wholly in an earlier one, bool[n]."""
    inside = np.zeros(len(start_ns), dtype=bool)
    if len(start_ns):
        latest_ns = np.maximum.accumulate(end_ns)[:-1]
        inside[1:] = (start_ns[1:] < latest_ns) & (end_ns[1:] <= latest_ns)
    return inside


class Lookup:
    """Finds the interval of a group that is open at a time; of several the one that started last.

    An interval is a group, a start and an end (not part of it), int64[n] each; `label`, int64[n], is what stands for
    each. PackError as `check_room` raises it.
    """

    def __init__(self, group: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray, label: np.ndarray) -> None:
        self._groups, number = np.unique(group, return_inverse=True)
        self._lowest = int(start_ns.min()) if len(start_ns) else 0
        self._length = (int(end_ns.max()) - self._lowest + 2) if len(start_ns) else 1
        check_room(len(self._groups), self._length)
        offset_ns = number.ravel() * self._length - self._lowest
        order = np.argsort(start_ns + offset_ns, kind="stable")
        self._label = label[order]
        self._start_ns = (start_ns + offset_ns)[order]
        self._end_ns = (end_ns + offset_ns)[order]
        self._latest_ns = np.maximum.accumulate(self._end_ns) if len(start_ns) else self._end_ns
        self._earlier = _outlasting(self._start_ns, self._end_ns, self._latest_ns)

    def find(self, group: np.ndarray, time_ns: np.ndarray) -> np.ndarray:
        """The label of the interval for each group and time (int64[m] both), int64[m]; -1 where none is open."""
        found = np.full(len(time_ns), -1, dtype=np.int64)
        if len(self._start_ns) == 0 or len(time_ns) == 0:
            return found
        number = np.minimum(np.searchsorted(self._groups, group), len(self._groups) - 1)
        rows = (self._groups[number] == group) & (time_ns >= self._lowest) & (time_ns < self._lowest + self._length - 1)
        rows = np.flatnonzero(rows)
        at_ns = time_ns[rows] + number[rows] * self._length - self._lowest
        place = np.searchsorted(self._start_ns, at_ns, side="right") - 1
        # Nothing that started before is still open: no need to look further back.
        hopeless = (place < 0) | (self._latest_ns[np.maximum(place, 0)] <= at_ns)
        rows, at_ns, place = rows[~hopeless], at_ns[~hopeless], place[~hopeless]
        while len(rows):
            # As many turns as ranges overlap, mostly one.
            hit = self._end_ns[place] > at_ns
            found[rows[hit]] = self._label[place[hit]]
            rows, at_ns, place = rows[~hit], at_ns[~hit], self._earlier[place[~hit]]
        return found


def enclosing(group: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
    """For each interval (int64[n]) the nearest one of its group that it lies in, an index, int64[n]; -1 for none.

    The first of equals holds the others. PackError as `check_room` raises it.
    """
    # Side by side, intervals of another group are over before this one starts.
    _, moved_end_ns, order = side_by_side(group, start_ns, end_ns)
    nearest = _nearest_earlier(moved_end_ns, 0)
    found = np.full(len(order), -1)
    found[order] = np.where(nearest >= 0, order[nearest], -1)
    return found


def _outlasting(start_ns: np.ndarray, end_ns: np.ndarray, latest_ns: np.ndarray) -> np.ndarray:
    """For each interval the nearest earlier one that ends later: all between are over when it is."""
    if len(start_ns) < 2 or (start_ns[1:] >= latest_ns[:-1]).all():
        return np.arange(-1, len(start_ns) - 1)
    return _nearest_earlier(end_ns, 1)


def _nearest_earlier(end_ns: np.ndarray, later_ns: int) -> np.ndarray:
    """For each the place of the nearest one before that ends at least so much later; -1 for none."""
    # A stack is linear where array passes are one for each level of nesting, and takes 0.1 us per interval.
    open_ones: list[int] = []
    ends, nearest = end_ns.tolist(), []
    for number, end in enumerate(ends):
        while open_ones and ends[open_ones[-1]] < end + later_ns:
            open_ones.pop()
        nearest.append(open_ones[-1] if open_ones else -1)
        open_ones.append(number)
    return np.array(nearest, dtype=np.int64)
