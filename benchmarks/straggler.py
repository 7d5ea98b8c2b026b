"""How often llm_nccl_sum names a late rank, rightly and wrongly, on simulated ranks.

    .venv/bin/python benchmarks/straggler.py [--runs N]

A step is 16 layers of attention and MLP, 1 ms, a collective after each. Ranks' work varies by 3 % (normal) or 10 %
(lognormal) from collective to collective and by 0.3 % from step to step, or by 3 % over steps with a correlation of 0.9
from step to step (autocorrelated). The generator is seeded.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

from recipes.collectives.lateness import late_ranks

LAYERS, STEP_NS, TRANSFER_NS = 16, 1_000_000, 10_000
_PLACES = 2 * LAYERS
_WORK_NS = (STEP_NS - _PLACES * TRANSFER_NS) / _PLACES
Work = np.ndarray
Change = Callable[[Work, np.random.Generator], None]


def work_of(random: np.random.Generator, steps: int, ranks: int, jitter: str = "normal") -> Work:
    """ns of work before each collective of healthy ranks: steps by places by ranks."""
    shape = (steps, _PLACES, ranks)
    if jitter == "lognormal":
        return _WORK_NS * random.lognormal(0, 0.1, shape)
    work = _WORK_NS * (1 + 0.03 * random.standard_normal(shape))
    if jitter == "autocorrelated":
        return work * (1 + 0.03 * wandering(random, steps, ranks)[:, None, :])
    return work * (1 + 0.003 * random.standard_normal((steps, 1, ranks)))


def wandering(random: np.random.Generator, steps: int, ranks: int, alike: float = 0.9) -> np.ndarray:
    """A first-order autoregression over steps of variance 1 for each rank."""
    noise = random.standard_normal((steps, ranks))
    for step in range(1, steps):
        noise[step] = alike * noise[step - 1] + np.sqrt(1 - alike**2) * noise[step]
    return noise


def named(work: Work) -> set[int]:
    """The ranks that are named when all wait for the last one before each transfer."""
    steps, places, ranks = work.shape
    duration_ns = (TRANSFER_NS + work.max(axis=2, keepdims=True) - work).reshape(-1, ranks)
    step, place = np.repeat(np.arange(steps), places), np.tile(np.arange(places), steps)
    step_ns = float(work.max(axis=2).sum(axis=1).mean()) + places * TRANSFER_NS
    return {late.member for late in late_ranks(duration_ns, step, place, step_ns)}


def _mlp(work: Work, random: np.random.Generator) -> None:
    work[:, 1::2, 0] *= 1.1


def _layer(work: Work, random: np.random.Generator) -> None:
    work[:, 10:12, 0] *= 1.5


def _bursts(work: Work, random: np.random.Generator) -> None:
    work[::4, :, 0] *= 1.2


def _host(work: Work, random: np.random.Generator) -> None:
    work[:, 0, 0] += 1_000_000


def _experts(work: Work, random: np.random.Generator) -> None:
    work[:, 1::2] *= np.linspace(1.2, 1, work.shape[2])


def _two(work: Work, random: np.random.Generator) -> None:
    work[:, :, :2] *= 1.05


#: What makes a rank late, and the ranks that must be named; of static expert load at least the most loaded one.
LATE: dict[str, tuple[Change, set[int]]] = {
    "MLP 1.1 times as long": (_mlp, {0}),
    "one layer of 16, 1.5 times as long": (_layer, {0}),
    "every fourth step 1.2 times as long": (_bursts, {0}),
    "host 1 ms late at each step's start": (_host, {0}),
    "static expert load": (_experts, {0}),
    "two ranks 1.05 times as long": (_two, {0, 1}),
}
HEALTHY = ("normal", "lognormal", "autocorrelated")


def rightly(random: np.random.Generator, case: str, steps: int, ranks: int, runs: int) -> float:
    """The share of runs in which all late ranks, and with one known cause only these, are named."""
    change, expected = LATE[case]
    right = 0
    for _ in range(runs):
        work = work_of(random, steps, ranks)
        change(work, random)
        found = named(work)
        right += expected <= found if case == "static expert load" else found == expected
    return right / runs


def wrongly(random: np.random.Generator, jitter: str, steps: int, ranks: int, runs: int) -> float:
    """The share of runs in which a healthy rank is named."""
    return sum(bool(named(work_of(random, steps, ranks, jitter))) for _ in range(runs)) / runs


def main() -> None:
    """Prints both tables, in percent of the runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    random = np.random.default_rng(args.seed)
    steps = (3, 5, 8, 20, 40, 100)
    print("named rightly, %", *(f"{n:>6}" for n in steps), sep="\t")
    for case in LATE:
        for ranks in (4, 8, 64):
            rates = (rightly(random, case, n, ranks, max(args.runs // 5, 10)) for n in steps)
            print(f"{case}, {ranks} ranks", *(f"{rate:6.0%}" for rate in rates), sep="\t", flush=True)
    print("named wrongly, %", *(f"{n:>6}" for n in steps), sep="\t")
    for jitter in HEALTHY:
        for ranks in (2, 4, 8, 64):
            rates = (wrongly(random, jitter, n, ranks, args.runs) for n in steps)
            print(f"{jitter}, {ranks} ranks", *(f"{rate:6.1%}" for rate in rates), sep="\t", flush=True)


if __name__ == "__main__":
    main()
