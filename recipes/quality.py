"""The quality line: what in a report limits the numbers drawn from it. Cheap checks only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recipes.capture import Capture
from recipes.gpu_work import GRAPH, KERNEL, GpuWork
from recipes.report import schema
from recipes.report.facts import Facts
from recipes.report.report import Report

#: Steps should cover this share of the GPU time.
_MUCH = 0.8
_GRAPH_LAUNCHES = ("cudaGraphLaunch", "cuGraphLaunch")


@dataclass(frozen=True)
class Quality:
    """`quality` ok, warn or bad; `status` ok or empty; `message` one sentence a finding, empty when ok."""

    quality: str
    status: str
    message: str


def judge(capture: Capture, facts: Facts, *, filtered: bool) -> Quality:
    """How far a report's numbers can be trusted. `filtered` says that a time range was chosen."""
    report, work = capture.report, capture.work
    if len(work) == 0:
        return Quality("bad", "empty", _why_empty(report, filtered=filtered))
    findings = [
        _opaque_graphs(report, work),
        _silent_steps(capture),
        _little_in_steps(capture),
        work.devices.remark,
        _dropped(work),
        _partial(report, facts),
    ]
    message = "; ".join(finding for finding in findings if finding)
    return Quality("warn" if message else "ok", "ok", message)


def _why_empty(report: Report, *, filtered: bool) -> str:
    if filtered:
        return "no GPU work in the time range; widen --start/--end or --filter-time"
    calls = len(report.read(schema.API_CALLS, ["start_ns"]))
    if calls:
        return (
            f"no GPU work, though {calls:,} CUDA calls: the capture window held no kernels, or tracing failed; "
            "capture again with -t cuda,nvtx around steps that run"
        )
    return (
        "no GPU work and no CUDA calls: CUDA was not traced, or not in the process that uses the GPU; capture again "
        "with -t cuda,nvtx and --trace-fork-before-exec=true"
    )


def _opaque_graphs(report: Report, work: GpuWork) -> str:
    """Says so when CUDA graphs were traced as a whole, so that kernels inside them are not seen."""
    remedy = "capture with --cuda-graph-trace=node to see inside"
    opaque = work.kind == GRAPH
    if opaque.any():
        durations_ns = work.end_ns - work.start_ns
        share = durations_ns[opaque].sum() / max(durations_ns.sum(), 1)
        return f"CUDA graphs were traced as a whole ({share:.0%} of GPU time): kernels in them are not seen; {remedy}"
    if _launches_graphs(report) and not _sees_nodes(report):
        return f"CUDA graphs were launched but their work was not recorded: times are too low; {remedy}"
    return ""


def _launches_graphs(report: Report) -> bool:
    # The strings tell without reading millions of calls when no graph is launched at all.
    names = report.strings.values.to_pylist()
    if not any(name and name.startswith(_GRAPH_LAUNCHES) for name in names):
        return False
    called = report.read(schema.API_CALLS, ["name"])["name"].combine_chunks().dictionary.to_pylist()
    return any(name and name.startswith(_GRAPH_LAUNCHES) for name in called)


def _sees_nodes(report: Report) -> bool:
    tables = (schema.KERNELS, schema.MEMCPYS, schema.MEMSETS)
    columns = (report.read(table, ["graph_node_id"])["graph_node_id"] for table in tables)
    return any(column.null_count < len(column) for column in columns)


def _silent_steps(capture: Capture) -> str:
    """Says so when there are steps without any GPU work."""
    within = np.count_nonzero(capture.within)
    silent = np.count_nonzero(capture.within & ~capture.attribution.working)
    if not silent:
        return ""
    return (
        f"{silent:,} of {within:,} steps have no GPU work: their work was not recorded, or another process does it; "
        "capture again around steps that run, with -t cuda,nvtx"
    )


def _little_in_steps(capture: Capture) -> str:
    """Says so when much of the GPU time lies in no step."""
    share = capture.attributed_share()
    if share is None or share >= _MUCH:
        return ""
    return (
        f"only {share:.0%} of the GPU time lies in steps: the window holds other work (start-up, warm-up), or other "
        "ranges are the steps (--phases)"
    )


def _dropped(work: GpuWork) -> str:
    if not work.dropped:
        return ""
    return f"{work.dropped:,} of {work.dropped + len(work):,} GPU records had no usable times and were left out"


def _partial(report: Report, facts: Facts) -> str:
    """Says so when the export was limited to some tables and GPU work is not among them."""
    tables = (schema.KERNELS, schema.MEMCPYS, schema.MEMSETS)
    missing = [table.name for table in tables if facts.tables_exported and not report.has(table)]
    return f"the export was made without {', '.join(missing)}; export again without --tables" if missing else ""


def kernel_count(work: GpuWork) -> int:
    """How many operations are kernels."""
    return int(np.count_nonzero(work.kind == KERNEL))


def window_ns(work: GpuWork) -> int | None:
    """First start to last end of all GPU work; None without any."""
    return int(work.end_ns.max() - work.start_ns.min()) if len(work) else None
