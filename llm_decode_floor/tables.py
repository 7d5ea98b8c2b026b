"""The tables of llm_decode_floor."""

from __future__ import annotations

from recipes.base.tables import REPORT_KEYS, Column, Table
from recipes.capture.edges import EDGE_REASON
from recipes.events.launch_state import STATES

_STEP = Column("step", "int64", "number of the step in the report, in order of its start on the host")
_PHASE = Column("phase", "string", "phase of the model")
_BATCH = Column("batch", "int64", "sequences in the step; null if the range does not say")
_KEY = (("report", "ascending"), ("device", "ascending"))

#: The times of a step that phases have quantiles of, with what they are called.
TIMES = {
    "duration": "durations",
    "period": "periods",
    "itl": "inter-token latencies; null for phases that do not decode",
}
QUANTILES = (10, 50, 90, 99)

STEPS = Table(
    "steps",
    "one step on one device",
    (
        *REPORT_KEYS,
        Column("pid", "int64", "process"),
        _STEP,
        _PHASE,
        Column("text", "string", "text of the NVTX range"),
        _BATCH,
        Column("tokens", "int64", "new tokens in the step; null if unknown"),
        Column("kv_tokens", "int64", "summed KV-cache length over the sequences, in tokens; null if unknown"),
        Column("start_ns", "int64", "first start of the step's operations on the device"),
        Column("end_ns", "int64", "last end of the step's operations on the device"),
        Column("duration_ns", "int64", "projected duration: end minus start"),
        Column(
            "period_ns",
            "int64",
            "start to start of the process's consecutive steps on the device; null for the last and before lost work",
        ),
        Column(
            "itl_ns",
            "int64",
            "inter-token latency: start of a decode step to start of its thread's next one; else null",
        ),
        Column("busy_ns", "int64", "device busy within the interval, with work of any process"),
        Column("idle_ns", "int64", "device idle within the interval"),
        Column("operations", "int64", "GPU operations of the step"),
        Column("launches", "int64", "API calls that launched them"),
        Column("edge", "bool", "not representative; excluded from medians and means"),
        EDGE_REASON,
        Column("inferred", "bool", "inferred from repetition, not from NVTX ranges"),
    ),
    sort=(*_KEY, ("step", "ascending")),
)
STEP_PARTS = Table(
    "step_parts",
    "one part of one step's projected duration; the parts add up to it exactly",
    (
        *REPORT_KEYS,
        _STEP,
        Column("part", "string", "a family's exclusive time, other_work, or idle_ with its cause"),
        Column("time_ns", "int64", "length of the part"),
    ),
    sort=(*_KEY, ("step", "ascending"), ("part", "ascending")),
)
PHASES = Table(
    "phases",
    "one phase and batch on one device",
    (
        *REPORT_KEYS,
        _PHASE,
        _BATCH,
        Column("steps", "int64", "steps counted; edge steps are excluded"),
        *(
            Column(f"{what}_p{quantile}_ns", "int64", f"{quantile}th percentile of the {name}")
            for what, name in TIMES.items()
            for quantile in QUANTILES
        ),
        Column("graphs", "string", f"whether CUDA graphs are on: {', '.join(STATES)}; whole: traced as a whole"),
        Column("in_graphs", "double", "share of kernels started by graph launches, 0 to 1; null if unknown"),
    ),
    sort=(*_KEY, ("phase", "ascending"), ("batch", "ascending")),
)
FLOOR = Table(
    "floor",
    "the floor of one phase and batch on one device",
    (
        *REPORT_KEYS,
        _PHASE,
        _BATCH,
        Column("context", "int64", "KV-cache tokens per sequence; null if unknown"),
        Column(
            "weight_bytes",
            "int64",
            "weight bytes read per step by one rank, with the fewest experts that the routing allows",
        ),
        Column(
            "expected_weight_bytes",
            "int64",
            "the same with uniform routing; null without experts or batch",
        ),
        Column("kv_bytes", "int64", "KV-cache bytes read per step by one rank, at least; null if unknown"),
        Column("bandwidth_bytes_per_s", "double", "memory bandwidth that the floor uses"),
        Column("bandwidth_source", "string", "chosen (by an option), table (data sheet) or report"),
        Column("floor_ns", "int64", "memory-bandwidth floor: bytes divided by bandwidth; a lower bound"),
        Column("expected_floor_ns", "int64", "the same with expected_weight_bytes"),
        Column("attainable_ns", "int64", "floor divided by the attainable share of the bandwidth"),
        Column("duration_p50_ns", "int64", "median projected duration"),
        Column("period_p50_ns", "int64", "median period"),
        Column("ratio", "double", "median duration divided by floor"),
        Column(
            "mbu", "double", "model bandwidth utilisation (MBU): floor divided by duration, 0 to 1; null if above 1"
        ),
        Column("flop_per_byte", "double", "arithmetic intensity: FLOPs per byte read"),
        Column(
            "ridge_flop_per_byte",
            "double",
            "roofline ridge point: arithmetic intensity above which the step is compute-bound",
        ),
        Column("mfu", "double", "model FLOPs utilisation (MFU), 0 to 1; null if unknown or above 1"),
    ),
    sort=(*_KEY, ("phase", "ascending"), ("batch", "ascending")),
)
LAYERS = Table(
    "layers",
    "one layer (NVTX range inside a step) in one phase on one device",
    (
        *REPORT_KEYS,
        _PHASE,
        Column(
            "layer",
            "string",
            "range texts inside the step or around its graph capture, outermost first, numbers as *",
        ),
        Column("attribution", "string", "launch, or capture: the range open when the CUDA graph was captured"),
        Column("operations", "int64", "GPU operations"),
        Column("time_ns", "int64", "summed durations"),
    ),
    sort=(
        *_KEY,
        ("phase", "ascending"),
        ("time_ns", "descending"),
        ("layer", "ascending"),
        ("attribution", "ascending"),
    ),
)
TABLES = (STEPS, STEP_PARTS, PHASES, FLOOR, LAYERS)
