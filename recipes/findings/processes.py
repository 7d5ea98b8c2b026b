"""Which processes used the GPU, and of which the report has it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from recipes.base.units import format_count
from recipes.events.devices import pid_of
from recipes.findings.finding import INFO, WARN, Finding
from recipes.findings.subject import Subject
from recipes.report import schema
from recipes.report.report import Report, numbers

# The driver's own thread in a process with a CUDA context.
_CUDA_THREAD = "cuda-EvtHandlr"
# Nsight's threads in a process that it traces. From outside, names of threads end after 15 characters: a process with
# a cut one is traced by another Nsight, that of another rank.
_NSIGHT_THREAD, _CUPTI_THREAD, _CUPTI_SEEN_FROM_OUTSIDE = "[NSys]", "CUPTI worker thread", "CUPTI worker th"
# Programs of the machine, not of a job.
_TOOLS = re.compile(r"nsys|nsight|QdstrmImporter|cuda-gdb|nvidia-|nv-hostengine|dcgm|Xorg|gnome-", re.IGNORECASE)
_SHOWN = 4


@dataclass(frozen=True)
class Process:
    """A process of a report: its name; whether it has a CUDA context, whether this capture traced it or another one
    did, and whether the report has GPU work of it."""

    pid: int
    name: str
    uses_cuda: bool
    traced: bool
    traced_elsewhere: bool
    working: bool

    @property
    def label(self) -> str:
        return f"{self.pid} ({self.name})" if self.name else str(self.pid)


def processes_of(report: Report, working: list[int]) -> list[Process]:
    """The processes of a report that have to do with CUDA or with this capture, in order of id."""
    threads: dict[int, set[str]] = defaultdict(set)
    rows = report.read(schema.THREADS, ["global_tid", "name"])
    pids = pid_of(numbers(rows["global_tid"], 0)).tolist()
    for pid, name in zip(pids, rows["name"].to_pylist(), strict=True):
        threads[pid].add(name or "")
    table = report.read(schema.PROCESSES, ["pid", "name"])
    names = dict(zip(table["pid"].to_pylist(), table["name"].fill_null("").to_pylist(), strict=True))
    found = []
    for pid in sorted({*threads, *working}):
        own, name = threads[pid], names.get(pid, "")
        if _TOOLS.match(name) or not (own & {_CUDA_THREAD, _NSIGHT_THREAD} or pid in working):
            continue
        elsewhere = _CUPTI_SEEN_FROM_OUTSIDE in own and _CUPTI_THREAD not in own and pid not in working
        traced = (_NSIGHT_THREAD in own or pid in working) and not elsewhere
        found.append(Process(pid, name, _CUDA_THREAD in own or pid in working, traced, elsewhere, pid in working))
    return found


def missing_processes(subject: Subject, known: Sequence[Process]) -> Iterator[Finding]:
    """CUDA processes of which the report has no GPU work, though it has some of others."""
    using = [process for process in known if process.uses_cuda and not process.traced_elsewhere]
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
        yield subject.found("processes", severity, message, f"{_listed(related or untraced)} {why}")
    if silent and working:
        message = f"{len(silent)} of {len(using)} CUDA processes were traced, but have no GPU work"
        yield subject.found("idle_processes", WARN, message, _listed(silent))


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
        yield subject.found("contexts", INFO, message, told)


def _listed(processes: list[Process]) -> str:
    shown = ", ".join(process.label for process in processes[:_SHOWN])
    more = f" and {len(processes) - _SHOWN} more" if len(processes) > _SHOWN else ""
    return f"process {shown}{more}"
