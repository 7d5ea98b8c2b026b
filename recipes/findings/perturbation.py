"""How much slower is the captured program than without the profiler?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from recipes.base import intervals
from recipes.base.units import format_ns, format_share
from recipes.capture.capture import Capture
from recipes.findings.finding import INFO, WARN, Finding
from recipes.findings.registry import cannot_tell
from recipes.findings.step_times import StepTimes
from recipes.findings.subject import Subject
from recipes.steps.engine_time import engine_step_ns
from recipes.steps.phases import DECODE_PHASES
from recipes.steps.projection import launches_of_entries

#: From so many launches per step, and this share of idle time in it, tracing each launch is felt; but only with fewer
#: than so many operations per launch: a graph's nodes are not launched one by one.
_LAUNCHES, _IDLE, _PER_LAUNCH = 100, 0.1, 2
#: Steps that take so many times as long as without the profiler are worth a warning; ordinary variance is not.
_SLOWER = 1.1


def perturbation(subject: Subject) -> Iterator[Finding]:
    """Steps of many launches whose idle time is in part the profiler's; or, with the real step time, the ratio."""
    times = subject.times
    if times.edge.all():
        yield cannot_tell("perturbation", "no step is whole")
        return
    if subject.step_time_ns is not None:
        yield from _measured(subject, times, subject.step_time_ns)
        return
    name, entries = _most_steps(times)
    launches, idle_ns = _launches_and_idle(subject.capture, times)
    # Of medians: a first step that compiles would tell of itself only.
    typical = np.median(launches[entries])
    idle = np.median(idle_ns[entries] / np.maximum(times.duration_ns[entries], 1))
    if typical > _LAUNCHES and idle > _IDLE and np.median(times.operations[entries]) < _PER_LAUNCH * typical:
        message = "tracing slows every launch, so idle and step times are longer than without the profiler"
        evidence = (
            f"{name}: {typical:,.0f} launches a step of {format_ns(float(np.median(times.duration_ns[entries])))}, in "
            f"which the GPU idles {format_share(float(idle))} (medians)"
        )
        figures = {"launches": float(typical), "idle_share": float(idle)}
        yield subject.found("perturbation", message, evidence, numbers=figures)


def _measured(subject: Subject, times: StepTimes, step_time_ns: float) -> Iterator[Finding]:
    # Decoding before all others, as the other recipes choose their steps.
    name, entries = max(times.phases(), key=lambda group: (group[0] in DECODE_PHASES, len(group[1])))
    phases = {times.phase[place] for place in np.flatnonzero(~times.edge).tolist()}
    typical_ns = engine_step_ns(name, phases, times.start_ns[entries], times.period_ns[entries])
    if typical_ns is None:
        yield cannot_tell("slowdown", "--step-time is compared with the time from step to step, and there is one step")
        return
    ratio = typical_ns / step_time_ns
    evidence = f"{name}: {format_ns(typical_ns)} in the capture, {format_ns(step_time_ns)} without the profiler"
    if ratio < 1 / _SLOWER:
        message = f"steps take {ratio:.2f} times --step-time: that is the time of something else"
    else:
        message = f"steps take {ratio:.2f} times as long as without the profiler"
    off = not 1 / _SLOWER <= ratio <= _SLOWER
    figures = {"step_ns": typical_ns, "unprofiled_ns": step_time_ns, "ratio": ratio}
    yield subject.found("slowdown", message, evidence, severity=WARN if off else INFO, numbers=figures)


def _most_steps(times: StepTimes) -> tuple[str, np.ndarray]:
    """Name and entries of the group with most whole steps, of several the longest."""
    groups = ((len(rows), int(times.duration_ns[rows].sum()), name, rows) for name, _, rows in times.groups())
    return max(groups, key=lambda group: group[:3])[2:]


def _launches_and_idle(capture: Capture, times: StepTimes) -> tuple[np.ndarray, np.ndarray]:
    """Launches, and idle ns, of each entry of the step times."""
    work, projection = capture.work, times.projection
    launches = launches_of_entries(projection, capture.launches)
    idle_ns = np.zeros(len(projection))
    for device in range(len(work.devices.numbers)):
        rows = np.flatnonzero(work.device == device)
        rows = rows[np.argsort(work.start_ns[rows], kind="stable")]
        busy = intervals.merge(work.start_ns[rows], work.end_ns[rows])
        own = np.flatnonzero(projection.device == device)
        start_ns, end_ns = projection.start_ns[own], projection.end_ns[own]
        idle_ns[own] = (end_ns - start_ns) - intervals.covered_ns(start_ns, end_ns, busy)
    return launches, idle_ns
