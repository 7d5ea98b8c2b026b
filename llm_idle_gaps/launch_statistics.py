"""How work was launched: calls, CUDA graphs, host time inside the calls and between them."""

from __future__ import annotations

import numpy as np
import pyarrow.compute as pc

from recipes.gpu_work import GRAPH, MEMCPY, GpuWork
from recipes.launches import NONE, Launches
from recipes.report.report import Report

_GRAPH_LAUNCH = r"^cu(da)?GraphLaunch"


def launch_statistics(
    report: Report, work: GpuWork, launches: Launches, group: np.ndarray, count: int
) -> dict[str, np.ndarray]:
    """The launch columns of the tables, int64, for each group from 0 to count - 1; `group` is an operation's."""
    known = np.flatnonzero(launches.of_operation != NONE)
    launch, of_launch, kind = launches.of_operation[known], group[known], work.kind[known]
    from_graph = _launches_graph(report, launches)
    copying = np.zeros(len(launches.start_ns), dtype=bool)
    copying[launch[kind == MEMCPY]] = True
    pair_group, pair_launch = _pairs(of_launch, launch, len(launches.start_ns))
    begun_ns, done_ns = launches.start_ns[pair_launch], launches.end_ns[pair_launch]
    thread = launches.thread[pair_launch]
    order = _by_thread(thread, begun_ns)
    after, before = order[1:], order[:-1]
    together = (thread[after] == thread[before]) & (pair_group[after] == pair_group[before])
    after, before = after[together], before[together]
    # A copy to or from unpinned memory waits inside its call: that is no launch cost.
    issuing = ~copying[pair_launch]
    return {
        "operations": np.bincount(group, minlength=count),
        "launched": np.bincount(of_launch, minlength=count),
        "launches": np.bincount(pair_group, minlength=count),
        "graph_launches": np.bincount(pair_group[from_graph[pair_launch]], minlength=count),
        "copy_launches": np.bincount(pair_group[~issuing], minlength=count),
        "in_graphs": np.bincount(of_launch[from_graph[launch] & (kind != GRAPH)], minlength=count),
        "opaque_graphs": np.bincount(group[work.kind == GRAPH], minlength=count),
        "launch_call_ns": _sums(pair_group[issuing], (done_ns - begun_ns)[issuing], count),
        "between_launches": np.bincount(pair_group[after], minlength=count),
        "between_launches_ns": _sums(pair_group[after], np.maximum(begun_ns[after] - done_ns[before], 0), count),
    }


def _pairs(group: np.ndarray, launch: np.ndarray, launches: int) -> tuple[np.ndarray, np.ndarray]:
    """The distinct pairs of group and launch, in order."""
    key = np.sort(group.astype(np.int64) * launches + launch, kind="stable")
    first = np.ones(len(key), dtype=bool)
    first[1:] = key[1:] != key[:-1]
    distinct = key[first]
    return distinct // max(launches, 1), distinct % max(launches, 1)


def _by_thread(thread: np.ndarray, begun_ns: np.ndarray) -> np.ndarray:
    """The order of launches by thread and start."""
    if len(thread) and (thread == thread[0]).all():
        return np.argsort(begun_ns, kind="stable")
    return np.lexsort((begun_ns, thread))


def _launches_graph(report: Report, launches: Launches) -> np.ndarray:
    """Which launches start a CUDA graph, bool per launch."""
    texts = report.strings.values
    matches = pc.match_substring_regex(texts, _GRAPH_LAUNCH).fill_null(False).to_numpy(zero_copy_only=False)
    # The last one stands for a call without a name.
    return np.append(matches, False)[launches.name]


def _sums(group: np.ndarray, values_ns: np.ndarray, count: int) -> np.ndarray:
    return np.bincount(group, weights=values_ns, minlength=count).astype(np.int64)
