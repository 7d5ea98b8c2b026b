"""Steps without NVTX ranges: found by the repetition of the GPU work itself, and marked as inferred."""

from __future__ import annotations

import numpy as np

from recipes.events.gpu_work import MEMCPY, GpuWork, read_correlation
from recipes.report.report import Report
from recipes.steps.attribution import OUTSIDE, Attribution
from recipes.steps.phases import Meaning
from recipes.steps.steps import Steps

RULE = "inferred"
PHASE = "step"
#: So many repetitions make a step, and so many operations at least make a pattern: a few alike in a row are a loop
#: inside a step, or chance.
LEAST_STEPS, LEAST_LENGTH = 3, 8
#: This share of the operations must be alike a length apart; one odd operation spoils as many as a step has.
_ALIKE = 0.9
#: In steps of the usual length this share must be as the pattern has it. What others have more or less must be at most
#: this share of all: layers repeat too, but what else a step does stands between them.
_EXACT, _ODD = 0.98, 0.01


def infer_steps(report: Report, work: GpuWork) -> tuple[Steps, Attribution]:
    """Steps of each process and device, from a sequence of operations that repeats over and over.

    A repetition begins where the GPU waits longest between two operations in every one, since the host comes between
    steps; a name that occurs once per step finds that place again in each. Where nothing repeats there are no steps.
    Their times are those of the GPU. PackError when the report's export is damaged.
    """
    step_of = np.full(len(work), OUTSIDE, dtype=np.int32)
    found: list[tuple[int, np.ndarray]] = []
    for process, own, _ in read_correlation(report, work):
        for device in range(len(work.devices.numbers)):
            rows = np.arange(len(work))[own]
            rows = rows[work.device[rows] == device]
            rows = rows[np.argsort(work.start_ns[rows], kind="stable")]
            found += [(process, rows[first:last]) for first, last in _repetitions(work, rows)]
    for number, (_, rows) in enumerate(found):
        step_of[rows] = number
    return _steps(work, found), _attribution(report, work, step_of, len(found))


def _repetitions(work: GpuWork, rows: np.ndarray) -> list[tuple[int, int]]:
    """First and last place of each step in a sequence of operations; none when nothing repeats."""
    name = _joint_names(work, rows)
    found = _period(name)
    if found is None:
        return []
    begin, length = found
    edges = _edges(name, begin, begin, length)
    regular = edges[:-1][np.diff(edges) == length]
    if len(regular) < LEAST_STEPS - 1:
        return []
    cut = _cut(work.start_ns[rows], work.end_ns[rows], regular, length)
    if cut:
        edges = _edges(name, begin, int(regular[0]) + cut, length)
    if len(edges) <= LEAST_STEPS or not _are_steps(name, edges, length):
        return []
    return list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))


def _are_steps(name: np.ndarray, edges: np.ndarray, length: int) -> bool:
    """Whether the stretches between edges are one and the same but for a few operations."""
    sizes = np.diff(edges)
    whole = edges[:-1][sizes == length]
    if np.abs(sizes - length).sum() > _ODD * (edges[-1] - edges[0]) or not len(whole):
        return False
    rows = name[whole[:, np.newaxis] + np.arange(length)]
    # The median of a column is the name that most have there.
    return bool((rows == np.median(rows, axis=0)).mean() >= _EXACT)


