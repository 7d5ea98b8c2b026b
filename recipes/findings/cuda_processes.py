"""The processes of a report that have to do with CUDA or with its capture."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

from recipes.events.devices import pid_of
from recipes.report import schema
from recipes.report.report import Report, numbers

# The driver's own thread in a process with a CUDA context.
_CUDA_THREAD = "cuda-EvtHandlr"
# Nsight's threads in a process that it traces. From outside, names of threads end after 15 characters: a process with
# a cut one is traced by another Nsight, that of another rank.
_NSIGHT_THREAD, _CUPTI_THREAD, _CUPTI_SEEN_FROM_OUTSIDE = "[NSys]", "CUPTI worker thread", "CUPTI worker th"
# Programs of the machine, not of a job.
_TOOLS = re.compile(r"nsys|nsight|QdstrmImporter|cuda-gdb|nvidia-|nv-hostengine|dcgm|Xorg|gnome-", re.IGNORECASE)


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
