"""What a gap's row tells beside its length: the work at its edges, the launch, and what the launching thread did."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from recipes.base.interval_lookup import Lookup
from recipes.base.tables import coded
from recipes.capture.capture import Capture
from recipes.events.cuda_calls import call_names
from recipes.events.gpu_work import MEMCPY
from recipes.events.host_activity import HostActivity
from recipes.events.idle import Gaps
from recipes.events.launches import NONE
from recipes.report import schema
from recipes.report.report import Report, numbers

# The lowest bits of Nsight's global thread ids are the thread's own.
_TID_MASK = 0xFFFFFF


class GapColumns:
    """Looks up these columns for gaps of a capture that holds launches and ranges."""

    def __init__(self, capture: Capture, host: HostActivity) -> None:
        self._work, self._launches, self._host = capture.work, capture.launches, host
        ranges = capture.ranges
        own = np.flatnonzero(ranges.by_thread)
        self._innermost = Lookup(ranges.global_tid[own], ranges.start_ns[own], ranges.end_ns[own], ranges.text[own])
        self._call_of_string, self._calls = call_names(capture.report)
        self._threads = pa.array(thread_names(capture.report, host.threads), pa.string())
        self._names, self._ranges = pa.array(self._work.names, pa.string()), pa.array(ranges.texts, pa.string())

    def waiting(self, gaps: Gaps) -> np.ndarray:
        """The call in which the launching thread waited for the GPU when each gap began, int32, a place in the report's
        strings; -1 for none.

        A synchronising call, or that of the copy that ended then: from unpinned memory it returns when it is done. Only
        where the launch came later: else the host was ahead, and its waiting cost nothing.
        """
        launches, before = self._launches, self._launches.of_operation[gaps.before]
        launch = launches.of_operation[gaps.after]
        late = (
            np.flatnonzero((launch != NONE) & (launches.start_ns[launch] >= gaps.start_ns))
            if len(launches.name)
            else np.empty(0, dtype=np.int64)
        )
        waiting = np.full(len(gaps), NONE, dtype=np.int32)
        if len(late):
            thread, start_ns, before = launches.thread[launch[late]], gaps.start_ns[late], before[late]
            in_copy = (self._work.kind[gaps.before[late]] == MEMCPY) & (before != NONE)
            in_copy &= (launches.thread[before] == thread) & (launches.end_ns[before] >= start_ns)
            sync = self._host.waiting_call(thread, start_ns)
            waiting[late] = np.where((sync == NONE) & in_copy, launches.name[before], sync)
        return waiting

    def columns(self, gaps: Gaps, called: np.ndarray, waiting: np.ndarray) -> dict[str, pa.Array]:
        """The columns, one entry per gap: coded texts, and held_ns int64. `called` (bool) says in which gaps the
        launching thread was in a CUDA call before the launch, `waiting` in which call it waited for the GPU when they
        began."""
        none = np.full(len(gaps), NONE, dtype=np.int64)
        api, thread, held_by, held_ns, nvtx = (none.copy() for _ in range(5))
        launch = self._launches.of_operation[gaps.after]
        known = np.flatnonzero(launch != NONE)
        launch = launch[known]
        tid, begun_ns, start_ns = self._launches.thread[launch], self._launches.start_ns[launch], gaps.start_ns[known]
        until_ns = np.clip(begun_ns, start_ns, gaps.end_ns[known])
        api[known], thread[known] = self._launches.name[launch], np.searchsorted(self._host.threads, tid)
        held = np.flatnonzero(called[known])
        held_by[known[held]], held_ns[known[held]] = self._host.held_by(tid[held], start_ns[held], until_ns[held])
        # Half-way through the time in which the host could have launched; at the launch when that came first.
        nvtx[known] = self._innermost.find(tid, np.minimum(begun_ns, (start_ns + until_ns) // 2))
        return {
            "previous": coded(self._work.name[gaps.before], self._names),
            "next": coded(self._work.name[gaps.after], self._names),
            "launch_api": coded(self._call_of_string[api], self._calls),
            "thread": coded(thread, self._threads),
            "held_by": coded(self._call_of_string[held_by], self._calls),
            "held_ns": pa.array(held_ns, mask=held_by == NONE),
            "sync_call": coded(self._call_of_string[waiting], self._calls),
            "nvtx": coded(nvtx, self._ranges),
        }


def thread_names(report: Report, threads: np.ndarray) -> list[str]:
    """`name (id)` of threads given by their global ids (int64[n]), or the id alone. PackError for a damaged export."""
    rows = report.read(schema.THREADS)
    named = dict(zip(numbers(rows["global_tid"], NONE).tolist(), rows["name"].to_pylist(), strict=True))
    ids = [(named.get(thread), thread & _TID_MASK) for thread in threads.tolist()]
    return [f"{name} ({number})" if name else str(number) for name, number in ids]
