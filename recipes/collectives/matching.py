"""The same collective on all ranks of a set: transfer and waiting, clocks, arrival."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from recipes.collectives.order_in_group import order_in_group

#: Operations that no rank leaves before all have come. A root, a leaf, a sender or a one-sided put may end early, so
#: the time of others cannot be split.
SPLIT = ("all_reduce", "all_reduce_fused", "all_gather", "reduce_scatter", "all_to_all", "barrier")
#: Clocks of one job's hosts agree better than this; windows that lie further apart are not of one run.
_SAME_RUN_NS = 1_000_000_000
#: So many steps may one rank's window begin after another's: every shift up to it is tried.
_MOST_SHIFTED = 64
#: The ends of steps lie apart by this share of a step at most, where they are the same steps.
_SAME_STEP = 0.25
#: Ends of steps that lie apart by less are near, however short the step is; shifts that differ by less are alike.
_NEAR_NS = 5_000


@dataclass(frozen=True)
class Collectives:
    """Matched collectives of one set of ranks: an entry for each rank's part, collective by collective, by time.

    `rows` int64, places in the table of communication kernels; `collective` int64 from 0 on; `participant` int64;
    `step` int64, the step that they were matched in, -1 for none; `vote` int64, a number for each step of each
    phase, -1 for none; `place` int64, over `phases` the collective's place from 0 on in its step, the remainder the
    phase, -1 for no step; `duration_ns`, `transfer_ns`, `wait_ns` int64; `last` bool, for nobody where two are equally
    short; `arrival_ns` int64, after the first one, clocks aligned. `offset_ns`, `residual_ns` float for each of
    `members`. `aligned`: clocks agree better than ranks wait. `unmatched` kernels that some rank lacks or that lie
    in steps with unequal numbers or in incomplete ones (`edges`); `uneven` such steps; `left_out_ns` the waiting in
    the first collective, which is not among these, None without any. `step_ns`: from one step's first collective to the
    next one's, the median, nan for fewer than two. `apart`: the captures do not overlap in time.
    `unclear`: which steps belong together cannot be told. `reports`: how many these ranks come from.
    """

    members: np.ndarray
    communicator: str | None
    rows: np.ndarray
    collective: np.ndarray
    participant: np.ndarray
    step: np.ndarray
    vote: np.ndarray
    place: np.ndarray
    duration_ns: np.ndarray
    transfer_ns: np.ndarray
    wait_ns: np.ndarray
    last: np.ndarray
    arrival_ns: np.ndarray
    offset_ns: np.ndarray
    residual_ns: np.ndarray
    unmatched: int
    edges: int
    uneven: int
    shifted: int
    left_out_ns: int | None
    step_ns: float
    phases: int
    apart: bool
    unclear: bool
    reports: int

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


def rank_sets(kernels: pd.DataFrame, participant: np.ndarray, place: np.ndarray, ranks: int | None) -> np.ndarray:
    """The set of each kernel, int64 from 0 on: its communicator. Where that is not known, blocks of `ranks` neighbours
    if that is given (`place` is the rank of each participant, int64), else the sets that known communicators part the
    participants into, else all participants. `participant` int64 per kernel.
    """
    told = pd.factorize(kernels["communicator"])[0].astype(np.int64)
    block = place // ranks if ranks else _parted(told, participant, len(place))
    # Blocks behind the communicators.
    return pd.factorize(np.where(told >= 0, told, told.max(initial=-1) + 1 + block[participant]))[0].astype(np.int64)


def _parted(told: np.ndarray, participant: np.ndarray, count: int) -> np.ndarray:
    """The part of each participant, where known communicators of several ranks hold each of them once; else 0."""
    known = told >= 0
    pairs = np.unique(told[known] * count + participant[known])
    number, member = np.divmod(pairs, max(count, 1))
    groups = {tuple(member[number == one].tolist()) for one in np.unique(number).tolist()}
    parts = [group for group in sorted(groups) if len(group) > 1]
    block = np.zeros(count, dtype=np.int64)
    if sorted(one for group in parts for one in group) == list(range(count)):
        for part, group in enumerate(parts):
            block[list(group)] = part
    return block


def told_by_all(communicator: pd.Series, participant: np.ndarray) -> pd.Series:
    """The communicators, one per kernel as `participant` (int64) is; all null where only some participants tell theirs
    (exports with and without payloads)."""
    silent = np.setdiff1d(participant, participant[communicator.notna().to_numpy()])
    return pd.Series(None, index=communicator.index, dtype=object) if len(silent) else communicator


def match_sets(kernels: pd.DataFrame, participant: np.ndarray, sets: np.ndarray) -> list[Collectives]:
    """Matches kernels (rows of COMMUNICATION; `clock_ns` without nulls) set by set; `participant` and `sets` int64 per
    kernel.

    Those of one operation, or where the communicator is not known of one kernel name and stream, are matched by their
    order inside the step. The first collective of each set is left out: ranks enter the window at different times.
    """
    chosen = np.flatnonzero(kernels["operation"].isin(SPLIT).to_numpy())
    order = chosen[np.argsort(sets[chosen], kind="stable")]
    begin = np.flatnonzero(np.diff(sets[order], prepend=-1))
    return [_match(kernels, participant, rows) for rows in np.split(order, begin[1:]) if len(rows)]


def _match(kernels: pd.DataFrame, participant: np.ndarray, every: np.ndarray) -> Collectives:
    """The collectives of one set, whose kernels are in `every`."""
    # A rank of which only incomplete steps are known takes part all the same.
    members = np.unique(participant[every])
    told = kernels["communicator"].iloc[every].dropna()
    named = len(told) == len(every)
    rows = every[~kernels["edge"].iloc[every].to_numpy(dtype=bool)]
    mine, own = kernels.iloc[rows], np.searchsorted(members, participant[rows])
    reports = pd.Series(kernels["report"].iloc[every].to_numpy()).groupby(participant[every]).first()
    report_of = pd.factorize(reports)[0]
    empty = _Parts(members, told.iloc[0] if named else None, int(report_of.max()) + 1)
    unmatched = {"unmatched": len(every), "edges": len(every) - len(rows)}
    start_ns = mine["start_ns"].to_numpy() + mine["clock_ns"].to_numpy()
    duration_ns = mine["duration_ns"].to_numpy()
    if len(members) < 2 or len(np.unique(own)) < len(members):
        return empty.collectives(**unmatched)
    if mine["clock_known"].all() and _apart(start_ns, start_ns + duration_ns, own):
        return empty.collectives(**unmatched, apart=True)
    phase = _codes(mine["phase"])
    step, shifted, unclear = _aligned_steps(mine, phase, own, report_of, start_ns + duration_ns)
    if unclear.any() and unclear[step >= 0].all():
        return empty.collectives(**unmatched, unclear=True)
    vote = _combined(phase, step + 1 - step.min())
    context = _combined(vote, _codes(mine["operation"] if named else mine["name"]))
    if not named:
        context = _combined(context, _nth_stream(mine["stream"], own))
    order = np.lexsort((start_ns, context, own))
    even = _even(context, own, len(members))
    uneven = len(np.unique(vote[~even[context] & ~unclear]))
    even[context[unclear]] = False
    key = _combined(context, order_in_group(order, own, context))
    order = order[even[context[order]]]
    # Kernels of one key lie together, one of each member in order.
    order = order[np.lexsort((own[order], key[order]))].reshape(-1, len(members))
    order = order[_of_even_sizes(mine, order)]
    order = order[np.argsort(start_ns[order].min(axis=1, initial=np.iinfo(np.int64).max), kind="stable")]
    first_ns = duration_ns[order[0]] if len(order) else None
    vote = np.where(step < 0, -1, vote)
    phases = int(phase.max(initial=0)) + 1
    nth, step_ns = _places_in_steps(vote, start_ns, order[:, 0])
    place = np.where(nth < 0, -1, nth * phases + phase[order[:, 0]])
    order, place = order[1:], place[1:]
    return empty.collectives(
        rows=rows[order].ravel(),
        collective=np.repeat(np.arange(len(order)), len(members)),
        participant=members[own[order]].ravel(),
        step=step[order].ravel(),
        vote=vote[order].ravel(),
        place=np.repeat(place, len(members)),
        unmatched=len(every) - order.size - (0 if first_ns is None else len(members)),
        edges=unmatched["edges"],
        uneven=uneven,
        shifted=shifted,
        left_out_ns=None if first_ns is None else int((first_ns - first_ns.min()).sum()),
        step_ns=step_ns,
        phases=phases,
        **_split(start_ns[order], duration_ns[order], report_of),
    )


def _places_in_steps(vote: np.ndarray, start_ns: np.ndarray, first: np.ndarray) -> tuple[np.ndarray, float]:
    """For each collective, of which `first` are one rank's kernels by time, its place from 0 on among those of its
    step, -1 for no step; and the median ns from step to step, nan for fewer than two."""
    nth = order_in_group(np.argsort(vote[first], kind="stable"), vote[first] + 1)
    inside = vote[first] >= 0
    begins_ns = np.sort(start_ns[first][inside & (nth == 0)])
    step_ns = float(np.median(np.diff(begins_ns))) if len(begins_ns) > 1 else np.nan
    return np.where(inside, nth, -1), step_ns


@dataclass(frozen=True)
class _Parts:
    """Makes Collectives, everything empty that is not given."""

    members: np.ndarray
    communicator: str | None
    reports: int

    def collectives(self, **given) -> Collectives:
        none = np.zeros(0, dtype=np.int64)
        arrays = (
            "rows",
            "collective",
            "participant",
            "step",
            "vote",
            "place",
            "duration_ns",
            "transfer_ns",
            "wait_ns",
            "arrival_ns",
        )
        unknown = np.full(len(self.members), np.nan)
        counts = dict.fromkeys(("unmatched", "edges", "uneven", "shifted"), 0)
        empty = {**dict.fromkeys(arrays, none), **counts, "last": none.astype(bool), "offset_ns": unknown,
                 "residual_ns": unknown, "left_out_ns": None, "step_ns": np.nan, "phases": 1,
                 "apart": False, "unclear": False}  # fmt: skip
        return Collectives(self.members, self.communicator, reports=self.reports, **{**empty, **given})


def _apart(start_ns: np.ndarray, end_ns: np.ndarray, own: np.ndarray) -> bool:
    """Whether the windows of some members do not overlap."""
    count = int(own.max()) + 1
    first, last = np.full(count, np.iinfo(np.int64).max), np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(first, own, start_ns)
    np.maximum.at(last, own, end_ns)
    return bool(first.max() - last.min() > _SAME_RUN_NS)


def _aligned_steps(
    mine: pd.DataFrame, phase: np.ndarray, own: np.ndarray, report_of: np.ndarray, end_ns: np.ndarray
) -> tuple[np.ndarray, int, np.ndarray]:
    """The step of each kernel as its set counts them, -1 for none; by how many steps windows begin apart at most; and
    whether it is not clear which step of the others its own is (bool).

    A window may begin some steps later on one rank. On one clock that shift is right at which the ends of steps lie
    nearest. Clocks of two reports do not agree well enough: there the phase with most steps tells by how much they
    differ, at the shift at which ends lie equally far apart; the other phases follow.
    """
    step = mine["nth_step"].fillna(-1).to_numpy(dtype=np.int64, copy=True)
    most, unclear = 0, np.zeros(len(step), dtype=bool)
    codes, counts = np.unique(phase[step >= 0], return_counts=True)
    for number in range(1, len(report_of)):
        offset_ns = 0.0 if report_of[number] == report_of[0] else None
        near_ns = None
        for code in codes[np.argsort(-counts, kind="stable")]:
            here = (phase == code) & (step >= 0)
            rows = here & (own == number)
            first, other = _step_ends(step, end_ns, here & (own == 0)), _step_ends(step, end_ns, rows)
            if not len(first[0]) or not len(other[0]):
                continue
            if near_ns is None:
                near_ns = max(_SAME_STEP * np.median(np.diff(first[1])), _NEAR_NS) if len(first[0]) > 1 else np.inf
            shift, cost_ns, ahead_ns = _best_shift(first, other, offset_ns)
            if cost_ns > near_ns:
                unclear |= here
                continue
            offset_ns = ahead_ns if offset_ns is None else offset_ns
            step[rows] += shift
            most = max(most, abs(shift))
    return step, most, unclear


def _step_ends(step: np.ndarray, end_ns: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of steps, in order, and when the communication of each ended."""
    numbers, place = np.unique(step[rows], return_inverse=True)
    last_ns = np.full(len(numbers), np.iinfo(np.int64).min)
    np.maximum.at(last_ns, place, end_ns[rows])
    return numbers, last_ns


