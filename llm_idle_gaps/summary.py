"""What the recipe says: verdict, idle time by phase, gaps by length, launches, largest gaps, findings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from llm_idle_gaps.analysis import Settings
from llm_idle_gaps.device_steps import DeviceSteps, steps_of_devices
from recipes.base.text_table import shortened, text_table
from recipes.base.units import format_count, format_ms, format_ns, format_share
from recipes.capture.capture import ALL, OUTSIDE
from recipes.events.idle import CAUSES
from recipes.events.launch_state import UNKNOWN, WHOLE, launch_state
from recipes.findings.finding import most_recoverable
from recipes.findings.registry import IDLE, find
from recipes.run.outcomes import Tables
from recipes.run.recipe import Told
from recipes.steps.engine_time import STEP_TIME_TOLERANCE

#: So many gaps, and devices, are printed; names are cut to so many characters.
_LARGEST = 10
_NAME_WIDTH = 30
#: A call is shown when it took this share of the gap.
_HELD = 0.1
_DEVICES = 12
#: Bands of length in which idle time is told, in ns.
_BANDS = (("below 10 us", 0, 10_000), ("10 to 100 us", 10_000, 100_000), ("above 100 us", 100_000, None))
#: The notebook shows so many gaps and steps at most; steps are thinned out evenly.
_NOTEBOOK_GAPS, _NOTEBOOK_STEPS = 200, 3000
#: Of so many gaps, the longest, the findings name calls.
_GAPS_LOOKED_AT = 100_000
_CODED = ("previous", "next", "launch_api", "thread", "held_by", "sync_call", "nvtx")


def summarise(tables: Tables, settings: Settings, told: Told) -> str:
    """Verdict, the place of the quality line, the tables and the findings."""
    idle = tables["idle"].to_pandas()
    if idle.empty:
        return "No GPU work was found, so there are no gaps.\n{quality}"
    gaps = _looked_at(tables)
    devices = steps_of_devices(tables["step_idle"].to_pandas(), idle, gaps)
    # The findings are about one device: mean values over unlike ones say nothing of any.
    most = max(devices, key=lambda of: (of.phase_idle_ns, 0 if of.steps else of.total_idle_ns))
    lines = [_verdict(idle, devices, most, settings), "{quality}", "", _phase_table(idle)]
    lines += [*_device_table(devices), "", _band_table(tables), "", _launch_table(idle), *_largest_table(gaps, devices)]
    lines.append("")
    found = most_recoverable(find(IDLE, replace(most, real_idle_ns=_real_idle_ns(most, settings))))
    if len(devices) > 1 and found:
        place = f"{shortened(most.report, _NAME_WIDTH)} GPU {most.device}"
        where = " in its steps" if most.steps else ""
        lines.append(f"On {place}, which of {len(devices)} devices has most idle time{where}:")
    lines += [f"{number}. {finding.message}" for number, finding in enumerate(found, 1)]
    return "\n".join([*lines, *_beside(most, settings)]).rstrip()


def _looked_at(tables: Tables) -> pd.DataFrame:
    """The longest gaps, some of each device whatever --min-gap is, the longest first."""
    both = [tables["largest_gaps"].to_pandas(), _longest(tables.pieces("gaps"), _GAPS_LOOKED_AT)]
    texts = dict.fromkeys(("report", "phase", "place", "cause"), str)
    gaps = pd.concat([frame.astype({**texts, **dict.fromkeys(_CODED, object)}) for frame in both if len(frame)] or both)
    gaps = gaps.drop_duplicates(["report", "device", "start_ns"])
    return gaps.sort_values(["duration_ns", "report", "start_ns"], ascending=[False, True, True])


def _longest(pieces: Iterable[pa.Table], count: int) -> pd.DataFrame:
    """The longest gaps, the first of equal ones first."""
    longest: Any = None
    for piece in pieces:
        gaps = piece if longest is None else pa.concat_tables([longest, piece])
        duration_ns = gaps["duration_ns"].to_numpy()
        rows = np.arange(len(duration_ns))
        if len(rows) > count:
            rows = np.flatnonzero(duration_ns >= np.partition(duration_ns, -count)[-count])
        order = rows[np.argsort(-duration_ns[rows], kind="stable")][:count]
        longest = gaps.take(pa.array(order))
    return longest.to_pandas()


def _verdict(idle: pd.DataFrame, devices: list[DeviceSteps], most: DeviceSteps, settings: Settings) -> str:
    whole = idle[idle["phase"] == ALL]
    window_ns, idle_ns = whole["window_ns"].sum(), whole["idle_ns"].sum()
    causes = {cause: whole[f"{cause}_ns"].sum() for cause in CAUSES}
    leaders = sorted(causes, key=lambda cause: -causes[cause])[:3]
    told = ", ".join(f"{cause} {format_ns(causes[cause])}" for cause in leaders if causes[cause])
    place = format_count(len(whole), "GPU") if idle["report"].nunique() == 1 else f"{len(whole)} devices"
    parts = [f"{place} idle {format_share(idle_ns / max(window_ns, 1))} of {format_ns(window_ns)}"]
    parts[0] += f" ({told})" if told else ""
    if most.one_offs and most.steps:
        # The window's idle time is a total; that of the steps is not what one event makes of it.
        parts.append(f"whole {most.name}s {format_share(1 - most.busy_share)} (median)")
    states = Counter(of.graph_state or _unknown_graphs(of) for of in devices).most_common()
    parts += [f"{state} ({format_count(count, 'GPU')})" if len(states) > 1 else state for state, count in states[:3]]
    real_ns, traced_ns = settings.step_time_ns, most.period_ns
    if most.launch_heavy and (real_ns is None or traced_ns is None):
        parts.append("tracing slows every launch, so this overstates it: give --step-time")
    elif most.launch_heavy and real_ns and traced_ns is not None:
        slower = traced_ns / real_ns
        parts.append(f"tracing slows every launch: steps take {slower:.2f} times --step-time")
    return "; ".join(parts)


def _unknown_graphs(of: DeviceSteps) -> str:
    if of.lost_graphs:
        return "CUDA graphs were launched whose work was not recorded, so nothing is said of them"
    if of.mean["opaque_graphs"]:
        return "CUDA graphs were traced as a whole, so what is inside them is not seen"
    return "most of the work has no launch in the report, so nothing is said of CUDA graphs"


def _causes_of(idle: pd.DataFrame) -> list[str]:
    return [cause for cause in CAUSES if idle[f"{cause}_ns"].any()]


def _by_phase(idle: pd.DataFrame) -> pd.DataFrame:
    """Sums over reports and devices: the whole window, the phases by their time, what is in no step."""
    sums = idle.drop(columns=["report", "rank", "device"]).groupby("phase").sum()
    last = sums.index.map({ALL: 0, OUTSIDE: 2}.get).fillna(1)
    return sums.assign(last=last).sort_values(["last", "window_ns"], ascending=[True, False]).drop(columns="last")


def _phase_table(idle: pd.DataFrame) -> str:
    causes = _causes_of(idle)
    rows = []
    for phase, row in _by_phase(idle).iterrows():
        shown = [row[name] for name in ("window_ns", "busy_ns", "copy_only_ns", "idle_ns")]
        share = format_share(row["idle_ns"] / max(row["window_ns"], 1))
        rows.append([str(phase), *map(format_ms, shown), share, *(format_ms(row[f"{cause}_ns"]) for cause in causes)])
    return text_table(["ms", "window", "busy", "copy only", "idle", "share", *causes], rows)


def _band_table(tables: dict[str, pa.Table]) -> str:
    bins = tables["gap_histogram"].to_pandas()
    bins = bins[bins["phase"] == ALL]
    total_ns, rows = max(bins["time_ns"].sum(), 1), []
    for name, low_ns, high_ns in _BANDS:
        own = bins[(bins["low_ns"] >= low_ns) & (True if high_ns is None else bins["low_ns"] < high_ns)]
        by_cause = own.groupby("cause")["time_ns"].sum().sort_values(ascending=False)
        time_ns = own["time_ns"].sum()
        leading = by_cause.index[0] if len(by_cause) else ""
        rows.append([name, f"{own['gaps'].sum():,}", format_ms(time_ns), format_share(time_ns / total_ns), leading])
    return text_table(["gaps", "number", "idle ms", "of idle", "mostly"], rows)


def _device_table(devices: list[DeviceSteps]) -> list[str]:
    """The devices, the most idle first; nothing for a single one. The step time of each tells which of them wait."""
    if len(devices) < 2:
        return []
    share = {id(of): of.total_idle_ns / max(of.window_ns, 1) for of in devices}
    rows = [
        [f"{shortened(of.report, _NAME_WIDTH)} GPU {of.device}", format_ms(of.window_ns), format_ms(of.total_idle_ns),
         format_share(share[id(of)]), of.name if of.steps else "-", format_ms(of.mean["duration_ns"]),
         format_ms(of.mean["idle_ns"])]
        for of in sorted(devices, key=lambda of: -share[id(of)])[:_DEVICES]
    ]  # fmt: skip
    more = [f"and {len(devices) - _DEVICES} more: see idle.parquet"] if len(devices) > _DEVICES else []
    return ["", text_table(["device", "window ms", "idle ms", "share", "mean of", "ms", "idle ms"], rows), *more]


def _launch_table(idle: pd.DataFrame) -> str:
    rows = []
    for phase, row in _by_phase(idle).iterrows():
        if not row["launches"]:
            continue
        issued, state = row["launches"] - row["copy_launches"], launch_state(row)
        rows.append(
            [str(phase), f"{row['operations']:,.0f}", f"{row['launches']:,.0f}",
             f"{row['launched'] / row['launches']:.1f}", f"{row['graph_launches']:,.0f}",
             "-" if state.graphs in (WHOLE, UNKNOWN) else format_share(state.in_graphs),
             _each_us(row["launch_call_ns"], issued), _each_us(row["between_launches_ns"], row["between_launches"])]
        )  # fmt: skip
    if not rows:
        return "launches: none recorded"
    head = ["launches", "operations", "calls", "per call", "graph launches", "in graphs", "us a call", "us between"]
    return text_table(head, rows)


def _each_us(time_ns: float, count: float) -> str:
    return f"{time_ns / count / 1e3:,.1f}" if count else "-"


def _largest_table(gaps: pd.DataFrame, devices: list[DeviceSteps]) -> list[str]:
    if gaps.empty:
        return []
    head = ["largest gaps", "at ms", "ms", "cause", "phase", "before", "after", "launched by", "held by", "range"]
    rows = []
    for number, row in enumerate(gaps.head(_LARGEST).itertuples(), 1):
        where = f"{number}. {shortened(row.report, 24)} GPU {row.device}" if len(devices) > 1 else f"{number}."
        cause = f"{row.cause} {row.cause_ns / row.duration_ns * 100:.0f} %"
        held_by = row.held_by if row.held_ns >= _HELD * row.duration_ns else None
        texts = [_brief(text) for text in (row.previous, row.next, row.launch_api, held_by)]
        texts.append(shortened(row.nvtx, _NAME_WIDTH) if isinstance(row.nvtx, str) else "-")
        rows.append([where, format_ms(row.start_ns), format_ms(row.duration_ns), cause, row.phase, *texts])
    return ["", text_table(head, rows)]


def _brief(name: object) -> str:
    """A name without its parameters and namespaces, short enough for a table."""
    if not isinstance(name, str):
        return "-"
    plain = re.sub(r"^void |<unnamed>::|\(anonymous namespace\)::", "", name)
    head = re.split(r"[<(]", plain, maxsplit=1)[0] or plain
    return shortened(head.rsplit("::", 1)[-1], _NAME_WIDTH)


def _real_idle_ns(of: DeviceSteps, settings: Settings) -> float | None:
    """What a step can be idle at most without the profiler; None where that is not known."""
    if settings.step_time_ns is None or of.period_ns is None:
        return None
    if settings.step_time_ns < (1 - STEP_TIME_TOLERANCE) * of.busy_ns:
        # Impossible, which is said below: it bounds nothing.
        return None
    return max(settings.step_time_ns - of.busy_ns, 0)


def _beside(of: DeviceSteps, settings: Settings) -> list[str]:
    """The step time without the profiler beside that of the capture."""
    if settings.step_time_ns is None:
        return []
    if of.period_ns is None:
        why = "a step of several phases has no time of its own here" if of.steps > 1 else "it needs at least two steps"
        return ["", f"--step-time is not shown: {why}"]
    given_ns, busy_ns = settings.step_time_ns, of.busy_ns
    times = f"{format_ns(given_ns)} without the profiler, {format_ns(of.period_ns)} start to start in the capture"
    if given_ns < (1 - STEP_TIME_TOLERANCE) * busy_ns:
        said = f"less than the {format_ns(busy_ns)} of GPU work in it: check --step-time"
    elif given_ns > (1 + STEP_TIME_TOLERANCE) * of.period_ns:
        said = "although tracing makes nothing faster: check --step-time"
    else:
        idle_ns = max(given_ns - busy_ns, 0)
        said = (
            f"so at most {format_ns(idle_ns)} of it are idle without the profiler, beside {format_ns(busy_ns)} of work"
        )
    return ["", f"A {of.name} takes {times} ({of.period_ns / given_ns:.2f} times that), {said}"]


def notebook_tables(tables: dict[str, pa.Table]) -> dict[str, pa.Table]:
    """What the notebook shows: bins, idle by phase, steps (thinned out when there are many), one step, large gaps."""
    steps = tables["step_idle"]
    every = max(-(-len(steps) // _NOTEBOOK_STEPS), 1)
    return {
        "files": tables["files"],
        "histogram": tables["gap_histogram"],
        "idle": tables["idle"],
        "steps": steps.take(pa.array(np.arange(0, len(steps), every))),
        "timeline": tables["timeline"],
        "gaps": pa.Table.from_pandas(_longest([tables["largest_gaps"]], _NOTEBOOK_GAPS), preserve_index=False),
    }
