"""When a GPU ran nothing, and why: the numbers, without Nsight and without output.

All functions are pure: a capture in, tables out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from llm_idle_gaps.gap_columns import GapColumns
from llm_idle_gaps.gap_sums import EDGES_NS, LARGEST, GapSums
from llm_idle_gaps.stretches import Stretches, device_stretches
from llm_idle_gaps.tables import GAPS, HISTOGRAM, IDLE, LARGEST_GAPS, STEP_IDLE, TIMELINE
from llm_idle_gaps.timeline import median_step
from recipes.base import intervals
from recipes.base.memory import sums
from recipes.base.tables import Table
from recipes.capture.capture import ALL, OUTSIDE, Capture
from recipes.events.gpu_work import GRAPH, KERNEL, GpuWork
from recipes.events.idle import CAUSES, find_gaps, split_by_cause
from recipes.events.launch_statistics import launch_statistics
from recipes.run.recipe import Analysis
from recipes.steps.projection import NONE, Projection


@dataclass(frozen=True)
class Settings:
    """What the user can choose, in ns: the shortest gap with a row of its own; the step time without the profiler."""

    min_gap_ns: float = 1e3
    step_time_ns: float | None = None


@dataclass(frozen=True)
class _Steps:
    """The steps of a report on its devices, as all functions here need them.

    `phase_of_entry` int64, an index into `phases` for each entry of the projection, and last that of no step.
    """

    projection: Projection
    phases: list[str]
    phase_of_entry: np.ndarray
    batches: list[int | None]
    edge: np.ndarray
    edge_reason: np.ndarray

    def by_phase(self, of_entry: np.ndarray) -> np.ndarray:
        """Values of the entries, the last one of no step, summed by phase, int64."""
        return sums(self.phase_of_entry, of_entry, len(self.phases))


def analyse(capture: Capture, settings: Settings) -> Analysis:
    """What one report tells; there is nothing to remark."""
    launches, work = capture.launches, capture.work
    steps = _steps(capture)
    # First what needs much memory for a while.
    launched = _launched(capture, steps.projection)
    every = ((number, _device(work, steps.projection, number)) for number in range(len(work.devices.numbers)))
    devices = {number: device for number, device in every if device is not None}
    host, lost = capture.host, capture.lost_graph_launches
    gap_columns = GapColumns(capture, host)
    found: dict[Table, list[dict]] = {table: [] for table in (GAPS, HISTOGRAM, IDLE, STEP_IDLE, TIMELINE)}
    for number, (rows, windows, computing_ns) in devices.items():
        gap_sums = GapSums(steps.projection, number, windows, steps.phase_of_entry, steps.phases)
        for gaps in find_gaps(work, rows):
            gap_sums.add(gaps, split_by_cause(work, gaps, launches, host), gap_columns, settings.min_gap_ns)
        for table, columns in (
            *((GAPS, some) for some in gap_sums.rows),
            (HISTOGRAM, _histogram_columns(gap_sums, steps)),
            (IDLE, _idle_columns(steps, gap_sums, windows, computing_ns, launched[number], lost)),
            (STEP_IDLE, _step_columns(steps, gap_sums, launched[number])),
            (TIMELINE, median_step(capture, steps.projection, gap_sums.entries, steps.edge, host)),
        ):
            device = np.full(len(next(iter(columns.values()))), work.devices.numbers[number], dtype=np.int64)
            found[table].append({"device": device, **columns})
    tables = {table.name: _joined(table, columns) for table, columns in found.items()}
    return Analysis({**tables, **_gap_tables(tables[GAPS.name], settings.min_gap_ns)})


def _gap_tables(rows: pa.Table, min_gap_ns: float) -> dict[str, pa.Table]:
    """The gaps that are long enough, and the longest of each device, both in order of device and time."""
    pieces = [piece.to_numpy() for piece in rows["duration_ns"].chunks]
    devices = [piece[0].as_py() if len(piece) else None for piece in rows["device"].chunks]
    begins = np.cumsum([0, *map(len, pieces)])
    longest = []
    for device in dict.fromkeys(devices):
        # Piece by piece: there can be millions of gaps, and little memory is left.
        own = [number for number, one in enumerate(devices) if one == device]
        tops = [np.partition(pieces[n], -LARGEST)[-LARGEST:] if len(pieces[n]) > LARGEST else pieces[n] for n in own]
        least_ns = np.sort(np.concatenate(tops))[-LARGEST:].min(initial=np.iinfo(np.int64).max)
        found = [np.flatnonzero(pieces[number] >= least_ns) + begins[number] for number in own]
        place, length_ns = (np.concatenate(values) for values in (found, [
            pieces[n][rows_ - begins[n]] for n, rows_ in zip(own, found, strict=True)
        ]))  # fmt: skip
        # Of equal ones the first.
        longest.append(np.sort(place[np.argsort(-length_ns, kind="stable")][:LARGEST]))
    enough = pa.chunked_array([piece >= min_gap_ns for piece in pieces], pa.bool_())
    return {
        GAPS.name: rows if pc.all(enough).as_py() is not False else rows.filter(enough),
        LARGEST_GAPS.name: rows.take(pa.array(np.concatenate([np.zeros(0, dtype=np.int64), *longest]))),
    }


def _device(
    work: GpuWork, projection: Projection, number: int
) -> tuple[np.ndarray | slice, Stretches, np.ndarray] | None:
    """A device's operations, its windows, and the ns of each in which kernels or graph executions ran; None for a
    device without work, as a time range may leave it."""
    rows = slice(None) if len(work.devices.numbers) == 1 else np.flatnonzero(work.device == number)
    if not len(work.start_ns[rows]):
        return None
    starts_ns, ends_ns, kind = work.start_ns[rows], work.end_ns[rows], work.kind[rows]
    windows = device_stretches(projection, number, int(starts_ns.min()), int(ends_ns.max()))
    chosen = (kind == KERNEL) | (kind == GRAPH)
    starts_ns, ends_ns = starts_ns[chosen], ends_ns[chosen]
    order = intervals.by_start(starts_ns)
    computing = intervals.merge(starts_ns[order], ends_ns[order])
    return rows, windows, intervals.covered_ns(windows.start_ns, windows.end_ns, computing)


def _steps(capture: Capture) -> _Steps:
    steps = capture.steps
    projection = capture.projection
    phase_of_entry = np.append(steps.phase[projection.step], len(steps.phases)).astype(np.int64)
    batches = [meaning.batch for meaning in steps.meanings]
    phases = [*steps.phases, OUTSIDE if len(steps) else ALL]
    return _Steps(projection, phases, phase_of_entry, batches, capture.edge, capture.edge_reason)


def _launched(capture: Capture, projection: Projection) -> list[dict[str, np.ndarray]]:
    """For each device the launch columns by entry, and last of the device's work in no step."""
    work, entries = capture.work, len(projection)
    devices = len(work.devices.numbers)
    group = np.where(projection.of_operation >= 0, projection.of_operation, entries + work.device)
    step_of_group = np.append(projection.step, np.full(devices, NONE))
    device_of_group = np.append(projection.device, np.arange(devices))
    columns = launch_statistics(capture.report, work, capture.launches, group, step_of_group, device_of_group)
    return [
        {
            name: np.append(np.where(projection.device == device, values[:entries], 0), values[entries + device])
            for name, values in columns.items()
        }
        for device in range(devices)
    ]