def _best_shift(
    first: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray], offset_ns: float | None
) -> tuple[int, float, float]:
    """By how many steps to shift the other's steps; how far the ends of steps then lie apart, ns, inf where nothing is
    known; and by how much the other's clock is ahead: `offset_ns` where that is known, else what steps tell."""
    size = len(first[0]), len(other[0])
    # Few steps beside each other vary little by chance, where clocks tell nothing.
    least = min(max(3, 0.6 * min(size)), *size) if offset_ns is None else 1
    costs, ahead_ns = {}, {}
    for shift in range(-_MOST_SHIFTED, _MOST_SHIFTED + 1):
        _, mine, theirs = np.intersect1d(first[0], other[0] + shift, assume_unique=True, return_indices=True)
        if len(mine) < least:
            continue
        apart_ns = other[1][theirs] - first[1][mine]
        ahead_ns[shift] = float(np.median(apart_ns)) if offset_ns is None else offset_ns
        # The steps that are unlike others tell the shift, so not the median where clocks are to be found.
        costs[shift] = float(np.percentile(np.abs(apart_ns - ahead_ns[shift]), 50 if offset_ns is not None else 80))
    if not costs:
        return 0, np.inf, 0.0
    best = min(costs, key=lambda shift: (costs[shift], abs(shift)))
    # A little better is chance too: steps are alike.
    if offset_ns is None and 0 in costs and costs[0] <= 2 * costs[best] + _NEAR_NS:
        best = 0
    return best, costs[best], ahead_ns[best]


