"""Which ranks are late, step after step and beyond chance: a statistical test over steps, and an effect size.

The lateness of a rank in a collective is the mean duration of the other ranks' kernels less its own: who comes late
waits less. That needs no clocks. `benchmarks/straggler.py` prints how often ranks are named, rightly and wrongly.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import erfc, exp, lgamma, log, sqrt

import numpy as np

#: Fewer steps accuse nobody: in so few, one rank is easily the latest by chance. How often ranks are named rightly and
#: wrongly with these thresholds is printed by benchmarks/straggler.py.
FEWEST = 5
#: As likely may it be, by chance, that some rank of some set is named by one test of the three.
_CHANCE = 0.0025
#: Whoever is late, a coin thrown for each step, some rank is in so many steps by this chance at most.
_COIN = 0.07
#: A rank that is later than this share of a step in every one is late whatever may wander.
_OVERWHELMING = 0.1
#: What a rank costs must be this share of the step: less is not worth acting on, however certain it is.
_EFFECT = 0.01
#: The correlation of a step with the next that is allowed for: clocks and neighbours change over tens of steps.
_ALIKE = 0.9
#: The steps that hold this share of the cost are those that matter.
_MATERIAL = 0.8


@dataclass(frozen=True)
class Late:
    """A late rank: its place among the members; the ns of a mean step that it costs; in how many of how many steps
    that matter it is the latest; the places in the step of the collectives it is late at, None for late throughout."""

    member: int
    cost_ns: float
    hits: int
    steps: int
    places: tuple[int, ...] | None


def lateness(duration_ns: np.ndarray) -> np.ndarray:
    """ns, float64, by which each rank (column) comes after the mean of the others in each collective (row).

    `duration_ns` int64, of the same shape; the result is negative for a rank that comes before them.
    """
    size = duration_ns.shape[1]
    return (duration_ns.sum(axis=1, keepdims=True) - size * duration_ns) / max(size - 1, 1)


def by_step(late_ns: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Lateness added up over the collectives of each step, ns, float64, one row per step in order of number.

    `late_ns` as `lateness` gives it, `step` (int64) the step of each of its rows.
    """
    number = np.unique(step, return_inverse=True)[1].ravel()
    order = np.argsort(number, kind="stable")
    begins = np.flatnonzero(np.diff(number[order], prepend=-1))
    return np.add.reduceat(late_ns[order], begins, axis=0)


def late_ranks(
    duration_ns: np.ndarray, step: np.ndarray, place: np.ndarray, step_ns: float, sets: int = 1
) -> list[Late]:
    """The late ranks of a set, the costliest first.

    `duration_ns` (int64) has one row per collective and one column per rank; `step` and `place` (int64) say where each
    collective is; `step_ns` is the length of a step. It is one of so many sets that are judged.
    """
    size = duration_ns.shape[1]
    late_ns = lateness(duration_ns)
    steps_ns = by_step(late_ns, step)
    count = len(steps_ns)
    if size < 2 or count < FEWEST:
        return []
    allowed, least_ns = _CHANCE / size / sets, _EFFECT * step_ns
    mean_ns, chance = (of_all[0] for of_all in _tested(steps_ns, np.zeros(count, dtype=np.int64))[:2])
    always = steps_ns.min(axis=0) >= _OVERWHELMING * step_ns
    throughout = ((chance <= allowed) | _in_bursts(steps_ns, allowed) | always) & (mean_ns >= least_ns)
    no_coin = _by_coin(steps_ns) * size * sets <= _COIN
    throughout &= no_coin
    at_places = np.where(no_coin, _at_places(late_ns, step, place, allowed) / count, 0)
    numbers, (hits, material) = np.unique(place), latest(steps_ns)
    found = []
    for member in np.flatnonzero(throughout | (at_places.sum(axis=0) >= least_ns)).tolist():
        here = at_places[:, member] > 0
        local = at_places[here, member].sum() >= max(least_ns, _MATERIAL * mean_ns[member])
        local &= np.count_nonzero(here) < _MATERIAL * len(numbers)
        cost_ns = float(max(at_places[:, member].sum(), mean_ns[member]))
        where = tuple(numbers[here].tolist()) if local else None
        found.append(Late(member, cost_ns, int(hits[member]), material, where))
    return sorted(found, key=lambda one: -one.cost_ns)


def latest(steps_ns: np.ndarray) -> tuple[np.ndarray, int]:
    """In how many of the steps that matter each rank is the latest, int64 per rank, and how many these are.

    `steps_ns` as `by_step` gives it.
    """
    who = _latest(steps_ns)
    return np.bincount(who[who >= 0], minlength=steps_ns.shape[1]), int((who >= 0).sum())


