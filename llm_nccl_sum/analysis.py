"""What communication one report holds: kernels, their exposed time, and what their names and NCCL's ranges say.

All functions are pure: a capture in, tables out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from llm_nccl_sum.tables import COMMUNICATION, STEP_COMMUNICATION
from recipes.base import intervals
from recipes.base.memory import sums
from recipes.base.tables import coded
from recipes.capture.capture import OUTSIDE, Capture
from recipes.collectives.kernel_names import kind_of
from recipes.collectives.order_in_group import order_in_group
from recipes.collectives.payloads import read_messages
from recipes.events.gpu_work import GpuWork, read_streams
from recipes.events.launches import NONE
from recipes.kernels.work_families import exposed_ns
from recipes.report import schema
from recipes.run.recipe import Analysis
from recipes.steps.projection import Projection


@dataclass(frozen=True)
class Settings:
    """What the user can choose: rules for families; message sizes by operation where NCCL does not tell, under "" for
    all others; number of ranks; layers of the model."""

    families: Path | None = None
    bytes: Mapping[str, int] = field(default_factory=dict)
    ranks: int | None = None
    layers: int | None = None


@dataclass(frozen=True)
class _Found:
    """The communication of a report: places of its kernels among the work, by device and start; their exposed ns; of
    the ns since the device's communication before, those of other work and those of none, NONE for the first."""

    rows: np.ndarray
    exposed_ns: np.ndarray
    work_before_ns: np.ndarray
    idle_before_ns: np.ndarray


def analyse(capture: Capture, settings: Settings) -> Analysis:
    """What one report tells; there is nothing to remark."""
    _ = capture.launches  # with them comes whose work is whose
    work = capture.work
    communicates = capture.families(settings.families).communicating(work.name)
    rows = np.flatnonzero(communicates)
    rows = rows[np.lexsort((work.start_ns[rows], work.device[rows]))]
    found = _Found(rows, exposed_ns(work, communicates)[rows], *_before(work, communicates, rows))
    tables = {
        COMMUNICATION.name: COMMUNICATION.of_report(_communication(capture, found, settings)),
        STEP_COMMUNICATION.name: STEP_COMMUNICATION.of_report(_by_step(capture, found)),
    }
    return Analysis(tables)


