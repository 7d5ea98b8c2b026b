"""The same collective on all ranks of a set: transfer and waiting, clocks, arrival."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

#: Operations that no rank leaves before all have come. A root, a leaf, a sender or a one-sided put may end early, so
#: the time of others cannot be split.
SPLIT = ("all_reduce", "all_reduce_fused", "all_gather", "reduce_scatter", "all_to_all", "barrier")
#: Clocks of one job's hosts agree better than this; windows that lie further apart are not of one run.
_SAME_RUN_NS = 1_000_000_000
#: So many steps may one rank's window begin after another's.
_MOST_SHIFTED = 8


@dataclass(frozen=True)
class Collectives:
    """Matched collectives of one set of ranks: an entry for each rank's part, collective by collective, by time.

    `rows` int64, places in the table of communication kernels; `collective` int64 from 0 on; `participant` int64;
    `step` int64, the step that they were matched in, -1 for none; `duration_ns`, `transfer_ns`, `wait_ns` int64; `last`
    bool, for nobody where two are equally short; `arrival_ns` int64, after the first one, clocks aligned. `offset_ns`,
    `residual_ns` float for each of `members`. `aligned`: clocks agree better than ranks wait. `unmatched` kernels that
    some rank lacks or that lie in steps with unequal numbers; `uneven` such steps; `left_out_ns` the waiting in the
    first collective, which is not among these, None without any. `apart`: the captures do not overlap in time.
    """

    members: np.ndarray
    communicator: str | None
    rows: np.ndarray
    collective: np.ndarray
    participant: np.ndarray
    step: np.ndarray
    duration_ns: np.ndarray
    transfer_ns: np.ndarray
    wait_ns: np.ndarray
    last: np.ndarray
    arrival_ns: np.ndarray
    offset_ns: np.ndarray
    residual_ns: np.ndarray
    unmatched: int
    uneven: int
    shifted: int
    left_out_ns: int | None
    apart: bool

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def count(self) -> int:
        """How many collectives there are."""
        return int(self.collective.max(initial=-1)) + 1

    @property
    def aligned(self) -> bool:
        waits_ns = self.wait_ns[self.wait_ns > 0]
        return len(waits_ns) > 0 and bool(np.nanmax(self.residual_ns) < np.median(waits_ns))


def rank_sets(kernels: pd.DataFrame, participant: np.ndarray, count: int, ranks: int | None) -> np.ndarray:
    """The set of each kernel, int64 from 0 on: its communicator; where that is not known, all participants, or blocks
    of `ranks` neighbours where there are several times as many.

    Where only some participants tell communicators (exports with and without payloads), nobody's count.
    """
    told = pd.factorize(kernels["communicator"])[0].astype(np.int64)
    knowing = np.bincount(participant[told >= 0], minlength=count) > 0
    if not knowing[np.unique(participant)].all():
        told = np.full(len(told), -1)
    block = (
        participant // ranks if ranks and count > ranks and count % ranks == 0 else np.zeros(len(told), dtype=np.int64)
    )
    # Blocks behind the communicators.
    return pd.factorize(np.where(told >= 0, told, told.max(initial=-1) + 1 + block))[0].astype(np.int64)


def match_sets(kernels: pd.DataFrame, participant: np.ndarray, sets: np.ndarray) -> list[Collectives]:
    """Matches kernels (rows of COMMUNICATION; `clock_ns` without nulls) set by set.

    Those of one operation, or where the communicator is not known of one kernel name, are matched by their order inside
    the step. The first collective of each set is left out: ranks enter the window at different times.
    """
    chosen = np.flatnonzero(kernels["operation"].isin(SPLIT).to_numpy() & ~kernels["edge"].to_numpy(dtype=bool))
    order = chosen[np.argsort(sets[chosen], kind="stable")]
    begin = np.flatnonzero(np.diff(sets[order], prepend=-1))
    return [_match(kernels, participant, rows) for rows in np.split(order, begin[1:]) if len(rows)]


def _match(kernels: pd.DataFrame, participant: np.ndarray, rows: np.ndarray) -> Collectives:
    """The collectives of one set, whose kernels are in `rows`."""
    mine = kernels.iloc[rows]
    members, own = np.unique(participant[rows], return_inverse=True)
    start_ns = mine["start_ns"].to_numpy() + mine["clock_ns"].to_numpy()
    duration_ns = mine["duration_ns"].to_numpy()
    known = bool(mine["clock_known"].all())
    report = pd.factorize(mine["report"])[0]
    report_of = np.array([report[own == number][0] for number in range(len(members))])
    told = mine["communicator"].dropna()
    empty = _Parts(members, told.iloc[0] if len(told) == len(mine) else None)
    if len(members) < 2:
        return empty.collectives(unmatched=len(rows))
    if known and _apart(start_ns, start_ns + duration_ns, own):
        return empty.collectives(unmatched=len(rows), apart=True)
    step, shifted = _aligned_steps(mine, own, start_ns + duration_ns, clocks=known)
    kind = _codes(mine["operation"] if len(told) == len(mine) else mine["name"])
    context = _combined(_codes(mine["phase"]), step + 1 - step.min(initial=0), kind)
    order, nth = _places(context, own, start_ns)
    even = _even(context, own, len(members))
    key = _combined(context, nth)
    order = order[even[context[order]]]
    order = order[np.argsort(key[order], kind="stable")]
    size = len(members)
    # Kernels of one key lie together, one of each member in order.
    order = order[: len(order) // size * size]
    order = order[np.lexsort((own[order], key[order]))].reshape(-1, size)
    order = order[np.argsort(start_ns[order].min(axis=1, initial=np.iinfo(np.int64).max), kind="stable")]
    uneven = len(np.unique(_combined(_codes(mine["phase"]), step + 1 - step.min(initial=0))[~even[context]]))
    left_out_ns = None
    if len(order):
        first = duration_ns[order[0]]
        left_out_ns = int((first - first.min()).sum())
    order, unmatched = order[1:], len(rows) - order.size
    times = _split(start_ns[order], duration_ns[order], report_of)
    return empty.collectives(
        rows=rows[order].ravel(),
        collective=np.repeat(np.arange(len(order)), size),
        participant=members[own[order]].ravel(),
        step=step[order].ravel(),
        unmatched=unmatched,
        uneven=uneven,
        shifted=shifted,
        left_out_ns=left_out_ns,
        **times,
    )


@dataclass(frozen=True)
class _Parts:
    """Makes Collectives, everything empty that is not given."""

    members: np.ndarray
    communicator: str | None

    def collectives(self, **given) -> Collectives:
        none = np.zeros(0, dtype=np.int64)
        arrays = ("rows", "collective", "participant", "step", "duration_ns", "transfer_ns", "wait_ns", "arrival_ns")
        unknown = np.full(len(self.members), np.nan)
        empty = {**dict.fromkeys(arrays, none), "last": none.astype(bool), "offset_ns": unknown, "residual_ns": unknown,
                 "unmatched": 0, "uneven": 0, "shifted": 0, "left_out_ns": None, "apart": False}  # fmt: skip
        return Collectives(self.members, self.communicator, **{**empty, **given})


def _apart(start_ns: np.ndarray, end_ns: np.ndarray, own: np.ndarray) -> bool:
    """Whether the windows of some members do not overlap."""
    count = int(own.max()) + 1
    first, last = np.full(count, np.iinfo(np.int64).max), np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(first, own, start_ns)
    np.maximum.at(last, own, end_ns)
    return bool(first.max() - last.min() > _SAME_RUN_NS)


def _aligned_steps(mine: pd.DataFrame, own: np.ndarray, end_ns: np.ndarray, *, clocks: bool) -> tuple[np.ndarray, int]:
    """The step of each kernel as its set counts them, -1 for none; and by how many steps windows begin apart at most.

    A window may begin one step later on one rank: of all shifts that is taken in which the steps' ends lie nearest,
    or, where clocks tell nothing, vary least.
    """
    step = mine["nth_step"].fillna(-1).to_numpy(dtype=np.int64, copy=True)
    phase, most = _codes(mine["phase"]), 0
    for code in np.unique(phase[step >= 0]):
        here = (phase == code) & (step >= 0)
        reference = _step_ends(step, end_ns, here & (own == own[here].min()))
        for number in np.unique(own[here])[1:]:
            rows = here & (own == number)
            shift = _best_shift(reference, _step_ends(step, end_ns, rows), clocks=clocks)
            step[rows] += shift
            most = max(most, abs(shift))
    return step, most


def _step_ends(step: np.ndarray, end_ns: np.ndarray, rows: np.ndarray) -> dict[int, int]:
    """When the communication of each step ended."""
    numbers, place = np.unique(step[rows], return_inverse=True)
    last_ns = np.full(len(numbers), np.iinfo(np.int64).min)
    np.maximum.at(last_ns, place, end_ns[rows])
    return dict(zip(numbers.tolist(), last_ns.tolist(), strict=True))


def _best_shift(reference: dict[int, int], other: dict[int, int], *, clocks: bool) -> int:
    costs = {}
    # Few steps beside each other vary little by chance, where clocks tell nothing.
    least = 1 if clocks else max(3, 0.7 * min(len(reference), len(other)))
    for shift in range(-_MOST_SHIFTED, _MOST_SHIFTED + 1):
        apart = [other[number] - reference[number + shift] for number in other if number + shift in reference]
        if len(apart) >= least:
            costs[shift] = float(np.median(np.abs(apart)) if clocks else np.ptp(apart))
    if not costs:
        return 0
    best = min(costs, key=lambda shift: (costs[shift], abs(shift)))
    # A little better is chance too: steps are alike.
    return best if clocks or costs[best] < costs.get(0, np.inf) / 2 else 0


def _places(context: np.ndarray, own: np.ndarray, start_ns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The kernels by member, context and start; and the place of each among those of its member and context."""
    order = np.lexsort((start_ns, context, own))
    begins = (np.diff(own[order], prepend=-1) != 0) | (np.diff(context[order], prepend=-1) != 0)
    first = np.flatnonzero(begins)
    nth = np.empty(len(order), dtype=np.int64)
    nth[order] = np.arange(len(order)) - np.repeat(first, np.diff(np.append(first, len(order))))
    return order, nth