def _latest(steps_ns: np.ndarray) -> np.ndarray:
    """The latest rank of each step that is among those which hold most of the cost; -1 for the others."""
    cost_ns = steps_ns.max(axis=1)
    order = np.argsort(-cost_ns, kind="stable")
    count = int(np.searchsorted(np.cumsum(cost_ns[order]), _MATERIAL * cost_ns.sum())) + 1 if cost_ns.any() else 0
    who = np.full(len(steps_ns), -1)
    who[order[:count]] = steps_ns[order[:count]].argmax(axis=1)
    return who


def _by_coin(steps_ns: np.ndarray) -> np.ndarray:
    """How likely each rank is, by chance, the latest in so many of the steps that matter, or, if that is less likely,
    later than the mean of the others in so many of all steps."""
    (hits, matter), (count, size) = latest(steps_ns), steps_ns.shape
    above = (steps_ns > 0).sum(axis=0)
    return np.array([min(_at_least(hit, matter, size), _at_least(over, count, 2))
                     for hit, over in zip(hits.tolist(), above.tolist(), strict=True)])  # fmt: skip


def _in_bursts(steps_ns: np.ndarray, allowed: float) -> np.ndarray:
    """Of each rank, whether it is the latest in bursts: steps that matter, apart from each other, more than by chance.

    Neighbouring steps of one rank are one burst: what is slow for a while is slow in all of them.
    """
    who = _latest(steps_ns)
    bursts = who[(who >= 0) & (np.diff(who, prepend=-1) != 0)]
    hits = np.bincount(bursts, minlength=steps_ns.shape[1])
    chance = np.array([_at_least(hit, len(bursts), len(hits)) for hit in hits.tolist()])
    return (chance <= allowed) & (hits >= max(FEWEST, _MATERIAL * len(bursts)))


def _at_places(late_ns: np.ndarray, step: np.ndarray, place: np.ndarray, allowed: float) -> np.ndarray:
    """ns over all steps by which ranks (columns) are late at each place in the step (rows), 0 where that is chance."""
    order = np.lexsort((step, place))
    mean_ns, chance, count = _tested(late_ns[order], np.unique(place[order], return_inverse=True)[1].ravel())
    certain = (chance <= allowed / len(count)) & (count >= FEWEST) & (mean_ns > 0)
    return np.where(certain, mean_ns * count, 0)


def _tested(late_ns: np.ndarray, group: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of series of lateness, whose rows of a group (int64 from 0 on) lie together in order of time: groups by ranks
    the mean, ns, and how likely one as large is by chance (0 to 1); the number of steps (one column).

    Student's t for steps as alike as a first-order autoregression of coefficient r makes them. The mean of n of them
    has g = (1 + 2 sum (1 - k/n) r^k) / n of their variance, of which n steps themselves show 1 - g. The degrees of
    freedom are fitted to simulated ranks whose speed wanders so.
    """
    begins = np.flatnonzero(np.diff(group, prepend=-1))
    n = np.diff(np.append(begins, len(group)))[:, None]
    mean_ns = np.add.reduceat(late_ns, begins, axis=0) / n
    squares = np.add.reduceat((late_ns - mean_ns[group]) ** 2, begins, axis=0)
    g = np.minimum((1 + 2 * _ALIKE / (1 - _ALIKE) * (1 - (1 - _ALIKE**n) / (n * (1 - _ALIKE)))) / n, 1 - 1e-9)
    deviation_ns = np.maximum(np.sqrt(squares / np.maximum(n - 1, 1)), 1e-9)
    t = mean_ns / deviation_ns * np.sqrt((1 - g) / g)
    free = np.clip(2 * n**0.6, 1, np.maximum(n - 1, 1))
    # Wallace's normal score of Student's t.
    score = np.sign(t) * np.sqrt(free * np.log1p(t**2 / free)) * (8 * free + 1) / (8 * free + 3)
    return mean_ns, _above(score), n


def _above(score: np.ndarray) -> np.ndarray:
    """How likely a normal score is larger than this."""
    return np.vectorize(lambda one: erfc(one / sqrt(2)) / 2, otypes=[float])(score)


def _at_least(hits: int, steps: int, size: int) -> float:
    """How likely one of `size` ranks is the latest by chance in at least so many of so many steps."""
    if hits == 0:
        return 1.0
    # In logarithms: there may be many thousand steps.
    ways = [lgamma(steps + 1) - lgamma(k + 1) - lgamma(steps - k + 1) + (steps - k) * log(size - 1 or 1)
            for k in range(hits, steps + 1)]  # fmt: skip
    return min(sum(exp(way - steps * log(size)) for way in ways), 1.0)
