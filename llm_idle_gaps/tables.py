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
    "profiler": "the profiler was at work",
    "graph": "between nodes of one graph launch",
    "sync": "before the launch: the launching thread was in a synchronising call",
    "api": "before the launch: it was in another CUDA call",
    "host": "before the launch: it was in no CUDA call",
    "launch": "inside the launch call",
    "queued": "after the launch call: issued, and waiting for a dependency or the GPU's scheduling",
    "unknown": "the report has no launch of the operation that ended the gap",
}
_BY_CAUSE = tuple(Column(f"{cause}_ns", "int64", f"idle: {_MEANINGS[cause]}") for cause in CAUSES)
_LAUNCHES = (
    Column("operations", "int64", "kernels, copies, sets and graph executions"),
    Column("launched", "int64", "of these, those whose launch is in the report"),
    Column("launches", "int64", "API calls that launched them; a graph launch is one"),
    Column("graph_launches", "int64", "those that launched a CUDA graph"),
    Column("copy_launches", "int64", "those that launched a copy"),
    Column("in_graphs", "int64", "operations seen one by one that a graph launch started"),
    Column("kernels", "int64", "kernels whose launch is in the report"),
    Column("kernels_in_graphs", "int64", "those of them that a graph launch started"),
    Column("opaque_graphs", "int64", "graph executions traced as a whole"),
    Column("launch_call_ns", "int64", "host time inside the launch calls; copies, which may wait in theirs, left out"),
    Column("between_launches", "int64", "pairs of launch calls, one after the other on a thread, both in the step"),
    Column(
        "between_launches_ns", "int64", "host time from the end of the first to the start of the second of each pair"
    ),
)
_AFTER_SYNC = Column(
    "after_sync_ns", "int64", "idle: gaps that began while the launching thread waited for the GPU, launch outstanding"
)

GAPS = Table(
    "gaps",
    "one gap, at least --min-gap long",
    (
        Column("report", "string", REPORT_KEYS[0].meaning, coded=True),
        *REPORT_KEYS[1:],
        Column("start_ns", "int64", "end of the work before"),
        Column("end_ns", "int64", "start of the operation that ended the gap"),
        Column("duration_ns", "int64", "its length"),
        Column("cause", "string", "the cause of its largest part", coded=True),
        Column("cause_ns", "int64", "that part"),
        Column("phase", "string", f"phase of the step it lies in; `{OUTSIDE}` for none", coded=True),
        Column("place", "string", f"{', '.join(PLACES)}; null where the device has no steps", coded=True),
        Column("step", "int64", "number of that step; null for none"),
        Column("previous", "string", "name of the operation before", coded=True),
        Column("next", "string", "name of the operation after", coded=True),
        Column("launch_api", "string", "call that launched the operation after; null if not recorded", coded=True),
        Column("thread", "string", "thread that made that call, with its id", coded=True),
        Column("held_by", "string", "call that held that thread longest before the launch; null for none", coded=True),
        Column("held_ns", "int64", "how long, all its calls in the gap together; null for none"),
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
    "largest_gaps", "one of the longest gaps of a device, 200 at most, whatever --min-gap is", GAPS.columns, GAPS.sort
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
        Column("window_ns", "int64", "time looked at; where steps overlap, it is the later one's"),
        Column("busy_ns", "int64", "some operation ran"),
        Column("copy_only_ns", "int64", "of busy: only copies and sets ran"),
        Column("idle_ns", "int64", "nothing ran; window less busy"),
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
        Column("batch", "int64", "sequences in it, as its range tells; null if it does not"),
        Column("edge", "bool", "does not stand for the others: in no median or mean"),
        EDGE_REASON,
        Column("start_ns", "int64", "first start of its operations"),
        Column("duration_ns", "int64", "to their last end"),
        Column("period_ns", "int64", "to the first start of its process's next step; null after the last"),
        Column("idle_ns", "int64", "nothing ran on the device"),
        *_BY_CAUSE,
        _AFTER_SYNC,
        Column(
            "idle_after_ns",
            "int64",
            "idle between its end and the device's next step, on all of their GPUs; null after the last",
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
        Column("lane", "string", "where it happened: a stream, the gaps, calls and ranges of the launching thread"),
        Column("name", "string", "operation, call, range, or the cause of a gap"),
        Column("start_ns", "int64", "from the step's first start on the GPU; negative before"),
        Column("duration_ns", "int64", "its length"),
    ),
    sort=(
        ("report", "ascending"), ("device", "ascending"), ("lane", "ascending"), ("start_ns", "ascending"),
        ("duration_ns", "descending"), ("name", "ascending"),
    ),
)  # fmt: skip
TABLES = (GAPS, LARGEST_GAPS, HISTOGRAM, IDLE, STEP_IDLE, TIMELINE)
