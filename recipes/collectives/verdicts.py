"""Who waits for whom in a set of ranks: transfer-bound, arrival skew, mixed, or inconclusive."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recipes.base.units import format_count, format_ns, format_share
from recipes.collectives.lateness import FEWEST, Late, by_step, late_ranks, lateness, latest
from recipes.collectives.matching import Collectives

#: Fewer matched collectives say nothing (docs/llm_nccl_sum.md, Verdicts).
_ENOUGH = 20
#: Below this share of waiting the time of collectives is their transfer (docs/llm_nccl_sum.md, Verdicts).
_LITTLE = 0.15
#: So many places in the step are told one by one.
_PLACES = 3


@dataclass(frozen=True)
class Verdict:
    """`kind`: transfer-bound, arrival skew, mixed, inconclusive; why; the late ranks, and these as participants."""

    kind: str
    why: str
    late: tuple[Late, ...] = ()
    stragglers: tuple[int, ...] = ()


def blame(found: Collectives) -> np.ndarray:
    """ns of waiting that each member caused, float64, one row per collective and one column per member: the waiting of
    all, shared out among those who come later than the mean of the others, by how much they do."""
    duration_ns = found.duration_ns.reshape(-1, len(found.members))
    wait_ns = (duration_ns - duration_ns.min(axis=1, keepdims=True, initial=np.iinfo(np.int64).max)).sum(axis=1)
    late_ns = np.maximum(lateness(duration_ns), 0)
    total_ns = late_ns.sum(axis=1, keepdims=True)
    return late_ns / np.where(total_ns > 0, total_ns, 1) * wait_ns[:, None]


def is_enough(found: Collectives) -> bool:
    """Whether so many collectives are matched that somebody may be named."""
    return found.count >= _ENOUGH


def judge(found: Collectives, missing: int, sets: int = 1, ranks: np.ndarray | None = None) -> Verdict:
    """The verdict of a set, one of so many that have enough collectives, when so many of its ranks are missing.

    `ranks` has the rank of each participant, int64; by default their places.
    """
    size = len(found.members)
    if found.apart:
        return Verdict("inconclusive", "the captures do not overlap in time: they are not of one run")
    absent = f"{missing} {'rank is' if missing == 1 else 'ranks are'} missing"
    if size < 2:
        more = f" ({absent})" if missing else ""
        return Verdict("inconclusive", "one rank alone: its time cannot be split into transfer and waiting; give the "
                       f"reports of all ranks{more}")  # fmt: skip
    if missing:
        return Verdict("inconclusive", f"{absent}, so nobody knows who came last; give the reports of all ranks")
    if found.unclear:
        return Verdict("inconclusive", "which steps of the ranks belong together cannot be told from their times")
    if not is_enough(found):
        return Verdict("inconclusive", f"only {found.count} collectives are matched across {size} ranks")
    return _by_waiting(found, sets, found.members if ranks is None else ranks[found.members])


def _by_waiting(found: Collectives, sets: int, ranks: np.ndarray) -> Verdict:
    """The verdict of a set whose members have these ranks."""
    size = len(found.members)
    inside = found.place[::size] >= 0
    duration_ns = found.duration_ns.reshape(-1, size)[inside]
    step, place = found.vote[::size][inside], found.place[::size][inside]
    caused_ns, wait_ns = blame(found).sum(axis=0), found.wait_ns.sum()
    share = wait_ns / max(found.duration_ns.sum(), 1)
    told = f"{share * 100:.0f} % of the time in matched collectives is waiting"
    late = late_ranks(duration_ns, step, place, found.step_ns, sets)
    if late:
        score = caused_ns / max(wait_ns, 1)
        each = "; ".join(f"rank {ranks[one.member]} {_told(found, one, score[one.member])}" for one in late)
        stragglers = tuple(found.members[[one.member for one in late]].tolist())
        return Verdict("arrival skew", f"{told}; {each}", tuple(late), stragglers)
    if share < _LITTLE:
        return Verdict("transfer-bound", told)
    median = _of_median_step(found)
    if median < _LITTLE:
        return Verdict(
            "transfer-bound", f"{told}, but {median * 100:.0f} % of it in the median step: single steps wait"
        )
    if not inside.any():
        return Verdict("inconclusive", f"{told}; none of it is in a step, and only steps tell who is late again and "
                       "again: name the steps with NVTX ranges")  # fmt: skip
    steps_ns = by_step(lateness(duration_ns), step)
    hits, matter = latest(steps_ns)
    top = int(caused_ns.argmax())
    score = caused_ns[top] / max(wait_ns, 1)
    if score >= 0.5 + 0.5 / size or len(steps_ns) < FEWEST:
        more = "five steps or more" if len(steps_ns) < FEWEST else "more steps"
        return Verdict("inconclusive", f"{told}; rank {ranks[top]} causes {score * 100:.0f} % of that, latest in "
                       f"{hits[top]} of the {matter} steps that hold most of it, which may be chance: capture "
                       f"{more}")  # fmt: skip
    return Verdict("mixed", f"{told}, caused by several ranks in turn: none causes more than {score * 100:.0f} % of it")


def _of_median_step(found: Collectives) -> float:
    """The share of waiting in the median step; 1 without steps."""
    inside = found.vote >= 0
    if not inside.any():
        return 1.0
    vote = found.vote[inside]
    wait_ns, time_ns = (np.bincount(vote, weights=one[inside]) for one in (found.wait_ns, found.duration_ns))
    return float(np.median(wait_ns[time_ns > 0] / time_ns[time_ns > 0]))


def _told(found: Collectives, one: Late, score: float) -> str:
    """What a late rank does, after its name."""
    said = f"causes {score * 100:.0f} % of that, {format_ns(one.cost_ns)} per step"
    said += f" ({format_share(one.cost_ns / found.step_ns)} of it)" if found.step_ns > 0 else ""
    if one.places is None:
        return f"{said}, and is the latest in {one.hits} of the {one.steps} steps that hold most of it"
    at = [place // found.phases + 1 for place in one.places]
    shown = ", ".join(map(str, at[:_PLACES])) + (", ..." if len(at) > _PLACES else "")
    every = len(np.unique(found.place[found.place >= 0]))
    return f"{said}, at {len(at)} of {format_count(every, 'collective')} of a step (number {shown})"
