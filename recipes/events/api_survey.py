"""What the API calls of a report tell as a whole: how many, which launched recorded work, which set things up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recipes.events.api_calls import ApiCalls, ApiReader
from recipes.events.cuda_calls import ALLOCATION, COPY, GRAPH_CREATION, LOAD, call_ids
from recipes.events.devices import pid_of
from recipes.events.gpu_work import Span
from recipes.events.graph_captures import while_capturing
from recipes.report.report import Report

#: Kinds of calls of starting up, by what they do. Freeing and allocating in stream order belong to steady work.
SETUP = {"loading code": LOAD, "allocating and freeing": ALLOCATION, "making CUDA graphs": GRAPH_CREATION}
_COPIED = (np.int64, np.int64, bool)
#: The place of loading code in SETUP.
LOADING = list(SETUP).index("loading code")
_LAUNCH, _SETUP = (np.int64, np.int64, bool, np.int64), (np.int64, np.int64, np.int8, np.int64, np.int64)


@dataclass(frozen=True)
class ApiSurvey:
    """What the API calls of a report tell.

    `calls`, `last_ns` and `last_work_ns`: for each process how many, the end of the last one, and that of its last
    operation, in ns; `graph_launches` those that launch graphs. Launch calls in order of start, those that failed or
    went into a graph under capture left out: launch_ns, launch_pid int64, recorded bool (the report has its work).
    Calls that set things up: setup_ns, setup_end_ns, setup_pid int64, setup_kind int8, a place in SETUP.
    `copy_calls`: how many calls of processes with work are copies or memsets, and `lost_copies` those of them without a
    record; those that went into a graph under capture are left out. The times in which threads captured graphs:
    capture_ns, capture_end_ns int64, capture_thread int64 (global ids).
    """

    calls: dict[int, int]
    last_ns: dict[int, int]
    last_work_ns: dict[int, int]
    graph_launches: int
    launch_ns: np.ndarray
    launch_pid: np.ndarray
    recorded: np.ndarray
    setup_ns: np.ndarray
    setup_end_ns: np.ndarray
    setup_kind: np.ndarray
    setup_pid: np.ndarray
    copy_calls: int
    lost_copies: int
    capture_ns: np.ndarray
    capture_end_ns: np.ndarray
    capture_thread: np.ndarray


class SurveyTaker:
    """Surveys API calls while they go by. Calls outside the time range count, but are no launch and no set-up in it."""

    def __init__(self, report: Report, span: Span) -> None:
        self._span = span
        self._setup = [call_ids(report, kind) for kind in SETUP.values()]
        self._calls: dict[int, int] = {}
        self._last_ns: dict[int, int] = {}
        self._launches: list[tuple[np.ndarray, ...]] = []
        self._setups: list[tuple[np.ndarray, ...]] = []
        self._copy = call_ids(report, COPY)
        self._copies: list[tuple[np.ndarray, ...]] = []

    def take(self, calls: ApiCalls) -> None:
        """Surveys some calls."""
        for process in np.unique(calls.pid).tolist():
            own = calls.pid == process
            self._calls[process] = self._calls.get(process, 0) + int(np.count_nonzero(own))
            self._last_ns[process] = max(self._last_ns.get(process, 0), int(calls.end_ns[own].max()))
        inside = self._span.touches(calls.start_ns, calls.end_ns)
        rows = np.flatnonzero(inside & (calls.status == 0) & calls.launching)
        recorded = calls.launch[rows] >= 0
        self._launches.append((calls.start_ns[rows], calls.thread[rows], recorded, calls.correlation_id[rows]))
        if len(self._copy):
            rows = np.flatnonzero(inside & (calls.status == 0) & np.isin(calls.name, self._copy))
            self._copies.append((calls.start_ns[rows], calls.thread[rows], calls.launch[rows] >= 0))
        for kind, ids in enumerate(self._setup):
            rows = np.flatnonzero(inside & np.isin(calls.name, ids)) if len(ids) else np.zeros(0, dtype=np.int64)
            codes = np.full(len(rows), kind, dtype=np.int8)
            ends_ns, pid = calls.end_ns[rows], calls.pid[rows]
            self._setups.append((calls.start_ns[rows], ends_ns, codes, pid, calls.correlation_id[rows]))

    def survey(self, reader: ApiReader, last_work_ns: dict[int, int]) -> ApiSurvey:
        """What was seen, after the reader's pass; `last_work_ns` is the end of each process's last operation."""
        spans = reader.captures
        launch_ns, launch_thread, recorded, launch_id = _joined(self._launches, _LAUNCH)
        copy_ns, copy_thread, copied = _joined(self._copies, _COPIED)
        copy_pid = pid_of(copy_thread)
        due = np.isin(copy_pid, list(last_work_ns)) & (copied | ~while_capturing(copy_pid, copy_ns, spans))
        setup_ns, setup_end_ns, setup_kind, setup_pid, setup_id = _joined(self._setups, _SETUP)
        once = _once(setup_pid, setup_id)
        setup_ns, setup_end_ns, setup_kind, setup_pid = (
            column[once] for column in (setup_ns, setup_end_ns, setup_kind, setup_pid)
        )
        launch_pid = pid_of(launch_thread)
        captured = while_capturing(launch_pid, launch_ns, spans)
        once = _once(launch_pid, launch_id)
        order = once[np.argsort(launch_ns[once], kind="stable")]
        order = order[~captured[order] | recorded[order]]
        return ApiSurvey(
            calls=self._calls,
            last_ns=self._last_ns,
            last_work_ns=last_work_ns,
            graph_launches=reader.graph_launches,
            launch_ns=launch_ns[order],
            launch_pid=launch_pid[order],
            recorded=recorded[order],
            setup_ns=setup_ns,
            setup_end_ns=np.maximum(setup_end_ns, setup_ns),
            setup_kind=setup_kind,
            setup_pid=setup_pid,
            copy_calls=int(np.count_nonzero(due)),
            lost_copies=int(np.count_nonzero(due & ~copied)),
            capture_thread=spans[0],
            capture_ns=spans[1],
            capture_end_ns=spans[2],
        )


def _once(pid: np.ndarray, correlation_id: np.ndarray) -> np.ndarray:
    """The first row of each call: where call stacks are recorded, a call has a row for each of its names."""
    order = np.lexsort((correlation_id, pid))
    again = (np.diff(pid[order]) == 0) & (np.diff(correlation_id[order]) == 0)
    return np.sort(order[np.append(True, ~again)[: len(order)]])


def _joined(parts: list[tuple[np.ndarray, ...]], types: tuple) -> list[np.ndarray]:
    empty = tuple(np.zeros(0, dtype=kind) for kind in types)
    return [np.concatenate(columns) for columns in zip(empty, *parts, strict=True)]
