"""The family of each GPU operation, and the order in which kinds of work claim busy time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from recipes.base import intervals
from recipes.events.gpu_work import GRAPH, KERNEL, MEMCPY, MEMSET, GpuWork
from recipes.kernels.families import GROUPS, Rules


@dataclass(frozen=True)
class NameFamilies:
    """The family of each name: `of_name` int32 per name, an index into `families`; the group of each family; the rule
    that decided on each name, empty for none."""

    of_name: np.ndarray
    families: list[str]
    groups: list[str]
    rules: list[str]

    def communicating(self, name: np.ndarray) -> np.ndarray:
        """Which of some operations, given by name (int[n], indices into `of_name`), are communication, bool[n]."""
        code = self.families.index("communication") if "communication" in self.families else -1
        return (self.of_name == code)[name]


def name_families(work: GpuWork, rules: Rules) -> NameFamilies:
    """Each name classified once, whatever the number of its kernels."""
    fixed = {MEMCPY: "memcpy", MEMSET: "memset", GRAPH: "cuda_graph"}
    kind_of_name = np.full(len(work.names), KERNEL)
    kind_of_name[work.name] = work.kind
    group_of: dict[str, str] = {}
    family_of, rule_of = [], []
    for name, kind in zip(work.names, kind_of_name.tolist(), strict=True):
        if kind in fixed:
            family, group, rule = fixed[kind], GROUPS[fixed[kind]], ""
        else:
            family, group, rule = rules.classify(name)
        family_of.append(family)
        rule_of.append(rule)
        group_of[family] = group
    ordered = sorted(group_of)
    codes = {family: code for code, family in enumerate(ordered)}
    of_name = np.array([codes[family] for family in family_of], dtype=np.int32)
    return NameFamilies(of_name, ordered, [group_of[family] for family in ordered], rule_of)


def passes(kind: np.ndarray, communicates: np.ndarray) -> Iterator[np.ndarray]:
    """The operations in the order in which they claim busy time: compute, then copies (memsets too), communication.

    `kind` int8 and `communicates` bool per operation; yields three masks, bool per operation, that part them.
    """
    copies = (kind == MEMCPY) | (kind == MEMSET)
    yield ~copies & ~communicates
    yield copies
    yield communicates


def exposed_ns(work: GpuWork, communicates: np.ndarray) -> np.ndarray:
    """The ns of each communication operation in which nothing else ran on its device, int64, 0 for other operations.

    Whoever's work it is: of another step, another process or in no step. Of two at once, the time is the first's.
    `communicates` bool per operation.
    """
    exposed = np.zeros(len(work), dtype=np.int64)
    for device in np.unique(work.device[communicates]).tolist():
        here = work.device == device
        taken = (
            rows for rows in (np.flatnonzero(here & ~communicates), np.flatnonzero(here & communicates)) if len(rows)
        )
        for rows, order, added_ns in intervals.exclusive(taken, lambda rows: (work.start_ns[rows], work.end_ns[rows])):
            exposed[rows[order]] = added_ns
    exposed[~communicates] = 0
    return exposed
