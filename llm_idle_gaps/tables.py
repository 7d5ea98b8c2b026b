"""The tables that this recipe writes."""

from __future__ import annotations

from recipes.base.tables import REPORT_KEYS, Column, Table
from recipes.capture.capture import OUTSIDE
from recipes.capture.edges import EDGE_REASON
from recipes.events.idle import CAUSES

_PHASE = Column("phase", "string", f"phase of the step; `all` is the whole window, `{OUTSIDE}` what is in no step")
#: Where a gap lies beside the steps of its device.
PLACES = ("in a step", "between steps", "before the first step", "after the last step")
IN_STEP, BETWEEN, BEFORE, AFTER = PLACES
_MEANINGS = {
    "profiler": "profiler overhead",
    "graph": "between nodes of one CUDA graph launch",
    "sync": "before the launch call: the launching thread was in a synchronising call",
    "api": "before the launch call: the thread was in another CUDA API call",
    "host": "before the launch call: the thread was in no CUDA API call (host-bound)",
    "launch": "inside the launch call",
    "queued": "after the launch call: issued, waiting for a dependency or for GPU scheduling",
    "unknown": "the report has no launch call for the operation that ended the gap",
}
_BY_CAUSE = tuple(Column(f"{cause}_ns", "int64", f"idle: {_MEANINGS[cause]}") for cause in CAUSES)
_LAUNCHES = (
    Column("operations", "int64", "kernels, memory copies, memsets and graph executions"),
    Column("launched", "int64", "of these, operations whose launch call is in the report"),
    Column("launches", "int64", "API calls that launched them; a graph launch counts once"),
    Column("graph_launches", "int64", "of these, calls that launched a CUDA graph"),
    Column("copy_launches", "int64", "of these, calls that launched a memory copy"),
    Column("in_graphs", "int64", "operations traced node by node that a graph launch started"),
    Column("kernels", "int64", "kernels whose launch call is in the report"),
    Column("kernels_in_graphs", "int64", "of these, kernels that a graph launch started"),
    Column("opaque_graphs", "int64", "graph executions traced as a whole"),
    Column("launch_call_ns", "int64", "host time inside launch calls, without copy calls, which may block"),
    Column("between_launches", "int64", "pairs of consecutive launch calls on one thread, both in the step"),
    Column(
        "between_launches_ns",
        "int64",
        "host time from the end of the first call to the start of the second, summed over the pairs",
    ),
)
_AFTER_SYNC = Column(
    "after_sync_ns",
    "int64",
    "idle: gaps that began while the launching thread waited for the GPU, before its next launch",
)

