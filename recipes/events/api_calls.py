"""The CUDA API calls of all processes, in pieces: there can be many more of them than GPU operations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from recipes.events.cuda_calls import CAPTURE_BEGIN, CAPTURE_END, GRAPH_LAUNCH, LAUNCH, call_ids
from recipes.events.devices import pid_of
from recipes.events.graph_captures import captures
from recipes.events.launch_ids import NONE, LaunchIds
from recipes.report import schema
from recipes.report.report import Report, numbers

_COLUMNS = ("global_tid", "correlation_id", "start_ns", "name")
_MORE = ("end_ns", "return_value")


@dataclass(frozen=True)
class ApiCalls:
    """Some API calls. thread (global id), pid, correlation_id, start_ns, name (string id) int64; launch int32, the
    number of the launch that the call is, NONE for a call without recorded work; launching bool, whether it is meant to
    put work on the GPU. end_ns and status (0: it succeeded) int64, empty where they were not asked for.
    """

    thread: np.ndarray
    pid: np.ndarray
    correlation_id: np.ndarray
    start_ns: np.ndarray
    name: np.ndarray
    launch: np.ndarray
    launching: np.ndarray
    end_ns: np.ndarray
    status: np.ndarray


class ApiReader:
    """One pass over the API calls. After it: `captures`, as graph_captures.captures gives them, and `graph_launches`,
    how many calls launched a graph."""

    def __init__(self, report: Report, ids: LaunchIds) -> None:
        self._report, self._ids = report, ids
        self._launching, self._graphs = call_ids(report, LAUNCH), call_ids(report, GRAPH_LAUNCH)
        self._begins, self._ends = call_ids(report, CAPTURE_BEGIN), call_ids(report, CAPTURE_END)
        self.captures = captures(*(np.zeros(0, dtype=kind) for kind in (np.int64, np.int64, bool)))
        self.graph_launches = 0

    def pieces(self, *, ends: bool) -> Iterator[ApiCalls]:
        """The calls, piece by piece; with end and status if `ends`. PackError when the report's export is damaged."""
        edges = [(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=bool))]
        for batch in self._report.batches(schema.API_CALLS, [*_COLUMNS, *(_MORE if ends else ())]):
            calls = self._calls(batch)
            self.graph_launches += int(np.isin(calls.name, self._graphs).sum()) if len(self._graphs) else 0
            if len(self._begins):
                rows = np.flatnonzero(np.isin(calls.name, np.append(self._begins, self._ends)))
                edges.append((calls.thread[rows], calls.start_ns[rows], np.isin(calls.name[rows], self._ends)))
            yield calls
        self.captures = captures(*(np.concatenate(column) for column in zip(*edges, strict=True)))

    def _calls(self, batch: pa.Table) -> ApiCalls:
        thread, correlation_id, start_ns, name, *more = (numbers(column, 0) for column in batch.columns)
        pid = pid_of(thread)
        launch = np.full(len(pid), NONE, dtype=np.int32)
        for process in self._ids.processes:
            own = pid == process
            if own.all():
                launch = self._ids.of_calls(process, correlation_id)
            elif own.any():
                launch[own] = self._ids.of_calls(process, correlation_id[own])
        # A call of which one of these is not known launched nothing that can be found.
        for column in ("global_tid", "correlation_id", "start_ns"):
            if batch[column].null_count:
                launch[batch[column].is_null().to_numpy()] = NONE
        end_ns, status = more or (np.zeros(0, dtype=np.int64),) * 2
        return ApiCalls(
            thread, pid, correlation_id, start_ns, name, launch, np.isin(name, self._launching), end_ns, status
        )


def count_graph_launches(report: Report) -> int:
    """How many API calls launched a CUDA graph. PackError when the report's export is damaged."""
    ids = call_ids(report, GRAPH_LAUNCH)
    # The strings tell without reading millions of calls when no graph is launched at all.
    pieces = report.batches(schema.API_CALLS, ["name"]) if len(ids) else ()
    return sum(int(np.isin(numbers(batch["name"], 0), ids).sum()) for batch in pieces)
