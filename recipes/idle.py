"""When a device ran nothing, and what it waited for.

A gap ends with an operation, whose launch call took some time on some host thread. The gap's time is split by what
stood in the way, exclusively and in the order of CAUSES: the profiler itself; nothing but the edge between two nodes
of one graph launch; then, before the call began, what its thread was doing (a synchronising call, another CUDA call,
no CUDA call at all); the call itself; and after the call, the GPU's own queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from recipes import intervals
from recipes.gpu_work import GpuWork
from recipes.launches import NONE, Launches
from recipes.memory import gather
from recipes.report import schema
from recipes.report.report import Report, numbers

Intervals = tuple[np.ndarray, np.ndarray]
CAUSES = ("profiler", "graph", "sync", "api", "host", "launch", "queued", "unknown")
_OPERATIONS_AT_ONCE = 1 << 18
# Calls that wait for the GPU: cudaStreamSynchronize, cuEventSynchronize, cudaMemcpy; but not cudaMemcpyAsync.
_SYNCHRONISING, _ASYNCHRONOUS = r"(?i)^cu(da)?(\w*Synchronize|(Memcpy|Memset)\w*)", r"(?i)Async"


@dataclass(frozen=True)
class Gaps:
    """Some gaps of one device, in order: start_ns, end_ns int64; before, after: the operations at their edges."""

    start_ns: np.ndarray
    end_ns: np.ndarray
    before: np.ndarray
    after: np.ndarray

    def __len__(self) -> int:
        return len(self.start_ns)


def find_gaps(work: GpuWork, rows: np.ndarray | slice) -> Iterator[Gaps]:
    """The gaps in the union of some operations of one device, in order, some at a time: there can be millions.

    Copies and graph executions fill time as kernels do.
    """
    index = np.arange(len(work), dtype=np.int32)[rows]
    order = intervals.by_start(work.start_ns[rows])
    starts_ns, ends_ns, index = work.start_ns[rows][order], work.end_ns[rows][order], index[order]
    # The end that reaches furthest so far, and its operation; before the first operation there is no gap.
    reach_ns, furthest = starts_ns[:1], index[:1]
    for first in range(0, len(index), _OPERATIONS_AT_ONCE):
        some = slice(first, first + _OPERATIONS_AT_ONCE)
        start_ns, operation = starts_ns[some], np.concatenate([furthest, index[some]])
        end_ns = np.concatenate([reach_ns, ends_ns[some]])
        latest_ns = np.maximum.accumulate(end_ns)
        # The operation that ends last so far: where the running maximum was last raised.
        raised = np.maximum.accumulate(np.where(end_ns == latest_ns, np.arange(len(end_ns)), 0))
        gap = np.flatnonzero(start_ns > latest_ns[:-1])
        yield Gaps(latest_ns[gap], start_ns[gap], operation[raised[gap]], operation[gap + 1])
        reach_ns, furthest = latest_ns[-1:], operation[raised[-1:]]


class HostActivity:
    """What host threads did: how much of an interval lay in profiler overhead, synchronising calls, any CUDA calls."""

    def __init__(self, report: Report, threads: np.ndarray) -> None:
        self._threads = np.unique(threads)
        calls, line, syncs = _calls_on(report, self._threads)
        overhead = intervals.merge(*_ordered(*_times(report, schema.OVERHEAD)))
        known = [times for times in (*calls, *overhead) if len(times)]
        # Events before the session's start have negative times.
        self._lowest = min((int(times.min()) for times in known), default=0)
        self._length = max((int(times.max()) for times in known), default=0) - self._lowest + 1
        if self._lowest < 0:
            calls, overhead = (tuple(times - self._lowest for times in pair) for pair in (calls, overhead))
        else:
            self._lowest, self._length = 0, self._length + self._lowest
        self._profiler = _Line(overhead, len(self._threads), self._length)
        self._any = self._beside_profiler(calls, line)
        self._sync = self._beside_profiler(tuple(times[syncs] for times in calls), line[syncs])

    def _beside_profiler(self, calls: Intervals, line: np.ndarray) -> tuple[intervals.Coverage, intervals.Coverage]:
        """Coverage by calls, and by those parts of them that lie in profiler overhead."""
        if len(self._threads) > 1:
            offset_ns = line * np.int64(self._length)
            calls = tuple(times + offset_ns for times in calls)
        merged = intervals.merge(*_ordered(*calls))
        inside = intervals.intersection(_touching(merged, self._profiler.intervals), self._profiler.intervals)
        return intervals.Coverage(*merged), intervals.Coverage(*inside)

    def split(self, thread: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray) -> tuple[np.ndarray, ...]:
        """Of each interval on a thread: ns in profiler overhead, then in synchronising calls, then in other calls."""
        span = self._place(thread, start_ns, end_ns)
        profiler = self._profiler.coverage.of(*span)
        sync, any_call = (whole.of(*span) - inside.of(*span) for whole, inside in (self._sync, self._any))
        return profiler, sync, any_call - sync

    def profiler_ns(self, thread: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
        """Of each interval: ns in profiler overhead."""
        return self._profiler.coverage.of(*self._place(thread, start_ns, end_ns))

    def _place(self, thread: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray) -> Intervals:
        line = np.minimum(np.searchsorted(self._threads, thread), max(len(self._threads) - 1, 0))
        # Beyond the last event nothing is known, and the next thread's line begins.
        return tuple(
            np.clip(times - self._lowest, 0, self._length - 1) + line * self._length for times in (start_ns, end_ns)
        )


class _Line:
    """Intervals that hold for all threads, repeated on each thread's line."""

    def __init__(self, merged: Intervals, lines: int, length: int) -> None:
        offset = np.repeat(np.arange(lines), len(merged[0])) * length
        self.intervals = tuple(np.tile(times, lines) + offset for times in merged)
        self.coverage = intervals.Coverage(*self.intervals)


