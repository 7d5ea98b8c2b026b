"""Steps that may be incomplete, so that they count in no median."""

from __future__ import annotations

import re

import numpy as np

from recipes.events.gpu_work import GpuWork, page_migrations
from recipes.report import schema
from recipes.report.report import Report
from recipes.steps.attribution import NO_LAUNCH, Attribution
from recipes.steps.steps import Steps

# What Nsight versions call the moments when collection begins or ends.
_START_STOP = re.compile(r"(?i)profiler.?(?:start|stop)|process exit|profiling initialization")


def edge_steps(report: Report, work: GpuWork, steps: Steps, attribution: Attribution, cut: np.ndarray) -> np.ndarray:
    """Which steps may be incomplete, bool per step.

    Those with no operation, with launches inside whose work was not recorded, never closed, touched by the profiler's
    start or stop, `cut` by the time range looked at, and the first one on a GPU that was already busy with work
    launched before the window.
    """
    if not len(steps):
        return np.zeros(0, dtype=bool)
    edge = ~attribution.working | (attribution.lost > 0) | ~steps.closed | cut
    for start_ns, end_ns in _starts_and_stops(report):
        edge |= (steps.start_ns <= end_ns) & (steps.end_ns >= start_ns)
    edge[begun_before(work, steps, attribution)] = True
    return edge


def _starts_and_stops(report: Report) -> list[tuple[int, int]]:
    """When the profiler started and stopped, by its own overhead."""
    rows = report.read(schema.OVERHEAD, ["start_ns", "end_ns", "name"]).to_pylist()
    return [
        (row["start_ns"], row["end_ns"])
        for row in rows
        if row["name"] and None not in (row["start_ns"], row["end_ns"]) and _START_STOP.search(row["name"])
    ]


def begun_before(work: GpuWork, steps: Steps, attribution: Attribution) -> list[int]:
    """The first step of each device whose first operation was launched before the window."""
    found, launched = [], ~page_migrations(work)
    for device in range(len(work.devices.numbers)):
        rows = np.flatnonzero((work.device == device) & launched)
        if not len(rows):
            continue
        first = rows[work.start_ns[rows].argmin()]
        in_steps = attribution.step[rows][attribution.step[rows] >= 0]
        if attribution.step[first] == NO_LAUNCH and len(in_steps):
            found.append(int(in_steps.min()))
    return found
