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

from recipes.base import intervals
from recipes.events.gpu_work import GpuWork
from recipes.events.host_activity import HostActivity
from recipes.events.launches import NONE, Launches

CAUSES = ("profiler", "graph", "sync", "api", "host", "launch", "queued", "unknown")
#: Operations looked at together: what is made of them stays small, however long the report.
_OPERATIONS_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class Gaps:
    """Some gaps of one device, in order: start_ns, end_ns int64; before, after int32: the operations at their edges."""

    start_ns: np.ndarray
    end_ns: np.ndarray
    before: np.ndarray
    after: np.ndarray

    def __len__(self) -> int:
        return len(self.start_ns)


def find_gaps(work: GpuWork, rows: np.ndarray | slice) -> Iterator[Gaps]:
    """The gaps in the union of some operations of one device, in order, some at a time: there can be millions.

    `rows` selects the operations: bool per operation, int64 places, or a slice. Copies and graph executions fill time
    as kernels do.
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


def split_by_cause(work: GpuWork, gaps: Gaps, launches: Launches, host: HostActivity) -> dict[str, np.ndarray]:
    """The ns of each gap by cause, in the order of CAUSES, int64 per gap; they add up to the gap."""
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


def sum_inside(gaps: Gaps, values_ns: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
    """Values (int64, one row per gap, any columns) summed over the gaps inside each interval, int64, one row each.

    Intervals (int64, ns) begin and end with operations of the device, so no gap is cut by an edge.
    """
    before = np.zeros((len(values_ns) + 1, values_ns.shape[1]), dtype=np.int64)
    np.cumsum(values_ns, axis=0, out=before[1:])
    first = np.searchsorted(gaps.start_ns, start_ns, side="left")
    last = np.searchsorted(gaps.end_ns, end_ns, side="right")
    return before[np.maximum(last, first)] - before[first]
