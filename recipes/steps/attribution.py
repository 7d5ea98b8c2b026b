"""Which step each GPU operation belongs to, by the API call that launched it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from recipes.base.interval_lookup import Lookup
from recipes.events.devices import pid_of
from recipes.events.gpu_work import GpuWork, read_correlation
from recipes.events.graph_captures import capture_edge_ids, capture_edges, captures, while_capturing
from recipes.events.launches import LaunchIds, LaunchTable, api_calls
from recipes.report.report import Report
from recipes.steps.steps import Steps

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


_NO_CALLS = (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


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

    @cached_property
    def working(self) -> np.ndarray:
        """Which steps have operations, bool per step."""
        return np.bincount(self.step[self.step >= 0], minlength=len(self.launches)) > 0


def attribute(report: Report, work: GpuWork, steps: Steps, table: LaunchTable | None = None) -> Attribution:
    """Attributes the operations of a report to steps, and collects their launches on the way if a table is given.

    Calls are streamed: there can be many more of them than operations.
    """
    code = np.full(len(work), NO_LAUNCH * len(WAYS), dtype=np.int32)
    launches, lost = np.zeros(len(steps), dtype=np.int64), np.zeros(len(steps), dtype=np.int64)
    resolver, launch_names, edge_ids = _Resolver(steps), launch_name_ids(report), capture_edge_ids(report)
    columns = ["start_ns", "name"] if table is None else ["start_ns", "name", "end_ns"]
    for process, rows, correlation_id in read_correlation(report, work):
        ids = LaunchIds(correlation_id)
        of_operation = ids.places(correlation_id)
        # As long as the report, and known by its places now.
        del correlation_id
        if table is not None:
            table.open(ids)
        of_launch = np.full(len(ids), NO_LAUNCH * len(WAYS), dtype=np.int32)
        unrecorded, edges = [_NO_CALLS], [(*_NO_CALLS, np.zeros(0, dtype=bool))]
        for thread, call_id, start_ns, name, *end_ns in api_calls(report, process, *columns):
            place = ids.places(call_id)
            working = place >= 0
            place = place[working]
            if table is not None:
                names = report.strings.positions(name[working])
                # A call without a usable end counts as one that took no time.
                done_ns = np.maximum(start_ns, end_ns[0])[working]
                table.fill(place, start_ns[working], done_ns, thread[working], names)
            of_launch[place] = resolver.resolve(thread[working], start_ns[working])
            silent = np.flatnonzero(~working)
            silent = silent[np.isin(name[silent], launch_names)]
            unrecorded.append((thread[silent], start_ns[silent]))
            at, ends = capture_edges(name, edge_ids)
            edges.append((thread[at], start_ns[at], ends))
        silent_thread, silent_ns = (np.concatenate(column) for column in zip(*unrecorded, strict=True))
        spans = captures(*(np.concatenate(column) for column in zip(*edges, strict=True)))
        kept = ~while_capturing(pid_of(silent_thread), silent_ns, spans)
        lost += _per_step(resolver.resolve(silent_thread[kept], silent_ns[kept]), len(steps))
        if table is not None:
            table.close(rows, of_operation)
        code[rows] = of_launch[of_operation]
        launches += _per_step(of_launch, len(steps))
    way = (code % len(WAYS)).astype(np.int8)
    way[code < 0] = -1
    code //= len(WAYS)
    return Attribution(code, way, launches, lost)


def _per_step(code: np.ndarray, count: int) -> np.ndarray:
    """How many of the codes name each step."""
    return np.bincount(code[code >= 0] // len(WAYS), minlength=count)


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


def launch_name_ids(report: Report) -> np.ndarray:
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
