"""Which processes used the GPU, and of which the report has it."""

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
# The lowest bits of Nsight's global thread ids are the thread's own.
_THREAD_MASK = 0xFFFFFF
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
    #: The highest id of its threads; 0 where none is known.
    last_thread: int = 0

    @property
    def label(self) -> str:
        return f"{self.pid} ({self.name})" if self.name else str(self.pid)

    def begat(self, other: Process) -> bool:
        """Whether the other one began while this one began threads of its own: Linux counts both with one counter."""
        return self.pid < other.pid < self.last_thread


def processes_of(report: Report, working: list[int]) -> list[Process]:
    """The processes of a report that have to do with CUDA or with this capture, in order of id."""
    threads: dict[int, dict[int, str]] = defaultdict(dict)
    rows = report.read(schema.THREADS, ["global_tid", "name"])
    global_tids = numbers(rows["global_tid"], 0)
    tids = global_tids & _THREAD_MASK
    for pid, tid, name in zip(pid_of(global_tids).tolist(), tids.tolist(), rows["name"].to_pylist(), strict=True):
        threads[pid][tid] = name or ""
    table = report.read(schema.PROCESSES, ["pid", "name"])
    names = dict(zip(table["pid"].to_pylist(), table["name"].fill_null("").to_pylist(), strict=True))
    found = (_process(pid, names.get(pid, ""), threads[pid], pid in working) for pid in sorted({*threads, *working}))
    return [process for process in found if process is not None]


def _process(pid: int, name: str, threads: dict[int, str], working: bool) -> Process | None:
    """A process by its name and the names of its threads; None for one that has nothing to do with CUDA here."""
    own = set(threads.values())
    if _TOOLS.match(name):
        if not working:
            return None
        # Old versions give the name from before exec, that of Nsight's launcher.
        name = threads.get(pid) or name
    if not working and not own & {_CUDA_THREAD, _NSIGHT_THREAD}:
        return None
    elsewhere = _CUPTI_SEEN_FROM_OUTSIDE in own and _CUPTI_THREAD not in own and not working
    return Process(
        pid, name,
        uses_cuda=_CUDA_THREAD in own or working,
        traced=(_NSIGHT_THREAD in own or working) and not elsewhere,
        traced_elsewhere=elsewhere,
        working=working,
        last_thread=max(threads, default=0),
    )  # fmt: skip
