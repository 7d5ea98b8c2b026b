"""What host threads did while the GPU waited: profiler overhead, synchronising calls, other CUDA calls."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from recipes.base import intervals
from recipes.base.interval_lookup import check_room, contained
from recipes.base.memory import gather
from recipes.events.cuda_calls import SYNC, call_ids
from recipes.report import schema
from recipes.report.report import Report, numbers

Intervals = tuple[np.ndarray, np.ndarray]
# Times from here on are moved, which takes a copy, so that those of many threads fit on one line.
_SMALL_NS = 1 << 44


class HostActivity:
    """What host threads did: how much of an interval lay in profiler overhead, synchronising calls, any CUDA calls.

    `threads` are their global ids, int64 in order. Methods take one entry per interval, int64: a thread that is one of
    these, its start and end in ns. What lies outside the times in the report counts as nothing.
    """

    def __init__(self, report: Report, threads: np.ndarray, *, named: bool = False) -> None:
        """`named` keeps the names of calls too, for `held_by`, `waiting_call` and `calls_near`.

        `threads`: global ids, int64, in any order and repeated or not. PackError when the report's export is damaged
        or its host times lie farther apart than any capture lasts.
        """
        self.named = named
        self.threads = np.unique(threads)
        calls, line, syncs, name = _calls_on(report, self.threads, named=named)
        overhead, overhead_thread = _overhead(report)
        known = [times for times in (*calls, *overhead) if len(times)]
        # Events before the session's start have negative times, those of --ts-normalize count from 1970.
        self._lowest = min((int(times.min()) for times in known), default=0)
        self._length = max((int(times.max()) for times in known), default=0) - self._lowest + 1
        check_room(max(len(self.threads), 1), self._length)
        if not 0 <= self._lowest < _SMALL_NS:
            calls, overhead = ((start - self._lowest, end - self._lowest) for start, end in (calls, overhead))
        else:
            self._lowest, self._length = 0, self._length + self._lowest
        self._profiler = intervals.Coverage(*self._profiler_lines(overhead, overhead_thread))
        self._any = self._beside_profiler(calls, line)
        sync_calls = tuple(times[syncs] for times in calls)
        self._sync = self._beside_profiler(sync_calls, line[syncs])
        if named:
            self._syncs_named = _NamedCalls(*self._on_lines(sync_calls, line[syncs]), name[syncs])
            self._calls_named = _NamedCalls(*self._on_lines(calls, line), name)

    def _beside_profiler(self, calls: Intervals, line: np.ndarray) -> tuple[intervals.Coverage, intervals.Coverage]:
        """Coverage by calls, and by those parts of them that lie in profiler overhead."""
        merged = intervals.merge(*_ordered(*self._on_lines(calls, line)))
        inside = intervals.intersection(_touching(merged, self._profiler.merged), self._profiler.merged)
        return intervals.Coverage(*merged), intervals.Coverage(*inside)

    def _on_lines(self, calls: Intervals, line: np.ndarray) -> Intervals:
        """The calls, those of each thread on its own stretch of one line."""
        if len(self.threads) < 2:
            return calls
        offset_ns = line * np.int64(self._length)
        return calls[0] + offset_ns, calls[1] + offset_ns

    def _profiler_lines(self, overhead: Intervals, thread: np.ndarray) -> Intervals:
        """Profiler overhead on the line of its own thread; on all lines where its thread is not known.

        That of other threads held nobody up, as far as the report tells.
        """
        own = np.flatnonzero(np.isin(thread, self.threads))
        anywhere = np.flatnonzero(thread == 0)
        line = np.concatenate([np.searchsorted(self.threads, thread[own]),
                               np.repeat(np.arange(len(self.threads)), len(anywhere))])  # fmt: skip
        which = np.concatenate([own, np.tile(anywhere, len(self.threads))])
        return intervals.merge(*_ordered(*self._on_lines((overhead[0][which], overhead[1][which]), line)))

    def waiting_call(self, thread: np.ndarray, time_ns: np.ndarray) -> np.ndarray:
        """The synchronising call that each thread was in at a time: int32, a place in the report's strings, or -1."""
        start_ns, end_ns = self._place(thread, time_ns, time_ns + 1)
        return self._syncs_named.longest(start_ns, end_ns)[0]

    def held_by(self, thread: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of each interval on a thread: the CUDA call that took most of it, all calls of one name together; and how
        much, int64 ns. The call int32, a place in the report's strings; -1 where no call did."""
        return self._calls_named.longest(*self._place(thread, start_ns, end_ns))

    def calls_near(self, thread: int, start_ns: int, end_ns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The calls of a thread that touch an interval: start_ns, end_ns int64; name int32, a place in the report's
        strings, or -1."""
        line = int(np.searchsorted(self.threads, thread))
        first, last = (int(time[0]) for time in self._place(*(np.array([x]) for x in (thread, start_ns, end_ns))))
        starts_ns, ends_ns, name = self._calls_named.touching(first, last)
        moved_ns = self._lowest - line * self._length
        return starts_ns + moved_ns, ends_ns + moved_ns, name

    def split(self, thread: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray) -> tuple[np.ndarray, ...]:
        """Of each interval on a thread, int64: ns in profiler overhead, in synchronising calls, in other calls.

        They are exclusive, in this order.
        """
        span = self._place(thread, start_ns, end_ns)
        profiler = self._profiler.of(*span)
        sync, any_call = (whole.of(*span) - inside.of(*span) for whole, inside in (self._sync, self._any))
        return profiler, sync, any_call - sync

    def profiler_ns(self, thread: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
        """Of each interval on a thread: ns in profiler overhead, int64."""
        return self._profiler.of(*self._place(thread, start_ns, end_ns))

    def _place(self, thread: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray) -> Intervals:
        line = np.minimum(np.searchsorted(self.threads, thread), max(len(self.threads) - 1, 0))
        # Beyond the last event nothing is known, and the next thread's line begins.
        return tuple(
            np.clip(times - self._lowest, 0, self._length - 1) + line * self._length for times in (start_ns, end_ns)
        )


class _NamedCalls:
    """Calls on one line, and the name of each."""

    def __init__(self, starts_ns: np.ndarray, ends_ns: np.ndarray, name: np.ndarray) -> None:
        order = intervals.by_start(starts_ns)
        starts_ns, ends_ns, name = starts_ns[order], ends_ns[order], name[order]
        self._all = starts_ns, ends_ns, name
        if not (starts_ns[1:] >= ends_ns[:-1]).all():
            # A call inside another one is that one. What is left is in order of end too.
            order = np.lexsort((-ends_ns, starts_ns))
            order = order[~contained(starts_ns[order], ends_ns[order])]
            starts_ns, ends_ns, name = starts_ns[order], ends_ns[order], name[order]
        self._starts_ns, self._ends_ns, self._name = starts_ns, ends_ns, name

    def touching(self, start_ns: int, end_ns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Start, end and name of all calls that touch an interval, in order of start."""
        starts_ns, ends_ns, name = self._all
        # What contains others ends later than they begin: look back as far as the outermost ones.
        outer = np.searchsorted(self._ends_ns, start_ns)
        first = np.searchsorted(starts_ns, self._starts_ns[outer]) if outer < len(self._ends_ns) else len(starts_ns)
        rows = slice(first, np.searchsorted(starts_ns, end_ns, side="right"))
        near = ends_ns[rows] >= start_ns
        return starts_ns[rows][near], ends_ns[rows][near], name[rows][near]

    def longest(self, start_ns: np.ndarray, end_ns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The name whose calls overlap each interval most, -1 for none, and the ns."""
        first = np.searchsorted(self._ends_ns, start_ns, side="right")
        count = np.maximum(np.searchsorted(self._starts_ns, end_ns, side="left") - first, 0)
        found, most_ns = np.full(len(count), -1, dtype=np.int32), np.zeros(len(count), dtype=np.int64)
        # Mostly it is one call, and there is nothing to add up.
        alone = np.flatnonzero(count == 1)
        call = first[alone]
        most_ns[alone] = self._overlap_ns(call, start_ns[alone], end_ns[alone])
        found[alone] = np.where(most_ns[alone] > 0, self._name[call], -1)
        several = np.flatnonzero(count > 1)
        count = count[several]
        # Each of the other intervals beside every call that may overlap it.
        which = np.repeat(several, count)
        call = np.arange(len(which)) + np.repeat(first[several] - (np.cumsum(count) - count), count)
        overlap_ns, name = self._overlap_ns(call, start_ns[which], end_ns[which]), self._name[call]
        order = np.lexsort((name, which))
        which, name, overlap_ns = which[order], name[order], overlap_ns[order]
        begins = np.flatnonzero((np.diff(which, prepend=-1) != 0) | (np.diff(name, prepend=-1) != 0))
        if len(begins):
            which, name, overlap_ns = which[begins], name[begins], np.add.reduceat(overlap_ns, begins)
            np.maximum.at(most_ns, which, overlap_ns)
            best = np.flatnonzero((overlap_ns > 0) & (overlap_ns == most_ns[which]))
            found[which[best]] = name[best]
        return found, most_ns

    def _overlap_ns(self, call: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
        return np.maximum(np.minimum(self._ends_ns[call], end_ns) - np.maximum(self._starts_ns[call], start_ns), 0)


def _touching(many: Intervals, few: Intervals) -> Intervals:
    """Those of many disjoint intervals in order that touch one of a few such."""
    first = np.searchsorted(many[1], few[0], side="right")
    last = np.maximum(np.searchsorted(many[0], few[1], side="left"), first)
    rows = np.unique(np.concatenate([np.arange(a, b) for a, b in zip(first, last, strict=True)] or [first]))
    return many[0][rows], many[1][rows]


def _ordered(starts_ns: np.ndarray, ends_ns: np.ndarray) -> Intervals:
    order = intervals.by_start(starts_ns)
    return starts_ns[order], ends_ns[order]


def _overhead(report: Report) -> tuple[Intervals, np.ndarray]:
    """Profiler overhead: start and end, and the thread of each, 0 where the report does not tell."""
    rows = report.read(schema.OVERHEAD, ["start_ns", "end_ns", "global_tid"])
    start_ns, end_ns, thread = (numbers(rows[name], 0) for name in rows.column_names)
    return (start_ns, np.maximum(start_ns, end_ns)), thread


def _calls_on(
    report: Report, threads: np.ndarray, *, named: bool
) -> tuple[Intervals, np.ndarray, np.ndarray, np.ndarray]:
    """The API calls of some threads: start and end; the thread of each, as a place in `threads`; which synchronise;
    the name of each, as a place in the report's strings, none when not `named`."""
    waits = call_ids(report, SYNC)

    def pieces() -> Iterator[tuple[np.ndarray, ...]]:
        for batch in report.batches(schema.API_CALLS, ["start_ns", "end_ns", "global_tid", "name"]):
            start_ns, end_ns, tid, name = (numbers(column, 0) for column in batch.columns)
            own = np.isin(tid, threads)
            line, text = np.searchsorted(threads, tid[own]), name[own]
            known = (report.strings.positions(text),) if named else ()
            yield start_ns[own], np.maximum(start_ns, end_ns)[own], line, np.isin(text, waits), *known

    types = [np.int64, np.int64, np.int16 if len(threads) < 1 << 15 else np.int32, bool, *([np.int32] if named else [])]
    start_ns, end_ns, line, waiting, *name = gather(pieces(), report.count(schema.API_CALLS), types)
    return (start_ns, end_ns), line, waiting, name[0] if named else np.zeros(0, dtype=np.int32)
