"""Events that hit one step: told with their time, and left out of everything else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from recipes.base.units import format_count, format_ns
from recipes.capture.one_offs import CODE_LOADING, FIRST_COLLECTIVE, PAUSE
from recipes.findings.finding import Finding
from recipes.findings.subject import Subject

#: So many events are told one by one.
_TOLD = 3
_WHY = {
    FIRST_COLLECTIVE: "waited {time} in its first collective: another rank's profiler started later",
    CODE_LOADING: "took {time} longer while the host loaded code",
    PAUSE: "paused for {time}, in one gap that no like step has (a garbage collection, a page fault, the scheduler)",
}


def one_offs(subject: Subject) -> Iterator[Finding]:
    """Each event with its step, time and cause."""
    events = subject.capture.one_offs
    for event in sorted(events, key=lambda event: -event.time_ns)[:_TOLD]:
        message = f"step {event.step} {_WHY[event.kind].format(time=format_ns(event.time_ns))}; it counts in no mean"
        evidence = f"a one-off event at {format_ns(event.start_ns)}, edge_reason `{event.kind}`"
        if len(events) > _TOLD:
            evidence += f"; one of {format_count(len(events), 'event')}"
        found = subject.found("one_off", message, evidence, numbers={"time_ns": event.time_ns})
        yield replace(found, scope=replace(found.scope, step=event.step))
