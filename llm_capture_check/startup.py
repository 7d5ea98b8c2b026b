"""Is start-up or warm-up inside the window?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from llm_capture_check.api_survey import SETUP, ApiSurvey
from recipes import intervals
from recipes.capture import Capture
from recipes.checks.finding import WARN, Finding
from recipes.checks.subject import Subject
from recipes.units import format_count, format_ns, format_share

#: Set-up calls, or kernels that never run again, are told from this share of the window, or of GPU time, on.
_WORTH = 0.02


def startup(subject: Subject, survey: ApiSurvey) -> Iterator[Finding]:
    """Start-up in the window: set-up calls, and GPU time in kernels that run only before the first step."""
    capture = subject.capture
    work = capture.work
    begin_ns = min(int(work.start_ns.min()), int(survey.setup_ns.min(initial=np.iinfo(np.int64).max)))
    window_ns = int(work.end_ns.max()) - begin_ns
    setup_ns = _union_ns(survey.setup_ns, survey.setup_end_ns)
    share, once_ns, once = _before_steps(capture)
    if setup_ns <= _WORTH * window_ns and share <= _WORTH:
        return
    told = []
    for kind, name in enumerate(SETUP):
        own = survey.setup_kind == kind
        if own.any():
            time_ns = _union_ns(survey.setup_ns[own], survey.setup_end_ns[own])
            told.append(f"{name} {format_ns(time_ns)} ({format_count(np.count_nonzero(own), 'call')})")
    if once:
        names = format_count(once, "kernel name")
        told.append(f"{format_share(share)} of GPU time ({format_ns(once_ns)}) in {names} that never run again")
    evidence = f"in a window of {format_ns(window_ns)}: {', '.join(told)}"
    start_ns = first_step_ns(capture)
    if start_ns is not None:
        evidence += f"; steps begin at {start_ns:,} ns, so --filter-time {start_ns}/ looks at them alone"
    yield subject.found("startup", WARN, "start-up or warm-up lies in the window", evidence)


def first_step_ns(capture: Capture) -> int | None:
    """When the host began the first step that has work; None without steps."""
    working = capture.attribution.working
    return int(capture.steps.start_ns[working].min()) if working.any() else None


def _before_steps(capture: Capture) -> tuple[float, int, int]:
    """GPU time in kernels whose name occurs only before the first step: its share, itself, the number of names."""
    work, step = capture.work, capture.attribution.step
    inside = np.flatnonzero(step >= 0)
    if not len(inside):
        return 0.0, 0, 0
    before = work.end_ns <= work.start_ns[inside].min()
    later = np.zeros(len(work.names), dtype=bool)
    later[work.name[~before]] = True
    once = before & ~later[work.name]
    time_ns = int((work.end_ns - work.start_ns)[once].sum())
    total_ns = int((work.end_ns - work.start_ns).sum())
    return time_ns / max(total_ns, 1), time_ns, len(np.unique(work.name[once]))


def _union_ns(starts_ns: np.ndarray, ends_ns: np.ndarray) -> int:
    order = intervals.by_start(starts_ns)
    return intervals.length_ns(*intervals.merge(starts_ns[order], ends_ns[order]))
