"""The tables over all reports: bandwidths, matched collectives, ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from llm_nccl_sum.analysis import Settings
from llm_nccl_sum.bandwidth import bus_factor, whole_message
from llm_nccl_sum.matching import Collectives, match
from llm_nccl_sum.participants import Participants, find_participants
from llm_nccl_sum.tables import COLLECTIVES, COMMUNICATION, MATCHED, RANKS
from llm_nccl_sum.verdicts import straggler_scores

_KIND = ["operation", "dtype", "algorithm", "protocol"]


@dataclass(frozen=True)
class Together:
    """All communication of a run: the kernels, who took part, the participant of each kernel, what is matched."""

    kernels: pd.DataFrame
    participants: Participants
    participant: np.ndarray
    matched: Collectives


def together(communication: pa.Table, files: pa.Table) -> Together:
    """Brings the reports together. PackError when two claim one rank."""
    kernels = communication.to_pandas()
    participants = find_participants(kernels, files.to_pandas())
    places = pd.Series(
        range(len(participants)), index=pd.MultiIndex.from_frame(participants.rows[["report", "device"]])
    )
    keys = pd.MultiIndex.from_arrays([kernels["report"].astype(str), kernels["device"]])
    participant = places.reindex(keys).to_numpy(dtype=np.int64) if len(kernels) else np.zeros(0, dtype=np.int64)
    return Together(kernels, participants, participant, match(kernels, participant, len(participants)))


def combine(tables: dict[str, pa.Table], files: pa.Table, settings: Settings) -> dict[str, pa.Table]:
    """The tables made of those of all reports. PackError when two reports claim one rank."""
    all_of = together(tables[COMMUNICATION.name], files)
    return {
        COLLECTIVES.name: COLLECTIVES.build(_collectives(all_of.kernels, ranks_of(all_of, settings))),
        MATCHED.name: MATCHED.build(_matched(all_of)),
        RANKS.name: RANKS.build(_ranks(all_of)),
    }


def ranks_of(all_of: Together, settings: Settings) -> int:
    """How many ranks a collective has: as the user says, else as many as there are here."""
    return settings.ranks or len(all_of.participants)


def _collectives(kernels: pd.DataFrame, ranks: int) -> dict[str, Any]:
    keys = ["report", "rank", "device", "phase", *_KIND]
    frame = kernels.astype(dict.fromkeys(("report", "phase"), str))
    frame = frame.assign(**{name: frame[name].astype(object) for name in _KIND}, known=frame["bytes"].notna())
    groups = frame.groupby(keys, dropna=False, sort=True, observed=True)
    sums = groups.agg(calls=("duration_ns", "size"), time_ns=("duration_ns", "sum"), exposed_ns=("exposed_ns", "sum"),
                      bytes=("bytes", "sum"), known=("known", "all")).reset_index()  # fmt: skip
    algbw, busbw = [], []
    for row in sums.itertuples():
        usable = row.known and row.time_ns > 0 and (ranks > 1 or whole_message(row.operation, 2) == 1)
        width = row.bytes * whole_message(row.operation, ranks) / (row.time_ns / 1e9) if usable else None
        factor = bus_factor(row.operation, ranks)
        algbw.append(width)
        busbw.append(None if width is None or factor is None else width * factor)
    columns = {name: _nullable(sums[name]) for name in keys}
    return {
        **columns,
        **{name: sums[name].to_numpy() for name in ("calls", "time_ns", "exposed_ns")},
        "bytes": pa.array(sums["bytes"].fillna(0).astype("int64"), mask=~sums["known"].to_numpy(dtype=bool)),
        "algbw_bytes_per_s": pa.array(algbw, pa.float64()),
        "busbw_bytes_per_s": pa.array(busbw, pa.float64()),
    }


def _nullable(column: pd.Series) -> pa.Array:
    values = [None if pd.isna(value) else value for value in column.tolist()]
    return pa.array([int(value) if isinstance(value, float) else value for value in values])


def _matched(all_of: Together) -> dict[str, Any]:
    found, rows = all_of.matched, all_of.kernels.iloc[all_of.matched.rows]
    ranks = all_of.participants.rows["rank"].to_numpy(dtype=np.int64)
    unknown = np.full(len(found), not found.aligned)
    return {
        "collective": found.collective,
        "rank": ranks[found.participant] if len(found) else np.zeros(0, dtype=np.int64),
        "phase": _text_codes(rows["phase"]),
        "nth_step": pa.array(rows["nth_step"], pa.int64(), from_pandas=True),
        "operation": _text_codes(rows["operation"]),
        "bytes": pa.array(rows["bytes"], pa.int64(), from_pandas=True),
        "duration_ns": found.duration_ns,
        "transfer_ns": found.transfer_ns,
        "wait_ns": found.wait_ns,
        "last": found.last,
        "arrival_ns": pa.array(found.arrival_ns, pa.int64(), mask=unknown),
    }


def _text_codes(column: pd.Series) -> pa.Array:
    return pa.array(column).cast(pa.dictionary(pa.int32(), pa.string())) if len(column) else pa.array([], pa.string())


def _ranks(all_of: Together) -> dict[str, Any]:
    found, count, rows = all_of.matched, len(all_of.participants), all_of.participants.rows
    times_last, score = straggler_scores(found, count)
    own = all_of.participant
    duration_ns = all_of.kernels["duration_ns"].to_numpy()

    def summed(code: np.ndarray, values: np.ndarray) -> np.ndarray:
        return np.bincount(code, weights=values, minlength=count).astype(np.int64)

    clocks = {"clock_offset_ns": found.offset_ns, "clock_residual_ns": found.residual_ns}
    return {
        "rank": rows["rank"].to_numpy(dtype=np.int64),
        "report": pa.array(rows["report"].tolist(), pa.string()),
        "device": rows["device"].to_numpy(dtype=np.int64),
        "calls": np.bincount(own, minlength=count),
        "time_ns": summed(own, duration_ns),
        "matched": np.bincount(found.participant, minlength=count),
        "wait_ns": summed(found.participant, found.wait_ns),
        "transfer_ns": summed(found.participant, found.transfer_ns),
        "times_last": times_last,
        "straggler_score": pa.array(score, pa.float64(), mask=np.isnan(score)),
        **{name: pa.array(np.nan_to_num(values).round().astype(np.int64), mask=np.isnan(values))
           for name, values in clocks.items()},
    }  # fmt: skip
