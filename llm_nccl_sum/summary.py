"""What the recipe says: verdict, operations, steps, ranks; and the small tables of its notebook."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from llm_nccl_sum.all_ranks import AllRanks
from llm_nccl_sum.analysis import Settings
from llm_nccl_sum.late import LateRank
from recipes.base.text_table import text_table, told_apart
from recipes.base.units import format_count, format_ms, format_ns, format_share
from recipes.capture.capture import OUTSIDE
from recipes.collectives.bandwidth import whole_message
from recipes.collectives.matching import SPLIT, Collectives
from recipes.collectives.verdicts import Verdict
from recipes.run.recipe import Told
from recipes.steps.phases import DECODE_PHASES

#: Exposed communication from this share of a decode step on is much.
_MUCH = 0.25
#: So many ranks, and late ones, are printed.
_RANKS, _LATE = 16, 3
#: The notebook shows so many of them at most; steps are thinned out evenly.
_NOTEBOOK_COLLECTIVES, _NOTEBOOK_STEPS = 2000, 3000
_ALL_REDUCE = ("all_reduce", "all_reduce_fused")
#: Below so many bytes the latency of a collective counts more than its bandwidth.
_SMALL = 1 << 20
#: The year of the first Nsight known to export payloads of NVTX ranges.
_PAYLOADS = 2025
#: Waiting is told of a phase when this share of its communication is matched: of less it would be no measure.
_MOST = 0.7


def summarise(tables: dict[str, pa.Table], settings: Settings, told: Told) -> str:
    """Verdict, the place of the quality line, operations, steps, ranks, findings."""
    kinds = tables["collectives"].to_pandas()
    if kinds.empty:
        return _nothing(tables)
    all_of: AllRanks = told.together
    verdicts = all_of.verdicts or [
        Verdict("inconclusive", "nothing could be matched: no collectives that wait for all")
    ]
    steps = tables["step_communication"].to_pandas()
    lines = [_verdict(kinds, steps, verdicts, all_of), "{quality}", "", _operation_table(kinds), "", _step_table(steps)]
    lines += [*_rank_table(tables["ranks"].to_pandas(), all_of.participants.known), ""]
    found = [*_matching(all_of), *_late(all_of), *_decode(steps, all_of, kinds), *_training(steps)]
    found += [*_expected(tables, settings), *_sizes(kinds, tables["files"].to_pandas())]
    return "\n".join([*lines, *(f"{number}. {text}" for number, text in enumerate(found, 1))])


def _nothing(tables: dict[str, pa.Table]) -> str:
    """No communication: said as it is, with what to do when some was expected."""
    said = "No communication kernels were found.\n{quality}"
    if not pc.any(pc.equal(tables["files"]["status"], "ok")).as_py():
        return said
    return (
        f"{said}\nIf there should be some, the capture lacks their processes (--trace-fork-before-exec=true), hides "
        "them in CUDA graphs (--cuda-graph-trace=node), or they have names that no rule knows: see llm_kernel_families"
    )


def _told(verdict: Verdict, ranks: pd.Series) -> str:
    return f"{verdict.kind}{_named(verdict.stragglers, ranks)}: {verdict.why}"


def _named(stragglers: Iterable[int], ranks: pd.Series) -> str:
    late = sorted(int(ranks.iloc[one]) for one in stragglers)
    if not late:
        return ""
    return f" (straggler{'s' if len(late) > 1 else ''}: rank{'s' if len(late) > 1 else ''} {', '.join(map(str, late))})"


def _verdict(kinds: pd.DataFrame, steps: pd.DataFrame, verdicts: list[Verdict], all_of: AllRanks) -> str:
    time_ns, exposed_ns = kinds["time_ns"].sum(), kinds["exposed_ns"].sum()
    talking = pd.MultiIndex.from_frame(kinds[["report", "device"]])
    steps = steps[pd.MultiIndex.from_frame(steps[["report", "device"]]).isin(talking)]
    inside = steps[steps["step"].notna()]
    counted = inside[~inside["edge"].astype(bool)]
    devices = kinds[["report", "device"]].drop_duplicates()
    said = f"{format_ns(time_ns)} of communication"
    if counted["calls"].sum() and counted["time_ns"].sum() < time_ns:
        # What edge steps and the time around steps hold is no property of a step.
        window_ns, time_ns, exposed_ns = time_ns, counted["time_ns"].sum(), counted["exposed_ns"].sum()
        said = f"{format_ns(time_ns)} of communication in whole steps ({format_ns(window_ns)} in the window)"
    said += f" on {format_count(len(devices), 'GPU')}"
    said += f", {format_ns(exposed_ns)} exposed ({format_share(exposed_ns / max(time_ns, 1))})"
    if counted["exposed_ns"].sum():
        said += f", {format_share(counted['exposed_ns'].sum() / counted['duration_ns'].sum())} of the steps"
    elif not inside["calls"].sum():
        said += ", none of it in a step"
    ranks = all_of.participants.rows["rank"]
    if len(verdicts) < 2:
        return "; ".join([said, *(_told(verdict, ranks) for verdict in verdicts)])
    # Several sets: how many of each kind, and every straggler.
    kinds_of = Counter(verdict.kind for verdict in verdicts).most_common()
    named = _named({one for verdict in verdicts for one in verdict.stragglers}, ranks)
    told = [f"{kind}{named if kind == 'arrival skew' else ''} in {count}" for kind, count in kinds_of]
    return f"{said}; of {len(verdicts)} sets of ranks {', '.join(told)}"


def _gb(value: float) -> str:
    return "-" if pd.isna(value) else f"{value / 1e9:,.1f}"


def _operation_table(kinds: pd.DataFrame) -> str:
    names = ["phase", "operation", "dtype", "algorithm", "protocol", "ranks"]
    frame = kinds.assign(**{name: kinds[name].astype(object).where(kinds[name].notna(), "-") for name in names})
    rows = []
    for key, some in sorted(frame.groupby(names), key=lambda item: -item[1]["time_ns"].sum()):
        phase, operation, dtype, algorithm, *_, ranks = key
        calls, time_ns = some["calls"].sum(), some["time_ns"].sum()
        # Of several ranks the fastest: the others' time holds waiting.
        best = some.loc[(some["time_ns"] / some["calls"]).idxmin()]
        each = best["bytes"] / best["calls"] * whole_message(operation, ranks)
        # What NCCL's kernels are called after need not be what ran in them.
        shown = [operation, dtype, algorithm if algorithm in ("one_shot", "two_shot") else "-"]
        rows.append(
            [" ".join(part for part in shown if part != "-"), phase, f"{ranks}", f"{calls:,}", format_ms(time_ns),
             format_ms(some["exposed_ns"].sum()), f"{time_ns / calls / 1e3:,.1f}",
             f"{best['time_ns'] / best['calls'] / 1e3:,.1f}", "-" if pd.isna(each) else f"{each / 1e6:,.3f}",
             _gb(best["algbw_bytes_per_s"]), _gb(best["busbw_bytes_per_s"])]
        )  # fmt: skip
    head = ["operation, all GPUs", "phase", "ranks", "calls", "ms", "exposed ms", "us a call", "fastest rank us",
            "MB", "algbw GB/s", "busbw GB/s"]  # fmt: skip
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
    return text_table(
        ["mean step, one GPU", "steps x GPUs", "calls", "ms", "exposed", "hidden", "step ms", "exposed share"], rows
    )


def _rank_table(ranks: pd.DataFrame, known: bool) -> list[str]:
    if len(ranks) < 2:
        return []
    label = "rank" if known else "device"
    names = dict(zip(ranks["report"], told_apart(ranks["report"].tolist(), 24), strict=True))
    rows = [
        [f"{row.rank} ({names[row.report]} GPU {row.device})", f"{row.matched:,}", format_ms(row.time_ns),
         format_ms(row.transfer_ns), format_ms(row.wait_ns), f"{row.times_last:,}",
         "-" if pd.isna(row.straggler_score) else format_share(row.straggler_score),
         *("-" if pd.isna(value) else f"{round(value / 1e3, 1) + 0.0:,.1f}"
           for value in (row.clock_offset_ns, row.clock_residual_ns))]
        for row in ranks.sort_values("straggler_score", ascending=False).head(_RANKS).itertuples()
    ]  # fmt: skip
    head = [label, "matched", "ms", "transfer", "waits", "last", "causes", "clock us", "residual us"]
    more = [f"and {len(ranks) - _RANKS} more: see ranks.parquet"] if len(ranks) > _RANKS else []
    return ["", text_table(head, rows), *more]


def _matching(all_of: AllRanks) -> list[str]:
    """What was matched, and how far clocks can be trusted."""
    sets = [found for found in all_of.sets if len(found.members) > 1]
    if len(all_of.participants) < 2:
        return []
    said = f"{sum(found.count for found in sets):,} collectives are matched across {len(all_of.participants)} ranks"
    said += f" ({all_of.participants.sources})"
    taken = sum(not found.communicator for found in sets)
    if taken:
        said += (
            ", taken for one communicator"
            if len(sets) == 1
            else f", {taken} of {len(sets)} sets taken for communicators"
        )
        said += ": NCCL does not tell" if taken == len(sets) else ""
    said += f"; {sum(found.unmatched for found in all_of.sets):,} kernels are not"
    edges = sum(found.edges for found in all_of.sets)
    if edges:
        said += f", {edges:,} of them in incomplete steps or such as one-off events hit"
    uneven, shifted = sum(found.uneven for found in sets), max((found.shifted for found in sets), default=0)
    if uneven:
        said += f", in {format_count(uneven, 'step')} in which ranks have unequal numbers of them"
    others = int((~all_of.kernels["operation"].isin(SPLIT)).sum())
    if others:
        said += f", nor {others:,} that are not split (point to point, rooted, dispatch and combine)"
    if shifted:
        said += f"; windows begin {format_count(shifted, 'step')} apart, which is taken into account"
    left_out = [found.left_out_ns for found in sets if found.left_out_ns is not None]
    if left_out:
        said += f"; the first of each set is left out (up to {format_ns(max(left_out))} of waiting)"
    found = [said]
    if any(len(one) for one in sets):
        found.append(_clocks(sets))
    return found


def _clocks(sets: list[Collectives]) -> str:
    if all(found.reports == 1 for found in sets if len(found)):
        return "The devices of each set are in one report: one clock, starts can be compared"
    worst_ns = max(float(np.nanmax(found.residual_ns)) for found in sets if len(found))
    said = f"By the ends of collectives clocks agree within {format_ns(worst_ns)}"
    waiting = [found for found in sets if found.wait_ns.any()]
    if not waiting:
        return said
    if all(found.aligned for found in waiting):
        return f"{said}, less than ranks wait: starts can be compared (arrival_ns)"
    return f"{said} only, longer than ranks wait: starts are not compared, the verdict rests on durations"


def _late(all_of: AllRanks) -> list[str]:
    """Where to look for why each late rank is late: its GPU, its host."""
    ranks = all_of.participants.rows
    names = told_apart(ranks["report"].tolist(), 30)
    return [
        f"Rank {ranks['rank'].iloc[one.participant]} ({names[one.participant]} GPU "
        f"{ranks['device'].iloc[one.participant]}) is late: {_reason(one)}"
        for one in all_of.late[:_LATE]
    ]


def _reason(one: LateRank) -> str:
    places = {
        "gpu": "longer GPU work before its collectives; compare its kernels with another rank's (llm_kernel_families), "
        "its clocks, its share of the work",
        "host": "later launches, its GPU is idle before its collectives; look at its host (llm_idle_gaps)",
        "both": "longer GPU work and more idle time before its collectives; look at its kernels (llm_kernel_families), "
        "its clocks, and its host (llm_idle_gaps)",
    }
    unknown = (
        "look at its host (llm_idle_gaps), its kernels (llm_kernel_families), its clocks, its share of the work, not "
        "at the links; whether GPU or host is late cannot be told here"
    )
    if one.reason is None:
        return unknown
    return (
        f"{places[one.reason]} ({format_ns(one.work_ns)} more GPU work, {format_ns(one.idle_ns)} more idle per step "
        "than the other ranks' mean)"
    )


def _decode(steps: pd.DataFrame, all_of: AllRanks, kinds: pd.DataFrame) -> list[str]:
    decode = steps[steps["phase"].isin(DECODE_PHASES) & ~steps["edge"].astype(bool)]
    length_ns = decode["duration_ns"].sum()
    if not length_ns or not decode["calls"].sum():
        return []
    share = decode["exposed_ns"].sum() / length_ns
    # Steps without a name of their own may be of training.
    named = (decode["phase"] == "decode").all()
    said = f"Exposed communication is {format_share(share)} of a {'decode ' if named else ''}step"
    said += f" ({format_ns(decode['exposed_ns'].mean())})"
    advice = "the tensor parallel degree is too high for this batch: fewer ranks a replica, or a larger batch"
    advice = advice if named else f"in decode {advice}"
    waiting = _waiting(all_of, DECODE_PHASES)
    if waiting is None:
        unknown = f"; if it is not that, {advice}" if share >= _MUCH else ""
        return [f"{said}, waiting for other ranks included{unknown}"]
    said += f", of which {format_share(waiting)} is waiting for other ranks"
    if share * (1 - waiting) < _MUCH:
        return [said]
    sizes = kinds[kinds["phase"].isin(DECODE_PHASES) & kinds["bytes"].notna()]
    small = not sizes.empty and (sizes["bytes"] / sizes["calls"]).max() < _SMALL
    also = "; messages are small, so latency counts: one-shot all-reduce, fusing it with the norm" if small else ""
    return [f"{said}; the transfer alone says that {advice}{also}"]


def _waiting(all_of: AllRanks, phases: tuple[str, ...]) -> float | None:
    """The share of waiting in the matched collectives of some phases; None when they are not most of these."""
    own = (all_of.kernels["phase"].isin(phases) & ~all_of.kernels["edge"].astype(bool)).to_numpy()
    whole_ns = all_of.kernels.loc[own, "duration_ns"].sum()
    wait_ns, matched_ns = 0, 0
    for found in all_of.sets:
        here = own[found.rows]
        wait_ns, matched_ns = wait_ns + found.wait_ns[here].sum(), matched_ns + found.duration_ns[here].sum()
    return float(wait_ns / matched_ns) if matched_ns >= _MOST * whole_ns and matched_ns else None


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
    """All-reduces per step against two per layer."""
    if settings.layers is None:
        return []
    kernels = tables["communication"].to_pandas()
    inside = kernels["phase"].isin([*DECODE_PHASES, "prefill", "mixed"]) & ~kernels["edge"].astype(bool)
    reduces = kernels[kernels["operation"].isin(_ALL_REDUCE) & inside]
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


def _sizes(kinds: pd.DataFrame, files: pd.DataFrame) -> list[str]:
    """Why there are no message sizes, and what gives them."""
    if kinds["bytes"].notna().any():
        return []
    read = files[files["report"].isin(kinds["report"])]
    year = pd.to_numeric(read["nsys_version"].str.extract(r"^(\d+)\.")[0], errors="coerce").fillna(0)
    exported = ~read["path"].str.endswith(".nsys-rep")
    if (year < _PAYLOADS).any():
        why = f"exports of Nsight before {_PAYLOADS} do not hold them"
    elif exported.any():
        why = "an export holds them when made with nsys export --include-json true or --include-blobs true"
    else:
        why = "the report has no NCCL ranges with them (-t nvtx)"
    return [
        f"Message sizes are not known, so there are no bandwidths: {why}; replays of CUDA graphs never tell them; "
        "--bytes all_reduce=128K gives them"
    ]


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
