"""CUDA processes of which the report has no GPU work."""

from __future__ import annotations

import re
from collections.abc import Iterator

from recipes.base.units import format_count
from recipes.capture.processes import Process
from recipes.findings.finding import INFO, WARN, Finding
from recipes.findings.registry import cannot_tell
from recipes.findings.subject import Subject
from recipes.report import schema

_SHOWN = 4


def missing_processes(subject: Subject) -> Iterator[Finding]:
    """CUDA processes of which the report has no GPU work, though it has some of others."""
    if subject.capture.filtered and not len(subject.capture.work):
        return
    if not subject.capture.report.count(schema.THREADS):
        yield cannot_tell("processes", "the report names no threads, which tell the processes that use CUDA")
    using = [process for process in subject.capture.processes if process.uses_cuda and not process.traced_elsewhere]
    untraced = [process for process in using if not process.traced]
    silent = [process for process in using if process.traced and not process.working]
    working = len(using) - len(untraced) - len(silent)
    if untraced and subject.option("COLLECT_CUDA_TRACE") != "false":
        kin = {_kin(process.name) for process in using if process.traced}
        related = [process for process in untraced if _kin(process.name) in kin]
        # Of another name it may be another job's, and in a report of one rank another rank's that is not wanted.
        severity = WARN if related and subject.facts.rank is None else INFO
        why = "not traced, as happens to processes forked without exec" if related else "not traced, maybe another job"
        message = f"GPU work of {working} of {len(using)} CUDA processes only"
        evidence, figures = f"{_listed(related or untraced)} {why}", {"working": working, "processes": len(using)}
        yield subject.found("processes", message, evidence, severity=severity, numbers=figures)
    if silent and working:
        message = f"{len(silent)} of {len(using)} CUDA processes were traced, but have no GPU work"
        figures = {"idle": len(silent), "processes": len(using)}
        yield subject.found("idle_processes", message, _listed(silent), numbers=figures)


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
