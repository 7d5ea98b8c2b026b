"""What the recipe says: verdict, phases, the parts of a step, findings; and the small tables of its notebook."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from llm_decode_floor.analysis import BETWEEN_STEPS, Settings, floor_key
from llm_decode_floor.findings import MeanStep
from recipes.base.text_table import shortened, text_table
from recipes.base.units import format_count, format_ms, format_ns, format_share
from recipes.findings.finding import most_recoverable
from recipes.findings.registry import FLOOR, find
from recipes.models.decode_floor import Floor
from recipes.run.recipe import Told
from recipes.steps.engine_time import STEP_TIME_TOLERANCE, engine_step_ns
from recipes.steps.phases import DECODE_PHASES

_KEYS = ["report", "device", "phase", "batch"]
#: So many groups of steps are printed, and so many layers of the leading one.
_SHOWN_GROUPS = 12
_SHOWN_LAYERS = 6
#: Times of a phase by heading, and from how many steps on: a quantile between two steps says nothing that they do not.
_SHOWN_TIMES = {
    "p50 ms": ("duration_p50", 1),
    "p90 ms": ("duration_p90", 5),
    "p99 ms": ("duration_p99", 20),
    "period ms": ("period_p50", 1),
    "ITL p50 ms": ("itl_p50", 1),
    "ITL p99 ms": ("itl_p99", 20),
}
#: The notebook shows so many steps at most; more are thinned out evenly.
_NOTEBOOK_STEPS = 3000


def summarise(tables: dict[str, pa.Table], settings: Settings, told: Told) -> str:
    """Verdict, the place of the quality line, phases, the parts of the leading phase's steps, findings."""
    phases = tables["phases"].to_pandas()
    if phases.empty:
        return _nothing(tables)
    floors = tables["floor"].to_pandas()
    steps = _counted_steps(tables)
    lead = _leading(phases)
    group = _group(lead, floors, steps, settings, told)
    parts = _mean_parts(tables, steps, lead)
    lines = [_verdict(lead, group, tables), "{quality}", "", _phase_table(phases, floors)]
    name = _name(lead) + _place(lead, tables)
    lines += ["", _part_table(parts, name), *_layer_table(tables, lead), ""]
    found = most_recoverable(find(FLOOR, MeanStep(group, _as_expected(parts, group["floor"]))))
    lines += [f"{number}. {finding.message}" for number, finding in enumerate(found, 1)]
    return "\n".join([*lines, *_remarks(group)])


def _as_expected(parts: dict[str, float], floor: Floor | None) -> dict[str, float]:
    """The parts with the GEMMs split at what uniform routing reads: the fewest experts are no yardstick for kernels."""
    expected = None if floor is None else floor.expected_weight_bytes
    if floor is None or not expected or "weights_floor" not in parts:
        return parts
    at_floor, above = parts["weights_floor"], parts.get("gemm_above_floor", 0)
    more = min(max(at_floor * expected / floor.weight_bytes - at_floor, 0), above)
    return {**parts, "weights_floor": at_floor + more, "gemm_above_floor": above - more}


def _nothing(tables: dict[str, pa.Table]) -> str:
    if len(tables["steps"]):
        reasons = Counter(reason for reason in tables["steps"]["edge_reason"].to_pylist() if reason)
        told = ", ".join(f"{count:,} {reason}" for reason, count in reasons.most_common())
        return f"{len(tables['steps']):,} steps were found, but none that counts: {told}.\n{{quality}}"
    return (
        "No steps were found: no NVTX range has the name of a step, and no repetition was recognised.\n{quality}\n"
        "Name ranges such as `decode bs=16` around each step, or give a rule of your own: --phases FILE"
    )


def _same(frame: pd.DataFrame, key: pd.Series) -> pd.Series:
    """Which rows are of a report, device, phase and batch; an unknown batch is one of its own."""
    match = pd.Series(True, index=frame.index)
    for name in _KEYS:
        match &= frame[name].isna() if pd.isna(key[name]) else frame[name] == key[name]
    return match


