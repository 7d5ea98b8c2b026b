"""Layers: the ranges inside steps, and which of them each GPU operation belongs to.

Work that was launched one by one belongs to the innermost range that was open at its launch. The work of a CUDA graph
is launched all at once; but each node of the graph was made by a call while the graph was captured, and the range that
was open then is its layer. That is told apart, since it says where the code stood at capture time, not at replay.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from recipes.gpu_work import GpuWork, read_graph_nodes
from recipes.launches import NONE, Launches
from recipes.ranges import Ranges
from recipes.report import schema
from recipes.report.report import Report, numbers
from recipes.steps import Steps
from recipes.timeline import Lookup

_COUNTER = re.compile(r"\d+")


@dataclass(frozen=True)
class Layers:
    """The layer of each operation (int32, an index into `names`; NONE for none), and whether it is that of the
    capture of a CUDA graph (bool). A name is the path from the outermost range inside the step, counters folded."""

    of_operation: np.ndarray
    by_capture: np.ndarray
    names: list[str]


def fold_counters(text: str) -> str:
    """The text with its numbers as *: `step 17` is one of `step *`."""
    return _COUNTER.sub("*", text)


def find_layers(report: Report, work: GpuWork, launches: Launches, ranges: Ranges, steps: Steps) -> Layers:
    """The layers of all operations."""
    nothing = Layers(np.full(len(work), NONE, dtype=np.int32), np.zeros(len(work), dtype=bool), [])
    inside = ranges.by_thread & ~_holds_step(ranges, steps)
    inside[steps.of_range] = False
    own = np.flatnonzero(inside)
    if not len(own):
        return nothing
    innermost = Lookup(ranges.global_tid[own], ranges.start_ns[own], ranges.end_ns[own], np.arange(len(own)))
    at_launch = innermost.find(launches.thread, launches.start_ns)
    known = launches.of_operation != NONE
    of_operation = np.full(len(work), NONE, dtype=np.int64)
    of_operation[known] = at_launch[launches.of_operation[known]]
    rows, at_capture = _at_capture(report, work, innermost)
    by_capture = np.zeros(len(work), dtype=bool)
    by_capture[rows] = at_capture != NONE
    of_operation[rows] = at_capture
    path, names = _paths(ranges, own, innermost)
    of_operation, names = _used(np.append(path, np.int32(NONE))[of_operation], names)
    return Layers(of_operation, by_capture, names)


def _holds_step(ranges: Ranges, steps: Steps) -> np.ndarray:
    """Which ranges are around a step of their thread: no layers of it."""
    first_after = np.full(len(ranges), np.iinfo(np.int64).max)
    for thread in np.unique(steps.global_tid).tolist():
        starts_ns = np.sort(steps.start_ns[steps.global_tid == thread])
        rows = np.flatnonzero(ranges.global_tid == thread)
        place = np.searchsorted(starts_ns, ranges.start_ns[rows], side="left")
        first_after[rows] = np.append(starts_ns, np.iinfo(np.int64).max)[place]
    return first_after < ranges.end_ns


def _at_capture(report: Report, work: GpuWork, innermost: Lookup) -> tuple[np.ndarray, np.ndarray]:
    """The operations that are graph nodes, and the range that was open when each node was made."""
    node = read_graph_nodes(report, work)
    rows = np.flatnonzero(node != NONE)
    events = report.read(schema.GRAPH_NODES)
    if not len(rows) or not len(events):
        return rows[:0], rows[:0]
    columns = {name: numbers(events[name], NONE) for name in events.column_names}
    order = np.argsort(columns["graph_node_id"], kind="stable")
    ids = columns["graph_node_id"][order]

    def row_of(wanted: np.ndarray) -> np.ndarray:
        at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
        return np.where(ids[at] == wanted, order[at], NONE)

    distinct = pa.array(node[rows]).dictionary_encode()
    made = row_of(distinct.dictionary.to_numpy())
    # A node that is launched was copied from the one that was captured, when the graph was made ready.
    original = np.where(made != NONE, columns["original_graph_node_id"][made], NONE)
    captured = np.where(original != NONE, row_of(original), made)
    found = innermost.find(columns["global_tid"][captured], columns["start_ns"][captured])
    found = np.where(captured != NONE, found, NONE)
    return rows, found[distinct.indices.to_numpy()]


def _paths(ranges: Ranges, own: np.ndarray, innermost: Lookup) -> tuple[np.ndarray, list[str]]:
    """The path of each of the ranges, the texts from the outermost range down to it with counters folded."""
    start_ns, end_ns = ranges.start_ns[own], ranges.end_ns[own]
    parent = innermost.find(ranges.global_tid[own], start_ns - 1)
    # What ends before its parent does not lie in it.
    parent[(parent != NONE) & (end_ns[parent] < end_ns)] = NONE
    texts, text_of = np.unique([fold_counters(text) for text in ranges.texts], return_inverse=True)
    text = text_of[ranges.text[own]]
    path, names = np.full(len(own), NONE, dtype=np.int32), []
    unnamed = np.arange(len(own))
    while len(unnamed):
        # From the outside inwards; a parent starts before its children, so it ends.
        ready = (parent[unnamed] == NONE) | (path[parent[unnamed]] != NONE)
        rows = unnamed[ready]
        above = np.where(parent[rows] == NONE, NONE, path[parent[rows]])
        code = (above + 1).astype(np.int64) * len(texts) + text[rows]
        distinct, which = np.unique(code, return_inverse=True)
        path[rows] = which.ravel() + len(names)
        parts = [divmod(number, len(texts)) for number in distinct.tolist()]
        names += [f"{names[up - 1]} / {texts[last]}" if up else str(texts[last]) for up, last in parts]
        unnamed = unnamed[~ready]
    return path, names


def _used(path: np.ndarray, names: list[str]) -> tuple[np.ndarray, list[str]]:
    """The same with only those names that are used, in order."""
    used = [number for number in np.unique(path).tolist() if number != NONE]
    ordered = sorted(used, key=names.__getitem__)
    place = np.full(len(names) + 1, NONE, dtype=np.int32)
    place[ordered] = np.arange(len(ordered), dtype=np.int32)
    return place[path], [names[number] for number in ordered]