GAPS = Table(
    "gaps",
    "one gap of at least --min-gap",
    (
        Column("report", "string", REPORT_KEYS[0].meaning, coded=True),
        *REPORT_KEYS[1:],
        Column("start_ns", "int64", "end of the preceding operation"),
        Column("end_ns", "int64", "start of the operation that ended the gap"),
        Column("duration_ns", "int64", "length of the gap"),
        Column("cause", "string", "the cause of its largest part", coded=True),
        Column("cause_ns", "int64", "length of that part"),
        Column("phase", "string", f"phase of the step it lies in; `{OUTSIDE}` for none", coded=True),
        Column("place", "string", f"{', '.join(PLACES)}; null if the device has no steps", coded=True),
        Column("step", "int64", "number of that step; null for none"),
        Column("previous", "string", "name of the preceding operation", coded=True),
        Column("next", "string", "name of the following operation", coded=True),
        Column(
            "launch_api", "string", "API call that launched the following operation; null if not recorded", coded=True
        ),
        Column("thread", "string", "thread that made that call, with its id", coded=True),
        Column(
            "held_by",
            "string",
            "CUDA API call in which that thread spent longest before the launch; null for none",
            coded=True,
        ),
        Column("held_ns", "int64", "how long, summed over its calls in the gap; null for none"),
        Column(
            "sync_call",
            "string",
            "call in which that thread waited for the GPU when the gap began; null for none",
            coded=True,
        ),
        Column(
            "nvtx",
            "string",
            "innermost NVTX range on that thread half-way from the gap's start to the launch, or at an earlier launch",
            coded=True,
        ),
    ),
    sort=(("report", "ascending"), ("device", "ascending"), ("start_ns", "ascending")),
)
LARGEST_GAPS = Table(
    "largest_gaps", "one of the 200 longest gaps of a device, whatever --min-gap is", GAPS.columns, GAPS.sort
)
HISTOGRAM = Table(
    "gap_histogram",
    "gaps of one length, cause and phase on one device",
    (
        *REPORT_KEYS,
        _PHASE,
        Column("cause", "string", "the cause of their largest parts"),
        Column("low_ns", "int64", "shortest length in the bin"),
        Column("high_ns", "int64", "first length beyond the bin; null for the last one"),
        Column("gaps", "int64", "number of gaps"),
        Column("time_ns", "int64", "their summed lengths"),
    ),
    sort=(
        ("report", "ascending"), ("device", "ascending"), ("phase", "ascending"), ("cause", "ascending"),
        ("low_ns", "ascending"),
    ),
)  # fmt: skip
IDLE = Table(
    "idle",
    "one phase on one device",
    (
        *REPORT_KEYS,
        _PHASE,
        Column("window_ns", "int64", "window length; where steps overlap, time counts for the later one"),
        Column("busy_ns", "int64", "at least one operation ran"),
        Column("copy_only_ns", "int64", "of busy_ns: only memory copies and memsets ran"),
        Column("idle_ns", "int64", "nothing ran: window_ns minus busy_ns"),
        *_BY_CAUSE,
        _AFTER_SYNC,
        Column("gaps", "int64", "number of gaps"),
        *_LAUNCHES,
        Column("lost_graph_launches", "int64", "graph launches in the whole report whose work was not recorded"),
    ),
    sort=(("report", "ascending"), ("device", "ascending"), ("phase", "ascending")),
)
STEP_IDLE = Table(
    "step_idle",
    "one step on one device",
    (
        *REPORT_KEYS,
        Column("step", "int64", "number of the step in the report"),
        Column("phase", "string", "phase of the model"),
        Column("batch", "int64", "sequences in the step; null if its range does not say"),
        Column("edge", "bool", "not representative; excluded from medians and means"),
        EDGE_REASON,
        Column("start_ns", "int64", "first start of its operations"),
        Column("duration_ns", "int64", "first start to last end of its operations"),
        Column(
            "period_ns",
            "int64",
            "start to start of the process's next step; null for the last and before lost work",
        ),
        Column("idle_ns", "int64", "nothing ran on the device"),
        *_BY_CAUSE,
        _AFTER_SYNC,
        Column(
            "idle_after_ns",
            "int64",
            "idle time from its end to the next step's start, over all GPUs of these steps; null for the last",
        ),
        *_LAUNCHES,
    ),
    sort=(("report", "ascending"), ("device", "ascending"), ("step", "ascending")),
)
TIMELINE = Table(
    "timeline",
    "one event of a median step",
    (
        *REPORT_KEYS,
        Column("step", "int64", "number of the step"),
        Column("lane", "string", "a stream, the gaps, or the API calls or ranges of the launching thread"),
        Column("name", "string", "operation, API call or range, or the cause of a gap"),
        Column("start_ns", "int64", "relative to the step's first GPU start; negative before it"),
        Column("duration_ns", "int64", "its length"),
    ),
    sort=(
        ("report", "ascending"), ("device", "ascending"), ("lane", "ascending"), ("start_ns", "ascending"),
        ("duration_ns", "descending"), ("name", "ascending"),
    ),
)  # fmt: skip
TABLES = (GAPS, LARGEST_GAPS, HISTOGRAM, IDLE, STEP_IDLE, TIMELINE)
