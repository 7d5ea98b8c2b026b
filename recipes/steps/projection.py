"""Steps as the GPU ran them: first start to last end of a step's operations on a device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recipes.base.memory import distinct
from recipes.events.gpu_work import GpuWork
from recipes.events.launches import Launches
from recipes.steps.phases import DECODE_PHASES
from recipes.steps.steps import Steps

NONE = -1


@dataclass(frozen=True)
class Projection:
    """One entry for each step and device that it ran on, in order of device, then of first start.

    step, device int32, indices into the steps and devices; start_ns, end_ns int64; operations int64; next_entry int64,
    the entry of the process's next step on the device, whatever its phase, NONE for the last one; itl_ns int64, the
    inter-token latency: of a decode step, from its start to that of the next decode step of its process and thread on
    the device, whatever lies between, NONE for others and the last. `of_operation` int32 is the entry of each
    operation, NONE for those in no step.
    """

    step: np.ndarray
    device: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    operations: np.ndarray
    next_entry: np.ndarray
    itl_ns: np.ndarray
    of_operation: np.ndarray

    def __len__(self) -> int:
        return len(self.step)

    @property
    def duration_ns(self) -> np.ndarray:
        """From the start of each entry to its end, int64."""
        return self.end_ns - self.start_ns

    @property
    def period_ns(self) -> np.ndarray:
        """From each start to that of the next entry, int64; NONE for the last."""
        return _until_next(self.next_entry, self.start_ns, self.start_ns)

    @property
    def between_ns(self) -> np.ndarray:
        """From the end of each step to the start of its process's next one, int64: the last end on any device and the
        first start on any, so that a step's way through several GPUs is no time between steps. 0 where steps overlap,
        NONE for the last."""
        first_ns, last_ns = self.whole_steps()
        between_ns = _until_next(self.next_entry, last_ns, first_ns)
        return np.where(self.next_entry == NONE, NONE, np.maximum(between_ns, 0))

    def whole_steps(self) -> tuple[np.ndarray, np.ndarray]:
        """Of each entry's step the first start and the last end on any device, int64."""
        _, place = np.unique(self.step, return_inverse=True)
        first_ns = np.full(len(self), np.iinfo(np.int64).max)
        last_ns = np.full(len(self), np.iinfo(np.int64).min)
        np.minimum.at(first_ns, place, self.start_ns)
        np.maximum.at(last_ns, place, self.end_ns)
        return first_ns[place], last_ns[place]


def _until_next(next_entry: np.ndarray, from_ns: np.ndarray, to_ns: np.ndarray) -> np.ndarray:
    """From a time of each entry to a time of its next, int64; NONE for the last."""
    return np.where(next_entry == NONE, NONE, np.append(to_ns, 0)[next_entry] - from_ns)


def project(work: GpuWork, step_of: np.ndarray, steps: Steps, lost: np.ndarray | None = None) -> Projection:
    """Projects the steps onto the devices. `step_of` is the step of each operation (int), negative for none.

    `lost`, bool per step, are steps whose work was not recorded: nothing that follows a step lies beyond one of these.
    """
    devices = max(len(work.devices.numbers), 1)
    entries = len(steps) * devices
    inside = np.flatnonzero(step_of >= 0)
    code = step_of[inside].astype(np.int64) * devices + work.device[inside]
    start_ns = np.full(entries, np.iinfo(np.int64).max)
    end_ns = np.full(entries, np.iinfo(np.int64).min)
    operations = np.bincount(code, minlength=entries)
    # Operations of a step mostly stand together: reduce each stretch at once, then the few stretches.
    first = np.flatnonzero(np.diff(code, prepend=-1))
    if len(first):
        np.minimum.at(start_ns, code[first], np.minimum.reduceat(work.start_ns[inside], first))
        np.maximum.at(end_ns, code[first], np.maximum.reduceat(work.end_ns[inside], first))
    used = np.flatnonzero(operations)
    order = used[np.lexsort((start_ns[used], used % devices))]
    place = np.full(entries, NONE, dtype=np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    of_operation = np.full(len(work), NONE, dtype=np.int32)
    of_operation[inside] = place[code]
    step, device = (order // devices).astype(np.int32), (order % devices).astype(np.int32)
    start_ns, end_ns = start_ns[order], end_ns[order]
    stretch = _stretches(steps.pid, lost)[step]
    next_entry = _next_of(np.arange(len(order)), start_ns, device, steps.pid[step], stretch)
    itl_ns = np.full(len(order), NONE, dtype=np.int64)
    decoding = np.isin(steps.phase[step], [code for code, name in enumerate(steps.phases) if name in DECODE_PHASES])
    tokens = np.flatnonzero(decoding)
    # An engine is a thread of a process: two of them may share a GPU.
    next_token = _next_of(tokens, start_ns, device, steps.pid[step], steps.global_tid[step], stretch)
    itl_ns[tokens] = _until_next(next_token, start_ns[tokens], start_ns)
    return Projection(step, device, start_ns, end_ns, operations[order], next_entry, itl_ns, of_operation)


def _stretches(pid: np.ndarray, lost: np.ndarray | None) -> np.ndarray:
    """How many lost steps lie before each step in its process, and in those of smaller ids, int64."""
    before = np.zeros(len(pid), dtype=np.int64)
    if lost is not None and lost.any():
        # Steps are in order of start.
        order = np.argsort(pid, kind="stable")
        before[order] = np.cumsum(lost[order])
    return before


def launches_of_entries(projection: Projection, launches: Launches) -> np.ndarray:
    """How many distinct calls launched the operations of each entry, int64; one that launched many, as of a graph,
    counts once."""
    known = np.flatnonzero((projection.of_operation >= 0) & (launches.of_operation >= 0))
    width = len(launches.start_ns) + 1
    pairs = distinct(projection.of_operation[known].astype(np.int64) * width + launches.of_operation[known])
    return np.bincount(pairs // width, minlength=len(projection))


def _next_of(entries: np.ndarray, start_ns: np.ndarray, *keys: np.ndarray) -> np.ndarray:
    """For each of some entries the one of them that starts next and has the same keys, int64; NONE for the last."""
    order = np.lexsort((start_ns[entries], *(key[entries] for key in keys)))
    ordered = entries[order]
    same = np.logical_and.reduce([key[ordered][1:] == key[ordered][:-1] for key in keys])
    following = np.full(len(entries), NONE, dtype=np.int64)
    following[order[:-1]] = np.where(same, ordered[1:], NONE)
    return following
