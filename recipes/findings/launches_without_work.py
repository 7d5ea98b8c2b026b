"""Launches and their records over time: are records lost, and do they stop?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from recipes.base.units import format_ns, format_share
from recipes.events.api_survey import ApiSurvey
from recipes.findings.finding import Finding
from recipes.findings.registry import cannot_tell
from recipes.findings.subject import Subject

#: The window is looked at in so many parts.
BINS = 20
#: This share of launches may be without a record before it is told: so few change no figure. So many behind the last
#: recorded work, over this share of the window, make a stop: a few there are what was queued when the window ended.
_LOST, _STOPPED, _SILENCE = 0.001, 10, 0.02


def over_time(survey: ApiSurvey, work_start_ns: np.ndarray) -> dict[str, np.ndarray]:
    """The window in BINS parts (fewer if it has fewer ns, none if it is empty), int64 per part: start_ns, end_ns,
    launches, recorded_launches, operations begun. `work_start_ns` int64 per operation."""
    times = [times_ns for times_ns in (survey.launch_ns, work_start_ns) if len(times_ns)]
    if not times:
        return dict.fromkeys(
            ("start_ns", "end_ns", "launches", "recorded_launches", "operations"), np.zeros(0, dtype=np.int64)
        )
    first_ns, last_ns = min(int(t.min()) for t in times), max(int(t.max()) for t in times) + 1
    # Whole numbers: floats cannot tell neighbouring ns apart late in a session.
    edges_ns = first_ns + (np.arange(BINS + 1) * (last_ns - first_ns)) // BINS
    edges_ns = np.unique(edges_ns)

    def counted(times_ns: np.ndarray) -> np.ndarray:
        return np.diff(np.searchsorted(np.sort(times_ns), edges_ns))

    return {
        "start_ns": edges_ns[:-1],
        "end_ns": edges_ns[1:],
        "launches": counted(survey.launch_ns),
        "recorded_launches": counted(survey.launch_ns[survey.recorded]),
        "operations": counted(work_start_ns),
    }


def lost_records(subject: Subject) -> Iterator[Finding]:
    """Launches without a record: of a process from some moment on, or anywhere."""
    survey = subject.capture.survey
    if not len(survey.launch_ns):
        yield cannot_tell("lost_records", "the report has no launches")
    # A process without any work is told as that.
    for pid in sorted({*survey.launch_pid.tolist()} & set(survey.last_work_ns)):
        own = survey.launch_pid == pid
        finding = _of_process(subject, pid, survey.launch_ns[own], survey.recorded[own])
        if finding is not None:
            yield finding


def _of_process(subject: Subject, pid: int, launch_ns: np.ndarray, recorded: np.ndarray) -> Finding | None:
    known, count = np.flatnonzero(recorded), len(recorded)
    if not len(known):
        message = f"none of the kernels that process {pid} launched was recorded, only other work of it"
        figures = {"lost": count, "launches": count}
        return subject.found("lost_records", message, f"{count:,} launches", numbers=figures)
    first, last = int(known[0]), int(known[-1])
    at_ns, quiet_ns = int(launch_ns[last]), int(launch_ns[-1] - launch_ns[last])
    # What was launched while the GPU still did its last recorded work was queued behind it when the window ended.
    silence_ns = int(launch_ns[-1]) - max(at_ns, subject.capture.survey.last_work_ns[pid])
    tail = int(np.count_nonzero(launch_ns[last + 1 :] > subject.capture.survey.last_work_ns[pid]))
    if tail >= _STOPPED and silence_ns > _SILENCE * (launch_ns[-1] - launch_ns[0]):
        message = f"GPU records of process {pid} stop while launches go on: none for the last {count - 1 - last:,}"
        evidence = f"the last launch with a record is at {at_ns:,} ns, {format_ns(quiet_ns)} before the last one"
        figures = {"lost": count - 1 - last, "launches": count, "silent_ns": silence_ns}
        return subject.found("records_stop", message, f"{evidence}; of {count:,} launches", numbers=figures)
    # What the window cuts off at its ends is no loss.
    between = int(np.count_nonzero(~recorded[first:last]))
    if between <= _LOST * count:
        return None
    evidence = f"{between:,} of {count:,} launches ({format_share(between / count)}) of process {pid}"
    message, figures = "launches amid others without a record of their work", {"lost": between, "launches": count}
    return subject.found("lost_records", message, evidence, numbers=figures)
