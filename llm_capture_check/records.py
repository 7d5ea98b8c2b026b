"""Launches and their records over time: are records lost, and do they stop?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from llm_capture_check.api_survey import ApiSurvey
from recipes.checks.finding import WARN, Finding
from recipes.checks.subject import Subject
from recipes.units import format_ns, format_share

#: The window is looked at in so many parts.
BINS = 20
#: So many launches may be without a record before it is told, and so many at its end make a stop.
_LOST, _STOPPED = 0.001, 10
#: CUDA records that end this share of the session before the last range have stopped, unless no launch is due.
_SILENCE = 0.2


def over_time(survey: ApiSurvey, work_start_ns: np.ndarray) -> dict[str, np.ndarray]:
    """The window in BINS parts: start_ns, end_ns, launches, recorded (launches with a record), operations begun."""
    times = [times_ns for times_ns in (survey.launch_ns, work_start_ns) if len(times_ns)]
    if not times:
        return dict.fromkeys(("start_ns", "end_ns", "launches", "recorded", "operations"), np.zeros(0, dtype=np.int64))
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
        "recorded": counted(survey.launch_ns[survey.recorded]),
        "operations": counted(work_start_ns),
    }


def lost_records(subject: Subject, survey: ApiSurvey) -> Iterator[Finding]:
    """Launches without a record: at the end of the window from some moment on, or anywhere."""
    recorded, count = survey.recorded, len(survey.recorded)
    lost = count - int(np.count_nonzero(recorded))
    if not recorded.any() or lost <= _LOST * count:
        return
    last = int(np.flatnonzero(recorded)[-1])
    tail = count - 1 - last
    whole = f"{lost:,} of {count:,} launches ({format_share(lost / count)}) have no record"
    if tail >= _STOPPED and tail > lost / 2:
        at_ns, end_ns = int(survey.launch_ns[last]), int(survey.launch_ns[-1])
        message = f"GPU records stop while launches go on: none for the last {tail:,} launches"
        evidence = (
            f"the last launch with a record is at {at_ns:,} ns, {format_ns(end_ns - at_ns)} before the last launch"
        )
        yield subject.found("records_stop", WARN, message, f"{evidence}; {whole}")
        return
    first = int(np.flatnonzero(recorded)[0])
    where = f"{first:,} before the first record, {tail:,} after the last, {lost - first - tail:,} between"
    yield subject.found("lost_records", WARN, "GPU records were lost", f"{whole}: {where}")


def silence(subject: Subject, survey: ApiSurvey) -> Iterator[Finding]:
    """CUDA records that end long before the last NVTX range, though steps go on."""
    capture = subject.capture
    silent = capture.within & ~capture.attribution.working
    if not silent.any() or not len(capture.work):
        return
    last_ns = max(int(capture.work.end_ns.max()), *survey.last_ns.values(), 0)
    first_ns = int(capture.work.start_ns.min())
    end_ns = int(capture.steps.end_ns.max())
    if end_ns - last_ns > _SILENCE * (end_ns - first_ns) and (capture.steps.start_ns[silent] >= last_ns).all():
        message = "CUDA records stop while steps go on"
        evidence = f"the last one is at {last_ns:,} ns, the last step ends {format_ns(end_ns - last_ns)} later"
        yield subject.found("records_stop", WARN, message, evidence)
