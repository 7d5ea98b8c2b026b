"""Steps without NVTX ranges: found by the repetition of the GPU work itself, and marked as inferred."""

from __future__ import annotations

import numpy as np

from recipes.attribution import OUTSIDE, Attribution
from recipes.gpu_work import GpuWork, read_correlation
from recipes.phases import Meaning
from recipes.report.report import Report
from recipes.steps import Steps

RULE = "inferred"
PHASE = "step"
#: So many repetitions make a step, and so many operations at least make a pattern.
LEAST_STEPS, LEAST_LENGTH = 3, 8
#: This share of the operations must be as the pattern has it.
_ALIKE = 0.98


def infer_steps(report: Report, work: GpuWork) -> tuple[Steps, Attribution]:
    """Steps of the process and device with the most work, from a repeating sequence of operations.

    A step is a sequence of operations that repeats over and over; it is cut where the GPU waits longest between two
    operations in every repetition, since the host comes between steps. No steps when nothing repeats.
    """
    rows = _main_sequence(work)
    name = _joint_names(work)[rows]
    found = _period(name)
    if found is None:
        return _none(len(work))
    first, length = found
    first += _cut(work.start_ns[rows], work.end_ns[rows], first, length)
    count = (len(rows) - first) // length
    if count < LEAST_STEPS:
        return _none(len(work))
    steps = rows[first : first + count * length].reshape(count, length)
    step_of = np.full(len(work), OUTSIDE, dtype=np.int32)
    step_of[steps] = np.arange(count, dtype=np.int32)[:, np.newaxis]
    return _steps(work, steps), _attribution(report, work, step_of, count)


def _main_sequence(work: GpuWork) -> np.ndarray:
    """The operations of the device with the most of them, in order of start."""
    if not len(work):
        return np.zeros(0, dtype=np.int64)
    device = int(np.bincount(work.device).argmax())
    rows = np.flatnonzero(work.device == device)
    return rows[np.argsort(work.start_ns[rows], kind="stable")]


def _joint_names(work: GpuWork) -> np.ndarray:
    """Names as numbers, all copies as one: how many bytes are copied which way may vary from step to step."""
    name = work.name.copy()
    first = {text.partition(" ")[0]: code for code, text in reversed(list(enumerate(work.names)))}
    for code, text in enumerate(work.names):
        if text.startswith("memcpy"):
            name[name == code] = first["memcpy"]
    return name


def _period(name: np.ndarray) -> tuple[int, int] | None:
    """Where a repeating sequence begins and how long it is; None when nothing repeats.

    A name that occurs n times, evenly spaced, proposes a length; the sequence is right when nearly every operation
    has the name of the one a length before. The rarest names propose first: they come once a step.
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


def _cut(start_ns: np.ndarray, end_ns: np.ndarray, first: int, length: int) -> int:
    """How many operations after `first` the steps begin: behind the longest wait of a median repetition."""
    latest_ns = np.maximum.accumulate(end_ns)
    wait_ns = np.zeros(len(start_ns), dtype=np.int64)
    wait_ns[1:] = np.maximum(start_ns[1:] - latest_ns[:-1], 0)
    count = (len(start_ns) - first) // length
    table = wait_ns[first : first + count * length].reshape(count, length)
    # The very first operation has nothing before it to wait for.
    rest = table[1:] if count > LEAST_STEPS else table
    typical_ns = np.median(rest, axis=0)
    cut = int(typical_ns.argmax())
    # A capture mostly begins with a step: only a clearly longer wait says otherwise.
    return cut if typical_ns[cut] > 2 * typical_ns[0] else 0


def _steps(work: GpuWork, steps: np.ndarray) -> Steps:
    count = len(steps)
    pid = np.full(count, work.devices.pids[0] if work.devices.pids else 0, dtype=np.int64)
    return Steps(
        start_ns=work.start_ns[steps[:, 0]],
        end_ns=work.end_ns[steps].max(axis=1),
        pid=pid,
        global_tid=np.zeros(count, dtype=np.int64),
        phase=np.zeros(count, dtype=np.int32),
        closed=np.ones(count, dtype=bool),
        by_thread=np.zeros(count, dtype=bool),
        phases=[PHASE],
        texts=[""] * count,
        meanings=[Meaning(PHASE)] * count,
        rules={int(pid[0]): (RULE, count)},
        busy_threads=np.zeros(0, dtype=np.int64),
        inferred=True,
    )


def _attribution(report: Report, work: GpuWork, step_of: np.ndarray, count: int) -> Attribution:
    launches = np.zeros(count, dtype=np.int64)
    for _, rows, correlation_id in read_correlation(report, work):
        step = step_of[rows]
        inside = step >= 0
        pairs = np.unique(np.stack([step[inside], correlation_id[inside]]), axis=1)
        launches += np.bincount(pairs[0], minlength=count)
    way = np.full(len(work), -1, dtype=np.int8)
    way[step_of >= 0] = 2
    return Attribution(step_of, way, launches, np.zeros(count, dtype=np.int64))


def _none(operations: int) -> tuple[Steps, Attribution]:
    empty = np.zeros(0, dtype=np.int64)
    steps = Steps(empty, empty, empty, empty, empty.astype(np.int32), empty.astype(bool), empty.astype(bool),
                  [], [], [], {}, empty, inferred=True)  # fmt: skip
    outside = np.full(operations, OUTSIDE, dtype=np.int32)
    return steps, Attribution(outside, np.full(operations, -1, dtype=np.int8), empty, empty)
