"""CUDA processes of which the report has no GPU work."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from recipes.base.units import format_count
from recipes.capture.processes import Process
from recipes.findings.finding import INFO, WARN, Finding
from recipes.findings.registry import cannot_tell
from recipes.findings.subject import Subject
from recipes.report import schema

#: So many processes are named.
_SHOWN = 4


def missing_processes(subject: Subject) -> Iterator[Finding]:
    """CUDA processes of which the report has no GPU work, though it has some of others."""
    if subject.capture.filtered and not len(subject.capture.work):
        return
    if not subject.capture.report.count(schema.THREADS):
        yield cannot_tell("processes", "the report names no threads, which tell the processes that use CUDA")
    using = [process for process in subject.capture.processes if process.uses_cuda and not process.traced_elsewhere]
    if subject.option("COLLECT_CUDA_TRACE") != "false":
        yield from _untraced(subject, using)
    yield from _silent(subject, using)


def _untraced(subject: Subject, using: list[Process]) -> Iterator[Finding]:
    """Processes of the machine that were not traced: children of the traced ones, or of somebody else."""
    traced = [process for process in using if process.traced]
    untraced = [process for process in using if not process.traced]
    forked = [
        process
        for process in untraced
        if any(_kin(one.name) == _kin(process.name) and one.begat(process) for one in traced)
    ]
    figures = {"working": sum(process.working for process in using), "processes": len(using)}
    if forked:
        # In a report of one rank it may be another rank's that is not wanted.
        severity = WARN if subject.facts.rank is None else INFO
        message = f"GPU work of {figures['working']} of {len(using)} CUDA processes only"
        evidence = f"{_listed(forked)} not traced, as happens to processes forked without exec"
        yield subject.found("processes", message, evidence, severity=severity, numbers=figures)
    elif untraced:
        message = "other CUDA processes on this machine were not traced"
        evidence = f"{_listed(untraced)}, maybe another job"
        yield subject.found("processes", message, evidence, severity=INFO, numbers=figures)


def _silent(subject: Subject, using: list[Process]) -> Iterator[Finding]:
    """Traced processes without GPU work: those that launched some have lost it, others had none, as launchers."""
    silent = [process for process in using if process.traced and not process.working]
    if not silent or not any(process.working for process in using):
        return
    pids, counts = np.unique(subject.capture.survey.launch_pid, return_counts=True)
    launches = dict(zip(pids.tolist(), counts.tolist(), strict=True))
    lost = [process for process in silent if process.pid in launches]
    if lost:
        count = sum(launches[process.pid] for process in lost)
        message = f"{len(lost)} of {len(using)} CUDA processes launched GPU work, and none of it was recorded"
        evidence = f"{_listed(lost)}: {count:,} launches"
        figures = {"idle": len(lost), "processes": len(using), "launches": count}
        yield subject.found("idle_processes", message, evidence, numbers=figures)
    idle = [process for process in silent if process.pid not in launches]
    if idle:
        message = f"{len(idle)} of {len(using)} CUDA processes launched no GPU work, as launchers and helpers do"
        figures = {"idle": len(idle), "processes": len(using)}
        yield subject.found("idle_processes", message, _listed(idle), severity=INFO, numbers=figures)


def _kin(name: str) -> str:
    """What processes of one program have in common: VLLM::Worker_TP1 and VLLM::EngineCore, python3 and python3.11."""
    return re.split(r"::|[_\d. -]", name.lower(), maxsplit=1)[0]


def idle_contexts(subject: Subject) -> Iterator[Finding]:
    """Processes with a context on a device that they did no work on, though they work elsewhere."""
    devices = subject.capture.work.devices
    rows = subject.capture.report.read(schema.CONTEXTS, ["pid", "device_id"])
    contexts = zip(rows["pid"].to_pylist(), rows["device_id"].to_pylist(), strict=True)
    idle = sorted({context for context in contexts if context[0] in devices.pids} - set(devices.seen))
    if idle:
        told = ", ".join(f"process {pid} on device {ordinal}" for pid, ordinal in idle[:_SHOWN])
        message = f"{format_count(len(idle), 'CUDA context')} without work, of processes that work on other devices"
        yield subject.found("contexts", message, told, numbers={"contexts": len(idle)})


def _listed(processes: list[Process]) -> str:
    shown = ", ".join(process.label for process in processes[:_SHOWN])
    more = f" and {len(processes) - _SHOWN} more" if len(processes) > _SHOWN else ""
    return f"process {shown}{more}"
