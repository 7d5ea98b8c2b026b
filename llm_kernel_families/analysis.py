"""Which families of kernels the GPU time goes to: the numbers, without Nsight and without output.

All functions are pure: a report's GPU work in, tables out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from recipes import families, intervals
from recipes.capture import Capture
from recipes.gpu_work import GpuWork
from recipes.tables import REPORT_KEYS, Column, Table
from recipes.work_families import NameFamilies, name_families, passes

NAME = "llm_kernel_families"
Intervals = tuple[np.ndarray, np.ndarray]
_KEYS = (
    *REPORT_KEYS,
    Column("phase", "string", "phase of the model; `all` is the whole window, `outside` what is in no step"),
)
FAMILIES = Table(
    "families",
    "one family of GPU work in one phase on one device",
    (
        *_KEYS,
        Column("family", "string", "kind of kernel; memcpy and memset for copies and sets by the driver"),
        Column("group", "string", "coarse family"),
        Column("calls", "int64", "operations"),
        Column("time_ns", "int64", "summed durations; concurrent work counts each time"),
        Column("exclusive_ns", "int64", "what the family adds to the busy time; adds up to busy over families"),
        Column("share", "double", "time_ns over that of all families in this report, device and phase, 0 to 1"),
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
        Column("family", "string", "kind of kernel"),
        Column("name", "string", "demangled name"),
        Column("short_name", "string", "name without parameters"),
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


@dataclass(frozen=True)
class Settings:
    """What the user can choose: a file with rules of their own."""

    families: Path | None = None


def check(settings: Settings) -> None:
    """PackError when the settings cannot work, before any report is read."""
    families.load_rules(settings.families)


def analyse(capture: Capture, settings: Settings) -> dict[str, pa.Table]:
    """The tables of one report, without the columns report and rank."""
    work = capture.work
    names = name_families(work, families.load_rules(settings.families))
    family_parts, kernel_parts = [], []
    for phase, chosen in capture.phases():
        for number, device in enumerate(work.devices.numbers):
            rows = _on_device(work, number, chosen)
            family_parts.append((phase, device, _family_rows(work, names, rows)))
            kernel_parts.append((phase, device, _kernel_rows(work, names, rows)))
    return {"families": _stack(FAMILIES, family_parts), "kernels": _stack(KERNELS, kernel_parts)}


def _family_rows(work: GpuWork, names: NameFamilies, selected: np.ndarray | slice) -> dict:
    """The columns of FAMILIES for some operations of one device."""
    family = names.of_name[work.name[selected]]
    start_ns, end_ns, kind = work.start_ns[selected], work.end_ns[selected], work.kind[selected]
    count = len(names.families)
    calls = np.bincount(family, minlength=count)
    time_ns = _summed(family, end_ns - start_ns, count)
    exclusive = exclusive_ns(start_ns, end_ns, family, passes(kind, names.communicates(family)), count)
    used = np.flatnonzero(calls)
    return {
        "family": [names.families[code] for code in used],
        "group": [names.groups[code] for code in used],
        "calls": calls[used],
        "time_ns": time_ns[used],
        "exclusive_ns": exclusive[used],
        "share": time_ns[used] / max(time_ns.sum(), 1),
    }


def exclusive_ns(
    start_ns: np.ndarray, end_ns: np.ndarray, family: np.ndarray, in_passes: Iterable[np.ndarray], count: int
) -> np.ndarray:
    """What each of `count` families adds to the busy union, int64; adds up to it exactly.

    Pass by pass, and in a pass by start, each operation adds the time that no operation before it covers.
    """
    total_ns = np.zeros(count, dtype=np.int64)
    union: Intervals = (start_ns[:0], end_ns[:0])
    remaining = [_as_slice(chosen) for chosen in in_passes if chosen.any()]
    while remaining:
        rows = remaining.pop(0)
        order = intervals.by_start(start_ns[rows])
        parts = intervals.added_ns(start_ns[rows][order], end_ns[rows][order])
        added_ns = parts[1] - parts[0]
        if len(union[0]):
            added_ns -= intervals.covered_ns(*parts, union)
        total_ns += _summed(family[rows][order], added_ns, count)
        if remaining:
            union = intervals.joined(union, parts) if len(union[0]) else parts
    return total_ns


def _as_slice(chosen: np.ndarray) -> np.ndarray | slice:
    """A mask as a slice where its rows lie together, as kinds of operation do: taking them then copies nothing."""
    count = np.count_nonzero(chosen)
    first = int(chosen.argmax()) if len(chosen) else 0
    return slice(first, first + count) if chosen[first : first + count].all() else chosen


def _kernel_rows(work: GpuWork, names: NameFamilies, selected: np.ndarray | slice) -> dict:
    """The columns of KERNELS for some operations of one device."""
    code, calls, rows = _grouped(work.name[selected], work.end_ns[selected] - work.start_ns[selected])
    return {
        "family": [names.families[names.of_name[name]] for name in code],
        "name": [work.names[name] for name in code],
        "short_name": [work.short_names[name] for name in code],
        "calls": calls,
        **rows,
    }


def _grouped(name: np.ndarray, duration_ns: np.ndarray) -> tuple[list[int], np.ndarray, dict]:
    """The names that occur, the calls of each, and the statistics of their durations."""
    bits = int(duration_ns.max(initial=0)).bit_length()
    if int(name.max(initial=0)).bit_length() + bits < 63:
        # One sort of one number, name in front, is much faster than a sort by two columns.
        key = name.astype(np.int64)
        key <<= bits
        key |= duration_ns
        key.sort()
        name, duration_ns = key >> bits, key & ((1 << bits) - 1)
    else:
        order = np.lexsort((duration_ns, name))
        name, duration_ns = name[order], duration_ns[order]
    first = np.flatnonzero(np.diff(name, prepend=-1))
    calls = np.diff(np.append(first, len(name)))
    low, high = first + (calls - 1) // 2, first + calls // 2
    return name[first].tolist(), calls, {
        "time_ns": np.add.reduceat(duration_ns, first) if len(first) else duration_ns,
        "min_ns": duration_ns[first],
        "median_ns": (duration_ns[low] + duration_ns[high]) // 2,
        "max_ns": duration_ns[first + calls - 1],
    }  # fmt: skip


def _on_device(work: GpuWork, device: int, chosen: np.ndarray | slice) -> np.ndarray | slice:
    """What selects a device's operations among the chosen; a slice, which copies nothing, where it can be."""
    if len(work.devices.numbers) == 1:
        return chosen if isinstance(chosen, slice) else _as_slice(chosen)
    on_device = work.device == device
    return on_device if isinstance(chosen, slice) else on_device & chosen


def _summed(group: np.ndarray, values_ns: np.ndarray, count: int) -> np.ndarray:
    # bincount adds in double precision: exact for whole numbers below 2**53, in ns 104 days.
    return np.bincount(group, weights=values_ns, minlength=count).astype(np.int64)


def _stack(table: Table, parts: list[tuple[str, int, dict]]) -> pa.Table:
    """The rows of all phases and devices as one table, without the columns report and rank."""
    columns: dict[str, list] = {name: [] for name in table.names if name not in ("report", "rank")}
    for phase, device, rows in parts:
        count = len(rows["calls"])
        for name, values in {"phase": [phase] * count, "device": [device] * count, **rows}.items():
            columns[name].extend(np.asarray(values).tolist())
    fields = [table.schema().field(name) for name in columns]
    return pa.table([pa.array(columns[f.name], f.type) for f in fields], schema=pa.schema(fields))