def _idle_columns(
    steps: _Steps,
    gap_sums: GapSums,
    windows: Stretches,
    computing_ns: np.ndarray,
    launched: dict[str, np.ndarray],
    lost_graph_launches: int,
) -> dict[str, np.ndarray | list]:
    """The columns of IDLE for a device: the whole window, and each phase that has a part of it."""
    length_ns = windows.end_ns - windows.start_ns
    phase = steps.phase_of_entry[windows.entry]

    def summed(values_ns: np.ndarray) -> np.ndarray:
        return sums(phase, values_ns, len(steps.phases))

    window_ns, computed_ns = summed(length_ns), summed(computing_ns)
    causes = {f"{cause}_ns": steps.by_phase(gap_sums.by_window[:, number]) for number, cause in enumerate(CAUSES)}
    idle_ns = np.sum(list(causes.values()), axis=0)
    columns = {
        "window_ns": window_ns,
        "busy_ns": window_ns - idle_ns,
        "copy_only_ns": window_ns - idle_ns - computed_ns,
        "idle_ns": idle_ns,
        **causes,
        "after_sync_ns": steps.by_phase(gap_sums.by_window[:, len(CAUSES)]),
        "gaps": gap_sums.counts.sum(axis=(1, 2)),
        **{name: steps.by_phase(values) for name, values in launched.items()},
    }
    shown = np.flatnonzero((window_ns > 0) | (columns["operations"] > 0))
    if steps.phases[-1] == ALL:
        # Without steps the whole window says it all.
        shown = shown[:0]
    return {
        "phase": [ALL, *(steps.phases[code] for code in shown.tolist())],
        **{name: np.append(values.sum(), values[shown]) for name, values in columns.items()},
        "lost_graph_launches": np.full(len(shown) + 1, lost_graph_launches),
    }


