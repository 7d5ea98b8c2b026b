"""Who waits for whom: transfer-bound, arrival skew, mixed, or inconclusive."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llm_nccl_sum.matching import Collectives

#: Fewer matched collectives say nothing.
_ENOUGH = 20
#: Below this share of waiting the time of collectives is their transfer.
_LITTLE = 0.15
#: Standard deviations by which one rank must come last more often than by chance.
_SIGNIFICANT = 3


@dataclass(frozen=True)
class Verdict:
    """`kind`: transfer-bound, arrival skew, mixed or inconclusive; the straggler's number where one is named; why."""

    kind: str
    straggler: int | None
    why: str


def straggler_scores(found: Collectives, count: int) -> tuple[np.ndarray, np.ndarray]:
    """How often each participant came last, int64, and the share of all waiting that it caused, NaN without any."""
    times_last = np.bincount(found.participant[found.last], minlength=count)
    culprit = np.empty(int(found.collective.max(initial=-1)) + 1, dtype=np.int64)
    culprit[found.collective[found.last]] = found.participant[found.last]
    caused_ns = np.bincount(culprit[found.collective], weights=found.wait_ns, minlength=count)
    total_ns = caused_ns.sum()
    return times_last, caused_ns / total_ns if total_ns else np.full(count, np.nan)


def judge(found: Collectives, count: int, missing: int) -> Verdict:
    """The verdict of a set of ranks, of which so many are known to be missing."""
    if count < 2:
        return Verdict("inconclusive", None, "one rank alone: its time cannot be split into transfer and waiting; give "
                       "the reports of all ranks")  # fmt: skip
    collectives = int(found.collective.max(initial=-1)) + 1
    if collectives < _ENOUGH:
        return Verdict("inconclusive", None, f"only {collectives} collectives are matched across the ranks")
    share = found.wait_ns.sum() / max(found.duration_ns.sum(), 1)
    told = f"{share * 100:.0f} % of the time in matched collectives is waiting"
    if share < _LITTLE:
        return Verdict("transfer-bound", None, told)
    times_last, score = straggler_scores(found, count)
    top = int(np.nanargmax(score))
    likely = 0.5 + 0.5 / count
    last = times_last[top] / collectives
    chance = 1 / count
    deviations = (last - chance) / np.sqrt(chance * (1 - chance) / collectives)
    if score[top] < likely or last < likely or deviations < _SIGNIFICANT:
        return Verdict("mixed", None, f"{told}, and no rank causes it alone")
    if missing:
        return Verdict("inconclusive", None, f"{told}, but {missing} ranks are missing, so nobody is accused")
    why = f"this rank comes last in {last * 100:.0f} % of the collectives and causes {score[top] * 100:.0f} % of that"
    return Verdict("arrival skew", top, f"{told}; {why}")
