"""How work was launched: calls, CUDA graphs, host time inside the calls and between them."""

from __future__ import annotations

import numpy as np

from recipes.base.memory import sums
from recipes.events.gpu_work import MEMCPY, GpuWork
from recipes.events.launch_state import graph_launches, launch_counts
from recipes.events.launches import NONE, Launches
from recipes.report.report import Report


def launch_statistics(
    report: Report,
    work: GpuWork,
    launches: Launches,
    group: np.ndarray,
    step_of_group: np.ndarray,
    device_of_group: np.ndarray,
) -> dict[str, np.ndarray]:
    """The launch columns of the tables, int64 (counts, ns), for each group.

    `group` is that of each operation (int, 0 to groups - 1), `step_of_group` and `device_of_group` int per group.
    A launch whose operations are in several groups of one device is charged to the first of them.
    """
    count = len(step_of_group)
    known = np.flatnonzero(launches.of_operation != NONE)
    launch, of_launch, kind = launches.of_operation[known], group[known], work.kind[known]
    from_graph = graph_launches(report, launches)
    copying = np.zeros(len(launches.start_ns), dtype=bool)
    copying[launch[kind == MEMCPY]] = True
    pair_group, pair_launch = _pairs(of_launch, launch, device_of_group, len(launches.start_ns))
    begun_ns, done_ns = launches.start_ns[pair_launch], launches.end_ns[pair_launch]
    thread = launches.thread[pair_launch]
    order = _by_thread(thread, begun_ns)
    after, before = order[1:], order[:-1]
    pair_step = step_of_group[pair_group]
    together = (thread[after] == thread[before]) & (pair_step[after] == pair_step[before])
    after, before = after[together], before[together]
    # A copy to or from unpinned memory waits inside its call: that is no launch cost.
    issuing = ~copying[pair_launch]
    return {
        **launch_counts(work, launches, from_graph, group, count),
        "launches": np.bincount(pair_group, minlength=count),
        "graph_launches": np.bincount(pair_group[from_graph[pair_launch]], minlength=count),
        "copy_launches": np.bincount(pair_group[~issuing], minlength=count),
        "launch_call_ns": sums(pair_group[issuing], (done_ns - begun_ns)[issuing], count),
        "between_launches": np.bincount(pair_group[after], minlength=count),
        "between_launches_ns": sums(pair_group[after], np.maximum(begun_ns[after] - done_ns[before], 0), count),
    }


def _pairs(
    group: np.ndarray, launch: np.ndarray, device_of_group: np.ndarray, launches: int
) -> tuple[np.ndarray, np.ndarray]:
    """The distinct pairs of group and launch, in order; of a launch in several groups of a device the first."""
    key = np.sort(group.astype(np.int64) * launches + launch, kind="stable")
    first = np.ones(len(key), dtype=bool)
    first[1:] = key[1:] != key[:-1]
    pair_group, pair_launch = np.divmod(key[first], max(launches, 1))
    if np.bincount(pair_launch, minlength=1).max() > 1:
        # As where steps are inferred inside one replay of a graph.
        _, once = np.unique(device_of_group[pair_group] * launches + pair_launch, return_index=True)
        once.sort()
        pair_group, pair_launch = pair_group[once], pair_launch[once]
    return pair_group, pair_launch


def _by_thread(thread: np.ndarray, begun_ns: np.ndarray) -> np.ndarray:
    """The order of launches by thread and start."""
    if len(thread) and (thread == thread[0]).all():
        return np.argsort(begun_ns, kind="stable")
    return np.lexsort((begun_ns, thread))
