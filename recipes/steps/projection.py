"""Steps as the GPU ran them: first start to last end of a step's operations on a device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recipes.base.memory import distinct
from recipes.events.gpu_work import GpuWork
from recipes.events.launches import Launches
from recipes.steps.steps import Steps

NONE = -1


@dataclass(frozen=True)
class Projection:
    """One entry for each step and device that it ran on, in order of device, then of first start.

    step, device int32, indices into the steps and devices; start_ns, end_ns int64; operations int64; period_ns int64,
    from this start to that of the process's next step on the device, NONE for the last one. `of_operation` int32 is
    the entry of each operation, NONE for those in no step.
    """

    step: np.ndarray
    device: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    operations: np.ndarray
    period_ns: np.ndarray
    of_operation: np.ndarray

    def __len__(self) -> int:
        return len(self.step)

    @property
    def duration_ns(self) -> np.ndarray:
        return self.end_ns - self.start_ns


def project(work: GpuWork, step_of: np.ndarray, steps: Steps) -> Projection:
    """Projects the steps onto the devices. `step_of` is the step of each operation, negative for none."""
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
    period_ns = _periods(device, steps.pid[step], start_ns[order])
    return Projection(step, device, start_ns[order], end_ns[order], operations[order], period_ns, of_operation)


def launches_of_entries(projection: Projection, launches: Launches) -> np.ndarray:
    """How many distinct calls launched the operations of each entry, int64; one of many operations, as of a graph, is
    one."""
    known = np.flatnonzero((projection.of_operation >= 0) & (launches.of_operation >= 0))
    width = len(launches.start_ns) + 1
    pairs = distinct(projection.of_operation[known].astype(np.int64) * width + launches.of_operation[known])
    return np.bincount(pairs // width, minlength=len(projection))


def _periods(device: np.ndarray, pid: np.ndarray, start_ns: np.ndarray) -> np.ndarray:
    """From each start to the next one of the same process on the same device."""
    order = np.lexsort((start_ns, pid, device))
    next_ns = np.full(len(order), NONE, dtype=np.int64)
    same = (device[order][1:] == device[order][:-1]) & (pid[order][1:] == pid[order][:-1])
    next_ns[:-1] = np.where(same, np.diff(start_ns[order]), NONE)
    period_ns = np.empty(len(order), dtype=np.int64)
    period_ns[order] = next_ns
    return period_ns
