"""One step in every detail, for a picture: what the GPU ran, when it was idle, what the launching threads did."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from llm_idle_gaps.gap_columns import thread_names
from recipes.capture.capture import Capture
from recipes.events.cuda_calls import call_names
from recipes.events.gpu_work import MEMCPY, MEMSET, read_streams
from recipes.events.host_activity import HostActivity
from recipes.events.idle import CAUSES, find_gaps, split_by_cause
from recipes.events.launches import NONE
from recipes.steps.phases import DECODE_PHASES
from recipes.steps.projection import Projection

#: A picture of more operations is slow; of a longer step it shows the beginning.
_MOST = 2000
Events = dict[str, np.ndarray | list]


def median_step(
    capture: Capture, projection: Projection, entries: np.ndarray, edge: np.ndarray, host: HostActivity
) -> dict[str, np.ndarray | list]:
    """The columns of TIMELINE for the entries (int64) of one device; no rows without a step that counts.

    `edge` bool per step; start_ns of the columns counts from the step's start. PackError when the report is damaged.
    """
    parts: list[Events] = []
    entry = _median_entry(capture, projection, entries, edge)
    if entry is not None:
        parts = list(_events(capture, projection, entry, host))
    none = np.zeros(0, dtype=np.int64)
    start_ns, end_ns = (np.concatenate([none, *(part[name] for part in parts)]) for name in ("start_ns", "end_ns"))
    step, begin_ns = (0, 0) if entry is None else (projection.step[entry], projection.start_ns[entry])
    return {
        "step": np.full(len(start_ns), step, dtype=np.int64),
        **{name: [text for part in parts for text in part[name]] for name in ("lane", "name")},
        "start_ns": start_ns - begin_ns,
        "duration_ns": end_ns - start_ns,
    }


def _median_entry(capture: Capture, projection: Projection, entries: np.ndarray, edge: np.ndarray) -> int | None:
    """The median step by duration of the phase that took most time, of decode phases if there are any."""
    counted = entries[~edge[projection.step[entries]]] if len(entries) else entries
    if not len(counted):
        return None
    phases, phase = capture.steps.phases, capture.steps.phase[projection.step[counted]]
    decoding = np.isin(phase, [code for code, name in enumerate(phases) if name in DECODE_PHASES])
    if decoding.any():
        counted, phase = counted[decoding], phase[decoding]
    # Of phases that are there: all may have taken no time.
    _, place = np.unique(phase, return_inverse=True)
    leading = np.bincount(place, weights=projection.duration_ns[counted]).argmax()
    counted = counted[place == leading]
    order = np.argsort(projection.duration_ns[counted], kind="stable")
    return int(counted[order[(len(order) - 1) // 2]])


def _events(capture: Capture, projection: Projection, entry: int, host: HostActivity) -> Iterator[Events]:
    """Operations, gaps, calls and ranges."""
    work, launches = capture.work, capture.launches
    begin_ns, end_ns = projection.start_ns[entry], projection.end_ns[entry]
    # Also what began before the step and still runs.
    near = (work.device == projection.device[entry]) & (work.end_ns > begin_ns) & (work.start_ns < end_ns)
    rows = np.flatnonzero(near)
    rows = rows[np.argsort(work.start_ns[rows], kind="stable")][:_MOST]
    if len(rows) == _MOST:
        end_ns = work.end_ns[rows].max()
    yield _clipped(_operations(capture, rows), begin_ns, end_ns)
    for gaps in find_gaps(work, rows):
        split = split_by_cause(work, gaps, launches, host)
        cause = np.stack([split[name] for name in CAUSES], axis=1).argmax(axis=1)
        causes = [CAUSES[code] for code in cause.tolist()]
        yield {"lane": ["idle"] * len(causes), "name": causes, "start_ns": gaps.start_ns, "end_ns": gaps.end_ns}
    own = launches.of_operation[rows[projection.of_operation[rows] == entry]]
    own = own[own != NONE]
    if len(own):
        threads = np.unique(launches.thread[own])
        names = dict(zip(threads.tolist(), thread_names(capture.report, threads), strict=True))
        begin_ns = min(begin_ns, launches.start_ns[own].min())
        yield from _calls(capture, names, begin_ns, end_ns)
        yield _ranges(capture, names, begin_ns, end_ns)


def _clipped(events: Events, begin_ns: int, end_ns: int) -> Events:
    return {**events, **{name: np.clip(events[name], begin_ns, end_ns) for name in ("start_ns", "end_ns")}}


def _operations(capture: Capture, rows: np.ndarray) -> Events:
    work = capture.work
    streams = read_streams(capture.report, work)
    # Of a capture that was cut to a time range it is not known where its rows came from.
    stream = streams[rows].tolist() if len(streams) == len(work) else [-1] * len(rows)
    lanes = [
        f"GPU stream {number}" if number >= 0 else "GPU copies" if kind in (MEMCPY, MEMSET) else "GPU"
        for number, kind in zip(stream, work.kind[rows].tolist(), strict=True)
    ]
    names = [work.short_names[code] for code in work.name[rows].tolist()]
    return {"lane": lanes, "name": names, "start_ns": work.start_ns[rows], "end_ns": work.end_ns[rows]}


def _calls(capture: Capture, names: dict[int, str], begin_ns: int, end_ns: int) -> Iterator[Events]:
    """The CUDA calls of threads; `names` by their global ids."""
    call_of_string, texts = call_names(capture.report)
    for thread, thread_name in names.items():
        start_ns, done_ns, name = (some[: 2 * _MOST] for some in capture.host.calls_near(thread, begin_ns, end_ns))
        code = call_of_string[name]
        yield {
            "lane": [f"calls of {thread_name}"] * len(code),
            "name": [texts[number].as_py() if number >= 0 else "[no name]" for number in code.tolist()],
            "start_ns": start_ns,
            "end_ns": done_ns,
        }


def _ranges(capture: Capture, names: dict[int, str], begin_ns: int, end_ns: int) -> Events:
    """The ranges of threads; `names` by their global ids."""
    ranges = capture.ranges
    near = ranges.by_thread & np.isin(ranges.global_tid, np.array(list(names)))
    rows = np.flatnonzero(near & (ranges.end_ns >= begin_ns) & (ranges.start_ns <= end_ns))[:_MOST]
    return {
        "lane": [f"ranges of {names[thread]}" for thread in ranges.global_tid[rows].tolist()],
        "name": [ranges.texts[code] for code in ranges.text[rows].tolist()],
        "start_ns": np.maximum(ranges.start_ns[rows], begin_ns),
        "end_ns": np.minimum(ranges.end_ns[rows], end_ns),
    }
