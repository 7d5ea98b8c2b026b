"""One-off events: what hits one step and none that is like it, so that this step does not stand for the others.

Like steps are those of one process and phase on one device. An event is told only beside enough of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from recipes.base import intervals
from recipes.events.api_survey import LOADING, ApiSurvey
from recipes.events.gpu_work import GpuWork
from recipes.events.idle import find_gaps
from recipes.steps.projection import NONE, Projection
from recipes.steps.steps import Steps

#: What such an event can be: the wait for another rank's profiler, code that is loaded on first use, a pause of the
#: host (a garbage collection) in a step or behind it.
FIRST_COLLECTIVE, CODE_LOADING, PAUSE = ONE_OFFS = ("first collective", "code loading", "pause")
#: So many like steps are needed before one of them can be called odd: of fewer the median itself may be the odd one.
#: A pause has no other sign than its length.
_ENOUGH, _ENOUGH_FOR_A_PAUSE = 3, 5
#: Times of collectives of one size vary severalfold with the ranks' jitter; profilers start milliseconds apart.
_FAR = 10
#: An event that adds less of a median step than this moves no mean that matters.
_MATERIAL = 0.1
#: A pause stands out from the spread of like steps by so many median deviations, and adds so much of a median step:
#: ordinary variance, which percentiles are there to tell, stays in.
_DEVIATIONS, _LONG = 10, 0.5
#: What happens more often than in one step in twenty (one step, of fewer) is how the program runs.
_RARE = 0.05


@dataclass(frozen=True)
class OneOff:
    """One event: the step that it hit, which of ONE_OFFS it is, its start and what it added, in ns."""

    step: int
    kind: str
    start_ns: int
    time_ns: int


@dataclass(frozen=True)
class Seen:
    """What events are looked for in; `counted` bool per entry of the projection: those of whole steps; `communicates`
    bool per operation."""

    work: GpuWork
    steps: Steps
    projection: Projection
    counted: np.ndarray
    communicates: np.ndarray
    survey: ApiSurvey


def find_one_offs(seen: Seen) -> list[OneOff]:
    """The events in whole steps, at most one per step, in order of step. What is known of a step precedes a guess."""
    found: dict[int, OneOff] = {}
    for look in (_first_collectives, _code_loading, _pauses):
        counted = seen.counted & ~np.isin(seen.projection.step, list(found))
        for entry, kind, start_ns, time_ns in look(seen, _groups(seen, counted)):
            step = int(seen.projection.step[entry])
            found.setdefault(step, OneOff(step, kind, int(start_ns), int(time_ns)))
    return [found[step] for step in sorted(found)]


_Events = Iterator[tuple[int, str, float, float]]


def _groups(seen: Seen, counted: np.ndarray) -> list[np.ndarray]:
    """The counted entries that are alike, in order of time, where there are enough."""
    projection = seen.projection
    entries = np.flatnonzero(counted)
    if not len(entries):
        return []
    step = projection.step[entries]
    # One number for each device, process and phase: rows of several are slow to sort where steps are many.
    pids, pid = np.unique(seen.steps.pid[step], return_inverse=True)
    key = (projection.device[entries].astype(np.int64) * len(pids) + pid) * len(seen.steps.phases)
    _, group = np.unique(key + seen.steps.phase[step], return_inverse=True)
    parts = (entries[group == number] for number in range(int(group.max()) + 1))
    return [part for part in parts if len(part) >= _ENOUGH]


def _first_collectives(seen: Seen, groups: list[np.ndarray]) -> _Events:
    """Where the first kernel of a name takes far longer than the longest of that name in like steps.

    Who enters the window first waits in its first collective for the ranks whose profiler starts later.
    """
    work, of_operation = seen.work, seen.projection.of_operation
    rows = np.flatnonzero(seen.communicates & (of_operation >= 0))
    if not len(rows):
        return
    code = of_operation[rows].astype(np.int64) * len(work.names) + work.name[rows]
    rows = rows[np.lexsort((work.start_ns[rows] - work.end_ns[rows], code))]
    # Of each entry and name the longest kernel.
    code = of_operation[rows].astype(np.int64) * len(work.names) + work.name[rows]
    rows = rows[np.flatnonzero(np.diff(code, prepend=-1))]
    entry, name, time_ns = of_operation[rows], work.name[rows], (work.end_ns - work.start_ns)[rows]
    for group in groups:
        step_ns = np.median(seen.projection.duration_ns[group])
        of_group = np.isin(entry, group)
        process = np.isin(entry, _of_process(seen, group[0]))
        for one in np.unique(name[of_group]).tolist():
            mine = np.flatnonzero(of_group & (name == one))
            typical_ns = np.median(time_ns[mine])
            far = (time_ns[mine] > _FAR * typical_ns) & (time_ns[mine] - typical_ns > _MATERIAL * step_ns)
            first = entry[mine[0]] == entry[process & (name == one)].min()
            if len(mine) >= _ENOUGH and first and far[0] and np.count_nonzero(far[1:]) <= max(_RARE * len(mine), 1):
                waited_ns = time_ns[mine[0]] - typical_ns
                yield int(entry[mine[0]]), FIRST_COLLECTIVE, work.start_ns[rows[mine[0]]], waited_ns


def _of_process(seen: Seen, entry: int) -> np.ndarray:
    """The entries of one entry's process and device."""
    projection, pid = seen.projection, seen.steps.pid[seen.projection.step]
    return np.flatnonzero((projection.device == projection.device[entry]) & (pid == pid[entry]))