def _before(work: GpuWork, communicates: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of the ns between the communication before each of `rows` on its device and itself, those in which other work
    ran and those in which nothing did; NONE for the first."""
    work_ns, idle_ns = np.full(len(rows), NONE, dtype=np.int64), np.full(len(rows), NONE, dtype=np.int64)
    for device in range(len(work.devices.numbers)):
        mine = np.flatnonzero(work.device[rows] == device)
        others = np.flatnonzero((work.device == device) & ~communicates)
        others = others[np.argsort(work.start_ns[others], kind="stable")]
        ends_ns = np.maximum.accumulate(work.end_ns[rows[mine]])[:-1]
        begins_ns, mine = work.start_ns[rows[mine[1:]]], mine[1:]
        ends_ns = np.minimum(ends_ns, begins_ns)
        merged = intervals.merge(work.start_ns[others], work.end_ns[others])
        work_ns[mine] = intervals.covered_ns(ends_ns, begins_ns, merged)
        idle_ns[mine] = begins_ns - ends_ns - work_ns[mine]
    return work_ns, idle_ns


def _communication(capture: Capture, found: _Found, settings: Settings) -> dict:
    work, steps, launches, projection, rows = (
        capture.work,
        capture.steps,
        capture.launches,
        capture.projection,
        found.rows,
    )
    entry = projection.of_operation[rows]
    step = np.append(projection.step, NONE)[entry]
    messages = read_messages(capture.report, launches)
    launch = np.append(launches.of_operation, NONE)[rows]
    kinds = [kind_of(name) for name in work.names]
    name = work.name[rows]
    given = np.array([_given(kind.operation, settings.bytes) for kind in kinds], dtype=np.int64)
    sizes = np.append(messages.bytes, NONE)[launch]
    sizes = np.where(sizes == NONE, given[name], sizes) if len(rows) else sizes
    streams = read_streams(capture.report, work)[rows]
    clocks = [clock for clock in capture.report.read(schema.SESSION)["utc_epoch_ns"].to_pylist() if clock is not None]
    return {
        "device": np.array(work.devices.numbers, dtype=np.int64)[work.device[rows]],
        "phase": coded(np.append(steps.phase, len(steps.phases))[step], pa.array([*steps.phases, OUTSIDE])),
        "step": pa.array(step.astype(np.int64), mask=step < 0),
        "nth_step": pa.array(np.append(_nth_step(projection, steps.phase), 0)[entry], mask=entry < 0),
        "edge": np.append(capture.edge, False)[step],
        "name": coded(name, pa.array(work.names, pa.string())),
        **{
            field: _texts(name, [getattr(kind, field) for kind in kinds])
            for field in ("operation", "dtype", "algorithm", "protocol")
        },
        "communicator": coded(
            np.append(messages.communicator, NONE)[launch], pa.array(messages.communicators, pa.string())
        ),
        "stream": pa.array(streams, mask=streams < 0),
        "start_ns": work.start_ns[rows],
        "duration_ns": work.end_ns[rows] - work.start_ns[rows],
        "exposed_ns": found.exposed_ns,
        "bytes": pa.array(sizes, mask=sizes == NONE),
        "work_before_ns": pa.array(found.work_before_ns, mask=found.work_before_ns == NONE),
        "idle_before_ns": pa.array(found.idle_before_ns, mask=found.idle_before_ns == NONE),
        "world_size": pa.array([capture.facts.world_size] * len(rows), pa.int64()),
        "clock_ns": pa.array([clocks[0] if clocks else None] * len(rows), pa.int64()),
    }


def _given(operation: str, sizes: Mapping[str, int]) -> int:
    """The size that the user gives for an operation, NONE for none; a barrier has no message."""
    return NONE if operation in ("barrier", "other") else sizes.get(operation, sizes.get("", NONE))


def _texts(name: np.ndarray, of_name: list[str | None]) -> pa.DictionaryArray:
    """The text of each operation by its name."""
    encoded = pa.array(of_name, pa.string()).dictionary_encode()
    return coded(encoded.indices.fill_null(NONE).to_numpy()[name], encoded.dictionary)


def _nth_step(projection: Projection, phase_of_step: np.ndarray) -> np.ndarray:
    """For each entry its place among the entries of its phase on its device, in order of start."""
    # Entries are in order of device, then of start.
    group = (
        projection.device.astype(np.int64) * (int(phase_of_step.max(initial=0)) + 1) + phase_of_step[projection.step]
    )
    return order_in_group(np.argsort(group, kind="stable"), group)


def _by_step(capture: Capture, found: _Found) -> dict:
    """A row for each entry of the projection, and for each device what is in no step, if there is any."""
    work, steps, projection, rows = capture.work, capture.steps, capture.projection, found.rows
    entries, exposed_ns, edge = len(projection), found.exposed_ns, capture.edge
    group = np.where(projection.of_operation[rows] >= 0, projection.of_operation[rows], entries + work.device[rows])
    count = entries + len(work.devices.numbers)
    durations_ns = work.end_ns[rows] - work.start_ns[rows]
    calls, (time_ns, exposed) = (
        np.bincount(group, minlength=count),
        (sums(group, values, count) for values in (durations_ns, exposed_ns)),
    )
    outside = np.flatnonzero(calls[entries:])
    shown = np.concatenate([np.arange(entries), entries + outside])
    none = [None] * len(outside)
    durations = projection.duration_ns
    return {
        "device": [*(work.devices.numbers[device] for device in projection.device.tolist()),
                   *(work.devices.numbers[device] for device in outside.tolist())],
        "step": [*projection.step.tolist(), *none],
        "phase": [*(steps.phases[code] for code in steps.phase[projection.step].tolist()), *([OUTSIDE] * len(outside))],
        "edge": [*edge[projection.step].tolist(), *([False] * len(outside))],
        "edge_reason": [*capture.edge_reason[projection.step].tolist(), *none],
        "duration_ns": [*durations.tolist(), *none],
        "calls": calls[shown],
        "time_ns": time_ns[shown],
        "exposed_ns": exposed[shown],
        "share": [*(exposed[:entries] / np.maximum(durations, 1)).tolist(), *none],
    }  # fmt: skip
