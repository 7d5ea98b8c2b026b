"""The tables over all reports: bandwidths, matched collectives, ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from llm_nccl_sum.analysis import Settings
from llm_nccl_sum.late import LateRank, late_ranks_of, verdicts_of
from llm_nccl_sum.tables import COLLECTIVES, COMMUNICATION, MATCHED, RANKS
from recipes.collectives.bandwidth import bus_factor, whole_message
from recipes.collectives.matching import Collectives, match_sets, rank_sets, told_by_all
from recipes.collectives.participants import Participants, find_participants
from recipes.collectives.verdicts import Verdict, blame
from recipes.run.recipe import Combined

_KIND = ["operation", "dtype", "algorithm", "protocol"]


@dataclass(frozen=True)
class Together:
    """All communication of a run: the kernels, with `ranks` in each; who took part; the participant of each kernel
    (int64); what is matched, set by set, and the verdict on each; the late ranks, the costliest first."""

    kernels: pd.DataFrame
    participants: Participants
    participant: np.ndarray
    sets: list[Collectives]
    verdicts: list[Verdict]
    late: list[LateRank]


def together(communication: pa.Table, files: pa.Table, settings: Settings) -> Together:
    """Brings the reports together: `communication` as COMMUNICATION, `files` as FILES declares it. PackError when two
    claim one rank."""
    clocks = communication["clock_ns"]
    kernels = communication.drop_columns(["clock_ns"]).to_pandas()
    # As whole numbers: a float does not hold ns since 1970.
    known = clocks.is_valid().to_numpy(zero_copy_only=False)
    clock_ns = clocks.fill_null(0).to_numpy()
    lowest = clock_ns[known].min() if known.any() else 0
    kernels = kernels.assign(clock_ns=np.where(known, clock_ns - lowest, 0), clock_known=known)
    kernels = kernels.astype(dict.fromkeys(("report", "phase", *_KIND, "communicator", "name"), object))
    participants = find_participants(kernels, files.to_pandas())
    index = pd.MultiIndex.from_frame(participants.rows[["report", "device"]])
    keys = pd.MultiIndex.from_arrays([kernels["report"], kernels["device"]])
    places = pd.Series(np.arange(len(participants)), index=index)
    participant = places.reindex(keys).to_numpy(dtype=np.int64) if len(kernels) else np.zeros(0, dtype=np.int64)
    told = kernels.assign(communicator=told_by_all(kernels["communicator"], participant))
    sets = rank_sets(told, participant, participants.rows["rank"].to_numpy(dtype=np.int64), settings.ranks)
    found = match_sets(told, participant, sets)
    kernels = kernels.assign(ranks=_sizes(told, participant, sets, found, settings.ranks))
    world_size = pc.max(communication["world_size"]).as_py() or 0
    verdicts = verdicts_of(found, participants, files, world_size, settings)
    return Together(kernels, participants, participant, found, verdicts, late_ranks_of(kernels, found, verdicts))


def _sizes(
    kernels: pd.DataFrame, participant: np.ndarray, sets: np.ndarray, found: list[Collectives], ranks: int | None
) -> np.ndarray:
    """How many ranks are in each kernel's collective: those that have its communicator. Where that is not known, or one
    rank alone has it, what the user says; else those of its set, of captures that are not of one run in its report."""
    frame = pd.DataFrame({"set": sets, "participant": participant, "told": kernels["communicator"].to_numpy(),
                          "report": kernels["report"].to_numpy()})  # fmt: skip
    by_communicator = frame.groupby("told")["participant"].transform("nunique")
    if ranks:
        return by_communicator.where(by_communicator > 1, ranks).to_numpy(dtype=np.int64)
    of_set, of_report = (frame.groupby(key)["participant"].transform("nunique") for key in ("set", "report"))
    apart = frame["participant"].isin([int(one) for some in found if some.apart for one in some.members])
    return by_communicator.fillna(of_report.where(apart, of_set)).to_numpy(dtype=np.int64)


def combine(tables: dict[str, pa.Table], files: pa.Table, settings: Settings) -> Combined:
    """The tables of all reports together, and what they are made of. PackError when two claim one rank."""
    all_of = together(tables[COMMUNICATION.name], files, settings)
    made = {
        COLLECTIVES.name: COLLECTIVES.build(_collectives(all_of.kernels)),
        MATCHED.name: MATCHED.build(_matched(all_of)),
        RANKS.name: RANKS.build(_ranks(all_of)),
    }
    return Combined(made, all_of)


def _collectives(kernels: pd.DataFrame) -> dict[str, Any]:
    keys = ["report", "rank", "device", "phase", *_KIND, "ranks"]
    frame = kernels.assign(known=kernels["bytes"].notna())
    groups = frame.groupby(keys, dropna=False, sort=True)
    sums = groups.agg(calls=("duration_ns", "size"), time_ns=("duration_ns", "sum"), exposed_ns=("exposed_ns", "sum"),
                      bytes=("bytes", "sum"), known=("known", "all")).reset_index()  # fmt: skip
    algbw, busbw = [], []
    for row in sums.itertuples():
        # For one rank the whole of a message that is counted by its part is not known.
        usable = row.known and row.time_ns > 0 and (row.ranks > 1 or whole_message(row.operation, 2) == 1)
        width = row.bytes * whole_message(row.operation, row.ranks) / (row.time_ns / 1e9) if usable else None
        factor = bus_factor(row.operation, row.ranks)
        algbw.append(width)
        busbw.append(None if width is None or factor is None else width * factor)
    return {
        **{name: _nullable(sums[name]) for name in keys},
        **{name: sums[name].to_numpy() for name in ("calls", "time_ns", "exposed_ns")},
        "bytes": pa.array(sums["bytes"].fillna(0).astype("int64"), mask=~sums["known"].to_numpy(dtype=bool)),
        "algbw_bytes_per_s": pa.array(algbw, pa.float64()),
        "busbw_bytes_per_s": pa.array(busbw, pa.float64()),
    }


def _nullable(column: pd.Series) -> pa.Array:
    values = [None if pd.isna(value) else value for value in column.tolist()]
    return pa.array([int(value) if isinstance(value, float) else value for value in values])


def _matched(all_of: Together) -> dict[str, Any]:
    """Sets one behind the other; collectives are numbered through."""
    ranks = all_of.participants.rows["rank"].to_numpy(dtype=np.int64)
    none = np.zeros(0, dtype=np.int64)
    first = np.cumsum([0, *(found.count for found in all_of.sets)])

    def column(name: str) -> np.ndarray:
        return np.concatenate([none, *(getattr(found, name) for found in all_of.sets)])

    rows = all_of.kernels.iloc[column("rows")]
    step = column("step")
    unknown = np.concatenate([none, *(np.full(len(found), not found.aligned) for found in all_of.sets)]).astype(bool)
    return {
        "collective": np.concatenate(
            [none, *(found.collective + n for found, n in zip(all_of.sets, first[:-1], strict=True))]
        ),
        "rank": ranks[column("participant")] if len(ranks) else none,
        "nth_step": pa.array(step, mask=step < 0),
        **{name: _texts(rows[name]) for name in ("phase", "operation", "communicator")},
        "ranks": rows["ranks"].to_numpy(dtype=np.int64),
        "bytes": pa.array(rows["bytes"], pa.int64(), from_pandas=True),
        **{name: column(name) for name in ("duration_ns", "transfer_ns", "wait_ns")},
        "last": column("last").astype(bool),
        "arrival_ns": pa.array(column("arrival_ns"), pa.int64(), mask=unknown),
    }


def _texts(column: pd.Series) -> pa.Array:
    return pa.array(column, pa.string(), from_pandas=True).dictionary_encode()


def _ranks(all_of: Together) -> dict[str, Any]:
    count, rows = len(all_of.participants), all_of.participants.rows
    duration_ns = all_of.kernels["duration_ns"].to_numpy()
    sums = {name: np.zeros(count, dtype=np.int64) for name in ("matched", "wait_ns", "transfer_ns", "times_last")}
    caused_ns, around_ns = np.zeros(count), np.zeros(count)
    offset_ns, residual_ns = np.full(count, np.nan), np.full(count, np.nan)
    for found in all_of.sets:
        shape, members = (found.count, len(found.members)), found.members
        sums["matched"][members] += found.count
        for name in ("wait_ns", "transfer_ns"):
            sums[name][members] += getattr(found, name).reshape(shape).sum(axis=0)
        sums["times_last"][members] += found.last.reshape(shape).sum(axis=0)
        caused_ns[members] += blame(found).sum(axis=0)
        around_ns[members] += found.wait_ns.sum()
        # The first set that a rank is in tells its clock.
        new = np.isnan(offset_ns[members])
        offset_ns[members[new]], residual_ns[members[new]] = found.offset_ns[new], found.residual_ns[new]
    late = {one.participant: one for one in reversed(all_of.late)}
    named = [late.get(place) for place in range(count)]
    score = np.divide(caused_ns, around_ns, out=np.full(count, np.nan), where=around_ns > 0)
    clocks = {"clock_offset_ns": offset_ns, "clock_residual_ns": residual_ns}
    return {
        "rank": rows["rank"].to_numpy(dtype=np.int64),
        "report": pa.array(rows["report"].tolist(), pa.string()),
        "device": rows["device"].to_numpy(dtype=np.int64),
        "calls": np.bincount(all_of.participant, minlength=count),
        "time_ns": np.bincount(all_of.participant, weights=duration_ns, minlength=count).astype(np.int64),
        **sums,
        "straggler_score": pa.array(score, pa.float64(), mask=np.isnan(score)),
        "late": pa.array([one is not None for one in named], pa.bool_()),
        **{f"late_{name}": pa.array([one and round(getattr(one, name)) for one in named], pa.int64())
           for name in ("cost_ns", "work_ns", "idle_ns")},
        "late_reason": pa.array([one and one.reason for one in named], pa.string()),
        "late_places": pa.array([one and one.places and ",".join(map(str, one.places)) for one in named], pa.string()),
        **{name: pa.array(np.nan_to_num(values).round().astype(np.int64), mask=np.isnan(values))
           for name, values in clocks.items()},
    }  # fmt: skip
