"""The steps as the GPU ran them, and which of them can be compared."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from recipes.capture.capture import Capture
from recipes.steps.projection import Projection


@dataclass(frozen=True)
class StepTimes:
    """One entry for each step and device, in order of device and start: the steps of the capture as the GPU ran them.

    step, pid, device int64 (the device's number); phase, batch and tokens per entry; edge bool, edge_reason object (str
    or None);
    start_ns, duration_ns int64; period_ns int64, negative for the last; gemms, gemm_ns int64, kernels of the GEMM
    family and their summed durations; operations int64.
    """

    step: np.ndarray
    pid: np.ndarray
    device: np.ndarray
    phase: list[str]
    batch: list[int | None]
    tokens: list[int | None]
    edge: np.ndarray
    edge_reason: np.ndarray
    start_ns: np.ndarray
    duration_ns: np.ndarray
    period_ns: np.ndarray
    gemms: np.ndarray
    gemm_ns: np.ndarray
    operations: np.ndarray
    #: What the entries come from, one for one.
    projection: Projection

    def phases(self) -> Iterator[tuple[str, np.ndarray]]:
        """Name and entries (int64: whole steps, in order of time) of each process's steps of a phase on a device."""
        for (_, _, phase), entries in self._places(self.phase):
            yield phase, self._whole(entries)

    def _places(self, *columns: Sequence) -> list[tuple[tuple, list[int]]]:
        """The entries of each device, process and values of the columns."""
        places = defaultdict(list)
        for place, key in enumerate(zip(self.device.tolist(), self.pid.tolist(), *columns, strict=True)):
            places[key].append(place)
        return sorted(places.items())

    def groups(self) -> Iterator[tuple[str, int, np.ndarray]]:
        """Name, device and entries (int64: whole steps, in order of time) of each process's steps that should be alike:
        of one phase, batch and number of tokens."""
        batches, tokens = ([-1 if value is None else value for value in values] for values in (self.batch, self.tokens))
        for (device, _, phase, batch, _), entries in self._places(self.phase, batches, tokens):
            name = phase if batch < 0 else f"{phase} at batch {batch}"
            yield name, device, self._whole(entries)

    def _whole(self, entries: list[int]) -> np.ndarray:
        return np.array([place for place in entries if not self.edge[place]], dtype=np.int64)


def step_times(capture: Capture) -> StepTimes:
    """The steps of a capture on its devices. PackError when its export is damaged."""
    work, steps = capture.work, capture.steps
    projection, families, edge = capture.projection, capture.families(), capture.edge
    code = families.families.index("gemm") if "gemm" in families.families else -1
    rows = np.flatnonzero((projection.of_operation >= 0) & (families.of_name == code)[work.name])
    entry, count = projection.of_operation[rows], len(projection)
    numbers = np.array(work.devices.numbers, dtype=np.int64)
    return StepTimes(
        step=projection.step.astype(np.int64),
        pid=steps.pid[projection.step],
        device=numbers[projection.device] if len(numbers) else np.zeros(0, dtype=np.int64),
        phase=[steps.phases[place] for place in steps.phase[projection.step].tolist()],
        batch=[steps.meanings[place].batch for place in projection.step.tolist()],
        tokens=[steps.meanings[place].tokens for place in projection.step.tolist()],
        edge=edge[projection.step],
        edge_reason=capture.edge_reason[projection.step],
        start_ns=projection.start_ns,
        duration_ns=projection.duration_ns,
        period_ns=projection.period_ns,
        gemms=np.bincount(entry, minlength=count),
        gemm_ns=np.bincount(entry, weights=(work.end_ns - work.start_ns)[rows], minlength=count).astype(np.int64),
        operations=projection.operations,
        projection=projection,
    )
