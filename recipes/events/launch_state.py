"""Whether CUDA graphs are on, partly on or off: one definition for all that says so.

What counts is what launched the kernels, not how many operations a launch has: a graph of three kernels is a graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from recipes.events.cuda_calls import GRAPH_LAUNCH, is_of_kind
from recipes.events.gpu_work import GRAPH, KERNEL, GpuWork
from recipes.events.launches import NONE, Launches
from recipes.report.report import Report

#: Graphs were traced as a whole: they are in use, but how much of the work is in them is not seen.
ON, PARTLY, OFF, WHOLE, UNKNOWN = STATES = ("on", "partly on", "off", "whole", "unknown")
#: From this share of kernels in graphs on, graphs are on: some kernels, as of sampling, mostly stay outside.
_ON = 0.9
#: The launch must be known of this share of the operations: of a minority nothing is concluded for all.
_KNOWN = 0.5


@dataclass(frozen=True)
class LaunchState:
    """How some work was launched: ON, PARTLY, OFF, WHOLE or UNKNOWN, and the share of kernels in graphs.

    The share is of the kernels whose launch is known, 0 to 1; NaN for WHOLE and UNKNOWN.
    """

    graphs: str
    in_graphs: float


def launch_state(counts: Mapping[str, float], *, lost: bool = False) -> LaunchState:
    """The state by the counts of `launch_counts` of one group, or their sums or means over groups.

    `lost` says that most graph launches left no work in the report: nothing is known of a work that lacks theirs.
    """
    if not lost and counts["opaque_graphs"]:
        return LaunchState(WHOLE, float("nan"))
    if lost or not counts["launched"] or counts["launched"] < _KNOWN * counts["operations"]:
        return LaunchState(UNKNOWN, float("nan"))
    # A step of copies only has no kernels to go by.
    share = counts["kernels_in_graphs"] / counts["kernels"] if counts["kernels"] else float(counts["in_graphs"] > 0)
    if not counts["in_graphs"]:
        return LaunchState(OFF, share)
    return LaunchState(ON if share >= _ON else PARTLY, share)


def launch_counts(
    work: GpuWork, launches: Launches, from_graph: np.ndarray, group: np.ndarray, groups: int
) -> dict[str, np.ndarray]:
    """What `launch_state` goes by, int64 for each group.

    `group` is that of each operation (int, 0 to groups - 1; negative: none), `from_graph` bool per launch, as
    `graph_launches` gives it. operations: all; launched: those whose launch is known; kernels: kernels among these;
    in_graphs, kernels_in_graphs: those of the two that a graph launch started; opaque_graphs: graph executions traced
    as a whole, which are in no other count but operations and launched.
    """
    launch, kind = launches.of_operation, work.kind
    # The last one stands for an operation without a launch.
    in_graph = np.append(from_graph, False)[launch] & (kind != GRAPH)
    # What an operation is, in bits, so that all is counted at once.
    known, two, four, eight = launch != NONE, np.int8(2), np.int8(4), np.int8(8)
    code = known + two * (kind == KERNEL) + four * in_graph + eight * (kind == GRAPH)
    # Shifted by one: bincount takes no negative numbers.
    table = np.bincount((group.astype(np.int64) + 1) * 16 + code, minlength=(groups + 1) * 16).reshape(-1, 16)[1:]
    wanted = {
        "operations": 0, "launched": 1, "kernels": 1 + 2, "in_graphs": 4, "kernels_in_graphs": 2 + 4, "opaque_graphs": 8
    }  # fmt: skip
    return {name: table[:, np.arange(16) & bits == bits].sum(axis=1) for name, bits in wanted.items()}


def graph_launches(report: Report, launches: Launches) -> np.ndarray:
    """Which launches start a CUDA graph, bool per launch."""
    # The last one stands for a call without a name, and for a launch without a call.
    return np.append(is_of_kind(report.strings.values, GRAPH_LAUNCH), False)[launches.name]
