"""Where the window begins and ends, what the profiler itself took of it, and how steps lie in it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

from recipes.base import intervals
from recipes.base.rule_file import packaged_rows
from recipes.base.units import format_count, format_ns, format_share
from recipes.capture.edges import begun_before
from recipes.events.api_survey import ApiSurvey
from recipes.events.launches import NONE
from recipes.findings.finding import INFO, WARN, Finding
from recipes.findings.step_times import StepTimes
from recipes.findings.subject import Subject
from recipes.report import schema
from recipes.report.report import numbers

#: Profiler overhead is told from this share of the window on, and counts as a fault from that one on.
_OVERHEAD, _MUCH_OVERHEAD = 0.01, 0.05
#: Fewer whole steps than this say little; fewer than that nothing.
_FEW, _TOO_FEW = 10, 3


def busy_edges(subject: Subject, survey: ApiSurvey, times: StepTimes) -> Iterator[Finding]:
    """A window that begins or ends while the GPU works."""
    capture = subject.capture
    work, of_launch = capture.work, capture.launches.of_operation
    if capture.filtered or not (of_launch != NONE).any():
        return
    first_launch_ns = int(capture.launches.start_ns[of_launch[of_launch != NONE]].min())
    early = (of_launch == NONE) & (work.start_ns < first_launch_ns)
    if begun_before(work, capture.steps, capture.attribution) or early.any():
        operations = format_count(np.count_nonzero(early), "operation")
        message = "the window begins on a busy GPU: its first work was launched before it"
        yield subject.found("window_begin", INFO, message, f"{operations} before the first launch")
    beyond = {pid: end_ns - survey.last_ns.get(pid, end_ns) for pid, end_ns in survey.last_work_ns.items()}
    pid = max(beyond, key=lambda one: beyond[one], default=0)
    if beyond.get(pid, 0) > 0:
        own = np.flatnonzero(times.pid == pid)
        cut = len(own) and times.edge[own[times.start_ns[own].argmax()]]
        message = "the window ends while the GPU is busy" + (", and its last step is cut" if cut else "")
        evidence = f"the last operation ends {format_ns(beyond[pid])} after the last CUDA call of process {pid}"
        yield subject.found("window_end", WARN if cut else INFO, message, evidence)


def overhead(subject: Subject, survey: ApiSurvey) -> Iterator[Finding]:
    """The profiler's own work while launches were still to come."""
    share, by_name = overhead_share(subject, survey)
    if share > _OVERHEAD:
        # Kinds of overhead lie inside each other: their times do not add up.
        mostly = next((name for name, _ in by_name if name.lower() != "unknown"), "unknown")
        message = "the profiler itself worked while launches were still to come"
        evidence = f"{format_share(share)} of the window, most of it: {mostly}"
        yield subject.found("overhead", WARN if share > _MUCH_OVERHEAD else INFO, message, evidence)


def overhead_share(subject: Subject, survey: ApiSurvey) -> tuple[float, list[tuple[str, int]]]:
    """The share of the GPU's window in which the profiler worked, and its time by name, the longest first.

    Flushing after the last launch, while the GPU ends its work, delays nothing and does not count.
    """
    work = subject.capture.work
    first_ns, end_ns = int(work.start_ns.min()), int(work.end_ns.max())
    last_ns = min(end_ns, int(survey.launch_ns[-1])) if len(survey.launch_ns) else end_ns
    rows = subject.capture.report.read(schema.OVERHEAD, ["start_ns", "end_ns", "name"])
    starts_ns, ends_ns = numbers(rows["start_ns"], 0), numbers(rows["end_ns"], -1)
    starts_ns, ends_ns = np.maximum(starts_ns, first_ns), np.minimum(ends_ns, last_ns)
    inside = np.flatnonzero(ends_ns > starts_ns)
    names, times_ns = rows["name"].to_pylist(), {}
    for row in inside.tolist():
        name = names[row] or "no name"
        times_ns[name] = times_ns.get(name, 0) + int(ends_ns[row] - starts_ns[row])
    total_ns = intervals.union_ns(starts_ns[inside], ends_ns[inside])
    return total_ns / max(end_ns - first_ns, 1), sorted(times_ns.items(), key=lambda item: -item[1])


def tracing_options(subject: Subject) -> Iterator[Finding]:
    """Options of the capture that cost much."""
    told = [f"{row['what']} ({row['flag']})" for row in _costly() if _chosen(subject, row["name"], row["value"])]
    if told:
        yield subject.found("tracing_options", INFO, "the capture traced more than needed here", ", ".join(told))


def _chosen(subject: Subject, name: str, value: str) -> bool:
    return value in subject.events if name == "CAPTURE_EVENT_TYPE" else subject.options.get(name) == value


@cache
def _costly() -> list[dict[str, str]]:
    return packaged_rows(Path(__file__).with_name("tracing_options.tsv"))


def few_steps(subject: Subject, times: StepTimes) -> Iterator[Finding]:
    """Steps that are cut, and too few of them to say much."""
    steps = len(set(times.step.tolist()))
    # What the chosen time range cuts is no fault of the capture.
    cut = len(set(times.step[times.edge & ~subject.capture.cut[times.step]].tolist()))
    if cut:
        message = "steps that may be incomplete (no record, profiler start or stop, cut) count in no median"
        yield subject.found("steps_cut", INFO, message, f"{cut:,} of {steps:,} steps")
    # The phase with most steps is what the capture is about: a lone prefill is no fault.
    phases = [(len(entries), int(times.duration_ns[entries].sum()), name) for name, entries in times.phases()]
    most, _, name = max(phases, default=(0, 0, ""))
    if phases and most < _FEW:
        severity = WARN if most < _TOO_FEW else INFO
        message = f"few steps, so that percentiles are rough: {name} has most"
        yield subject.found("steps_few", severity, message, format_count(most, "whole step"))
