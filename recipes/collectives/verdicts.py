"""Who waits for whom in a set of ranks: transfer-bound, arrival skew, mixed, or inconclusive."""

from __future__ import annotations

from dataclasses import dataclass
from math import lgamma, log

import numpy as np

from recipes.collectives.matching import Collectives

#: Fewer matched collectives say nothing.
_ENOUGH = 20
#: Below this share of waiting the time of collectives is their transfer.
_LITTLE = 0.15
#: As likely may it be at most, by chance, that some rank of some set is to blame in so many steps.
_CHANCE = 0.07
#: Without steps the collectives are taken in so many stretches of time.
_STRETCHES = 10


@dataclass(frozen=True)
class Verdict:
    """`kind`: transfer-bound, arrival skew, mixed, inconclusive; the straggler, a participant, if one is named; why."""

    kind: str
    straggler: int | None
    why: str


def blame(found: Collectives) -> np.ndarray:
    """ns of waiting that each member caused, a row a collective and a column a member: that of all others for the one
    that came last."""
    shape = (found.count, len(found.members))
    total_ns = found.wait_ns.reshape(shape).sum(axis=1, keepdims=True)
    return found.last.reshape(shape) * total_ns


def is_enough(found: Collectives) -> bool:
    """Whether so many collectives are matched that somebody may be named."""
    return found.count >= _ENOUGH


def judge(found: Collectives, missing: int, sets: int = 1) -> Verdict:
    """The verdict of a set, one of so many that have enough collectives, when so many of its ranks are missing."""
    size = len(found.members)
    if size < 2 and not missing:
        return Verdict("inconclusive", None, "one rank alone: its time cannot be split into transfer and waiting; give "
                       "the reports of all ranks")  # fmt: skip
    if found.apart:
        return Verdict("inconclusive", None, "the captures do not overlap in time: they are not of one run")
    if missing:
        return Verdict("inconclusive", None, f"{missing} ranks are missing, so nobody knows who came last")
    if found.unclear:
        return Verdict("inconclusive", None, "which steps of the ranks belong together cannot be told from their times")
    if not is_enough(found):
        return Verdict("inconclusive", None, f"only {found.count} collectives are matched across {size} ranks")
    wait_ns = found.wait_ns.sum()
    share = wait_ns / max(found.duration_ns.sum(), 1)
    told = f"{share * 100:.0f} % of the time in matched collectives is waiting"
    if share < _LITTLE:
        return Verdict("transfer-bound", None, told)
    caused = blame(found)
    score = caused.sum(axis=0) / max(wait_ns, 1)
    top = int(score.argmax())
    last = found.last.reshape(caused.shape)[:, top].mean()
    likely = 0.5 + 0.5 / size
    if score[top] >= likely and last >= likely:
        hits, votes = _votes(found, caused, top)
        why = f"comes last in {last * 100:.0f} % of the collectives and causes {score[top] * 100:.0f} % of that"
        if sets * size * _at_least(hits, votes, size) <= _CHANCE:
            return Verdict("arrival skew", int(found.members[top]), f"{told}; it {why}")
        return Verdict(
            "inconclusive", None, f"{told}; one rank {why}, but in {hits} of {votes} steps, which may be chance"
        )
    each_ns = np.sort(found.wait_ns.reshape(caused.shape).sum(axis=1))[::-1]
    few = int(np.searchsorted(np.cumsum(each_ns), 0.8 * wait_ns)) + 1
    where = f", most of it in {few} of {found.count} collectives" if few <= found.count / 4 else ""
    return Verdict("mixed", None, f"{told}{where}, and no rank is late throughout")


def _votes(found: Collectives, caused: np.ndarray, top: int) -> tuple[int, int]:
    """In how many steps one rank caused most waiting, and of how many: collectives of one step are late together."""
    vote = found.vote[:: len(found.members)]
    if (vote < 0).any():
        # Outside steps, stretches of time.
        stretch = np.arange(found.count) * _STRETCHES // found.count
        vote = np.where(vote < 0, vote.max() + 1 + stretch, vote)
    place = np.unique(vote, return_inverse=True)[1].ravel()
    total_ns = np.zeros((int(place.max()) + 1, caused.shape[1]))
    np.add.at(total_ns, place, caused)
    # Where nobody waited there is nobody to blame.
    hits = (total_ns.argmax(axis=1) == top) & (total_ns.max(axis=1) > 0)
    return int(hits.sum()), len(total_ns)


def _at_least(hits: int, votes: int, size: int) -> float:
    """How likely one of `size` ranks is to blame by chance in at least so many of so many steps."""
    if hits == 0:
        return 1.0
    # In logarithms: there may be many thousand steps.
    ways = [lgamma(votes + 1) - lgamma(k + 1) - lgamma(votes - k + 1) + (votes - k) * log(size - 1 or 1)
            for k in range(hits, votes + 1)]  # fmt: skip
    return float(min(np.exp(np.array(ways) - votes * log(size)).sum(), 1.0))
