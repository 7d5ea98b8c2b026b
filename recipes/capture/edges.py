"""Steps that do not stand for the others, with the reason: incomplete, hit by a one-off event, or to be skipped."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from recipes.base.tables import Column
from recipes.capture.one_offs import ONE_OFFS, OneOff
from recipes.events.gpu_work import GpuWork, page_migrations
from recipes.report import schema
from recipes.report.report import Report
from recipes.steps.attribution import NO_LAUNCH, Attribution
from recipes.steps.steps import Steps

# What Nsight versions call the moments when collection begins or ends.
_START_STOP = re.compile(r"(?i)profiler.?(?:start|stop)|process exit|profiling initialization")
#: Why a step counts in no median, mean, headline or waterfall; of several reasons the first.
SKIPPED = "--skip-steps"
NOT_RECORDED = "work not recorded"
INCOMPLETE = (
    "no GPU work", NOT_RECORDED, "range not closed", "cut by the time range", "profiler start or stop",
    "begun before the window",
)  # fmt: skip
REASONS = (*INCOMPLETE, SKIPPED, *ONE_OFFS)
#: The column of all tables of steps.
EDGE_REASON = Column("edge_reason", "string", f"why: {', '.join(REASONS)}; null for steps that count")
#: The reason of a step that counts.
WHOLE = -1


def incomplete_steps(
    report: Report, work: GpuWork, steps: Steps, attribution: Attribution, cut: np.ndarray
) -> np.ndarray:
    """Why each step is incomplete: int8 per step, an index into REASONS, WHOLE for the others.

    Those with no operation, with launches inside whose work was not recorded, never closed, `cut` by the time range
    looked at (bool per step), touched by the profiler's start or stop, and the first one on a GPU that was already busy
    with work launched before the window. PackError when the report's export is damaged.
    """
    touched = np.zeros(len(steps), dtype=bool)
    for start_ns, end_ns in _starts_and_stops(report) if len(steps) else []:
        touched |= (steps.start_ns <= end_ns) & (steps.end_ns >= start_ns)
    begun = np.zeros(len(steps), dtype=bool)
    if len(steps):
        begun[begun_before(work, steps, attribution)] = True
    flags = (~attribution.working, attribution.lost > 0, ~steps.closed, cut, touched, begun)
    reason = np.full(len(steps), WHOLE, dtype=np.int8)
    for number, flag in reversed(list(enumerate(flags))) if len(steps) else []:
        reason[flag] = number
    return reason


def skip(reason: np.ndarray, steps: Steps, within: np.ndarray, count: int) -> np.ndarray:
    """The reasons, with the first `count` steps of each process that lie in the time range skipped.

    By place, whatever else is wrong with them, so that every rank skips the same. `reason` (int8 per step, as
    `incomplete_steps` gives it) is changed in place; `within` bool per step.
    """
    for pid in np.unique(steps.pid).tolist() if count else []:
        first = np.flatnonzero((steps.pid == pid) & within)[:count]
        reason[first[reason[first] == WHOLE]] = REASONS.index(SKIPPED)
    return reason


def with_one_offs(reason: np.ndarray, events: Iterable[OneOff]) -> np.ndarray:
    """The reasons, int8 per step, with those of steps that one-off events hit; the argument stays as it is."""
    reason = reason.copy()
    for event in events:
        if reason[event.step] == WHOLE:
            reason[event.step] = REASONS.index(event.kind)
    return reason


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
