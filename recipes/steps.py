"""Steps: instances of a phase, found in the NVTX ranges of a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from recipes.phases import ENOUGH, Meaning, PhaseRule
from recipes.ranges import Ranges
from recipes.timeline import contained, side_by_side


@dataclass(frozen=True)
class Steps:
    """The steps of a report, in order of start; a step's number is its place here.

    start_ns, end_ns int64 as the host saw them; pid, global_tid int64; phase int32, an index into `phases`;
    closed and by_thread bool as in Ranges; `texts` and `meanings` one each; `rules` the rule of each process
    with its number of matches; `busy_threads` the global ids of threads that have ranges but start no step: they
    say what else they do; `inferred` when steps come from repetition instead of ranges.
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
    rules: dict[int, tuple[str, int]]
    busy_threads: np.ndarray
    inferred: bool = False

    def __len__(self) -> int:
        return len(self.start_ns)


def find_steps(ranges: Ranges, rules: Sequence[PhaseRule]) -> Steps:
    """The steps among the ranges: in each process those of the first rule that enough ranges match.

    Of matching ranges inside each other on a thread (start and end ranges: in a process) the outermost is the step.
    """
    chosen: list[np.ndarray] = []
    meanings: dict[int, Meaning] = {}
    taken: dict[int, tuple[str, int]] = {}
    for pid in np.unique(ranges.pid).tolist():
        rows = np.flatnonzero(ranges.pid == pid)
        rule, found = _choose(ranges, rows, rules)
        if rule is None:
            continue
        outermost = rows[_outermost(ranges, rows, np.array([found[key] is not None for key in _keys(ranges, rows)]))]
        taken[pid] = (rule.name, len(outermost))
        chosen.append(outermost)
        meanings.update(zip(outermost.tolist(), (found[key] for key in _keys(ranges, outermost)), strict=True))
    rows = np.sort(np.concatenate(chosen)) if chosen else np.zeros(0, dtype=np.int64)
    ordered = [meanings[row] for row in rows.tolist()]
    phases = sorted({meaning.phase for meaning in ordered})
    return Steps(
        start_ns=ranges.start_ns[rows],
        end_ns=ranges.end_ns[rows],
        pid=ranges.pid[rows],
        global_tid=ranges.global_tid[rows],
        phase=np.array([phases.index(meaning.phase) for meaning in ordered], dtype=np.int32),
        closed=ranges.closed[rows],
        by_thread=ranges.by_thread[rows],
        phases=phases,
        texts=[ranges.texts[code] for code in ranges.text[rows]],
        meanings=ordered,
        rules=taken,
        busy_threads=np.setdiff1d(_talking_threads(ranges), ranges.global_tid[rows]),
    )


def _talking_threads(ranges: Ranges) -> np.ndarray:
    """Threads with ranges of their own in the default domain; libraries, which have domains, do not count."""
    return np.unique(ranges.global_tid[ranges.by_thread & (ranges.domain == ranges.domains.index(""))])


def _keys(ranges: Ranges, rows: np.ndarray) -> list[tuple[int, int]]:
    """Text and domain of each row: what decides its meaning."""
    return list(zip(ranges.text[rows].tolist(), ranges.domain[rows].tolist(), strict=True))


def _choose(ranges: Ranges, rows: np.ndarray, rules: Sequence[PhaseRule]) -> tuple[PhaseRule | None, dict]:
    """The rule for a process, and the meaning of each text and domain by it."""
    code = ranges.text[rows].astype(np.int64) * len(ranges.domains) + ranges.domain[rows]
    distinct, counts = np.unique(code, return_counts=True)
    keys = [divmod(number, len(ranges.domains)) for number in distinct.tolist()]
    for rule in rules:
        found = {(text, domain): rule.meaning(ranges.texts[text], ranges.domains[domain]) for text, domain in keys}
        matches = sum(count for key, count in zip(keys, counts.tolist(), strict=True) if found[key] is not None)
        if matches >= ENOUGH:
            return rule, found
    return None, {}


def _outermost(ranges: Ranges, rows: np.ndarray, matching: np.ndarray) -> np.ndarray:
    """Which of the rows match and lie in no other matching one of their thread (or process)."""
    group = np.where(ranges.by_thread[rows], ranges.global_tid[rows], -1)
    picked = np.flatnonzero(matching)
    start_ns, end_ns, order = side_by_side(group[picked], ranges.start_ns[rows[picked]], ranges.end_ns[rows[picked]])
    outer = np.zeros(len(rows), dtype=bool)
    outer[picked[order[~contained(start_ns, end_ns)]]] = True
    return outer
