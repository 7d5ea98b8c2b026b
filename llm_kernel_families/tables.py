"""The tables that this recipe writes."""

from __future__ import annotations

from recipes.base.tables import REPORT_KEYS, Column, Table

_KEYS = (
    *REPORT_KEYS,
    Column("phase", "string", "phase of the model; `all` is the whole window, `outside` what is in no step"),
)
FAMILIES = Table(
    "families",
    "one family of GPU work in one phase on one device",
    (
        *_KEYS,
        Column("family", "string", "kernel family; memcpy and memset for memory copies and memsets"),
        Column("group", "string", "group of families"),
        Column("calls", "int64", "operations"),
        Column("time_ns", "int64", "summed durations; concurrent operations each count in full"),
        Column("exclusive_ns", "int64", "what the family adds to the busy time; families sum to the busy time"),
        Column("share", "double", "share of the time_ns of all families in this report, device and phase, 0 to 1"),
    ),
    sort=(
        ("report", "ascending"), ("device", "ascending"), ("phase", "ascending"), ("time_ns", "descending"),
        ("family", "ascending"),
    ),
)  # fmt: skip
KERNELS = Table(
    "kernels",
    "one kernel name in one phase on one device",
    (
        *_KEYS,
        Column("family", "string", "kernel family"),
        Column("name", "string", "demangled name"),
        Column("short_name", "string", "name without parameters"),
        Column("rule", "string", "rule that gave the family, or its place in steps (`context: ...`); empty for none"),
        Column("calls", "int64", "operations"),
        Column("time_ns", "int64", "summed durations"),
        Column("min_ns", "int64", "shortest"),
        Column("median_ns", "int64", "median, halves rounded down"),
        Column("max_ns", "int64", "longest"),
    ),
    sort=(
        ("report", "ascending"), ("device", "ascending"), ("phase", "ascending"), ("time_ns", "descending"),
        ("name", "ascending"),
    ),
)  # fmt: skip
TABLES = (FAMILIES, KERNELS)
