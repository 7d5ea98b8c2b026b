"""Where the window begins and ends, and the steps that this cuts or leaves."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from recipes.base.units import format_count, format_ns
from recipes.capture.edges import INCOMPLETE, begun_before
from recipes.events.gpu_work import page_migrations
from recipes.events.launches import NONE
from recipes.findings.finding import INFO, WARN, Finding
from recipes.findings.registry import cannot_tell
from recipes.findings.subject import Subject

#: Fewer whole steps than this say little, since percentiles are rough; fewer than that nothing.
_FEW, _TOO_FEW = 10, 3


def busy_edges(subject: Subject) -> Iterator[Finding]:
    """A window that begins or ends while the GPU works."""
    capture, survey, times = subject.capture, subject.capture.survey, subject.times
    work, of_launch = capture.work, capture.launches.of_operation
    if capture.filtered:
        return
    if not (of_launch != NONE).any():
        yield from (cannot_tell(check, "the report has no launches") for check in ("window_begin", "window_end"))
        return
    first_launch_ns = int(capture.launches.start_ns[of_launch[of_launch != NONE]].min())
    early = (of_launch == NONE) & (work.start_ns < first_launch_ns) & ~page_migrations(work)
    if begun_before(work, capture.steps, capture.attribution) or early.any():
        count = int(np.count_nonzero(early))
        message = "the window begins on a busy GPU: its first work was launched before it"
        evidence = f"{format_count(count, 'operation')} before the first launch"
        yield subject.found("window_begin", message, evidence, numbers={"operations": count})
    beyond = {pid: end_ns - survey.last_ns.get(pid, end_ns) for pid, end_ns in survey.last_work_ns.items()}
    pid = max(beyond, key=lambda one: beyond[one], default=0)
    if beyond.get(pid, 0) > 0:
        own = np.flatnonzero(times.pid == pid)
        cut = len(own) and times.edge[own[times.start_ns[own].argmax()]]
        message = "the window ends while the GPU is busy" + (", and its last step is cut" if cut else "")
        evidence = f"the last operation ends {format_ns(beyond[pid])} after the last CUDA call of process {pid}"
        severity, figures = WARN if cut else INFO, {"beyond_ns": beyond[pid]}
        yield subject.found("window_end", message, evidence, severity=severity, numbers=figures)


def few_steps(subject: Subject) -> Iterator[Finding]:
    """Steps that are cut, and too few of them to say much."""
    times = subject.times
    steps = len(set(times.step.tolist()))
    # What the chosen time range cuts is no fault of the capture.
    incomplete = np.isin(times.edge_reason.astype(str), INCOMPLETE)
    cut = len(set(times.step[incomplete & ~subject.capture.cut[times.step]].tolist()))
    if cut:
        message = "steps that may be incomplete (no record, profiler start or stop, cut) count in no median"
        evidence, figures = f"{cut:,} of {steps:,} steps", {"cut": cut, "steps": steps}
        yield subject.found("steps_cut", message, evidence, numbers=figures)
    # The phase with most steps is what the capture is about: a lone prefill is no fault.
    phases = [(len(entries), int(times.duration_ns[entries].sum()), name) for name, entries in times.phases()]
    most, _, name = max(phases, default=(0, 0, ""))
    if phases and most < _FEW:
        severity = WARN if most < _TOO_FEW else INFO
        message = f"few steps, so that percentiles are rough: {name} has most"
        evidence, figures = format_count(most, "whole step"), {"steps": most}
        yield subject.found("steps_few", message, evidence, severity=severity, numbers=figures)
