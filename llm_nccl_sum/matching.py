"""The same collective on all ranks: transfer and waiting, clocks, arrival."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

#: Between two ranks only, each with a partner of its own: their order says nothing of who belongs to whom.
NOT_COLLECTIVE = ("send_recv", "other")


@dataclass(frozen=True)
class Collectives:
    """Matched collectives: an entry for each rank's part, collective by collective, these in order of time.

    `rows` int64, places in the table of communication kernels; `collective` int64 from 0 on; `participant` int64;
    `duration_ns`, `transfer_ns`, `wait_ns` int64; `last` bool; `arrival_ns` int64, after the first one, clocks aligned.
    `offset_ns`, `residual_ns` float per participant, NaN for one without matches; `unmatched` collective kernels that
    some rank lacks; `left_out_ns` the waiting in the first collective of the window, which is not among these, None
    when there was none.
    """

    rows: np.ndarray
    collective: np.ndarray
    participant: np.ndarray
    duration_ns: np.ndarray
    transfer_ns: np.ndarray
    wait_ns: np.ndarray
    last: np.ndarray
    arrival_ns: np.ndarray
    offset_ns: np.ndarray
    residual_ns: np.ndarray
    unmatched: int
    left_out_ns: int | None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def aligned(self) -> bool:
        """Whether clocks agree better than ranks wait, so that starts on different ranks can be compared."""
        waits_ns = self.wait_ns[~self.last]
        return len(waits_ns) > 0 and bool(np.nanmax(self.residual_ns) < np.median(waits_ns))


def match(kernels: pd.DataFrame, participant: np.ndarray, count: int) -> Collectives:
    """Matches kernels (rows of COMMUNICATION) across participants, numbered from 0 to count - 1.

    Those of one communicator and operation, or where that is not known of one kernel name, are matched by their order
    inside the step; of a communicator all participants that have it take part. The first collective of the window is
    left out: ranks enter the window at different times.
    """
    chosen = np.flatnonzero(~kernels["operation"].isin(NOT_COLLECTIVE).to_numpy())
    kernels, participant = kernels.iloc[chosen], participant[chosen]
    clock_ns = kernels["clock_ns"].fillna(0).to_numpy(dtype=np.int64)
    start_ns = kernels["start_ns"].to_numpy() + clock_ns - (clock_ns.min() if len(clock_ns) else 0)
    group = _codes(kernels["communicator"])
    key = _keys(kernels, group, participant, start_ns)
    order = np.lexsort((participant, key))
    first = np.flatnonzero(np.diff(key[order], prepend=-1))
    size = np.diff(np.append(first, len(order)))
    whole = (size == _members(group, participant, count)[group[order[first]]]) & (size > 1)
    rows, size = _by_time(order[np.repeat(whole, size)], size[whole], start_ns)
    unmatched, left_out_ns = len(order) - len(rows), None
    if len(size):
        durations_ns = kernels["duration_ns"].to_numpy()[rows[: size[0]]]
        left_out_ns = int((durations_ns - durations_ns.min()).sum())
        rows, size = rows[size[0] :], size[1:]
    times = {"start_ns": start_ns[rows], "duration_ns": kernels["duration_ns"].to_numpy()[rows]}
    return Collectives(
        rows=chosen[rows],
        participant=participant[rows],
        duration_ns=times["duration_ns"],
        unmatched=unmatched,
        left_out_ns=left_out_ns,
        **_split(size, participant[rows], **times, count=count),
    )


def _split(
    size: np.ndarray, participant: np.ndarray, *, start_ns: np.ndarray, duration_ns: np.ndarray, count: int
) -> dict[str, np.ndarray]:
    """What follows from the times of matched parts, collective by collective, so many each."""
    collective, begin = np.repeat(np.arange(len(size)), size), np.cumsum(size) - size
    if not len(size):
        none, unknown = np.zeros(0, dtype=np.int64), np.full(count, np.nan)
        return {"collective": none, "transfer_ns": none, "wait_ns": none, "last": none.astype(bool), "arrival_ns": none,
                "offset_ns": unknown, "residual_ns": unknown}  # fmt: skip
    transfer_ns = np.repeat(np.minimum.reduceat(duration_ns, begin), size)
    shortest = np.flatnonzero(duration_ns == transfer_ns)
    last = np.zeros(len(collective), dtype=bool)
    # The first of equal ones.
    last[shortest[np.flatnonzero(np.diff(collective[shortest], prepend=-1))]] = True
    offset_ns, residual_ns = _clocks(start_ns + duration_ns, begin, size, participant, count)
    aligned_ns = start_ns - np.nan_to_num(offset_ns)[participant].astype(np.int64)
    arrival_ns = aligned_ns - np.repeat(np.minimum.reduceat(aligned_ns, begin), size)
    return {
        "collective": collective,
        "transfer_ns": transfer_ns,
        "wait_ns": duration_ns - transfer_ns,
        "last": last,
        "arrival_ns": arrival_ns,
        "offset_ns": offset_ns,
        "residual_ns": residual_ns,
    }


def _clocks(
    end_ns: np.ndarray, begin: np.ndarray, size: np.ndarray, participant: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """What each participant's clock is ahead of the first one's, and the 95th percentile of what is left, in ns.

    A collective ends on all ranks at nearly the same time.
    """
    ahead_ns = end_ns - np.repeat(end_ns[begin], size)
    offset_ns, residual_ns = np.full(count, np.nan), np.full(count, np.nan)
    for number in np.unique(participant).tolist():
        own_ns = ahead_ns[participant == number]
        offset_ns[number] = np.median(own_ns)
        residual_ns[number] = np.percentile(np.abs(own_ns - offset_ns[number]), 95)
    return offset_ns, residual_ns


def _codes(texts: pd.Series) -> np.ndarray:
    """A number for each text from 1 on, 0 for none."""
    return pd.factorize(texts)[0].astype(np.int64) + 1


def _keys(kernels: pd.DataFrame, group: np.ndarray, participant: np.ndarray, start_ns: np.ndarray) -> np.ndarray:
    """A number for each kernel, equal on all ranks for the same collective."""
    named, operation = _codes(kernels["name"]), _codes(kernels["operation"])
    kind = np.where(group == 0, named, named.max(initial=0) + operation)
    step = kernels["nth_step"].fillna(-1).to_numpy(dtype=np.int64) + 1
    context = _combined(group, _codes(kernels["phase"]), step, kind)
    own = _combined(participant, context)
    order = np.lexsort((start_ns, own))
    first = np.flatnonzero(np.diff(own[order], prepend=-1))
    nth = np.empty(len(order), dtype=np.int64)
    nth[order] = np.arange(len(order)) - np.repeat(first, np.diff(np.append(first, len(order))))
    return _combined(context, nth)


def _combined(*columns: np.ndarray) -> np.ndarray:
    """A number from 0 on for each combination of values (int64, not negative)."""
    code = columns[0]
    for column in columns[1:]:
        code = pd.factorize(code * (int(column.max(initial=0)) + 1) + column)[0].astype(np.int64)
    return code


def _members(group: np.ndarray, participant: np.ndarray, count: int) -> np.ndarray:
    """How many participants each communicator has; where it is not known (group 0), all."""
    pairs = np.unique(group * count + participant)
    members = np.bincount(pairs // max(count, 1), minlength=int(group.max(initial=0)) + 1)
    members[0] = count
    return members


def _by_time(rows: np.ndarray, size: np.ndarray, start_ns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Collectives in order of their earliest start; of rows that lie together, so many each."""
    if not len(size):
        return rows, size
    begin = np.cumsum(size) - size
    order = np.argsort(np.minimum.reduceat(start_ns[rows], begin), kind="stable")
    moved = size[order]
    place = np.repeat(begin[order], moved) + np.arange(len(rows)) - np.repeat(np.cumsum(moved) - moved, moved)
    return rows[place], moved
