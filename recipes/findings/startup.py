"""Is start-up or warm-up inside the window?"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from recipes.base import intervals
from recipes.base.units import format_count, format_ns
from recipes.capture.capture import Capture
from recipes.events.api_survey import SETUP, ApiSurvey
from recipes.events.gpu_work import KERNEL, MEMCPY, read_correlation
from recipes.findings.finding import INFO, Finding
from recipes.findings.registry import cannot_tell
from recipes.findings.subject import Subject

#: Set-up calls are told from this share of the window on, below which they change no figure much; work that runs only
#: before the first step from that share of GPU time: it may be a prefill that is no step.
_WORTH, _MUCH_WORK = 0.02, 0.1
# What XLA, torch.compile and hand-made programs call it; not `CompiledFxGraph`, which is what was compiled, at work.
_COMPILING = re.compile(r"(?i)^Xla(Compile|Pass|Autotun)|autotun|\bcompil(e|ing|ation)\b")


def startup(subject: Subject) -> Iterator[Finding]:
    """Start-up in the window: set-up calls, copies and kernels before and in the first step; and set-up later."""
    capture, survey = subject.capture, subject.capture.survey
    begin_ns = min(int(capture.work.start_ns.min()), int(survey.setup_ns.min(initial=np.iinfo(np.int64).max)))
    window_ns = int(capture.work.end_ns.max()) - begin_ns
    began_ns = _began_ns(capture, survey.setup_pid)
    early = survey.setup_ns < began_ns
    told = [*_setup_told(survey, early, window_ns), *_compiling_told(capture, window_ns)]
    before = [text for share, text in _only_before_steps(capture) if share > _MUCH_WORK]
    if before and not told:
        # Without a sign of setting up it may as well be what the steps go on from.
        message = "work before the first step: a prefill that is no step, or warm-up"
        yield subject.found("startup", message, ", ".join(before), severity=INFO)
    told = [*told, *before] if told else []
    if told:
        evidence = f"in {format_ns(window_ns)} from the first of it to the last GPU work: {', '.join(told)}"
        late = np.unique(survey.setup_pid[early & (survey.setup_ns >= _first_step_end_ns(capture))])
        if len(late):
            evidence += f"; process {', '.join(map(str, late.tolist()))} still starts while steps of others run"
        start_ns = _steady_ns(capture, survey, early)
        if start_ns is not None:
            evidence += f"; the steps behind it: --filter-time {start_ns}/"
        yield subject.found("startup", "start-up or warm-up lies in the window", evidence)
    elif not survey.calls and not before:
        yield cannot_tell("startup", "the report has no CUDA calls")
    later = _setup_told(survey, ~early, window_ns)
    if later:
        message = "code is loaded or memory allocated while steps run"
        yield subject.found("setup_in_steps", message, f"in {format_ns(window_ns)}: {', '.join(later)}")


def _first_step_end_ns(capture: Capture) -> int:
    """When the first step that has work ends on the host; the end of time without steps."""
    working = capture.attribution.working & capture.within
    if not working.any():
        return np.iinfo(np.int64).max
    first = np.flatnonzero(working)[capture.steps.start_ns[working].argmin()]
    return int(capture.steps.end_ns[first])


def _began_ns(capture: Capture, pid: np.ndarray) -> np.ndarray:
    """The end of starting up of the process on each row, int64: when its first step that has work ends on the host.

    A process without steps has begun with its first kernel, or with the first step of any if that is later; the end of
    time where there is none.
    """
    working, end_of_time = capture.attribution.working & capture.within, np.iinfo(np.int64).max
    steps, work = capture.steps, capture.work
    starts_ns, ends_ns, pids = (values[working] for values in (steps.start_ns, steps.end_ns, steps.pid))
    began_ns = np.full(len(pid), end_of_time, dtype=np.int64)
    if not len(starts_ns):
        return began_ns
    kernel_ns = np.where(work.kind == KERNEL, work.start_ns, end_of_time)
    rows_of = {process: rows for process, rows, _ in read_correlation(capture.report, work)}
    for process in np.unique(pid).tolist():
        own = np.flatnonzero(pids == process)
        if len(own):
            began_ns[pid == process] = ends_ns[own[starts_ns[own].argmin()]]
        elif process in rows_of:
            first_ns = int(kernel_ns[rows_of[process]].min(initial=end_of_time))
            began_ns[pid == process] = max(first_ns, _first_step_end_ns(capture))
    return began_ns


def _compiling_told(capture: Capture, window_ns: int) -> list[str]:
    """Ranges that say that code is compiled or tuned, if they take a share of the window that is worth telling."""
    ranges = capture.ranges
    named = np.array([_COMPILING.search(text) is not None for text in ranges.texts], dtype=bool)
    own = np.flatnonzero(named[ranges.text] & ranges.closed & capture.span.touches(ranges.start_ns, ranges.end_ns))
    time_ns = intervals.union_ns(ranges.start_ns[own], ranges.end_ns[own])
    if time_ns <= _WORTH * window_ns:
        return []
    return [f"compiling and tuning {format_ns(time_ns)} ({format_count(len(own), 'range')})"]


def _setup_told(survey: ApiSurvey, chosen: np.ndarray, window_ns: int) -> list[str]:
    """What set-up calls consist of, if they take a share of the window that is worth telling."""
    if intervals.union_ns(survey.setup_ns[chosen], survey.setup_end_ns[chosen]) <= _WORTH * window_ns:
        return []
    told = []
    for kind, name in enumerate(SETUP):
        own = chosen & (survey.setup_kind == kind)
        if own.any():
            time_ns = intervals.union_ns(survey.setup_ns[own], survey.setup_end_ns[own])
            told.append(f"{name} {format_ns(time_ns)} ({format_count(int(own.sum()), 'call')})")
    return told


def _steady_ns(capture: Capture, survey: ApiSurvey, early: np.ndarray) -> int | None:
    """When the host began the first step behind early set-up; None when there is none."""
    starts_ns = capture.steps.start_ns[capture.attribution.working & capture.within]
    later = starts_ns[starts_ns >= survey.setup_end_ns[early].max(initial=np.iinfo(np.int64).min)]
    return int(later.min()) if len(later) else None


def _only_before_steps(capture: Capture) -> list[tuple[float, str]]:
    """Kernels and copies to the GPU whose name occurs only before the first step: their share of GPU time, in words."""
    work, step = capture.work, capture.attribution.step
    inside = np.flatnonzero(step >= 0)
    if not len(inside):
        return []
    before = work.end_ns <= work.start_ns[inside].min()
    later = np.zeros(len(work.names), dtype=bool)
    later[work.name[~before]] = True
    time_ns = work.end_ns - work.start_ns
    total_ns = max(int(time_ns.sum()), 1)
    once = before & (work.kind == KERNEL) & ~later[work.name]
    copies = before & (work.kind == MEMCPY)
    kernels_ns, copies_ns = int(time_ns[once].sum()), int(time_ns[copies].sum())
    names = format_count(len(np.unique(work.name[once])), "kernel")
    return [
        (kernels_ns / total_ns, f"{names} that run only before the first step {format_ns(kernels_ns)}"),
        (copies_ns / total_ns, f"copies before the first step {format_ns(copies_ns)}"),
    ]
