"""The API call behind each GPU operation: when it was issued, by which thread."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recipes.events.api_calls import ApiCalls
from recipes.events.launch_ids import NONE, LaunchIds
from recipes.report.report import Report


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
    """Collects the calls of launches while all API calls go by."""

    def __init__(self, report: Report, ids: LaunchIds) -> None:
        self._strings, self._ids = report.strings, ids
        self._start_ns, self._end_ns, self._thread = (np.zeros(len(ids), dtype=np.int64) for _ in range(3))
        self._name = np.full(len(ids), NONE, dtype=np.int32)
        self._seen = np.zeros(len(ids), dtype=bool)

    def take(self, calls: ApiCalls) -> None:
        """Notes the launches among some calls."""
        working = calls.launch != NONE
        launch, start_ns = calls.launch[working], calls.start_ns[working]
        self._seen[launch] = True
        self._start_ns[launch] = start_ns
        # A call without a usable end counts as one that took no time.
        self._end_ns[launch] = np.maximum(start_ns, calls.end_ns[working])
        self._thread[launch] = calls.thread[working]
        self._name[launch] = self._strings.positions(calls.name[working])

    def launches(self) -> Launches:
        """All launches; those of which no call went by are NONE for their operations."""
        of_operation = self._ids.of_operation
        of_operation = np.where(self._seen[of_operation], of_operation, NONE) if len(of_operation) else of_operation
        return Launches(of_operation, self._start_ns, self._end_ns, self._thread, self._name)
