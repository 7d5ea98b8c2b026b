"""How long each step really took on the GPU, what its time consists of, and how far that is from the floor.

All functions are pure: a capture in, tables out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from llm_decode_floor.batches import with_batch
from llm_decode_floor.phase_floors import FloorSettings, floor_columns, left_whole, rate, split_at_floor
from llm_decode_floor.tables import FLOOR, LAYERS, PHASES, QUANTILES, STEP_PARTS, STEPS, TIMES
from llm_decode_floor.training import is_training, optimizer_names
from llm_decode_floor.waterfall import step_parts
from recipes.base.memory import sums
from recipes.base.tables import Table
from recipes.capture.capture import Capture
from recipes.events.launch_state import graph_launches, launch_counts, launch_state
from recipes.run.recipe import Analysis
from recipes.steps.projection import NONE, Projection, launches_of_entries
from recipes.steps.steps import Steps

#: The part beyond a step's duration: from its end on all of its GPUs to the next step's start on any.
BETWEEN_STEPS = "between_steps"


@dataclass(frozen=True)
class Settings:
    """What the user can choose: rules for families, and everything the floor is worked out from."""

    families: Path | None
    floor: FloorSettings


def analyse(capture: Capture, settings: Settings) -> Analysis:
    """The tables of one report, without the columns report and rank, and what is wrong with the floors in words."""
    _ = capture.launches  # with them comes whose work is whose
    work, projection = capture.work, capture.projection
    steps, told = with_batch(capture.steps, settings.floor.batch)
    names = capture.families(settings.families)
    family = names.of_name[work.name]
    parts = step_parts(capture, projection, family, names)
    step_rows = _step_rows(capture, steps, parts)
    launched = _launch_states(capture)
    phase_rows = [{**_phase_row(step_rows, *group), **launched(group[1])} for group in _groups(step_rows).items()]
    optimizing = optimizer_names(work.names, [names.families[code] for code in names.of_name.tolist()])
    optimized = np.unique(projection.of_operation[optimizing[work.name]])
    for row in phase_rows:
        row["trains"] = is_training(_entries(capture, steps, row), optimized)
    rated = rate(capture, phase_rows, settings.floor)
    doubts: dict[str, str] = {}
    for one in rated:
        if one.floor is not None and one.floor.floor_ns:
            entries = _entries(capture, steps, one.row)
            impossible = left_whole(parts, entries, one.floor)
            one.row["impossible"] = bool(impossible)
            doubts = {**impossible, **doubts}
            parts = split_at_floor(parts, entries, one.floor)
    tables = {
        STEPS: step_rows,
        STEP_PARTS: _part_rows(capture, projection, parts),
        PHASES: _columns(phase_rows, PHASES),
        FLOOR: floor_columns(rated),
        LAYERS: _layer_rows(capture),
    }
    remarks = dict.fromkeys(remark for one in rated for remark in one.remarks)
    built = {table.name: table.of_report(columns) for table, columns in tables.items()}
    floors = {floor_key(one.row): one.floor for one in rated if one.floor is not None}
    return Analysis(built, [*told, *remarks, *doubts.values()], floors)


def floor_key(row: Mapping[str, Any]) -> tuple[int, str, int | None]:
    """What a row of PHASES or FLOOR is about: device, phase and batch."""
    return int(row["device"]), row["phase"], None if pd.isna(row["batch"]) else int(row["batch"])


def _entries(capture: Capture, steps: Steps, row: dict[str, Any]) -> np.ndarray:
    """The entries of the projection that a phase row stands for, edges included."""
    projection, device = capture.projection, capture.work.devices.numbers.index(row["device"])
    wanted = [(meaning.phase, meaning.batch) == (row["phase"], row["batch"]) for meaning in steps.meanings]
    return np.flatnonzero((projection.device == device) & np.array(wanted, dtype=bool)[projection.step])


def _step_rows(capture: Capture, steps: Steps, parts: dict) -> dict[str, Any]:
    """The columns of STEPS: one row per step and device, and one without device for a step without work."""
    projection, devices = capture.projection, capture.work.devices.numbers
    silent = np.setdiff1d(np.flatnonzero(capture.within), projection.step)
    step = np.concatenate([projection.step, silent]).astype(np.int64)
    none = [None] * len(silent)
    idle_ns = sum(values for name, values in parts.items() if name.startswith("idle_"))
    meanings = [steps.meanings[number] for number in step.tolist()]
    return {
        "device": [*(devices[code] for code in projection.device.tolist()), *none],
        "pid": steps.pid[step],
        "step": step,
        "phase": [meaning.phase for meaning in meanings],
        "text": [steps.texts[number] for number in step.tolist()],
        "batch": [meaning.batch for meaning in meanings],
        "tokens": [meaning.tokens for meaning in meanings],
        "kv_tokens": [meaning.kv_tokens for meaning in meanings],
        "start_ns": [*projection.start_ns.tolist(), *none],
        "end_ns": [*projection.end_ns.tolist(), *none],
        "duration_ns": [*projection.duration_ns.tolist(), *none],
        "period_ns": [*(None if value == NONE else value for value in projection.period_ns.tolist()), *none],
        "itl_ns": [*(None if value == NONE else value for value in projection.itl_ns.tolist()), *none],
        "busy_ns": [*(projection.duration_ns - idle_ns).tolist(), *none],
        "idle_ns": [*np.asarray(idle_ns).tolist(), *none],
        "operations": [*projection.operations.tolist(), *([0] * len(silent))],
        "launches": [*_launches(capture, projection).tolist(), *([0] * len(silent))],
        "edge": capture.edge[step],
        "edge_reason": capture.edge_reason[step],
        "inferred": np.full(len(step), steps.inferred),
    }


def _launches(capture: Capture, projection: Projection) -> np.ndarray:
    """The distinct calls that launched the operations of each step on each device."""
    if len(capture.work.devices.numbers) <= 1 and not capture.cut.any():
        return capture.attribution.launches[projection.step]
    return launches_of_entries(projection, capture.launches)


def _launch_states(capture: Capture) -> Callable[[list[int]], dict[str, Any]]:
    """What gives the launch columns of PHASES for some rows of STEPS that have work."""
    projection, from_graph = capture.projection, graph_launches(capture.report, capture.launches)
    counts = launch_counts(capture.work, capture.launches, from_graph, projection.of_operation, len(projection))
    lost = bool(capture.lost_graph_launches > np.count_nonzero(from_graph))

    def columns(rows: list[int]) -> dict[str, Any]:
        # Rows of steps with work are the entries of the projection.
        state = launch_state({name: float(values[rows].sum()) for name, values in counts.items()}, lost=lost)
        return {"graphs": state.graphs, "in_graphs": None if np.isnan(state.in_graphs) else state.in_graphs}

    return columns


def _part_rows(capture: Capture, projection: Projection, parts: dict[str, np.ndarray]) -> dict[str, Any]:
    """The columns of STEP_PARTS: the parts that are not nothing."""
    device = np.array(capture.work.devices.numbers, dtype=np.int64)[projection.device] if len(projection) else []
    columns: dict[str, list] = {"device": [], "step": [], "part": [], "time_ns": []}
    for part, values in {**parts, BETWEEN_STEPS: np.maximum(projection.between_ns, 0)}.items():
        used = np.flatnonzero(values)
        columns["device"] += np.asarray(device)[used].tolist()
        columns["step"] += projection.step[used].tolist()
        columns["part"] += [part] * len(used)
        columns["time_ns"] += values[used].tolist()
    return columns


def _layer_rows(capture: Capture) -> dict[str, Any]:
    """The columns of LAYERS: work in steps that lies in a range inside its step."""
    work, layers, step = capture.work, capture.layers, capture.attribution.step
    rows = np.flatnonzero((layers.of_operation >= 0) & (step >= 0))
    shape = (len(work.devices.numbers) or 1, len(capture.steps.phases) or 1, len(layers.names) or 1, 2)
    key = (work.device[rows], capture.steps.phase[step[rows]], layers.of_operation[rows], layers.by_capture[rows] * 1)
    code = np.ravel_multi_index(key, shape) if len(rows) else rows
    operations = np.bincount(code)
    time_ns = sums(code, work.end_ns[rows] - work.start_ns[rows], len(operations))
    used = np.flatnonzero(operations)
    device, phase, layer, captured = (part.tolist() for part in np.unravel_index(used, shape))
    return {
        "device": [work.devices.numbers[number] for number in device],
        "phase": [capture.steps.phases[number] for number in phase],
        "layer": [layers.names[number] for number in layer],
        "attribution": [("launch", "capture")[number] for number in captured],
        "operations": operations[used],
        "time_ns": time_ns[used],
    }


def _groups(rows: dict[str, Any]) -> dict[tuple, list[int]]:
    """The steps that count, by device, phase and batch: batches are never mixed; edges and empty steps left out."""
    groups: dict[tuple, list[int]] = {}
    keys = zip(rows["device"], rows["phase"], rows["batch"], rows["edge"].tolist(), strict=True)
    for row, (device, phase, batch, edge) in enumerate(keys):
        if device is not None and not edge:
            groups.setdefault((device, phase, batch), []).append(row)
    return groups


def _phase_row(rows: dict[str, Any], key: tuple, members: list[int]) -> dict[str, Any]:
    """One row of PHASES; beside it the medians of tokens and kv_tokens, None where a step does not tell."""
    row: dict[str, Any] = {**dict(zip(("device", "phase", "batch"), key, strict=True)), "steps": len(members)}
    for what in TIMES:
        times = [rows[f"{what}_ns"][member] for member in members if rows[f"{what}_ns"][member] is not None]
        for quantile in QUANTILES:
            row[f"{what}_p{quantile}_ns"] = round(np.percentile(times, quantile)) if times else None
    for name in ("tokens", "kv_tokens"):
        values = [rows[name][member] for member in members]
        row[name] = None if None in values else float(np.median(values))
    return row


def _columns(rows: list[dict[str, Any]], table: Table) -> dict[str, list]:
    return {name: [row[name] for row in rows] for name in table.names if name not in ("report", "rank")}