def _counted_steps(tables: dict[str, pa.Table]) -> pd.DataFrame:
    steps = tables["steps"].to_pandas()
    return steps[~steps["edge"] & steps["duration_ns"].notna()]


def _leading(phases: pd.DataFrame) -> pd.Series:
    """The phase and batch to tell about: of decode phases, else of all, the one that took most time."""
    decode = phases[phases["phase"].isin(DECODE_PHASES)]
    among = phases if decode.empty else decode
    return among.loc[(among["steps"] * among["duration_p50_ns"]).idxmax()]


def _group(
    lead: pd.Series, floors: pd.DataFrame, steps: pd.DataFrame, settings: Settings, told: Told
) -> dict[str, Any]:
    mine = steps[_same(steps, lead)]
    rows = floors[_same(floors, lead)]
    row: Any = None if rows.empty else rows.iloc[0]
    known = row is not None and not pd.isna(row["floor_ns"])
    floor: Floor | None = told.by_report[lead["report"]][floor_key(row)] if known else None
    return {
        "duration_ns": lead["duration_p50_ns"],
        "operations": mine["operations"].median(),
        "launches": mine["launches"].median(),
        "busy_ns": mine["busy_ns"].median(),
        "graphs": lead["graphs"],
        "attainable": settings.floor.attainable,
        "floor": floor,
        "row": row,
        "step_time_ns": settings.floor.step_time_ns,
        "engine_step_ns": _engine_step_ns(lead, mine, steps),
        "inferred": bool(mine["inferred"].any()),
        "has_model": settings.floor.model is not None,
        "report": lead["report"],
        "device": int(lead["device"]),
        "phase": lead["phase"],
        "decodes": lead["phase"] in DECODE_PHASES and not _trains(row, settings),
    }


def _trains(row: pd.Series | None, settings: Settings) -> bool:
    """Whether a decode phase has no weights to read although the model is known: its steps train."""
    return settings.floor.model is not None and row is not None and bool(pd.isna(row["weight_bytes"]))


def _engine_step_ns(lead: pd.Series, mine: pd.DataFrame, steps: pd.DataFrame) -> float | None:
    here = steps[(steps["report"] == lead["report"]) & (steps["device"] == lead["device"])]
    periods = mine["period_ns"].to_numpy(dtype=float, na_value=np.nan)
    return engine_step_ns(lead["phase"], set(here["phase"]), mine["start_ns"].to_numpy(), periods)


def _mean_parts(tables: dict[str, pa.Table], steps: pd.DataFrame, lead: pd.Series) -> dict[str, float]:
    """The mean ns of each part over the steps of the leading phase."""
    mine = steps[_same(steps, lead)][["report", "device", "step", "period_ns"]]
    parts = tables["step_parts"].to_pandas().merge(mine, on=["report", "device", "step"])
    # A part that a step lacks is nothing in it; but what follows the last step is not known.
    mean = parts.groupby("part")["time_ns"].sum() / len(mine)
    if BETWEEN_STEPS in mean:
        mean[BETWEEN_STEPS] *= len(mine) / max(mine["period_ns"].notna().sum(), 1)
    return mean.to_dict()


def _name(lead: pd.Series) -> str:
    return lead["phase"] if pd.isna(lead["batch"]) else f"{lead['phase']} bs={int(lead['batch'])}"


def _place(lead: pd.Series, tables: dict[str, pa.Table]) -> str:
    """Where the leading phase ran, when there are several reports or devices."""
    phases = tables["phases"].to_pandas()
    report = f" in {lead['report']}" if phases["report"].nunique() > 1 else ""
    return report + (f", GPU {int(lead['device'])}" if phases["device"].nunique() > 1 else "")