def _touching(many: Intervals, few: Intervals) -> Intervals:
    """Those of many disjoint intervals in order that touch one of a few such."""
    first = np.searchsorted(many[1], few[0], side="right")
    last = np.maximum(np.searchsorted(many[0], few[1], side="left"), first)
    rows = np.unique(np.concatenate([np.arange(a, b) for a, b in zip(first, last, strict=True)] or [first]))
    return many[0][rows], many[1][rows]


def _ordered(starts_ns: np.ndarray, ends_ns: np.ndarray) -> Intervals:
    order = intervals.by_start(starts_ns)
    return starts_ns[order], ends_ns[order]


def split_by_cause(work: GpuWork, gaps: Gaps, launches: Launches, host: HostActivity) -> dict[str, np.ndarray]:
    """The ns of each gap by cause, int64 per gap and cause; they add up to the gap."""
    launch = launches.of_operation[gaps.after]
    known = launch != NONE
    place = np.where(known, launch, 0)
    begun_ns, done_ns, thread = (
        times[place] if len(times) else np.zeros(len(gaps), dtype=np.int64)
        for times in (launches.start_ns, launches.end_ns, launches.thread)
    )
    within = known & (launches.of_operation[gaps.before] == launch)
    # Where nothing is known of the host, the whole gap lies before.
    before_ns = np.where(known, np.clip(begun_ns, gaps.start_ns, gaps.end_ns), gaps.end_ns)
    during_ns = np.where(known, np.clip(done_ns, before_ns, gaps.end_ns), gaps.end_ns)
    profiler, sync, api = host.split(thread, gaps.start_ns, before_ns)
    in_launch = host.profiler_ns(thread, before_ns, during_ns)
    in_queue = host.profiler_ns(thread, during_ns, gaps.end_ns)
    length_ns = gaps.end_ns - gaps.start_ns
    parts = {
        "profiler": profiler + in_launch + in_queue,
        "sync": sync,
        "api": api,
        "host": before_ns - gaps.start_ns - profiler - sync - api,
        "launch": during_ns - before_ns - in_launch,
        "queued": gaps.end_ns - during_ns - in_queue,
    }
    return _exclusive(parts, length_ns, within, known)


def _exclusive(parts: dict, length_ns: np.ndarray, within: np.ndarray, known: np.ndarray) -> dict[str, np.ndarray]:
    """The parts as they count: between nodes of one graph launch, and without a launch row, the host tells nothing."""
    rest_ns = length_ns - parts["profiler"]
    counted = {"profiler": parts["profiler"], "graph": np.where(within, rest_ns, 0)}
    for cause in ("sync", "api", "host", "launch", "queued"):
        counted[cause] = np.where(known & ~within, parts[cause], 0)
    counted["unknown"] = np.where(known, 0, rest_ns)
    return {cause: counted[cause] for cause in CAUSES}


def _times(report: Report, table: schema.SourceTable) -> tuple[np.ndarray, np.ndarray]:
    rows = report.read(table, ["start_ns", "end_ns"])
    start_ns, end_ns = (numbers(rows[name], 0) for name in rows.column_names)
    return start_ns, np.maximum(start_ns, end_ns)


def _calls_on(report: Report, threads: np.ndarray) -> tuple[Intervals, np.ndarray, np.ndarray]:
    """The API calls of some threads: start and end; the thread of each, as a place in `threads`; which synchronise."""
    waits = _sync_name_ids(report)

    def pieces() -> Iterator[tuple[np.ndarray, ...]]:
        for batch in report.batches(schema.API_CALLS, ["start_ns", "end_ns", "global_tid", "name"]):
            start_ns, end_ns, tid, name = (numbers(column, 0) for column in batch.columns)
            own = np.isin(tid, threads)
            line = np.searchsorted(threads, tid[own])
            yield start_ns[own], np.maximum(start_ns, end_ns)[own], line, np.isin(name[own], waits)

    types = (np.int64, np.int64, np.int16 if len(threads) < 1 << 15 else np.int32, bool)
    start_ns, end_ns, line, waiting = gather(pieces(), report.count(schema.API_CALLS), types)
    return (start_ns, end_ns), line, waiting


def _sync_name_ids(report: Report) -> np.ndarray:
    strings = report.strings
    named = pc.match_substring_regex(strings.values, _SYNCHRONISING)
    waits = pc.and_not(named, pc.match_substring_regex(strings.values, _ASYNCHRONOUS))
    return strings.ids[waits.fill_null(False).to_numpy(zero_copy_only=False)]