def _edges(name: np.ndarray, begin: int, at: int, length: int) -> np.ndarray:
    """Where each step begins, and where the last one ends; from `begin` on, a step as the one at `at`.

    By the name nearest behind a beginning that occurs once per step; so an operation more or less in one step moves
    no other.
    """
    pattern = name[at : at + length]
    _, first, count = np.unique(pattern, return_index=True, return_counts=True)
    once = np.sort(first[count == 1])
    if not len(once):
        return np.arange(at - (at - begin) // length * length, len(name) + 1, length)
    marks = np.flatnonzero(name == pattern[once[0]]) - once[0]
    marks = marks[marks >= begin]
    if len(marks) and marks[-1] + length <= len(name):
        marks = np.append(marks, marks[-1] + length)
    return marks


def _joint_names(work: GpuWork, rows: np.ndarray) -> np.ndarray:
    """Names as numbers, all copies as one: how many bytes are copied which way may vary from step to step."""
    name = work.name[rows].copy()
    copies = work.kind[rows] == MEMCPY
    name[copies] = len(work.names)
    return name


def _period(name: np.ndarray) -> tuple[int, int] | None:
    """Where a repeating sequence begins and how long it is; None when nothing repeats.

    A name that occurs n times, evenly spaced, proposes a length; the sequence is right when nearly every operation
    has the name of the one a length before. The rarest names propose first: they come once per step.
    """
    if len(name) < LEAST_STEPS * LEAST_LENGTH:
        return None
    counts = np.bincount(name)
    candidates = [code for code in np.argsort(counts, kind="stable").tolist() if counts[code] >= LEAST_STEPS]
    tried: set[int] = set()
    for code in candidates[:50]:
        places = np.flatnonzero(name == code)
        length = int(np.median(np.diff(places)))
        if length < LEAST_LENGTH or length in tried:
            continue
        tried.add(length)
        begin = _longest_run(name[length:] == name[:-length], length)
        if begin is not None:
            return begin, length
    return None


def _longest_run(alike: np.ndarray, length: int) -> int | None:
    """Where the repetition begins; None unless it holds nearly all the way."""
    if len(alike) < (LEAST_STEPS - 1) * length:
        return None
    wrong = np.flatnonzero(~alike)
    # Warm-up in front does not repeat: begin behind the last early break.
    early = wrong[wrong < len(alike) // 2]
    begin = 0 if alike.mean() >= _ALIKE else int(early.max(initial=-1)) + 1
    return begin if alike[begin:].mean() >= _ALIKE else None


def _cut(start_ns: np.ndarray, end_ns: np.ndarray, regular: np.ndarray, length: int) -> int:
    """How many operations behind the beginnings `regular` the steps really begin: where the wait is longest."""
    wait_ns = np.zeros(len(start_ns), dtype=np.int64)
    wait_ns[1:] = np.maximum(start_ns[1:] - np.maximum.accumulate(end_ns)[:-1], 0)
    table = wait_ns[regular[:, np.newaxis] + np.arange(length)]
    # The very first operation has nothing before it to wait for.
    typical_ns = np.median(table[1:] if len(table) > LEAST_STEPS else table, axis=0)
    cut = int(typical_ns.argmax())
    # A capture mostly begins with a step: only a clearly longer wait says otherwise.
    return cut if typical_ns[cut] > 2 * typical_ns[0] else 0


def _steps(work: GpuWork, found: list[tuple[int, np.ndarray]]) -> Steps:
    count = len(found)
    pid = np.array([process for process, _ in found], dtype=np.int64)
    usual = np.median([len(rows) for _, rows in found]) if found else 0
    return Steps(
        start_ns=np.array([work.start_ns[rows].min() for _, rows in found], dtype=np.int64),
        end_ns=np.array([work.end_ns[rows].max() for _, rows in found], dtype=np.int64),
        pid=pid,
        global_tid=np.zeros(count, dtype=np.int64),
        phase=np.zeros(count, dtype=np.int32),
        # A step with an operation more or less than the others is not known to be whole.
        closed=np.array([len(rows) == usual for _, rows in found], dtype=bool),
        by_thread=np.zeros(count, dtype=bool),
        phases=[PHASE] if count else [],
        texts=[""] * count,
        meanings=[Meaning(PHASE)] * count,
        rules=dict.fromkeys(pid.tolist(), RULE),
        busy_threads=np.zeros(0, dtype=np.int64),
        of_range=np.zeros(0, dtype=np.int64),
        inferred=True,
    )


def _attribution(report: Report, work: GpuWork, step_of: np.ndarray, count: int) -> Attribution:
    launches = np.zeros(count, dtype=np.int64)
    for _, rows, correlation_id in read_correlation(report, work):
        step = step_of[rows]
        inside = step >= 0
        if not inside.any():
            continue
        pairs = np.unique(np.stack([step[inside], correlation_id[inside]]), axis=1)
        launches += np.bincount(pairs[0], minlength=count)
    way = np.full(len(work), -1, dtype=np.int8)
    way[step_of >= 0] = 2
    return Attribution(step_of, way, launches, np.zeros(count, dtype=np.int64))
