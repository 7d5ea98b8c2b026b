"""Steps: instances of a phase, found in the NVTX ranges of a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from recipes.base.interval_lookup import contained, side_by_side
from recipes.steps.phases import ENOUGH, Meaning, PhaseRule
from recipes.steps.ranges import Ranges


@dataclass(frozen=True)
class Steps:
    """The steps of a report, in order of start; a step's number is its place here.

    start_ns, end_ns int64 as the host saw them; pid, global_tid int64; phase int32, an index into `phases`;
    closed and by_thread bool as in Ranges; `texts` and `meanings` one each; `rules` the rule of each process;
    `busy_threads` the global ids of threads that have ranges but start no step: they
    say what else they do; `of_range` int64, the place of each in the ranges, empty when `inferred`, that is when
    steps come from repetition instead of ranges.
    """

    start_ns: np.ndarray
    end_ns: np.ndarray
    pid: np.ndarray
    global_tid: np.ndarray
    phase: np.ndarray
    closed: np.ndarray
    by_thread: np.ndarray
    phases: list[str]
    texts: list[str]
    meanings: list[Meaning]
    rules: dict[int, str]
    busy_threads: np.ndarray
    of_range: np.ndarray
    inferred: bool = False

    def __len__(self) -> int:
        return len(self.start_ns)


def find_steps(ranges: Ranges, rules: Sequence[PhaseRule]) -> Steps:
    """The steps among the ranges: in each process those of the first rule that enough ranges match.

    Of matching ranges inside each other on a thread (start and end ranges: of those that it started) the outermost is
    the step. PackError when host times lie farther apart than any capture lasts.
    """
    chosen: list[np.ndarray] = []
    meanings: list[Meaning] = []
    taken: dict[int, str] = {}
    for pid in np.unique(ranges.pid).tolist():
        rows = np.flatnonzero(ranges.pid == pid)
        rule, found, which = _choose(ranges, rows, rules)
        if rule is None:
            continue
        outermost = np.flatnonzero(_outermost(ranges, rows, np.array([one is not None for one in found])[which]))
        taken[pid] = rule.name
        chosen.append(rows[outermost])
        meanings += [found[number] for number in which[outermost].tolist()]
    rows = np.concatenate(chosen) if chosen else np.zeros(0, dtype=np.int64)
    order = np.argsort(rows, kind="stable")
    rows, ordered = rows[order], [meanings[place] for place in order.tolist()]
    phases = sorted({meaning.phase for meaning in ordered})
    code = {phase: number for number, phase in enumerate(phases)}
    return Steps(
        start_ns=ranges.start_ns[rows],
        end_ns=_ends(ranges, rows),
        pid=ranges.pid[rows],
        global_tid=ranges.global_tid[rows],
        phase=np.array([code[meaning.phase] for meaning in ordered], dtype=np.int32),
        closed=ranges.closed[rows],
        by_thread=ranges.by_thread[rows],
        phases=phases,
        texts=[ranges.texts[text] for text in ranges.text[rows].tolist()],
        meanings=ordered,
        rules=taken,
        busy_threads=np.setdiff1d(_talking_threads(ranges), ranges.global_tid[rows]),
        of_range=rows,
    )


def _ends(ranges: Ranges, rows: np.ndarray) -> np.ndarray:
    """The end of each step; of one that was never closed, the start of its thread's next."""
    end_ns = ranges.end_ns[rows].copy()
    for place in np.flatnonzero(~ranges.closed[rows]).tolist():
        later = rows[place + 1 :]
        following = later[ranges.global_tid[later] == ranges.global_tid[rows[place]]]
        if len(following):
            end_ns[place] = ranges.start_ns[following[0]]
    return end_ns


def _talking_threads(ranges: Ranges) -> np.ndarray:
    """Threads with ranges of their own in the default domain; libraries, which have domains, do not count."""
    return np.unique(ranges.global_tid[ranges.by_thread & (ranges.domain == ranges.domains.index(""))])


def _choose(
    ranges: Ranges, rows: np.ndarray, rules: Sequence[PhaseRule]
) -> tuple[PhaseRule | None, list[Meaning | None], np.ndarray]:
    """The rule for a process, the meaning of each distinct text by it, and which of these each row has."""
    code = ranges.text[rows].astype(np.int64) * len(ranges.domains) + ranges.domain[rows]
    distinct, which, counts = np.unique(code, return_inverse=True, return_counts=True)
    named = [divmod(number, len(ranges.domains)) for number in distinct.tolist()]
    for rule in rules:
        found = [rule.meaning(ranges.texts[text], ranges.domains[domain]) for text, domain in named]
        if sum(count for one, count in zip(found, counts.tolist(), strict=True) if one is not None) >= ENOUGH:
            return rule, found, which.ravel()
    return None, [], which.ravel()


def _outermost(ranges: Ranges, rows: np.ndarray, matching: np.ndarray) -> np.ndarray:
    """Which of the rows match and lie in no other matching one of their kind that their thread started."""
    thread = ranges.global_tid[rows]
    group = np.where(ranges.by_thread[rows], thread, ~thread)
    picked = np.flatnonzero(matching)
    chosen = rows[picked]
    # A range that was never closed holds nothing: nobody knows where it ended.
    until_ns = np.where(ranges.closed[chosen], ranges.end_ns[chosen], ranges.start_ns[chosen])
    start_ns, end_ns, order = side_by_side(group[picked], ranges.start_ns[chosen], until_ns)
    outer = np.zeros(len(rows), dtype=bool)
    outer[picked[order[~contained(start_ns, end_ns)]]] = True
    return outer
