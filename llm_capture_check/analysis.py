"""Can this capture be trusted? All checks of one report, with what they rest on, without Nsight and without output."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import pyarrow as pa

from llm_capture_check.tables import CAPTURES, FINDINGS, PROCESSES, RECORDS, STEP_TIMES, finding_columns
from recipes.capture.capture import Capture
from recipes.events.gpu_work import read_correlation
from recipes.findings.engine import ANY
from recipes.findings.finding import INFO, Finding
from recipes.findings.launches_without_work import over_time
from recipes.findings.profiler_overhead import overhead_share
from recipes.findings.registry import CAPTURE, find, in_order, without_effects
from recipes.findings.step_times import StepTimes
from recipes.findings.subject import Subject
from recipes.report.facts import session_start_ns
from recipes.run.recipe import Analysis


@dataclass(frozen=True)
class Settings:
    """What the user can tell: the step time without the profiler, in ns."""

    step_time_ns: float | None = None


def analyse(capture: Capture, settings: Settings) -> Analysis:
    """The tables of one report, without the columns report and rank; and what only these checks find, in words."""
    subject = Subject(capture, settings.step_time_ns)
    thorough = find(CAPTURE, subject, holds=subject.holds)
    # The launches of the whole window tell better than steps do.
    better = {"lost_records", *(finding.id for finding in thorough if finding.observed)}
    quality = [finding for finding in subject.quality_findings if finding.id not in better]
    findings = in_order(without_effects(_once([*quality, *thorough])))
    tables = {
        FINDINGS.name: FINDINGS.of_report(finding_columns(findings)),
        CAPTURES.name: CAPTURES.of_report({name: [value] for name, value in _capture(subject).items()}),
        PROCESSES.name: PROCESSES.of_report(_processes(subject)),
        RECORDS.name: RECORDS.of_report(over_time(capture.survey, capture.work.start_ns)),
        STEP_TIMES.name: STEP_TIMES.of_report(_step_columns(subject.times)),
    }
    return Analysis(tables, [finding.line for finding in thorough if finding.severity != INFO])


def _once(findings: list[Finding]) -> list[Finding]:
    """Of findings of one check and message the first."""
    return list({(finding.id, finding.message): finding for finding in reversed(findings)}.values())


def _capture(subject: Subject) -> dict:
    """The row of CAPTURES."""
    capture, work, survey, times = subject.capture, subject.capture.work, subject.capture.survey, subject.times
    known = [process for process in subject.capture.processes if process.uses_cuda and not process.traced_elsewhere]
    begin_ns, end_ns = (int(work.start_ns.min()), int(work.end_ns.max())) if len(work) else (None, None)
    epoch = session_start_ns(capture.report)
    return {
        "session": subject.options.get("PROFILING_SESSION_UUID") or None,
        "world_size": subject.facts.world_size,
        "engine": None if subject.engine == ANY else subject.engine,
        "begin_utc_ns": None if epoch is None or begin_ns is None else epoch + begin_ns,
        "end_utc_ns": None if epoch is None or end_ns is None else epoch + end_ns,
        "window_ns": None if begin_ns is None or end_ns is None else end_ns - begin_ns,
        "devices": len(np.unique(work.device)),
        "cuda_processes": len(known),
        "working_processes": sum(process.working for process in known),
        "operations": len(work),
        "ranges": sum(capture.domains.values()),
        "steps": int(np.count_nonzero(capture.within)),
        "whole_steps": len(set(times.step.tolist()) - set(times.step[times.edge].tolist())),
        "launches": len(survey.recorded),
        "recorded_launches": int(np.count_nonzero(survey.recorded)),
        "overhead_share": overhead_share(subject)[0] if len(work) else None,
    }


def _processes(subject: Subject) -> dict[str, list]:
    """The columns of PROCESSES."""
    capture, survey = subject.capture, subject.capture.survey
    found = [asdict(process) for process in subject.capture.processes]
    operations = {pid: len(ids) for pid, _, ids in read_correlation(capture.report, capture.work)}
    pids, counts = np.unique(capture.ranges.pid, return_counts=True)
    ranges = dict(zip(pids.tolist(), counts.tolist(), strict=True))
    columns = ("pid", "name", "uses_cuda", "traced", "traced_elsewhere")
    return {
        **{name: [process[name] for process in found] for name in columns},
        "api_calls": [survey.calls.get(process["pid"], 0) for process in found],
        "operations": [operations.get(process["pid"], 0) for process in found],
        "ranges": [ranges.get(process["pid"], 0) for process in found],
    }


def _step_columns(times: StepTimes) -> dict:
    columns = {name: getattr(times, name) for name in STEP_TIMES.names[2:] if name != "period_ns"}
    columns["batch"] = pa.array(times.batch, pa.int64())
    columns["phase"] = pa.array(times.phase, pa.string())
    return {**columns, "period_ns": pa.array(times.period_ns, mask=times.period_ns < 0)}