def _verdict(lead: pd.Series, group: dict[str, Any], tables: dict[str, pa.Table]) -> str:
    files = tables["files"].to_pandas().set_index("report")
    gpu = files.loc[lead["report"], "gpu_name"] or "the GPU"
    period = "" if pd.isna(lead["period_p50_ns"]) else f", {format_ns(lead['period_p50_ns'])} start to start"
    projected = f"{format_ns(lead['duration_p50_ns'])} projected (p50 of {format_count(lead['steps'], 'step')})"
    text = f"{_name(lead)} on {gpu}{_place(lead, tables)}: {projected}{period}"
    floor, row = group["floor"], group["row"]
    if floor is not None:
        width = row["bandwidth_bytes_per_s"]
        cache = "" if pd.isna(row["kv_bytes"]) else f" + KV {format_ns(row['kv_bytes'] / width * 1e9)}"
        shortcut = f"; all weights would be {format_ns(floor.shortcut_ns)}" if floor.shortcut_ns else ""
        if floor.expected_floor_ns and floor.expected_floor_ns > floor.floor_ns * 1.01:
            shortcut = f"; {format_ns(floor.expected_floor_ns)} expected with uniform routing{shortcut}"
        text += (
            f"; floor {format_ns(row['floor_ns'])} at {width / 1e12:.3g} TB/s "
            f"(weights {format_ns(row['weight_bytes'] / width * 1e9)}{cache}{shortcut}): {row['ratio']:.2f}x"
        )
        if row["ratio"] < 1:
            text += ", below the floor: an input is wrong"
        elif pd.isna(row["mbu"]):
            text += ", but kernels take less than reading what they must: an input is wrong"
    return text


def _phase_table(phases: pd.DataFrame, floors: pd.DataFrame) -> str:
    """One row a phase and batch, decode first, then by time in total."""
    several = phases["report"].nunique() > 1 or phases["device"].nunique() > 1
    ordered = phases.assign(
        other=~phases["phase"].isin(DECODE_PHASES), total=phases["steps"] * phases["duration_p50_ns"]
    )
    ordered = ordered.sort_values(["other", "total"], ascending=[True, False])
    rows = []
    for _, row in ordered.head(_SHOWN_GROUPS).iterrows():
        found = floors[_same(floors, row)]
        floor = None if found.empty else found.iloc[0]
        place = f"{row['report']} GPU {int(row['device'])} " if several else ""
        times = [row[f"{what}_ns"] if row["steps"] >= least else None for what, least in _SHOWN_TIMES.values()]
        rated = ("", "", "", "") if floor is None else (
            _ms(floor["floor_ns"]), _number(floor["ratio"], "x"), _mbu(floor), _percent(floor["mfu"]))  # fmt: skip
        rows.append([place + _name(row), f"{int(row['steps']):,}", *map(_ms, times), *rated])
    head = ["phase", "steps", *_SHOWN_TIMES, "floor ms", "ratio", "MBU", "MFU"]
    used = [number for number in range(len(head)) if number < 3 or any(row[number] for row in rows)]
    table = text_table([head[n] for n in used], [[row[n] for n in used] for row in rows])
    more = [f"and {len(phases) - _SHOWN_GROUPS} more: see phases.parquet"] if len(phases) > _SHOWN_GROUPS else []
    return "\n".join([table, *more])


def _ms(time_ns: float | None) -> str:
    return "" if time_ns is None or pd.isna(time_ns) else format_ms(time_ns)


def _number(value: float, unit: str) -> str:
    return "" if pd.isna(value) else f"{value:.2f}{unit}"


def _percent(share: float) -> str:
    return "" if pd.isna(share) else format_share(share)


def _mbu(floor: pd.Series) -> str:
    return "below floor" if floor["ratio"] < 1 else _percent(floor["mbu"])


def _part_table(parts: dict[str, float], name: str) -> str:
    """The parts of a mean step, idle last; they add up to the step, and with between_steps to the period."""
    within = {name: time for name, time in parts.items() if name != "between_steps"}
    total = sum(within.values())
    # What shows as 0.000 ms is of no interest; it is in the table.
    shown = [name for name in within if within[name] >= 500]
    order = sorted(shown, key=lambda name: (name.startswith("idle_"), -within[name]))
    rows = [
        [part.replace("_", " "), format_ms(within[part]), format_share(within[part] / max(total, 1))] for part in order
    ]
    rows.append(["mean step", format_ms(total), ""])
    if parts.get("between_steps"):
        rows.append(["between steps", format_ms(parts["between_steps"]), ""])
    return text_table([f"{name}: part", "ms", "of the step"], rows)


