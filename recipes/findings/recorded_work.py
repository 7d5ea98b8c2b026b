"""Is there GPU work, and is it all of it?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from recipes.base import intervals
from recipes.base.units import format_count, format_ns, format_share
from recipes.events.gpu_work import GRAPH, KERNEL, GpuWork, page_migrations
from recipes.findings.finding import INFO, WARN, Finding
from recipes.findings.registry import cannot_tell
from recipes.findings.subject import Subject
from recipes.report import schema
from recipes.report.report import Report

_OPERATIONS = (schema.KERNELS, schema.MEMCPYS, schema.MEMSETS)
_WORK_TABLES = (*_OPERATIONS, schema.API_CALLS)
#: Fewer records than this share may be odd without harm.
_FEW = 0.001


def no_gpu_work(subject: Subject) -> Iterator[Finding]:
    """Why a report without GPU work has none."""
    report = subject.capture.report
    if subject.capture.filtered:
        remedy, message = "widen --start/--end or --filter-time", "no GPU work in the time range"
        yield subject.found("no_gpu_work", message, "0 operations in it", remedy=remedy)
        return
    calls, ranges = report.count(schema.API_CALLS), sum(subject.capture.domains.values())
    evidence = f"0 kernels, {calls:,} CUDA calls, {ranges:,} NVTX ranges"
    if subject.option("COLLECT_CUDA_TRACE") == "false":
        yield subject.found("cuda_not_traced", "no GPU work: CUDA was not traced", evidence)
        return
    traced = [process for process in subject.capture.processes if process.uses_cuda and process.traced]
    if traced:
        evidence += f"; traced with a CUDA context: process {', '.join(process.label for process in traced[:4])}"
        message = "no GPU work, though CUDA was traced: the window held none, or its records were lost"
        yield subject.found("no_records", message, evidence)
        return
    if calls:
        message = "no GPU work, though CUDA calls: the capture window held no kernels, or their records were lost"
    else:
        message = "no GPU work and no CUDA calls: CUDA was not traced, or not in the process that uses the GPU"
    yield subject.found("no_gpu_work", message, evidence, numbers={"calls": calls, "ranges": ranges})


def no_kernels(subject: Subject) -> Iterator[Finding]:
    """Copies or memsets, and no kernel."""
    kinds = subject.capture.work.kind
    if not subject.capture.filtered and not np.isin(kinds, (KERNEL, GRAPH)).any():
        message = "no kernel was recorded, only copies and memsets"
        evidence = f"{format_count(len(kinds), 'operation')}, 0 kernels"
        yield subject.found("no_kernels", message, evidence, numbers={"operations": len(kinds)})


def opaque_graphs(subject: Subject) -> Iterator[Finding]:
    """CUDA graphs that were traced as a whole, or not at all."""
    work, report = subject.capture.work, subject.capture.report
    opaque = work.kind == GRAPH
    if opaque.any():
        devices = range(len(work.devices.numbers))
        busy_ns = sum(_union_ns(work, work.device == device) for device in devices)
        hidden_ns = sum(_union_ns(work, opaque & (work.device == device)) for device in devices)
        message = "CUDA graphs were traced as a whole: kernels in them are not seen"
        share = hidden_ns / max(busy_ns, 1)
        evidence = f"{format_share(share)} of the GPU's busy time"
        yield subject.found("opaque_graphs", message, evidence, numbers={"share": share})
    elif not subject.capture.filtered and subject.capture.graph_launches:
        if not report.tells(schema.KERNELS, "graph_node_id"):
            yield cannot_tell("lost_graph_work", "the export does not tell which work is of a graph")
        elif not _sees_nodes(report):
            message = "CUDA graphs were launched but their work was not recorded: times are too low"
            yield subject.found("lost_graph_work", message, "0 operations of a graph")


def dropped_records(subject: Subject) -> Iterator[Finding]:
    """Records without usable times."""
    work = subject.capture.work
    total = work.dropped + len(work)
    if work.dropped:
        message = "GPU records without usable times were left out"
        severity = WARN if work.dropped > _FEW * total else INFO
        evidence, figures = f"{work.dropped:,} of {total:,} records", {"dropped": work.dropped, "records": total}
        yield subject.found("dropped", message, evidence, severity=severity, numbers=figures)


def partial_export(subject: Subject) -> Iterator[Finding]:
    """An export that was limited to some tables, with those of GPU work or CUDA calls not among them."""
    chosen = subject.facts.tables_exported
    absent = [table for table in _WORK_TABLES if not subject.capture.report.has(table)]
    missing = [name for table in absent for name, _ in table.exported if name not in chosen]
    if missing and chosen:
        message = f"the export was made without {', '.join(missing)}"
        yield subject.found("partial_export", message, "it holds chosen tables only")


def no_api_calls(subject: Subject) -> Iterator[Finding]:
    """GPU work of which no launch is known."""
    if not subject.capture.report.count(schema.API_CALLS):
        message = "no CUDA calls in the report, so that work cannot be given to steps"
        count = len(subject.capture.work)
        evidence = f"{count:,} operations, 0 CUDA calls"
        yield subject.found("no_api_calls", message, evidence, numbers={"operations": count})


def managed_memory(subject: Subject) -> Iterator[Finding]:
    """Pages of managed memory that the driver moved between host and GPU while the program ran."""
    work = subject.capture.work
    moved = np.flatnonzero(page_migrations(work))
    if len(moved):
        codes, counts = np.unique(work.name[moved], return_counts=True)
        directions = [f"{work.names[code].split()[-1]} {count:,}" for code, count in zip(codes, counts, strict=True)]
        time_ns = int((work.end_ns - work.start_ns)[moved].sum())
        message = "pages of managed memory moved while the program ran: these copies have no launch"
        evidence = (
            f"{format_count(len(moved), 'page migration')} ({', '.join(directions)}), {format_ns(time_ns)} in all"
        )
        figures = {"migrations": len(moved), "time_ns": time_ns}
        yield subject.found("page_migrations", message, evidence, numbers=figures)


def device_identity(subject: Subject) -> Iterator[Finding]:
    """Processes that may or may not share a GPU."""
    remark = subject.capture.work.devices.remark
    if remark:
        yield subject.found("device_identity", remark, "no TARGET_INFO_CUDA_DEVICE of these processes")


def _sees_nodes(report: Report) -> bool:
    batches = (batch for table in _OPERATIONS for batch in report.batches(table, ["graph_node_id"]))
    return any(batch["graph_node_id"].null_count < len(batch) for batch in batches)


def _union_ns(work: GpuWork, rows: np.ndarray) -> int:
    return intervals.union_ns(work.start_ns[rows], work.end_ns[rows])
