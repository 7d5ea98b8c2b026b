"""Do the steps hold the GPU's work, and is it whole?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from recipes.base.units import format_count, format_ns, format_share
from recipes.capture.capture import Capture
from recipes.findings.finding import INFO, WARN, Finding
from recipes.findings.subject import Subject

#: Steps should cover this share of the GPU time: else what is said per step leaves out much of the program.
_MUCH = 0.8
#: From this share on steps without work are worth a warning: a single one proves little. Records that end this share of
#: the window before the steps do have stopped.
_SILENT, _SILENCE = 0.01, 0.1
#: This share of the launches in steps may be without a record before it is said: so few change no figure.
_LOST = 0.001


def silent_steps(subject: Subject) -> Iterator[Finding]:
    """Steps without any GPU work: all behind the last record, or here and there."""
    capture = subject.capture
    steps, silent = capture.steps, capture.within & ~capture.attribution.working
    if not silent.any():
        return
    counts = f"{np.count_nonzero(silent):,} of {np.count_nonzero(capture.within):,} steps"
    last_ns, end_ns = int(capture.work.end_ns.max()), int(steps.end_ns[capture.within].max())
    span_ns = end_ns - min(int(capture.work.start_ns.min()), int(steps.start_ns[capture.within].min()))
    behind = silent & (steps.start_ns >= last_ns)
    if behind.sum() > silent.sum() / 2 and end_ns - last_ns > _SILENCE * span_ns and not capture.filtered:
        evidence = f"the last one ends {format_ns(end_ns - last_ns)} before the last step; {counts} have no GPU work"
        figures = {"silent_steps": int(silent.sum()), "silent_ns": end_ns - last_ns}
        yield subject.found("records_stop", "GPU records stop while steps go on", evidence, numbers=figures)
        return
    severity = WARN if silent.sum() > _SILENT * capture.within.sum() else INFO
    message = "steps without GPU work: it was not recorded, or another process does it"
    figures = {"silent_steps": int(silent.sum()), "steps": int(capture.within.sum())}
    yield subject.found("steps_silent", message, counts, severity=severity, numbers=figures)


def little_in_steps(subject: Subject) -> Iterator[Finding]:
    """Much of the GPU time in no step."""
    share = subject.capture.attributed_share()
    if share is not None and share < _MUCH and _computing_share(subject.capture) < _MUCH:
        message = "much GPU time lies in no step: the window holds start-up or warm-up, or other ranges are the steps"
        evidence = f"{format_share(share)} of GPU time is in steps"
        yield subject.found("steps_share", message, evidence, numbers={"share": share})


def _computing_share(capture: Capture) -> float:
    """The share of GPU time in steps, without collectives: one outside can wait long for ranks that come later."""
    work = capture.work
    collective = np.array(["nccl" in name.lower() for name in work.names], dtype=bool)[work.name]
    time_ns = np.where(collective, 0, work.end_ns - work.start_ns)
    return float(time_ns[capture.attribution.step >= 0].sum() / max(time_ns.sum(), 1))


def lost_launches(subject: Subject) -> Iterator[Finding]:
    """Launches inside steps whose work was not recorded."""
    attribution, steps = subject.capture.attribution, subject.capture.steps
    # Steps without any work are told as such; the first and the last are cut by the window.
    some = attribution.working & (attribution.lost > 0)
    if len(steps):
        some[[int(steps.start_ns.argmin()), int(steps.start_ns.argmax())]] = False
    lost, launches = int(attribution.lost[some].sum()), int(attribution.launches.sum())
    if some.any() and lost > _LOST * (lost + launches):
        evidence = f"{lost:,} of {lost + launches:,} launches, in {format_count(int(some.sum()), 'step')}"
        message = "launches in steps without a record of their work"
        yield subject.found("lost_records", message, evidence, numbers={"lost": lost, "launches": lost + launches})