def _even(context: np.ndarray, own: np.ndarray, members: int) -> np.ndarray:
    """Of each context, whether all members have equally many kernels in it: else their order says nothing."""
    counts = np.bincount(context * members + own, minlength=(int(context.max(initial=0)) + 1) * members)
    by_member = counts.reshape(-1, members)
    return (by_member == by_member[:, :1]).all(axis=1)


def _nth_stream(stream: pd.Series, own: np.ndarray) -> np.ndarray:
    """For each kernel the place of its stream among its rank's, by number: communicators have streams of their own, and
    ranks make them in the same order. 0 for all where ranks have unequal numbers of them."""
    numbers = stream.fillna(-1).to_numpy(dtype=np.int64)
    pairs, pair = np.unique(np.stack([own, numbers], axis=1), axis=0, return_inverse=True)
    counts = np.bincount(pairs[:, 0])
    if (counts != counts[0]).any():
        return np.zeros(len(own), dtype=np.int64)
    return (np.arange(len(pairs)) % counts[0])[pair.ravel()]


def _of_even_sizes(mine: pd.DataFrame, order: np.ndarray) -> np.ndarray:
    """Of each collective, a row of `order`, whether its kernels take equally long when nobody waits. All-to-alls do
    where all ranks are known to send equally much: experts have more and fewer tokens."""
    exchange = (mine["operation"] == "all_to_all").to_numpy()[order[:, 0]]
    if not exchange.any():
        return np.ones(len(order), dtype=bool)
    sizes = mine["bytes"].to_numpy(dtype=float)[order]
    return ~exchange | (sizes == sizes[:, :1]).all(axis=1)


