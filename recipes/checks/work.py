"""Is there GPU work, and is it all of it?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from recipes import intervals
from recipes.checks.finding import ERROR, WARN, Finding
from recipes.checks.subject import Subject
from recipes.gpu_work import GRAPH
from recipes.report import schema
from recipes.report.report import Report
from recipes.units import format_share

_GRAPH_LAUNCHES = ("cudaGraphLaunch", "cuGraphLaunch")
_WORK_TABLES = (schema.KERNELS, schema.MEMCPYS, schema.MEMSETS)


def no_gpu_work(subject: Subject) -> Finding:
    """Why a report without GPU work has none."""
    report = subject.capture.report
    if subject.capture.filtered:
        return Finding(
            "no_gpu_work", ERROR, "no GPU work in the time range", "", "widen --start/--end or --filter-time"
        )
    calls, ranges = report.count(schema.API_CALLS), sum(subject.capture.domains.values())
    evidence = f"0 kernels, {calls:,} CUDA calls, {ranges:,} NVTX ranges"
    if subject.option("COLLECT_CUDA_TRACE") == "false":
        return subject.found("cuda_not_traced", ERROR, "no GPU work: CUDA was not traced", evidence)
    if calls:
        message = "no GPU work, though CUDA calls: the capture window held no kernels, or their records were lost"
    else:
        if subject.option("COLLECT_CUDA_TRACE"):
            why = "CUDA was traced, but not in the process that uses the GPU, or its records were lost"
        else:
            why = "CUDA was not traced, or not in the process that uses the GPU"
        message = f"no GPU work and no CUDA calls: {why}"
    return subject.found("no_gpu_work", ERROR, message, evidence)


def opaque_graphs(subject: Subject) -> Iterator[Finding]:
    """CUDA graphs that were traced as a whole, or not at all."""
    work, report = subject.capture.work, subject.capture.report
    opaque = work.kind == GRAPH
    if opaque.any():
        share = _covered_ns(work.start_ns[opaque], work.end_ns[opaque]) / max(
            _covered_ns(work.start_ns, work.end_ns), 1
        )
        message = "CUDA graphs were traced as a whole: kernels in them are not seen"
        yield subject.found("opaque_graphs", WARN, message, f"{format_share(share)} of the GPU's busy time")
    elif _launches_graphs(report) and not _sees_nodes(report):
        message = "CUDA graphs were launched but their work was not recorded: times are too low"
        yield subject.found("lost_graph_work", WARN, message, "0 operations of a graph")


def dropped_records(subject: Subject) -> Iterator[Finding]:
    """Records without usable times."""
    work = subject.capture.work
    if work.dropped:
        total = work.dropped + len(work)
        message = "GPU records without usable times were left out"
        yield subject.found("dropped", WARN, message, f"{work.dropped:,} of {total:,} records")


def partial_export(subject: Subject) -> Iterator[Finding]:
    """An export that was limited to some tables, with GPU work not among them."""
    missing = [table.name for table in _WORK_TABLES if not subject.capture.report.has(table)]
    if missing and subject.facts.tables_exported:
        message = f"the export was made without {', '.join(missing)}"
        yield subject.found("partial_export", WARN, message, "it holds chosen tables only")


def device_identity(subject: Subject) -> Iterator[Finding]:
    """Processes that may or may not share a GPU."""
    remark = subject.capture.work.devices.remark
    if remark:
        yield subject.found("device_identity", WARN, remark, "no TARGET_INFO_CUDA_DEVICE of these processes")


def _launches_graphs(report: Report) -> bool:
    # The strings tell without reading millions of calls when no graph is launched at all.
    names = report.strings.values.to_pylist()
    if not any(name and name.startswith(_GRAPH_LAUNCHES) for name in names):
        return False
    called = report.read(schema.API_CALLS, ["name"])["name"].combine_chunks().dictionary.to_pylist()
    return any(name and name.startswith(_GRAPH_LAUNCHES) for name in called)


def _sees_nodes(report: Report) -> bool:
    columns = (report.read(table, ["graph_node_id"])["graph_node_id"] for table in _WORK_TABLES)
    return any(column.null_count < len(column) for column in columns)


def _covered_ns(starts_ns: np.ndarray, ends_ns: np.ndarray) -> int:
    order = intervals.by_start(starts_ns)
    merged_starts_ns, merged_ends_ns = intervals.merge(starts_ns[order], ends_ns[order])
    return int((merged_ends_ns - merged_starts_ns).sum())
