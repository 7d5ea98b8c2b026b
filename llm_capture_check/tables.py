"""The tables that this recipe writes."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from recipes.base.tables import REPORT_KEYS, Column, Table
from recipes.capture.edges import EDGE_REASON
from recipes.findings.finding import Finding

_BY_REPORT = (("report", "ascending"), ("rank", "ascending"))
_OF_FINDING = ("severity", "message", "evidence", "remedy", "observed")

FINDINGS = Table(
    "findings",
    "one finding",
    (
        Column("report", "string", "short name of the report; null for what all reports together show"),
        Column("check", "string", "what was checked"),
        Column("severity", "string", "info: the numbers hold; warn: some are wrong or missing; error: there are none"),
        Column("message", "string", "what was found"),
        Column("evidence", "string", "the figures behind it"),
        Column("remedy", "string", "the command or code that helps"),
        Column("recoverable_ns", "int64", "upper bound on the time saved per step, in ns; null if it saves no time"),
        Column(
            "observed", "bool", "true: found; false: the check could not run on this capture, and the message says why"
        ),
    ),
    # Of a report the worst first, as they are given.
    sort=(("report", "ascending"),),
)


def finding_columns(findings: Sequence[Finding]) -> dict[str, list]:
    """The columns of FINDINGS but the report."""
    bounds = [finding.recoverable_ns for finding in findings]
    return {
        "check": [finding.id for finding in findings],
        **{name: [getattr(finding, name) for finding in findings] for name in _OF_FINDING},
        "recoverable_ns": pa.array([None if bound is None else round(bound) for bound in bounds], pa.int64()),
    }


CAPTURES = Table(
    "captures",
    "one report",
    (
        *REPORT_KEYS[:2],
        Column("session", "string", "Nsight's id of the capture; null if the report does not record it"),
        Column(
            "world_size",
            "int64",
            "ranks of the job, from the launcher's environment; null if the report does not record it",
        ),
        Column("engine", "string", "vllm, sglang, trtllm, megatron, pytorch; null if it cannot be recognised"),
        Column(
            "begin_utc_ns",
            "int64",
            "start of the first GPU operation, in ns since 1970; null if the clock is not known",
        ),
        Column("end_utc_ns", "int64", "end of the last GPU operation, likewise"),
        Column("window_ns", "int64", "first start to last end of GPU work"),
        Column("devices", "int64", "GPUs with work"),
        Column("cuda_processes", "int64", "processes with a CUDA context that this capture should cover"),
        Column("working_processes", "int64", "those of them with GPU work in the report"),
        Column("operations", "int64", "kernels, memory copies, memsets and graph executions"),
        Column("ranges", "int64", "NVTX ranges"),
        Column("steps", "int64", "steps found"),
        Column("whole_steps", "int64", "of these, complete on every device they ran on"),
        Column("launches", "int64", "launch calls, without those made during CUDA graph capture"),
        Column("recorded_launches", "int64", "of these, calls whose GPU work is in the report"),
        Column("overhead_share", "double", "share of the window, up to the last launch, spent in profiler overhead"),
    ),
    sort=_BY_REPORT,
)
PROCESSES = Table(
    "processes",
    "one process that uses CUDA or is part of this capture",
    (
        *REPORT_KEYS[:2],
        Column("pid", "int64", "process id"),
        Column("name", "string", "process name"),
        Column("uses_cuda", "bool", "has a CUDA context"),
        Column("traced", "bool", "traced by this capture"),
        Column("traced_elsewhere", "bool", "traced by another capture, such as another rank's"),
        Column("api_calls", "int64", "CUDA API calls in the report"),
        Column("operations", "int64", "GPU operations in the report"),
        Column("ranges", "int64", "NVTX ranges in the report"),
    ),
    sort=(*_BY_REPORT, ("pid", "ascending")),
)
RECORDS = Table(
    "records",
    "one twentieth of the window",
    (
        *REPORT_KEYS[:2],
        Column("start_ns", "int64", "start of the interval"),
        Column("end_ns", "int64", "end of the interval"),
        Column("launches", "int64", "launch calls that start in it"),
        Column("recorded_launches", "int64", "of these, calls whose GPU work is in the report"),
        Column("operations", "int64", "GPU operations that start in it"),
    ),
    sort=(*_BY_REPORT, ("start_ns", "ascending")),
)
STEP_TIMES = Table(
    "step_times",
    "one step on one device",
    (
        *REPORT_KEYS,
        Column("step", "int64", "number of the step in the report"),
        Column("phase", "string", "phase of the step"),
        Column("batch", "int64", "sequences in the step; null if not known"),
        Column("edge", "bool", "not representative; excluded from medians and means"),
        EDGE_REASON,
        Column("start_ns", "int64", "first start of its operations"),
        Column("duration_ns", "int64", "first start to last end"),
        Column("period_ns", "int64", "start to start of the next step; null for the last and before lost work"),
        Column("operations", "int64", "operations in it"),
        Column("gemm_ns", "int64", "summed GEMM durations, a proxy for the GPU clock"),
    ),
    sort=(("report", "ascending"), ("device", "ascending"), ("start_ns", "ascending")),
)
TABLES = (FINDINGS, CAPTURES, PROCESSES, RECORDS, STEP_TIMES)
#: Reports that do not belong together are findings too.
COMBINED = (FINDINGS,)
