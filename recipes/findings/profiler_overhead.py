"""What the profiler itself took of the window, and what it traced for that."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

from recipes.base import intervals
from recipes.base.rule_file import packaged_rows
from recipes.base.units import format_share
from recipes.findings.finding import INFO, WARN, Finding
from recipes.findings.registry import cannot_tell
from recipes.findings.subject import Subject
from recipes.report import schema
from recipes.report.report import numbers

#: Profiler overhead is told from this share of the window on, below which it changes no figure much, and counts as a
#: fault from that one on.
_OVERHEAD, _MUCH_OVERHEAD = 0.01, 0.05


def overhead(subject: Subject) -> Iterator[Finding]:
    """The profiler's own work while launches were still to come."""
    if not subject.capture.report.has(schema.OVERHEAD):
        yield cannot_tell("overhead", "the export has no times of the profiler's own work")
        return
    share, by_name = overhead_share(subject)
    if share > _OVERHEAD:
        # Kinds of overhead lie inside each other: their times do not add up.
        mostly = next((name for name, _ in by_name if name.lower() != "unknown"), "unknown")
        message = "the profiler itself worked while launches were still to come"
        evidence = f"{format_share(share)} of the window, most of it: {mostly}"
        severity = WARN if share > _MUCH_OVERHEAD else INFO
        yield subject.found("overhead", message, evidence, severity=severity, numbers={"share": share})


def overhead_share(subject: Subject) -> tuple[float, list[tuple[str, int]]]:
    """The share of the GPU's window in which the profiler worked, and its time by name, the longest first.

    Flushing after the last launch, while the GPU ends its work, delays nothing and does not count.
    """
    work, survey = subject.capture.work, subject.capture.survey
    first_ns, end_ns = int(work.start_ns.min()), int(work.end_ns.max())
    last_ns = min(end_ns, int(survey.launch_ns[-1])) if len(survey.launch_ns) else end_ns
    rows = subject.capture.report.read(schema.OVERHEAD, ["start_ns", "end_ns", "name"])
    starts_ns, ends_ns = numbers(rows["start_ns"], 0), numbers(rows["end_ns"], -1)
    starts_ns, ends_ns = np.maximum(starts_ns, first_ns), np.minimum(ends_ns, last_ns)
    inside = np.flatnonzero(ends_ns > starts_ns)
    names = rows["name"].to_pylist()
    times_ns: dict[str, int] = {}
    for row in inside.tolist():
        name = names[row] or "no name"
        times_ns[name] = times_ns.get(name, 0) + int(ends_ns[row] - starts_ns[row])
    total_ns = intervals.union_ns(starts_ns[inside], ends_ns[inside])
    return total_ns / max(end_ns - first_ns, 1), sorted(times_ns.items(), key=lambda item: -item[1])


def tracing_options(subject: Subject) -> Iterator[Finding]:
    """Options of the capture that cost much."""
    if not subject.options:
        yield cannot_tell("tracing_options", "the report does not say how it was captured")
    told = [f"{row['what']} ({row['flag']})" for row in _costly() if _chosen(subject, row["name"], row["value"])]
    if told:
        yield subject.found("tracing_options", "the capture traced more than needed here", ", ".join(told))


def _chosen(subject: Subject, name: str, value: str) -> bool:
    return value in subject.events if name == "CAPTURE_EVENT_TYPE" else subject.options.get(name) == value


@cache
def _costly() -> list[dict[str, str]]:
    return packaged_rows(Path(__file__).with_name("tracing_options.tsv"))