def _code_loading(seen: Seen, groups: list[np.ndarray]) -> _Events:
    """Where the host loads code in a step, and the step or its period is longer by it."""
    survey, projection = seen.survey, seen.projection
    loads = np.flatnonzero(survey.setup_kind == LOADING)
    for group in groups if len(loads) else []:
        step = projection.step[group]
        mine = loads[survey.setup_pid[loads] == seen.steps.pid[step[0]]]
        mine = mine[np.argsort(survey.setup_ns[mine], kind="stable")]
        union = intervals.merge(survey.setup_ns[mine], survey.setup_end_ns[mine])
        order = np.argsort(seen.steps.start_ns[step], kind="stable")
        group, step = group[order], step[order]
        start_ns, end_ns = seen.steps.start_ns[step], np.maximum(seen.steps.end_ns[step], seen.steps.start_ns[step])
        loading_ns = intervals.covered_ns(start_ns, end_ns, union)
        duration_ns = projection.duration_ns[group]
        bar_ns = _MATERIAL * np.median(duration_ns)
        longer_ns = np.maximum(_excess(duration_ns), _excess(_rest_ns(projection, group)))
        hit = (loading_ns > bar_ns) & (longer_ns > bar_ns)
        # Loading is over once all is loaded, but it may take several steps; if most load, none tells of the others.
        if 2 * np.count_nonzero(hit) < len(group):
            for place in np.flatnonzero(hit).tolist():
                yield int(group[place]), CODE_LOADING, start_ns[place], min(loading_ns[place], longer_ns[place])


def _rest_ns(projection: Projection, group: np.ndarray) -> np.ndarray:
    """From the end of each entry to the next step's start; 0 where none follows or they overlap."""
    rest_ns = projection.period_ns[group] - projection.duration_ns[group]
    return np.where(projection.period_ns[group] == NONE, 0, np.maximum(rest_ns, 0))


def _excess(values_ns: np.ndarray) -> np.ndarray:
    return values_ns - np.median(values_ns)


def _pauses(seen: Seen, groups: list[np.ndarray]) -> _Events:
    """Where one gap, in a step or behind it, is far longer than what like steps have, and that happens once."""
    projection = seen.projection
    suspects = []
    for group in (group for group in groups if len(group) >= _ENOUGH_FOR_A_PAUSE):
        least_ns = _LONG * np.median(projection.duration_ns[group])
        for behind, values_ns in enumerate((projection.duration_ns[group], _rest_ns(projection, group))):
            beyond_ns = _excess(values_ns)
            far = beyond_ns > max(least_ns, _DEVIATIONS * np.median(np.abs(beyond_ns)))
            if 0 < np.count_nonzero(far) <= max(_RARE * len(group), 1):
                suspects.append((behind, group, np.flatnonzero(far), beyond_ns))
    if not suspects:
        return
    gaps = _longest_gaps(seen)
    for behind, group, far, beyond_ns in suspects:
        start_ns, length_ns = gaps[behind]
        longer_ns = _excess(length_ns[group])
        for place in far[2 * longer_ns[far] > beyond_ns[far]].tolist():
            yield int(group[place]), PAUSE, start_ns[group[place]], longer_ns[place]


def _longest_gaps(seen: Seen) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """Start and length (0 for none), int64 per entry, of the longest gap inside it and of the longest behind it."""
    projection = seen.projection
    found = tuple((np.zeros(len(projection), dtype=np.int64), np.zeros(len(projection), dtype=np.int64)) for _ in "ab")
    for device in range(len(seen.work.devices.numbers)):
        for gaps in find_gaps(seen.work, np.flatnonzero(seen.work.device == device)):
            entry, following = projection.of_operation[gaps.before], projection.of_operation[gaps.after]
            for (start_ns, length_ns), chosen in zip(found, (entry == following, entry != following), strict=True):
                rows = np.flatnonzero(chosen & (entry >= 0))
                rows = rows[np.argsort((gaps.end_ns - gaps.start_ns)[rows], kind="stable")]
                # Of several the longest is put last, and stays.
                rows = rows[(gaps.end_ns - gaps.start_ns)[rows] > length_ns[entry[rows]]]
                start_ns[entry[rows]] = gaps.start_ns[rows]
                length_ns[entry[rows]] = (gaps.end_ns - gaps.start_ns)[rows]
    return found