def _histogram_columns(gap_sums: GapSums, steps: _Steps) -> dict[str, np.ndarray | list | pa.Array]:
    """The columns of HISTOGRAM for a device: bins with gaps, of the whole window and of each phase."""
    counts = np.concatenate([gap_sums.counts.sum(axis=0, keepdims=True), gap_sums.counts])
    time_ns = np.concatenate([gap_sums.time_ns.sum(axis=0, keepdims=True), gap_sums.time_ns])
    if steps.phases[-1] == ALL:
        counts = counts[:1]
    phase, cause, number = np.nonzero(counts)
    low_ns, high_ns = np.append(0, EDGES_NS), np.append(EDGES_NS, 0)
    return {
        "phase": [[ALL, *steps.phases][code] for code in phase.tolist()],
        "cause": [CAUSES[code] for code in cause.tolist()],
        "low_ns": low_ns[number],
        "high_ns": pa.array(high_ns[number], mask=number == len(EDGES_NS)),
        "gaps": counts[phase, cause, number],
        "time_ns": time_ns[phase, cause, number],
    }


def _step_columns(steps: _Steps, gap_sums: GapSums, launched: dict[str, np.ndarray]) -> dict[str, np.ndarray | list]:
    """The columns of STEP_IDLE for a device."""
    projection, entries = steps.projection, gap_sums.entries
    step = projection.step[entries]
    last = np.arange(len(entries)) == len(entries) - 1
    return {
        "step": step.astype(np.int64),
        "phase": [steps.phases[code] for code in steps.phase_of_entry[entries].tolist()],
        "batch": pa.array([steps.batches[number] for number in step.tolist()], pa.int64()),
        "edge": steps.edge[step],
        "edge_reason": steps.edge_reason[step],
        "start_ns": projection.start_ns[entries],
        "duration_ns": projection.duration_ns[entries],
        "period_ns": pa.array(projection.period_ns[entries], mask=projection.period_ns[entries] == NONE),
        "idle_ns": gap_sums.by_step[:, : len(CAUSES)].sum(axis=1),
        **{f"{cause}_ns": gap_sums.by_step[:, number] for number, cause in enumerate(CAUSES)},
        "after_sync_ns": gap_sums.by_step[:, len(CAUSES)],
        "idle_after_ns": pa.array(gap_sums.after_ns, mask=last),
        **{name: values[entries] for name, values in launched.items()},
    }


def _joined(table: Table, parts: list[dict]) -> pa.Table:
    empty = {name: np.zeros(0, dtype=np.int64) for name in table.names}
    return pa.concat_tables([table.of_report(columns) for columns in (empty, *parts)])
