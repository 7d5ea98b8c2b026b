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
from recipes.report.report import Report
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
    own = np.flatnonzero(ranges.by_thread & ~_is_step(ranges, steps) & ~_holds_step(ranges, steps))
    if not len(own):
        return nothing
    innermost = Lookup(ranges.global_tid[own], ranges.start_ns[own], ranges.end_ns[own], own)
    at_launch = innermost.find(launches.thread, launches.start_ns)
    known = launches.of_operation != NONE
    of_operation = np.full(len(work), NONE, dtype=np.int64)
    of_operation[known] = at_launch[launches.of_operation[known]]
    rows, at_capture = _at_capture(report, work, innermost)
    by_capture = np.zeros(len(work), dtype=bool)
    by_capture[rows] = at_capture != NONE
    of_operation[rows] = at_capture
    return _named(of_operation, by_capture, ranges, own)


def _is_step(ranges: Ranges, steps: Steps) -> np.ndarray:
    """Which ranges are steps."""
    keys = set(zip(steps.global_tid.tolist(), steps.start_ns.tolist(), steps.texts, strict=True))
    found = np.zeros(len(ranges), dtype=bool)
    candidates = np.flatnonzero(np.isin(ranges.start_ns, steps.start_ns))
    named = zip(
        ranges.global_tid[candidates].tolist(), ranges.start_ns[candidates].tolist(),
        (ranges.texts[text] for text in ranges.text[candidates].tolist()), strict=True,
    )  # fmt: skip
    found[candidates] = [key in keys for key in named]
    return found


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
    columns = {name: events[name].combine_chunks().fill_null(NONE).to_numpy() for name in events.column_names}
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


def _named(of_operation: np.ndarray, by_capture: np.ndarray, ranges: Ranges, own: np.ndarray) -> Layers:
    """The layers by the names of their paths."""
    used = np.unique(of_operation[of_operation != NONE])
    parents = Lookup(ranges.global_tid[own], ranges.start_ns[own], ranges.end_ns[own], own)
    paths: dict[int, str] = {}
    path_of = {int(row): _path(int(row), ranges, parents, paths) for row in used}
    names = sorted(set(path_of.values()))
    code = {name: number for number, name in enumerate(names)}
    table = np.full(len(ranges) + 1, NONE, dtype=np.int32)
    table[used] = [code[path_of[int(row)]] for row in used]
    return Layers(table[of_operation], by_capture, names)


def _path(row: int, ranges: Ranges, parents: Lookup, paths: dict[int, str]) -> str:
    """The texts from the outermost range down to one, counters folded."""
    if row not in paths:
        own = fold_counters(ranges.texts[ranges.text[row]])
        before = np.array([ranges.start_ns[row] - 1])
        parent = int(parents.find(ranges.global_tid[row : row + 1], before)[0])
        inside = parent != NONE and ranges.end_ns[parent] >= ranges.end_ns[row]
        paths[row] = f"{_path(parent, ranges, parents, paths)} / {own}" if inside else own
    return paths[row]
