"""Which families of kernels the GPU time goes to: the numbers, without Nsight and without output.

All functions are pure: a report's GPU work in, tables out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from llm_kernel_families.tables import FAMILIES, KERNELS
from recipes.base import intervals
from recipes.base.memory import sums
from recipes.base.tables import Table
from recipes.capture.capture import Capture
from recipes.events.gpu_work import GpuWork
from recipes.kernels.work_families import NameFamilies, passes
from recipes.run.recipe import Analysis


@dataclass(frozen=True)
class Settings:
    """What the user can choose: a file with rules of their own."""

    families: Path | None = None


def analyse(capture: Capture, settings: Settings) -> Analysis:
    """What one report tells; there is nothing to remark."""
    work = capture.work
    names = capture.families(settings.families)
    family_parts, kernel_parts = [], []
    for phase, chosen in capture.phases():
        for number, device in enumerate(work.devices.numbers):
            rows = _on_device(work, number, chosen)
            by_name = _by_name(work.name[rows], work.end_ns[rows] - work.start_ns[rows])
            family_parts.append((phase, device, _family_rows(work, names, rows, by_name)))
            kernel_parts.append((phase, device, _kernel_rows(work, names, by_name)))
    return Analysis({"families": _stack(FAMILIES, family_parts), "kernels": _stack(KERNELS, kernel_parts)})


def _family_rows(work: GpuWork, names: NameFamilies, rows: np.ndarray | slice, by_name: dict) -> dict:
    """The columns of FAMILIES for some operations of one device, of which the sums by name are known."""
    count = len(names.families)
    family = names.of_name[by_name["name"]]
    calls, time_ns = (sums(family, by_name[column], count) for column in ("calls", "time_ns"))
    exclusive = exclusive_ns(work, names, rows)
    used = np.flatnonzero(calls)
    return {
        "family": [names.families[code] for code in used],
        "group": [names.groups[code] for code in used],
        "calls": calls[used],
        "time_ns": time_ns[used],
        "exclusive_ns": exclusive[used],
        "share": time_ns[used] / max(time_ns.sum(), 1),
    }


def exclusive_ns(work: GpuWork, names: NameFamilies, selected: np.ndarray | slice) -> np.ndarray:
    """What each family adds to the busy union of some operations of one device, int64; adds up to it exactly.

    Pass by pass (compute, copies, communication), and in a pass by start, each operation adds the time that no
    operation before it covers. In ns, one entry per family; `selected`: a mask (bool per operation), places or a slice.
    """
    count = len(names.families)
    total_ns = np.zeros(count, dtype=np.int64)
    # Masks of the whole report, so that times are copied once at most.
    in_passes = (_within(chosen, selected) for chosen in passes(work.kind, names.communicating(work.name)))
    taken = (_as_slice(chosen) for chosen in in_passes if chosen.any())
    for rows, order, added_ns in intervals.exclusive(taken, lambda rows: (work.start_ns[rows], work.end_ns[rows])):
        total_ns += sums(names.of_name, sums(work.name[rows][order], added_ns, len(work.names)), count)
    return total_ns


def _within(chosen: np.ndarray, selected: np.ndarray | slice) -> np.ndarray:
    """The chosen rows that are selected too."""
    within = np.zeros(len(chosen), dtype=bool)
    within[selected] = chosen[selected]
    return within


def _as_slice(chosen: np.ndarray) -> np.ndarray | slice:
    """A mask as a slice where its rows lie together, as kinds of operation do: taking them then copies nothing."""
    count = np.count_nonzero(chosen)
    first = int(chosen.argmax()) if len(chosen) else 0
    return slice(first, first + count) if chosen[first : first + count].all() else chosen


def _kernel_rows(work: GpuWork, names: NameFamilies, by_name: dict) -> dict:
    """The columns of KERNELS out of the sums by name."""
    code = by_name["name"].tolist()
    return {
        "family": [names.families[names.of_name[name]] for name in code],
        "name": [work.names[name] for name in code],
        "short_name": [work.short_names[name] for name in code],
        "rule": [names.rules[name] for name in code],
        **{column: values for column, values in by_name.items() if column != "name"},
    }


def _by_name(name: np.ndarray, duration_ns: np.ndarray) -> dict[str, np.ndarray]:
    """The names that occur, with the calls and the statistics of their durations, int64 each."""
    bits = int(duration_ns.max(initial=0)).bit_length()
    if int(name.max(initial=0)).bit_length() + bits < 63:
        # One sort of one number, name in front, is much faster than a sort by two columns.
        key = name.astype(np.int64)
        key <<= bits
        key |= duration_ns
        key.sort()
        name = key >> bits
        key &= (1 << bits) - 1
        duration_ns = key
    else:
        order = np.lexsort((duration_ns, name))
        name, duration_ns = name[order], duration_ns[order]
    begins = np.ones(len(name), dtype=bool)
    begins[1:] = name[1:] != name[:-1]
    first = np.flatnonzero(begins)
    calls = np.diff(np.append(first, len(name)))
    low, high = first + (calls - 1) // 2, first + calls // 2
    return {
        "name": name[first],
        "calls": calls,
        "time_ns": np.add.reduceat(duration_ns, first) if len(first) else duration_ns,
        "min_ns": duration_ns[first],
        # Half of the sum without the sum, which may be too large.
        "median_ns": duration_ns[low] + (duration_ns[high] - duration_ns[low]) // 2,
        "max_ns": duration_ns[first + calls - 1],
    }


def _on_device(work: GpuWork, device: int, chosen: np.ndarray | slice) -> np.ndarray | slice:
    """What selects a device's operations among the chosen; a slice, which copies nothing, where it can be."""
    if len(work.devices.numbers) == 1:
        return chosen if isinstance(chosen, slice) else _as_slice(chosen)
    on_device = work.device == device
    return on_device if isinstance(chosen, slice) else on_device & chosen


def _stack(table: Table, parts: list[tuple[str, int, dict]]) -> pa.Table:
    """The rows of all phases and devices as one table, without the columns report and rank."""
    columns: dict[str, list] = {name: [] for name in table.names if name not in ("report", "rank")}
    for phase, device, rows in parts:
        count = len(rows["calls"])
        for name, values in {"phase": [phase] * count, "device": [device] * count, **rows}.items():
            columns[name].extend(np.asarray(values).tolist())
    return table.of_report(columns)
