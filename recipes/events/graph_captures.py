"""When CUDA graphs were captured: what a process launches meanwhile goes into a graph and has no work of its own."""

from __future__ import annotations

import numpy as np

from recipes.base.interval_lookup import Lookup
from recipes.events.devices import pid_of
from recipes.report.report import Report

_BEGIN, _END = ("cudaStreamBeginCapture", "cuStreamBeginCapture"), ("cudaStreamEndCapture", "cuStreamEndCapture")


def capture_edge_ids(report: Report) -> tuple[np.ndarray, np.ndarray]:
    """The string ids of the calls that begin captures, and of those that end them."""
    texts = list(zip(report.strings.ids.tolist(), report.strings.values.to_pylist(), strict=True))
    begins, ends = (
        np.array([number for number, text in texts if text is not None and text.startswith(names)], dtype=np.int64)
        for names in (_BEGIN, _END)
    )
    return begins, ends


def capture_edges(name: np.ndarray, edge_ids: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Which calls, given by string id, are such edges, and whether each is an end."""
    begins, ends = edge_ids
    if not len(begins):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=bool)
    rows = np.flatnonzero(np.isin(name, np.append(begins, ends)))
    return rows, np.isin(name[rows], ends)


def captures(thread: np.ndarray, at_ns: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Thread, begin and end of each capture: a begin and the next end on its thread."""
    order = np.lexsort((ends, at_ns, thread))
    thread, at_ns, ends = thread[order], at_ns[order], ends[order]
    pair = np.flatnonzero(~ends[:-1] & ends[1:] & (thread[:-1] == thread[1:]))
    return thread[pair], at_ns[pair], at_ns[pair + 1]


def while_capturing(pid: np.ndarray, at_ns: np.ndarray, spans: tuple[np.ndarray, np.ndarray, np.ndarray]) -> np.ndarray:
    """Which times of processes lie in the capture of a graph (as `captures` gives them) by any of their threads."""
    thread, begin_ns, end_ns = spans
    return Lookup(pid_of(thread), begin_ns, end_ns, np.zeros(len(thread), dtype=np.int64)).find(pid, at_ns) >= 0
