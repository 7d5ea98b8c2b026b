"""The tables that this recipe writes."""

from __future__ import annotations

from recipes.base.tables import REPORT_KEYS, Column, Table
from recipes.capture.capture import OUTSIDE
from recipes.capture.edges import EDGE_REASON

_PHASE = Column("phase", "string", f"phase of the step; `{OUTSIDE}` for work in no step")
_KIND = (
    Column("operation", "string", "all_reduce, all_gather, send_recv, dispatch ...; all_reduce_fused with a norm"),
    Column("dtype", "string", "type of the elements, as the kernel's name says; null if it does not"),
    Column("algorithm", "string", "as in the name; NCCL names a kernel after one variant and may run another in it"),
    Column("protocol", "string", "as in the name, with the same caveat"),
)

#: One communication kernel each; what the tables over all ranks are made of.
COMMUNICATION = Table(
    "communication",
    "one communication kernel",
    (
        Column("report", "string", REPORT_KEYS[0].meaning, coded=True),
        *REPORT_KEYS[1:],
        Column("phase", "string", f"phase of its step; `{OUTSIDE}` for none", coded=True),
        Column("step", "int64", "number of its step in the report; null for none"),
        Column("nth_step", "int64", "place of this step among those of its phase on the device; null for none"),
        Column("edge", "bool", "its step is not representative, so it is not matched"),
        Column("name", "string", "demangled name", coded=True),
        *(Column(column.name, column.type, column.meaning, coded=True) for column in _KIND),
        Column("communicator", "string", "NCCL's id of the communicator; null if not known", coded=True),
        Column("stream", "int64", "CUDA stream; null if not known"),
        Column("start_ns", "int64", "its start"),
        Column("duration_ns", "int64", "its length, waiting for other ranks included"),
        Column("exposed_ns", "int64", "the part of it in which no other kind of operation ran"),
        Column("bytes", "int64", "message size, as NCCL counts it; null if not known"),
        Column(
            "work_before_ns", "int64", "GPU work of other kinds since the device's last communication; null for none"
        ),
        Column("idle_before_ns", "int64", "the rest of that time, in which the device was idle; null for none"),
        Column("clock_ns", "int64", "start of the report's clock, in ns since 1970; null if not known"),
        Column("world_size", "int64", "ranks of the job, as set by the launcher; null if the report does not say"),
    ),
    sort=(("report", "ascending"), ("device", "ascending"), ("start_ns", "ascending")),
)
STEP_COMMUNICATION = Table(
    "step_communication",
    "one step on one device; the work in no step as a row without step",
    (
        *REPORT_KEYS,
        Column("step", "int64", "number of the step in the report; null for what is in no step"),
        _PHASE,
        Column("edge", "bool", "not representative; excluded from medians and means"),
        EDGE_REASON,
        Column("duration_ns", "int64", "first start to last end of its operations; null for no step"),
        Column("calls", "int64", "communication kernels"),
        Column("time_ns", "int64", "their summed durations"),
        Column("exposed_ns", "int64", "time in which only communication ran"),
        Column("share", "double", "exposed_ns over duration_ns, 0 to 1; null for no step"),
    ),
    sort=(("report", "ascending"), ("device", "ascending"), ("step", "ascending")),
)
COLLECTIVES = Table(
    "collectives",
    "one kind of communication in one phase on one device",
    (
        *REPORT_KEYS,
        _PHASE,
        *_KIND,
        Column("ranks", "int64", "ranks in it, for the bandwidths"),
        Column("calls", "int64", "kernels"),
        Column("time_ns", "int64", "summed durations, waiting included"),
        Column("exposed_ns", "int64", "what of it no other work overlaps"),
        Column("bytes", "int64", "summed message sizes; null when one is not known"),
        Column("algbw_bytes_per_s", "double", "bytes over time"),
        Column("busbw_bytes_per_s", "double", "algbw times the factor of the operation and the number of ranks"),
    ),
    sort=(
        ("report", "ascending"), ("device", "ascending"), ("phase", "ascending"), ("time_ns", "descending"),
        ("operation", "ascending"), ("dtype", "ascending"), ("algorithm", "ascending"), ("protocol", "ascending"),
    ),
)  # fmt: skip
MATCHED = Table(
    "matched",
    "one rank's part in one matched collective",
    (
        Column("collective", "int64", "number of the collective, in order of time"),
        Column("rank", "int64", "rank, or the place of the device among all where ranks are not known"),
        Column("phase", "string", "phase of its step", coded=True),
        Column("nth_step", "int64", "place of the step among those of its phase on the first rank; null for none"),
        Column("operation", "string", "kind of communication", coded=True),
        Column("communicator", "string", "NCCL's id of the communicator; null if not known", coded=True),
        Column("ranks", "int64", "ranks that take part"),
        Column("bytes", "int64", "message size; null if not known"),
        Column("duration_ns", "int64", "length of this rank's kernel"),
        Column("transfer_ns", "int64", "length of the shortest one, which waited for nobody"),
        Column("wait_ns", "int64", "duration less transfer"),
        Column("last", "bool", "this rank's kernel alone is the shortest: it came last"),
        Column("arrival_ns", "int64", "its start after the first one's, clocks aligned; null when they cannot be"),
    ),
    sort=(("collective", "ascending"), ("rank", "ascending")),
)
RANKS = Table(
    "ranks",
    "one rank",
    (
        Column("rank", "int64", "rank, or the place of the device among all where ranks are not known"),
        Column("report", "string", "its report"),
        Column("device", "int64", "its device"),
        Column("calls", "int64", "communication kernels"),
        Column("time_ns", "int64", "their summed durations"),
        Column("matched", "int64", "those matched across ranks, the first one of the window left out"),
        Column("wait_ns", "int64", "waiting for others in these"),
        Column("transfer_ns", "int64", "the rest of their time"),
        Column("times_last", "int64", "how often it came last"),
        Column(
            "straggler_score",
            "double",
            "share of the waiting in its collectives that it caused; null if not known",
        ),
        Column("late", "bool", "named as late: more than by chance, and by 1 % of a step or more"),
        Column(
            "late_cost_ns", "int64", "if late: how much later it arrives than the mean of the others, per step (mean)"
        ),
        Column(
            "late_work_ns", "int64", "how much longer GPU work before its collectives is than the others', per step"
        ),
        Column("late_idle_ns", "int64", "how much longer its GPU is idle before them than theirs, per step"),
        Column(
            "late_reason", "string", "gpu (that work), host (that idle time) or both; null if not late or not known"
        ),
        Column(
            "late_places", "string", "numbers (from 1) of the collectives in a step for which it is late; null for all"
        ),
        Column("clock_offset_ns", "int64", "what its clock is ahead of that of its set's first rank, by the ends"),
        Column("clock_residual_ns", "int64", "how far these ends lie apart still: their 95th percentile"),
    ),
    sort=(("rank", "ascending"),),
)
TABLES = (COMMUNICATION, STEP_COMMUNICATION)
#: Made of those of all reports together.
COMBINED = (COLLECTIVES, MATCHED, RANKS)