def _even(context: np.ndarray, own: np.ndarray, members: int) -> np.ndarray:
    """Of each context, whether all members have equally many kernels in it: else their order says nothing."""
    counts = np.bincount(context * members + own, minlength=(int(context.max(initial=0)) + 1) * members)
    by_member = counts.reshape(-1, members)
    return (by_member == by_member[:, :1]).all(axis=1)


def _split(start_ns: np.ndarray, duration_ns: np.ndarray, report_of: np.ndarray) -> dict[str, np.ndarray]:
    """What follows from the times of matched kernels, a row a collective and a column a member."""
    if not len(start_ns):
        return {}
    transfer_ns = duration_ns.min(axis=1, keepdims=True)
    shortest = duration_ns == transfer_ns
    last = shortest & (shortest.sum(axis=1, keepdims=True) == 1)
    ahead_ns = (start_ns + duration_ns) - (start_ns + duration_ns)[:, :1]
    offset_ns = np.median(ahead_ns, axis=0)
    residual_ns = np.percentile(np.abs(ahead_ns - offset_ns), 95, axis=0)
    # Devices of one report have one clock; their ends lie apart for other reasons.
    offset_ns[report_of == report_of[0]] = residual_ns[report_of == report_of[0]] = 0
    aligned_ns = start_ns - offset_ns.astype(np.int64)
    return {
        "duration_ns": duration_ns.ravel(),
        "transfer_ns": np.broadcast_to(transfer_ns, duration_ns.shape).ravel(),
        "wait_ns": (duration_ns - transfer_ns).ravel(),
        "last": last.ravel(),
        "arrival_ns": (aligned_ns - aligned_ns.min(axis=1, keepdims=True)).ravel(),
        "offset_ns": offset_ns,
        "residual_ns": residual_ns,
    }


def _codes(texts: pd.Series) -> np.ndarray:
    """A number for each text from 0 on."""
    return pd.factorize(texts)[0].astype(np.int64) + 1


def _combined(*columns: np.ndarray) -> np.ndarray:
    """A number from 0 on for each combination of values (int64, not negative)."""
    code = pd.factorize(columns[0])[0].astype(np.int64)
    for column in columns[1:]:
        code = pd.factorize(code * (int(column.max(initial=0)) + 1) + column)[0].astype(np.int64)
    return code
