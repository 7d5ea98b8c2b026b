"""A number for each launch of GPU work, by which operations and API calls find each other."""

from __future__ import annotations

import numpy as np

from recipes.base.memory import distinct
from recipes.events.gpu_work import GpuWork, read_correlation
from recipes.report.report import Report

#: An operation whose launch is not in the report, a call that launched no recorded work.
NONE = -1
#: Calls looked up together: what is made of them stays small, however long the report.
_IDS_AT_ONCE = 1 << 18


class LaunchIds:
    """A number for each launch: the distinct pairs of process and correlation id that GPU operations have.

    `of_operation` int32, the launch of each operation; the launches of a process stand together, in order of id.
    `work_end_ns`: the end of each process's last operation. PackError when the report's export is damaged.
    """

    def __init__(self, report: Report, work: GpuWork) -> None:
        self.of_operation = np.zeros(len(work), dtype=np.int32)
        self._ids: dict[int, np.ndarray] = {}
        self._first: dict[int, int] = {}
        self._count = 0
        self.work_end_ns: dict[int, int] = {}
        for process, rows, correlation_id in read_correlation(report, work):
            # The ids of each kind of operation are mostly in order, and mostly every operation has its own.
            self._ids[process] = distinct(correlation_id)
            self._first[process] = self._count
            self.of_operation[rows] = self.of_calls(process, correlation_id)
            self._count += len(self._ids[process])
            if len(correlation_id):
                self.work_end_ns[process] = int(work.end_ns[rows].max())

    def __len__(self) -> int:
        return self._count

    @property
    def processes(self) -> list[int]:
        """The processes with GPU operations."""
        return list(self.work_end_ns)

    def of_calls(self, process: int, correlation_id: np.ndarray) -> np.ndarray:
        """The launch of each call (correlation id, int64) of a process, int32; NONE where no operation has the id."""
        ids, launch = self._ids.get(process), np.full(len(correlation_id), NONE, dtype=np.int32)
        if ids is None or not len(ids):
            return launch
        for first in range(0, len(launch), _IDS_AT_ONCE):
            some = correlation_id[first : first + _IDS_AT_ONCE]
            at = np.minimum(np.searchsorted(ids, some), len(ids) - 1)
            launch[first : first + _IDS_AT_ONCE] = np.where(ids[at] == some, at + self._first[process], NONE)
        return launch
