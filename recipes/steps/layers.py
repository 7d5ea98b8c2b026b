"""Layers: the ranges inside steps, and which of them each GPU operation belongs to.

Work that was launched one by one belongs to the innermost range that was open at its launch. The work of a CUDA graph
is launched all at once; but each node of the graph was made by a call while the graph was captured, and the range that
was open then is its layer. That is told apart, since it says where the code stood at capture time, not at replay.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from recipes.base.interval_lookup import Lookup, enclosing
from recipes.events.devices import pid_of
from recipes.events.gpu_work import GpuWork, read_graph_nodes
from recipes.events.launches import NONE, Launches
from recipes.report import schema
from recipes.report.report import Report, numbers
from recipes.steps.ranges import Ranges
from recipes.steps.steps import Steps

_COUNTER = re.compile(r"\d+")
#: Levels of ranges, and characters of a path, beyond which layers are not told apart: pushes without pops pile up.
_MOST_LEVELS, _LONGEST_PATH = 100, 2000


@dataclass(frozen=True)
class Layers:
    """The layer of each operation (int32, an index into `names`; NONE for none), and whether it is that of the capture
    of a CUDA graph (bool per operation). A name is the path from the outermost range inside the step, counters
    folded."""

    of_operation: np.ndarray
    by_capture: np.ndarray
    names: list[str]


def fold_counters(text: str) -> str:
    """The text with its numbers as *: `step 17` is one of `step *`."""
    return _COUNTER.sub("*", text)


def find_layers(report: Report, work: GpuWork, launches: Launches, ranges: Ranges, steps: Steps) -> Layers:
    """The layers of all operations. PackError when the report's export is damaged, or its host times lie farther apart
    than any capture lasts."""
    nothing = Layers(np.full(len(work), NONE, dtype=np.int32), np.zeros(len(work), dtype=bool), [])
    own = np.flatnonzero(ranges.by_thread & ~_holds_step(ranges, steps))
    if not len(own):
        return nothing
    innermost = Lookup(ranges.global_tid[own], ranges.start_ns[own], ranges.end_ns[own], np.arange(len(own)))
    at_launch = innermost.find(launches.thread, launches.start_ns)
    known = launches.of_operation != NONE
    of_operation = np.full(len(work), NONE, dtype=np.int64)
    of_operation[known] = at_launch[launches.of_operation[known]]
    by_capture = np.zeros(len(work), dtype=bool)
    for rows, at_capture in _at_capture(report, work, innermost):
        captured = at_capture != NONE
        of_operation[rows[captured]] = at_capture[captured]
        by_capture[rows[captured]] = True
    path, names = _paths(ranges, own)
    of_operation, names = _used(np.append(path, np.int32(NONE))[of_operation], names)
    return Layers(of_operation, by_capture, names)


def _holds_step(ranges: Ranges, steps: Steps) -> np.ndarray:
    """Which ranges are around a step of their thread, or steps themselves: no layers of it."""
    holds = np.zeros(len(ranges), dtype=bool)
    for thread in np.unique(steps.global_tid).tolist():
        own = np.flatnonzero(steps.global_tid == thread)
        own = own[np.argsort(steps.start_ns[own], kind="stable")]
        rows = np.flatnonzero(ranges.global_tid == thread)
        place = np.searchsorted(steps.start_ns[own], ranges.start_ns[rows], side="left")
        first_end_ns = np.append(steps.end_ns[own], np.iinfo(np.int64).max)[place]
        holds[rows] = ranges.end_ns[rows] >= first_end_ns
    holds[steps.of_range] = True
    return holds


def _at_capture(report: Report, work: GpuWork, innermost: Lookup) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The operations that are graph nodes, and the range that was open when each node was captured; NONE for none."""
    events = report.read(schema.GRAPH_NODES)
    if not len(events):
        return
    thread, start_ns = numbers(events["global_tid"], NONE), numbers(events["start_ns"], NONE)
    ids, originals = numbers(events["graph_node_id"], NONE), numbers(events["original_graph_node_id"], NONE)
    # Each process hands out ids of its own.
    pid = pid_of(thread)
    for process, own, node in read_graph_nodes(report, work):
        rows = np.arange(len(work))[own][node != NONE]
        made = np.flatnonzero(pid == process)
        if not len(rows) or not len(made):
            continue
        distinct = pa.array(node[node != NONE]).dictionary_encode()
        wanted = distinct.dictionary.to_numpy()
        # A node that is launched was copied from the one that was captured, when the graph was made ready. It may have
        # a row for its making and one for its copying.
        copied = made[originals[made] != NONE]
        original = _first_of(ids[copied], originals[copied], wanted)
        event = _first_of(ids[made], made, np.where(original == NONE, wanted, original))
        found = np.where(event == NONE, NONE, innermost.find(thread[event], start_ns[event]))
        yield rows, found[distinct.indices.to_numpy()]


def _first_of(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The value that stands first for each wanted key; NONE for a key that is not there."""
    if not len(keys):
        return np.full(len(wanted), NONE)
    order = np.argsort(keys, kind="stable")
    at = np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)
    return np.where(keys[order][at] == wanted, values[order][at], NONE)


def _paths(ranges: Ranges, own: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """The path of each of the ranges, the texts from the outermost range down to it with counters folded; of those
    deeper than _MOST_LEVELS that of the one around them."""
    parent = enclosing(ranges.global_tid[own], ranges.start_ns[own], ranges.end_ns[own])
    code_of: dict[str, int] = {}
    text = np.array([code_of.setdefault(fold_counters(text), len(code_of)) for text in ranges.texts])[ranges.text[own]]
    texts = list(code_of)
    path = np.full(len(own), NONE, dtype=np.int32)
    names: list[str] = []
    unnamed = np.arange(len(own))
    for _ in range(_MOST_LEVELS):
        # From the outside inwards.
        ready = (parent[unnamed] == NONE) | (path[parent[unnamed]] != NONE)
        rows = unnamed[ready]
        above = np.where(parent[rows] == NONE, NONE, path[parent[rows]])
        code = (above + 1).astype(np.int64) * len(texts) + text[rows]
        distinct, which = np.unique(code, return_inverse=True)
        path[rows] = which.ravel() + len(names)
        parts = [divmod(number, len(texts)) for number in distinct.tolist()]
        names += [_joined(names[up - 1], texts[last]) if up else texts[last] for up, last in parts]
        unnamed = unnamed[~ready]
        if not len(unnamed):
            break
    while len(unnamed):
        # Pushes without pops pile up: what lies deeper counts as the nearest one around it that has a path.
        around = parent[unnamed]
        named = path[around] != NONE
        path[unnamed] = np.where(named, path[around], NONE)
        parent[unnamed] = parent[around]
        unnamed = unnamed[~named]
    return path, names


def _joined(above: str, text: str) -> str:
    """The path of a range inside another, which is that of the other when it gets too long."""
    return above if len(above) + len(text) > _LONGEST_PATH else f"{above} / {text}"


def _used(path: np.ndarray, names: list[str]) -> tuple[np.ndarray, list[str]]:
    """The same with only those names that are used, in order, each once: paths that were cut short can be alike."""
    used = [number for number in np.unique(path).tolist() if number != NONE]
    ordered = sorted({names[number] for number in used})
    place_of = {name: place for place, name in enumerate(ordered)}
    place = np.full(len(names) + 1, NONE, dtype=np.int32)
    place[used] = [place_of[names[number]] for number in used]
    return place[path], ordered
