"""Do the steps hold the GPU's work, and is it whole?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from recipes.capture import Capture
from recipes.checks.finding import WARN, Finding
from recipes.checks.subject import Subject
from recipes.units import format_count, format_share

#: Steps should cover this share of the GPU time.
_MUCH = 0.8
#: So many of the launches in steps may be without a record before it is said.
_LOST = 0.001


def silent_steps(subject: Subject) -> Iterator[Finding]:
    """Steps without any GPU work."""
    capture = subject.capture
    within = np.count_nonzero(capture.within)
    silent = np.count_nonzero(capture.within & ~capture.attribution.working)
    if silent:
        message = "steps without GPU work: it was not recorded, or another process does it"
        yield subject.found("steps_silent", WARN, message, f"{silent:,} of {within:,} steps")


def little_in_steps(subject: Subject) -> Iterator[Finding]:
    """Much of the GPU time in no step."""
    share = subject.capture.attributed_share()
    if share is not None and share < _MUCH and _computing_share(subject.capture) < _MUCH:
        message = "much GPU time lies in no step: the window holds start-up or warm-up, or other ranges are the steps"
        yield subject.found("steps_share", WARN, message, f"{format_share(share)} of GPU time is in steps")


def _computing_share(capture: Capture) -> float:
    """The share of GPU time in steps, without collectives: one outside can wait long for ranks that come later."""
    work = capture.work
    collective = np.array(["nccl" in name.lower() for name in work.names], dtype=bool)[work.name]
    time_ns = np.where(collective, 0, work.end_ns - work.start_ns)
    return float(time_ns[capture.attribution.step >= 0].sum() / max(time_ns.sum(), 1))


def lost_launches(subject: Subject) -> Iterator[Finding]:
    """Launches inside steps whose work was not recorded."""
    attribution = subject.capture.attribution
    lost, launches = int(attribution.lost.sum()), int(attribution.launches.sum())
    # Steps without any work are told as such.
    some = attribution.working & (attribution.lost > 0)
    if some.any() and lost > _LOST * (lost + launches):
        evidence = f"{lost:,} of {lost + launches:,} launches, in {format_count(np.count_nonzero(some), 'step')}"
        yield subject.found("lost_records", WARN, "launches in steps without a record of their work", evidence)