def _split(start_ns: np.ndarray, duration_ns: np.ndarray, report_of: np.ndarray) -> dict[str, np.ndarray]:
    """What follows from the times of matched kernels, one row per collective and one column per member."""
    if not len(start_ns):
        return {}
    transfer_ns = duration_ns.min(axis=1, keepdims=True)
    shortest = duration_ns == transfer_ns
    last = shortest & (shortest.sum(axis=1, keepdims=True) == 1)
    ahead_ns = (start_ns + duration_ns) - (start_ns + duration_ns)[:, :1]
    offset_ns = np.median(ahead_ns, axis=0)
    # Devices of one report have one clock; their ends lie apart for other reasons.
    for report in np.unique(report_of).tolist():
        offset_ns[report_of == report] = np.median(offset_ns[report_of == report]) if report != report_of[0] else 0
    residual_ns = np.percentile(np.abs(ahead_ns - offset_ns), 95, axis=0)
    residual_ns[report_of == report_of[0]] = 0
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
    """A number for each text, from 1 on; 0 for null."""
    return pd.factorize(texts)[0].astype(np.int64) + 1


def _combined(*columns: np.ndarray) -> np.ndarray:
    """A number from 0 on for each combination of values (int64, not negative)."""
    code = pd.factorize(columns[0])[0].astype(np.int64)
    for column in columns[1:]:
        code = pd.factorize(code * (int(column.max(initial=0)) + 1) + column)[0].astype(np.int64)
    return code
