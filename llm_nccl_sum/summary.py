"""What the recipe says: verdict, operations, steps, ranks; and the small tables of its notebook."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from llm_nccl_sum.analysis import Settings
from llm_nccl_sum.combined import Together, together
from llm_nccl_sum.matching import NOT_COLLECTIVE
from llm_nccl_sum.participants import Participants
from llm_nccl_sum.tables import OUTSIDE
from llm_nccl_sum.verdicts import Verdict, judge
from recipes.phases import DECODE_PHASES
from recipes.text_table import shortened, text_table
from recipes.units import format_count, format_ms, format_ns, format_share

#: Exposed communication from this share of a decode step on is much.
_MUCH = 0.25
_RANKS = 16
_NOTEBOOK_COLLECTIVES, _NOTEBOOK_STEPS = 2000, 3000
_ALL_REDUCE = ("all_reduce", "all_reduce_fused")


def summarise(tables: dict[str, pa.Table], settings: Settings) -> str:
    """Verdict, the place of the quality line, operations, steps, ranks, findings."""
    kinds = tables["collectives"].to_pandas()
    if kinds.empty:
        return _nothing(tables)
    all_of = together(tables["communication"], tables["files"])
    count = len(all_of.participants)
    missing = _missing(all_of.participants, settings)
    verdict = judge(all_of.matched, count, missing)
    steps = tables["step_communication"].to_pandas()
    lines = [_verdict(kinds, steps, verdict, tables), "{quality}", "", _operation_table(kinds), "", _step_table(steps)]
    lines += [*_rank_table(tables["ranks"].to_pandas(), all_of.participants.known), ""]
    found = [*_matching(all_of), *_decode(steps, all_of, verdict), *_training(steps), *_expected(tables, settings)]
    return "\n".join([*lines, *(f"{number}. {text}" for number, text in enumerate(found, 1))])


def _nothing(tables: dict[str, pa.Table]) -> str:
    """No communication: said as it is, with what to do when some was expected."""
    return (
        "No communication kernels were found.\n{quality}\nIf there should be some, the capture lacks their processes "
        "(--trace-fork-before-exec=true), hides them in CUDA graphs (--cuda-graph-trace=node), or they have names "
        "that no rule knows: see llm_kernel_families"
    )


def _missing(participants: Participants, settings: Settings) -> int:
    """How many ranks are known not to be here."""
    expected = settings.ranks or 0
    if participants.known:
        expected = max(expected, int(participants.rows["rank"].max()) + 1)
    return max(expected - len(participants), 0)


def _name(verdict: Verdict, ranks: pd.Series) -> str:
    if verdict.straggler is None:
        return verdict.kind
    return f"{verdict.kind} (straggler: rank {ranks.iloc[verdict.straggler]})"


def _verdict(kinds: pd.DataFrame, steps: pd.DataFrame, verdict: Verdict, tables: dict[str, pa.Table]) -> str:
    time_ns, exposed_ns = kinds["time_ns"].sum(), kinds["exposed_ns"].sum()
    counted = steps[steps["step"].notna() & ~steps["edge"].astype(bool)]
    share = counted["exposed_ns"].sum() / counted["duration_ns"].sum() if counted["duration_ns"].sum() else None
    devices = kinds[["report", "device"]].drop_duplicates()
    said = f"{format_ns(time_ns)} of communication on {format_count(len(devices), 'GPU')}"
    said += f", {format_ns(exposed_ns)} exposed ({format_share(exposed_ns / max(time_ns, 1))})"
    if share is not None:
        said += f", {format_share(share)} of the steps"
    return f"{said}; {_name(verdict, tables['ranks'].to_pandas()['rank'])}: {verdict.why}"


def _gb(value: float) -> str:
    return "-" if pd.isna(value) else f"{value / 1e9:,.1f}"


def _operation_table(kinds: pd.DataFrame) -> str:
    names = ["phase", "operation", "dtype", "algorithm", "protocol"]
    frame = kinds.assign(**{name: kinds[name].fillna("-") for name in names})
    rows = []
    for key, some in sorted(frame.groupby(names), key=lambda item: -item[1]["time_ns"].sum()):
        calls, time_ns = some["calls"].sum(), some["time_ns"].sum()
        size = some["bytes"].sum(min_count=len(some))
        # Of several ranks the fastest: the others' time holds waiting.
        fastest = some.loc[some["time_ns"].idxmin()]
        rows.append(
            [" ".join(part for part in key[1:] if part != "-"), key[0], f"{calls:,}", format_ms(time_ns),
             format_ms(some["exposed_ns"].sum()), f"{time_ns / calls / 1e3:,.1f}",
             "-" if pd.isna(size) else f"{size / calls / 1e6:,.3f}", _gb(fastest["algbw_bytes_per_s"]),
             _gb(fastest["busbw_bytes_per_s"])]
        )  # fmt: skip
    head = ["operation", "phase", "calls", "ms", "exposed ms", "us a call", "MB a call", "algbw GB/s", "busbw GB/s"]
    return text_table(head, rows)


def _step_table(steps: pd.DataFrame) -> str:
    rows = []
    for phase, device_steps in steps[~steps["edge"].astype(bool)].groupby("phase", sort=False):
        inside = phase != OUTSIDE
        count = len(device_steps)
        length_ns = device_steps["duration_ns"].sum()
        rows.append(
            [str(phase), f"{count:,}" if inside else "-", f"{device_steps['calls'].mean():,.1f}",
             format_ms(device_steps["time_ns"].mean()), format_ms(device_steps["exposed_ns"].mean()),
             format_ms((device_steps["time_ns"] - device_steps["exposed_ns"]).mean()),
             format_ms(device_steps["duration_ns"].mean()) if inside else "-",
             format_share(device_steps["exposed_ns"].sum() / length_ns) if inside and length_ns else "-"]
        )  # fmt: skip
    return text_table(["mean step", "steps", "calls", "ms", "exposed", "hidden", "step ms", "exposed share"], rows)


def _rank_table(ranks: pd.DataFrame, known: bool) -> list[str]:
    if len(ranks) < 2:
        return []
    label = "rank" if known else "device"
    rows = [
        [f"{row.rank} ({shortened(row.report, 24)} GPU {row.device})", f"{row.matched:,}", format_ms(row.time_ns),
         format_ms(row.transfer_ns), format_ms(row.wait_ns), f"{row.times_last:,}",
         "-" if pd.isna(row.straggler_score) else format_share(row.straggler_score),
         *("-" if pd.isna(value) else f"{value / 1e3:,.1f}" for value in (row.clock_offset_ns, row.clock_residual_ns))]
        for row in ranks.sort_values("straggler_score", ascending=False).head(_RANKS).itertuples()
    ]  # fmt: skip
    head = [label, "matched", "ms", "transfer", "waits", "last", "causes", "clock us", "residual us"]
    more = [f"and {len(ranks) - _RANKS} more: see ranks.parquet"] if len(ranks) > _RANKS else []
    return ["", text_table(head, rows), *more]


def _matching(all_of: Together) -> list[str]:
    found = all_of.matched
    if len(all_of.participants) < 2:
        return []
    count = int(found.collective.max(initial=-1)) + 1
    said = f"{count:,} collectives are matched across {len(all_of.participants)} ranks"
    said += f" ({all_of.participants.sources}), {found.unmatched:,} kernels are not"
    pairs = int(all_of.kernels["operation"].isin(NOT_COLLECTIVE).sum())
    if pairs:
        said += (
            f", nor are {pairs:,} between two ranks (send and receive), whose order does not tell who belongs to whom"
        )
    if found.left_out_ns is not None:
        said += f"; the first one is left out ({format_ns(found.left_out_ns)} of waiting: ranks enter the window apart)"
    if len(found):
        worst = format_ns(float(np.nanmax(found.residual_ns)))
        if found.aligned:
            late = (
                found.arrival_ns
                == np.maximum.reduceat(found.arrival_ns, np.flatnonzero(np.diff(found.collective, prepend=-1)))[
                    found.collective
                ]
            )
            agree = (late & found.last).sum() / count
            said += f"; clocks agree within {worst}, and by them the shortest kernel came last in {agree * 100:.0f} %"
        else:
            said += f"; clocks agree within {worst} only, longer than ranks wait: verdicts rest on durations alone"
    return [said]


def _decode(steps: pd.DataFrame, all_of: Together, verdict: Verdict) -> list[str]:
    decode = steps[steps["phase"].isin(DECODE_PHASES) & ~steps["edge"].astype(bool)]
    length_ns = decode["duration_ns"].sum()
    if not length_ns or not decode["calls"].sum():
        return []
    share = decode["exposed_ns"].sum() / length_ns
    said = f"Exposed communication is {format_share(share)} of a decode step ({format_ns(decode['exposed_ns'].mean())})"
    advice = "the tensor parallel degree is too high for this batch: fewer ranks a replica, or a larger batch"
    waiting = _waiting(all_of)
    if waiting is None:
        return [
            f"{said}, waiting for other ranks included" + (f"; if it is not that, {advice}" if share >= _MUCH else "")
        ]
    said += f", of which {format_share(waiting)} is waiting for other ranks"
    if share * (1 - waiting) >= _MUCH:
        return [f"{said}; the transfer alone says that {advice}"]
    if share >= _MUCH and verdict.straggler is not None:
        rank = all_of.participants.rows["rank"].iloc[verdict.straggler]
        return [
            f"{said}: look at why rank {rank} is late (its host, its clocks, its share of the work), not at the links"
        ]
    return [said]


def _waiting(all_of: Together) -> float | None:
    """The share of waiting in matched collectives; None without any."""
    total_ns = all_of.matched.duration_ns.sum()
    return float(all_of.matched.wait_ns.sum() / total_ns) if total_ns else None


def _training(steps: pd.DataFrame) -> list[str]:
    train = steps[~steps["phase"].isin([*DECODE_PHASES, "prefill", "mixed", OUTSIDE]) & ~steps["edge"].astype(bool)]
    found = []
    for phase, own in train[train["calls"] > 0].groupby("phase"):
        hidden = 1 - own["exposed_ns"].sum() / max(own["time_ns"].sum(), 1)
        found.append(
            f"{format_share(hidden)} of the communication in {phase} overlaps other work; "
            f"{format_ns(own['exposed_ns'].mean())} per {phase} are exposed, at most that could be hidden"
        )
    return found


def _expected(tables: dict[str, pa.Table], settings: Settings) -> list[str]:
    """All-reduces per step against two a layer."""
    if settings.layers is None:
        return []
    kernels = tables["communication"].to_pandas()
    reduces = kernels[kernels["operation"].isin(_ALL_REDUCE) & kernels["phase"].isin([*DECODE_PHASES, "prefill"])]
    counts = reduces.astype({"report": str}).groupby(["report", "device", "step"], observed=True).size()
    expected = 2 * settings.layers
    if counts.empty:
        return [f"No all-reduce in a decode or prefill step, where tensor parallelism has {expected} (two a layer)"]
    found = float(counts.median())
    said = f"{found:,.0f} all-reduces a step; two for each of {settings.layers} layers are {expected}"
    if found == expected:
        return [f"{said}, as tensor parallelism has them"]
    why = (
        "the embedding's or the head's"
        if 0 < found - expected <= 2
        else "another model, or layers without tensor parallelism"
    )
    return [f"{said}: {abs(found - expected):,.0f} {'more' if found > expected else 'fewer'} than that ({why})"]


def notebook_tables(tables: dict[str, pa.Table]) -> dict[str, pa.Table]:
    """What the notebook shows: operations, steps, ranks, and as many matched collectives as are readable."""
    matched = tables["matched"]
    shown = matched.filter(pc.less(matched["collective"], _NOTEBOOK_COLLECTIVES)) if len(matched) else matched
    steps = tables["step_communication"]
    every = max(-(-len(steps) // _NOTEBOOK_STEPS), 1)
    return {
        "files": tables["files"],
        "collectives": tables["collectives"],
        "steps": steps.take(pa.array(np.arange(0, len(steps), every))),
        "ranks": tables["ranks"],
        "matched": shown,
    }