def _layer_table(tables: dict[str, pa.Table], lead: pd.Series) -> list[str]:
    """The layers of the leading phase that take most time; nothing without ranges inside its steps."""
    layers = tables["layers"].to_pandas()
    mine = layers[(layers["report"] == lead["report"]) & (layers["device"] == lead["device"])]
    mine = mine[mine["phase"] == lead["phase"]].head(_SHOWN_LAYERS)
    if mine.empty:
        return []
    rows = [
        [shortened(row.layer, 70), f"{row.operations:,}", format_ms(row.time_ns),
         "when captured" if row.attribution == "capture" else "at launch"]
        for row in mine.itertuples()
    ]  # fmt: skip
    steps = f"{lead['phase'].removesuffix('step').rstrip()} steps".lstrip()
    inside = f"ranges inside all {steps}{_place(lead, tables)}"
    return ["", text_table([inside, "operations", "kernel ms", "range open"], rows)]


def _remarks(group: dict[str, Any]) -> list[str]:
    remarks = []
    if group["inferred"]:
        remarks.append("Steps are inferred from repetition: no NVTX range has the name of a step.")
    if group["floor"] is None:
        remarks.append(_why_no_floor(group))
    else:
        remarks += [f"{remark[:1].upper()}{remark[1:]}." for remark in group["floor"].remarks]
    if group["step_time_ns"]:
        remarks.append(_without_profiler(group["engine_step_ns"], group["step_time_ns"], group["busy_ns"]))
    return ["", *remarks] if remarks else []


def _without_profiler(engine_step_ns: float | None, step_time_ns: float, busy_ns: float) -> str:
    if engine_step_ns is None:
        return "--step-time is not compared: that takes two steps, from the start of one to the next one's."
    slower = engine_step_ns / step_time_ns
    if step_time_ns < (1 - STEP_TIME_TOLERANCE) * busy_ns:
        given = f"--step-time {format_ns(step_time_ns)}"
        return f"{given} is less than the {format_ns(busy_ns)} of GPU work per step: check it."
    return (
        f"Without the profiler a step takes {format_ns(step_time_ns)}, in the capture {format_ns(engine_step_ns)} "
        f"start to start: {slower:.2f} times that. All figures are of the capture, nothing is rescaled."
    )


def _why_no_floor(group: dict[str, Any]) -> str:
    if group["has_model"] and group["phase"] in DECODE_PHASES and not group["decodes"]:
        return "No floor: optimizer kernels run in these steps, so they train; a decode floor is not theirs."
    if group["phase"] not in DECODE_PHASES:
        return "No floor: no phase here is a decode phase, and only those read all weights for a few tokens."
    if not group["has_model"]:
        return "No floor without a model: give --model (a config.json, its folder or a preset name)."
    return "No floor: the GPU's bandwidth is unknown; give --gpu or --bandwidth."


def notebook_tables(tables: dict[str, pa.Table]) -> dict[str, pa.Table]:
    """What the notebook shows: steps (thinned out when there are many), mean parts per phase and batch, floors."""
    steps = tables["steps"].to_pandas()
    every = max(-(-len(steps) // _NOTEBOOK_STEPS), 1)
    counted = _counted_steps(tables)
    parts = tables["step_parts"].to_pandas().merge(counted[[*_KEYS, "step"]], on=["report", "device", "step"])
    sums = parts.groupby([*_KEYS, "part"], dropna=False, as_index=False)["time_ns"].sum()
    counts = counted.groupby(_KEYS, dropna=False, as_index=False).agg(
        steps=("step", "size"), periods=("period_ns", "count")
    )
    mean = sums.merge(counts, on=_KEYS)
    steps_of_part = mean["steps"].where(mean["part"] != BETWEEN_STEPS, mean["periods"].clip(lower=1))
    mean["time_ns"] = mean["time_ns"] / steps_of_part
    return {
        "files": tables["files"],
        "steps": pa.Table.from_pandas(steps.iloc[::every], preserve_index=False),
        "parts": pa.Table.from_pandas(mean, preserve_index=False),
        "phases": tables["phases"],
        "floor": tables["floor"],
    }
