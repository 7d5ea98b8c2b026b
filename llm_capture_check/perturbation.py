"""How much slower is the captured program than without the profiler?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from llm_capture_check.step_times import StepTimes
from recipes import intervals
from recipes.capture import Capture
from recipes.checks.finding import INFO, WARN, Finding
from recipes.checks.subject import Subject
from recipes.launches import NONE
from recipes.projection import project
from recipes.units import format_ns, format_share

#: From so many launches a step, and so much idle time in it, tracing each launch is felt.
_LAUNCHES, _IDLE, _PER_LAUNCH = 100, 0.1, 2
#: Steps that take so many times as long as without the profiler.
_SLOWER = 1.1


def perturbation(subject: Subject, times: StepTimes, step_time_ns: float | None) -> Iterator[Finding]:
    """Steps of many launches whose idle time is in part the profiler's; or, with the real step time, the ratio."""
    whole = ~times.edge
    if not whole.any():
        return
    if step_time_ns is not None:
        yield from _measured(subject, times, step_time_ns)
        return
    launches, idle = _launches_and_idle(subject.capture, times)
    operations, duration_ns = times.operations[whole].mean(), times.duration_ns[whole].mean()
    mean_launches, mean_idle = launches[whole].mean(), idle[whole].sum() / max(times.duration_ns[whole].sum(), 1)
    if mean_launches > _LAUNCHES and mean_idle > _IDLE and operations < _PER_LAUNCH * mean_launches:
        message = "tracing slows every launch, so idle and step times here are more than in life"
        evidence = (
            f"{mean_launches:,.0f} launches a step of {format_ns(duration_ns)}, in which the GPU idles "
            f"{format_share(mean_idle)}"
        )
        yield subject.found("perturbation", INFO, message, evidence)


def _measured(subject: Subject, times: StepTimes, step_time_ns: float) -> Iterator[Finding]:
    known = times.period_ns[(times.period_ns > 0) & ~times.edge]
    typical_ns = float(np.median(known if len(known) else times.duration_ns[~times.edge]))
    ratio = typical_ns / step_time_ns
    evidence = f"{format_ns(typical_ns)} in the capture, {format_ns(step_time_ns)} without the profiler"
    if ratio > _SLOWER:
        message = f"steps take {ratio:.2f} times as long as without the profiler"
        yield subject.found("perturbation", WARN, message, evidence)
    elif ratio < 1 / _SLOWER:
        message = f"steps are faster than --step-time ({ratio:.2f} times it): that is the time of something else"
        yield subject.found("perturbation", WARN, message, evidence)


def _launches_and_idle(capture: Capture, times: StepTimes) -> tuple[np.ndarray, np.ndarray]:
    """Launches, and idle ns, of each entry of the step times."""
    work = capture.work
    projection = project(work, capture.attribution.step, capture.steps)
    launch = capture.launches.of_operation
    known = np.flatnonzero((projection.of_operation >= 0) & (launch != NONE))
    count = max(len(capture.launches.start_ns), 1)
    # A launch of many operations, as of a graph, is one.
    pairs = np.unique(projection.of_operation[known].astype(np.int64) * count + launch[known])
    launches = np.bincount(pairs // count, minlength=len(projection))
    idle_ns = np.zeros(len(projection))
    for device in range(len(work.devices.numbers)):
        rows = np.flatnonzero(work.device == device)
        rows = rows[np.argsort(work.start_ns[rows], kind="stable")]
        busy = intervals.merge(work.start_ns[rows], work.end_ns[rows])
        own = np.flatnonzero(projection.device == device)
        start_ns, end_ns = projection.start_ns[own], projection.end_ns[own]
        idle_ns[own] = (end_ns - start_ns) - intervals.covered_ns(start_ns, end_ns, busy)
    return launches, idle_ns
