"""Do the records and the calls that launched them fit together: each once, each with the other, in order of time?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from recipes.base.units import format_count, format_ns, format_share
from recipes.events.cuda_calls import LAUNCH, is_of_kind
from recipes.events.gpu_work import KERNEL, page_migrations, read_graph_nodes, read_streams
from recipes.events.launch_state import graph_launches
from recipes.events.launches import NONE
from recipes.findings.finding import Finding
from recipes.findings.subject import Subject

#: Less than this share is chance: clocks of host and GPU are matched to a microsecond or so.
_FEW, _CLOCKS_NS = 0.001, 1000
#: Copy calls may lack a record (of no bytes, for one); not this share of them, and so many at least.
_COPIES, _FEW_COPIES = 0.1, 3
#: A graph's replays have as many nodes as this share of them agrees on. The graph is in the upper half of a node's id.
_AGREE, _GRAPH_SHIFT = 0.5, 32
#: Steps are alike if, of so many at least, this share has the same number of operations; one with less than this share
#: of that number is there in part.
_STEPS, _ALIKE, _PART = 4, 0.8, 0.9


def doubled_records(subject: Subject) -> Iterator[Finding]:
    """Kernels that are in the report twice: on one stream two cannot run at the same time."""
    work = subject.capture.work
    kernels = np.flatnonzero(work.kind == KERNEL)
    # Few begin at the same time: only these are compared.
    in_order = kernels[np.argsort(work.start_ns[kernels], kind="stable")]
    same = np.flatnonzero(np.diff(work.start_ns[in_order]) == 0)
    if not len(same):
        return
    rows = in_order[np.union1d(same, same + 1)]
    stream = read_streams(subject.capture.report, work)[rows]
    key = (subject.capture.launches.of_operation[rows], work.name[rows], stream, work.device[rows])
    columns = (*key, work.end_ns[rows], work.start_ns[rows])
    order = np.lexsort(columns)
    again = np.ones(len(rows) - 1, dtype=bool)
    for column in columns:
        again &= np.diff(column[order]) == 0
    count = int(again.sum())
    if count > _FEW * len(kernels):
        message = "kernels are in the report twice: their times count twice"
        figures = {"doubled": count, "kernels": len(kernels)}
        yield subject.found("doubled_records", message, _of(count, len(kernels), "kernel records"), numbers=figures)


def reused_ids(subject: Subject) -> Iterator[Finding]:
    """Launches of one kernel whose id several kernels have: which is whose cannot be told."""
    work, launches, report = subject.capture.work, subject.capture.launches, subject.capture.report
    of_launch = launches.of_operation[work.kind == KERNEL]
    kernels = np.bincount(of_launch[of_launch != NONE], minlength=len(launches.start_ns))
    # The last one stands for a call without a name.
    single = np.append(is_of_kind(report.strings.values, LAUNCH), False)[launches.name] & ~graph_launches(
        report, launches
    )
    shared = int(kernels[single & (kernels > 1)].sum())
    if shared > _FEW * len(of_launch):
        message = "several kernels have the id of one launch: which of them it launched cannot be told"
        figures = {"kernels": shared}
        yield subject.found("reused_ids", message, _of(shared, len(of_launch), "kernels"), numbers=figures)


def missing_launches(subject: Subject) -> Iterator[Finding]:
    """Work amid other work of which the report has no launch call."""
    work, of_launch = subject.capture.work, subject.capture.launches.of_operation
    known = of_launch != NONE
    if not known.any():
        return
    # What ran before was launched before the window.
    amid = ~known & (work.start_ns > work.start_ns[known].min()) & ~page_migrations(work)
    count = int(amid.sum())
    if count > _FEW * len(work):
        message = "GPU work whose launch call is missing, so that it lies in no step"
        figures = {"missing": count, "operations": len(work)}
        yield subject.found("missing_launches", message, _of(count, len(work), "operations"), numbers=figures)


def early_work(subject: Subject) -> Iterator[Finding]:
    """Work that begins before the call that launched it."""
    work, launches = subject.capture.work, subject.capture.launches
    rows = np.flatnonzero(launches.of_operation != NONE)
    ahead_ns = launches.start_ns[launches.of_operation[rows]] - work.start_ns[rows]
    count = int(np.count_nonzero(ahead_ns > _CLOCKS_NS))
    if count > _FEW * len(rows):
        message = "GPU work begins before the call that launched it: ids or clocks are wrong, and so are idle causes"
        evidence = f"{_of(count, len(rows), 'operations')}, by up to {format_ns(int(ahead_ns.max()))}"
        yield subject.found("work_before_launch", message, evidence, numbers={"early": count, "operations": len(rows)})


def lost_copies(subject: Subject) -> Iterator[Finding]:
    """Calls of copies and memsets that left no record."""
    calls, lost = subject.capture.survey.copy_calls, subject.capture.survey.lost_copies
    if lost >= _FEW_COPIES and lost > _COPIES * calls:
        message, figures = "calls that copy or set memory without a record of it", {"lost": lost, "calls": calls}
        yield subject.found("lost_copies", message, _of(lost, calls, "calls"), numbers=figures)


def short_replays(subject: Subject) -> Iterator[Finding]:
    """Replays of CUDA graphs with fewer nodes than most replays of the same graph."""
    short, replays, lost = 0, 0, 0
    for _, rows, nodes in read_graph_nodes(subject.capture.report, subject.capture.work):
        launch = subject.capture.launches.of_operation[rows]
        inside = (nodes >= 0) & (launch != NONE)
        launch, counts = launch[inside], np.bincount(launch[inside])
        # A launch replays one graph.
        graph_of = np.zeros(len(counts), dtype=np.int64)
        graph_of[launch] = nodes[inside] >> _GRAPH_SHIFT
        graph, counts = graph_of[counts > 0], counts[counts > 0]
        for one in np.unique(graph).tolist():
            # The window may cut the first and the last; launches are numbered in order of time.
            own = counts[graph == one][1:-1]
            sizes, often = np.unique(own, return_counts=True)
            if len(own) and often.max() >= _AGREE * len(own):
                usual = int(sizes[often.argmax()])
                short += int(np.count_nonzero(own < usual))
                lost += int(np.maximum(usual - own, 0).sum())
            replays += len(own)
    if short:
        message = "replays of CUDA graphs with fewer nodes than others of the same graph: records are missing"
        evidence = f"{_of(short, replays, 'replays')}, {format_count(lost, 'node')} in all"
        figures = {"short": short, "replays": replays, "lost": lost}
        yield subject.found("short_replays", message, evidence, numbers=figures)


def partial_steps(subject: Subject) -> Iterator[Finding]:
    """Steps with part of the operations that all steps alike have."""
    times, partial, most = subject.times, [], 0
    for _, _, entries in times.groups():
        operations = times.operations[entries]
        sizes, often = np.unique(operations, return_counts=True)
        if len(entries) >= _STEPS and often.max() >= _ALIKE * len(entries):
            usual = int(sizes[often.argmax()])
            partial += operations[operations < _PART * usual].tolist()
            most = max(most, usual)
    if partial:
        message = "steps with part of the operations that like steps have: records are missing, or they did less"
        evidence = f"{format_count(len(partial), 'step')}, of {most:,} operations as few as {min(partial):,}"
        yield subject.found("steps_partial", message, evidence, numbers={"steps": len(partial)})


def _of(count: int, total: int, what: str) -> str:
    return f"{count:,} of {total:,} {what} ({format_share(count / max(total, 1))})"
