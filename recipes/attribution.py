"""Which step each GPU operation belongs to, by the API call that launched it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from recipes.devices import pid_of
from recipes.gpu_work import GpuWork, read_correlation
from recipes.report import schema
from recipes.report.report import Report
from recipes.steps import Steps
from recipes.timeline import Lookup

#: An operation in no step; one whose launch is not in the report.
OUTSIDE, NO_LAUNCH = -1, -2
#: How an operation came to its step: launched by the step's own thread, by another thread of the process that has
#: no steps (PyTorch launches the backward pass so), or while a start/end range was open in the process, by a thread
#: that has no ranges of its own, such as a data loader has.
WAYS = ("same thread", "other thread", "time")
# Calls that put work on the GPU; with runtime and driver prefix, and a version behind.
_LAUNCH_CALLS = (
    "LaunchKernel",
    "LaunchKernelExC",
    "LaunchKernelEx",
    "LaunchCooperativeKernel",
    "GraphLaunch",
    "Launch",
)


@dataclass(frozen=True)
class Attribution:
    """For each operation its step (int32; OUTSIDE, NO_LAUNCH) and way (int8, an index into WAYS; -1 in no step).

    For each step `launches`, the calls whose operations are in it, and `lost`, launch calls inside it of which the
    report has no operation.
    """

    step: np.ndarray
    way: np.ndarray
    launches: np.ndarray
    lost: np.ndarray


def attribute(report: Report, work: GpuWork, steps: Steps) -> Attribution:
    """Attributes the operations of a report to steps. Calls are streamed: there can be many more than operations."""
    code = np.full(len(work), NO_LAUNCH * len(WAYS), dtype=np.int32)
    launches, lost = np.zeros(len(steps), dtype=np.int64), np.zeros(len(steps), dtype=np.int64)
    resolver, launch_names = _Resolver(steps), _launch_name_ids(report)
    for process, rows, correlation_id in read_correlation(report, work):
        table = _Launches(correlation_id)
        for thread, call_id, start_ns, name in _calls(report, process):
            place = table.places(call_id)
            working = place >= 0
            table.code[place[working]] = resolver.resolve(thread[working], start_ns[working])
            silent = ~working & np.isin(name, launch_names)
            lost += _per_step(resolver.resolve(thread[silent], start_ns[silent]), len(steps))
        code[rows] = table.codes(correlation_id)
        launches += _per_step(table.code, len(steps))
    way = (code % len(WAYS)).astype(np.int8)
    way[code < 0] = -1
    code //= len(WAYS)
    return Attribution(code, way, launches, lost)


def _per_step(code: np.ndarray, count: int) -> np.ndarray:
    """How many of the codes name each step."""
    return np.bincount(code[code >= 0] // len(WAYS), minlength=count)


class _Launches:
    """The calls of one process that have operations, each with a code: step times ways plus way."""

    def __init__(self, correlation_id: np.ndarray) -> None:
        ordered = correlation_id if (correlation_id[1:] >= correlation_id[:-1]).all() else np.sort(correlation_id)
        first = np.ones(len(ordered), dtype=bool)
        first[1:] = ordered[1:] != ordered[:-1]
        self._ids = ordered[first]
        self.code = np.full(len(self._ids), NO_LAUNCH * len(WAYS), dtype=np.int32)

    def codes(self, correlation_id: np.ndarray) -> np.ndarray:
        """The code of each operation's call."""
        return self.code[np.searchsorted(self._ids, correlation_id)]

    def places(self, call_id: np.ndarray) -> np.ndarray:
        """Where in `code` each of any calls is; -1 for a call without operations."""
        at = np.minimum(np.searchsorted(self._ids, call_id), len(self._ids) - 1)
        return np.where(self._ids[at] == call_id, at, -1)


class _Resolver:
    """Finds the step of a call by its thread and start."""

    def __init__(self, steps: Steps) -> None:
        own, timed = np.flatnonzero(steps.by_thread), np.flatnonzero(~steps.by_thread)
        self._threads, self._busy_threads = np.unique(steps.global_tid[own]), steps.busy_threads
        self._by_thread = Lookup(steps.global_tid[own], steps.start_ns[own], steps.end_ns[own], own)
        self._by_process = Lookup(steps.pid[own], steps.start_ns[own], steps.end_ns[own], own)
        self._by_time = Lookup(steps.pid[timed], steps.start_ns[timed], steps.end_ns[timed], timed)

    def resolve(self, thread: np.ndarray, start_ns: np.ndarray) -> np.ndarray:
        """The code of each call: its step times ways plus the way; negative for none."""
        code = np.full(len(thread), OUTSIDE * len(WAYS), dtype=np.int32)
        pid = pid_of(thread)
        searches = (
            (self._by_thread, thread, np.ones(len(thread), dtype=bool)),
            (self._by_process, pid, ~np.isin(thread, self._threads)),
            (self._by_time, pid, ~np.isin(thread, self._busy_threads)),
        )
        # Each way decides what those before it could not.
        for way, (lookup, group, allowed) in enumerate(searches):
            open_rows = np.flatnonzero(allowed & (code < 0))
            step = lookup.find(group[open_rows], start_ns[open_rows])
            hit = step >= 0
            code[open_rows[hit]] = step[hit] * len(WAYS) + way
        return code


def _calls(report: Report, process: int) -> Iterator[tuple[np.ndarray, ...]]:
    """Thread, correlation id, start and name id of a process's API calls, piece by piece."""
    for batch in report.batches(schema.API_CALLS, ["global_tid", "correlation_id", "start_ns", "name"]):
        columns = [column.combine_chunks().fill_null(0).to_numpy() for column in batch.columns]
        own = pid_of(columns[0]) == process
        yield tuple(columns if own.all() else [column[own] for column in columns])


def _launch_name_ids(report: Report) -> np.ndarray:
    """The string ids of the API calls that launch work."""
    strings = report.strings
    texts = strings.values.to_pylist()
    hits = [
        text is not None
        and text.startswith(("cuda", "cu"))
        and text.removeprefix("cuda").removeprefix("cu").split("_v")[0].split("_ptsz")[0] in _LAUNCH_CALLS
        for text in texts
    ]
    return strings.ids[np.array(hits, dtype=bool)]
