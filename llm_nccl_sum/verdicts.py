"""Who waits for whom in a set of ranks: transfer-bound, arrival skew, mixed, or inconclusive."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

import numpy as np

from llm_nccl_sum.matching import Collectives

#: Fewer matched collectives say nothing.
_ENOUGH = 20
#: Below this share of waiting the time of collectives is their transfer.
_LITTLE = 0.15
#: As likely may it be at most, by chance, that one rank is to blame in so many steps.
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


def judge(found: Collectives, missing: int) -> Verdict:
    """The verdict of a set, when so many ranks of the job are known to be missing."""
    size = len(found.members)
    if size < 2:
        return Verdict("inconclusive", None, "one rank alone: its time cannot be split into transfer and waiting; give "
                       "the reports of all ranks")  # fmt: skip
    if found.apart:
        return Verdict("inconclusive", None, "the captures do not overlap in time: they are not of one run")
    if missing:
        return Verdict("inconclusive", None, f"{missing} ranks are missing, so nobody knows who came last")
    if found.count < _ENOUGH:
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
    if score[top] >= likely and last >= likely and _in_most_steps(found, caused, top):
        why = f"it comes last in {last * 100:.0f} % of the collectives and causes {score[top] * 100:.0f} % of that"
        return Verdict("arrival skew", int(found.members[top]), f"{told}; {why}")
    each_ns = np.sort(found.wait_ns.reshape(caused.shape).sum(axis=1))[::-1]
    few = int(np.searchsorted(np.cumsum(each_ns), 0.8 * wait_ns)) + 1
    where = f", most of it in {few} of {found.count} collectives" if few <= found.count / 4 else ""
    return Verdict("mixed", None, f"{told}{where}, and no rank is late throughout")


def _in_most_steps(found: Collectives, caused: np.ndarray, top: int) -> bool:
    """Whether one rank is to blame in more steps than by chance: collectives of one step are late together."""
    step = found.step[:: len(found.members)]
    if (step < 0).all():
        step = np.arange(found.count) * _STRETCHES // found.count
    votes = np.array([caused[step == one].sum(axis=0).argmax() for one in np.unique(step)])
    count, hits = len(votes), int((votes == top).sum())
    size = len(found.members)
    at_least = sum(comb(count, k) * (size - 1) ** (count - k) for k in range(hits, count + 1)) / size**count
    # Any of the ranks could have been the one.
    return size * at_least <= _CHANCE
