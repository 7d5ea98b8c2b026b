"""The API call behind each GPU operation: when it was issued, by which thread."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from recipes.events.devices import pid_of
from recipes.report import schema
from recipes.report.report import Report, numbers

#: An operation whose launch is not in the report.
NONE = -1
_IDS_AT_ONCE = 1 << 18
_TYPES = (np.int64, np.int64, np.int64, np.int32)


@dataclass(frozen=True)
class Launches:
    """The API calls that launched GPU work, and for each operation its call.

    `of_operation` int32, an index into the other arrays, NONE where the report has no such call. start_ns, end_ns
    int64; thread int64, a global thread id; name int32, a place in the report's strings, NONE for no name. A call of
    several operations, as a graph launch is, is here once.
    """

    of_operation: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    thread: np.ndarray
    name: np.ndarray


class LaunchTable:
    """Collects the launches of all processes while their calls go by."""

    def __init__(self, operations: int) -> None:
        self._of_operation = np.full(operations, NONE, dtype=np.int32)
        self._parts: list[tuple[np.ndarray, ...]] = []
        self._count = 0

    def open(self, ids: LaunchIds) -> None:
        """Begins with the launches of one process."""
        columns = (np.full(len(ids), NONE, dtype=np.int64), *(np.zeros(len(ids), dtype=kind) for kind in _TYPES[1:]))
        self._parts.append(columns)

    def fill(self, place: np.ndarray, *columns: np.ndarray) -> None:
        """Notes calls at their places: start_ns, end_ns, thread, name."""
        for column, values in zip(self._parts[-1], columns, strict=True):
            column[place] = values

    def close(self, rows: np.ndarray | slice, place: np.ndarray) -> None:
        """Ends a process: where its operations are, and the places of their launches."""
        seen = self._parts[-1][0] != NONE
        self._of_operation[rows] = np.where(seen[place], place + self._count, NONE)
        self._count += len(seen)

    def launches(self) -> Launches:
        """All launches."""
        empty = tuple(np.zeros(0, dtype=kind) for kind in _TYPES)
        parts = self._parts or [empty]
        columns = parts[0] if len(parts) == 1 else [np.concatenate(column) for column in zip(*parts, strict=True)]
        return Launches(self._of_operation, *columns)


class LaunchIds:
    """The distinct correlation ids of one process's operations, in order; the place of an id is what stands for it."""

    def __init__(self, correlation_id: np.ndarray) -> None:
        # Stable: the ids of each kind of operation are mostly in order, and that sort is fast on runs.
        ordered = np.sort(correlation_id, kind="stable")
        first = np.ones(len(ordered), dtype=bool)
        first[1:] = ordered[1:] != ordered[:-1]
        # Mostly every operation has a launch of its own: nothing to copy then.
        self._ids = ordered if first.all() else ordered[first]

    def __len__(self) -> int:
        return len(self._ids)

    def places(self, ids: np.ndarray) -> np.ndarray:
        """The place of each id, int32; NONE for an id that no operation has."""
        place = np.empty(len(ids), dtype=np.int32)
        for first in range(0, len(ids), _IDS_AT_ONCE):
            some = ids[first : first + _IDS_AT_ONCE]
            at = np.minimum(np.searchsorted(self._ids, some), len(self._ids) - 1)
            place[first : first + _IDS_AT_ONCE] = np.where(self._ids[at] == some, at, NONE)
        return place


def api_calls(report: Report, process: int, *columns: str) -> Iterator[tuple[np.ndarray, ...]]:
    """Columns of a process's API calls, piece by piece: there can be many more calls than operations.

    The first two are always the global thread id and the correlation id. A call of which one of these or its start is
    not known launched nothing that can be found.
    """
    for batch in report.batches(schema.API_CALLS, ["global_tid", "correlation_id", *columns]):
        told = [batch[name] for name in ("global_tid", "correlation_id", "start_ns") if name in batch.column_names]
        if any(column.null_count for column in told):
            batch = batch.filter(functools.reduce(pc.and_, map(pc.is_valid, told)))
        arrays = [numbers(column, 0) for column in batch.columns]
        own = pid_of(arrays[0]) == process
        yield tuple(arrays if own.all() else [array[own] for array in arrays])
