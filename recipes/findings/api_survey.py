"""One pass over the API calls of all processes: how many, which of them launched recorded work, which set things up."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from recipes.capture.capture import Capture
from recipes.events.devices import pid_of
from recipes.events.gpu_work import read_correlation, read_gpu_work
from recipes.events.graph_captures import capture_edge_ids, capture_edges, captures, while_capturing
from recipes.events.launches import LaunchIds
from recipes.report import schema
from recipes.report.report import Report, numbers
from recipes.steps.attribution import launch_name_ids

#: Calls of starting up, by what they do. Freeing and allocating in stream order belong to steady work.
SETUP = {
    "loading code": r"cu(da)?(Module|Library)Load|cu(da)?Link",
    "allocating and freeing": (
        r"cuda(Malloc|HostAlloc|HostRegister|FreeHost)(?!\w*Async)"
        r"|cuMem(Alloc|HostAlloc|HostRegister|Create|FreeHost)(?!\w*Async)"
    ),
    "making CUDA graphs": r"cu(da)?GraphInstantiate|cu(da)?GraphUpload",
}
_COLUMNS = ("global_tid", "correlation_id", "name", "start_ns", "end_ns", "return_value")


@dataclass(frozen=True)
class ApiSurvey:
    """What the API calls of a report tell.

    `calls`, `last_ns` and `last_work_ns`: for each process how many, the end of the last one, and that of its last
    operation. Launch calls in order of start, those that failed or went into a graph under capture left out: launch_ns,
    launch_pid int64, recorded bool (the report has work of it). Calls that set things up: setup_ns, setup_end_ns int64,
    setup_kind int8, a place in SETUP.
    The times in which threads captured graphs: capture_ns, capture_end_ns, capture_thread int64.
    """

    calls: dict[int, int]
    last_ns: dict[int, int]
    last_work_ns: dict[int, int]
    launch_ns: np.ndarray
    launch_pid: np.ndarray
    recorded: np.ndarray
    setup_ns: np.ndarray
    setup_end_ns: np.ndarray
    setup_kind: np.ndarray
    capture_ns: np.ndarray
    capture_end_ns: np.ndarray
    capture_thread: np.ndarray


def survey_api_calls(capture: Capture) -> ApiSurvey:
    """Surveys the API calls of a report piece by piece: there can be many more of them than operations."""
    report, span = capture.report, capture.span
    # Of a time range too: a launch in it may have its work behind it.
    work = read_gpu_work(report) if capture.filtered else capture.work
    known, last_work_ns = {}, {}
    for pid, rows, ids in read_correlation(report, work):
        if len(ids):
            known[pid], last_work_ns[pid] = LaunchIds(ids), int(work.end_ns[rows].max())
    launching = launch_name_ids(report)
    setup = [_ids_of(report, pattern) for pattern in SETUP.values()]
    edge_ids = capture_edge_ids(report)
    calls: dict[int, int] = {}
    last_ns: dict[int, int] = {}
    parts: dict[str, list[tuple[np.ndarray, ...]]] = {"launch": [], "setup": [], "edge": []}
    for batch in report.batches(schema.API_CALLS, _COLUMNS):
        thread, correlation_id, name, start_ns, end_ns, status = (numbers(column, 0) for column in batch.columns)
        pid = pid_of(thread)
        inside = span.touches(start_ns, end_ns)
        for process in np.unique(pid).tolist():
            own = pid == process
            calls[process] = calls.get(process, 0) + int(np.count_nonzero(own))
            last_ns[process] = max(last_ns.get(process, 0), int(end_ns[own].max()))
            rows = np.flatnonzero(own & inside & (status == 0) & np.isin(name, launching))
            ids = known.get(process)
            recorded = np.zeros(len(rows), bool) if ids is None else ids.places(correlation_id[rows]) >= 0
            parts["launch"].append((start_ns[rows], thread[rows], recorded, correlation_id[rows]))
        for kind, ids in enumerate(setup):
            rows = np.flatnonzero(inside & np.isin(name, ids))
            codes = np.full(len(rows), kind, dtype=np.int8)
            parts["setup"].append((start_ns[rows], end_ns[rows], codes, pid[rows], correlation_id[rows]))
        rows, ends = capture_edges(name, edge_ids)
        parts["edge"].append((thread[rows], start_ns[rows], ends))
    launch_ns, launch_thread, recorded, launch_id = _joined(parts["launch"], (np.int64, np.int64, bool, np.int64))
    setup_ns, setup_end_ns, setup_kind, *setup_ids = _joined(
        parts["setup"], (np.int64, np.int64, np.int8, np.int64, np.int64)
    )
    once = _once(*setup_ids)
    setup_ns, setup_end_ns, setup_kind = setup_ns[once], setup_end_ns[once], setup_kind[once]
    spans = captures(*_joined(parts["edge"], (np.int64, np.int64, bool)))
    launch_pid = pid_of(launch_thread)
    captured = while_capturing(launch_pid, launch_ns, spans)
    once = _once(launch_pid, launch_id)
    order = once[np.argsort(launch_ns[once], kind="stable")]
    order = order[~captured[order] | recorded[order]]
    return ApiSurvey(
        calls=calls,
        last_ns=last_ns,
        last_work_ns=last_work_ns,
        launch_ns=launch_ns[order],
        launch_pid=launch_pid[order],
        recorded=recorded[order],
        setup_ns=setup_ns,
        setup_end_ns=np.maximum(setup_end_ns, setup_ns),
        setup_kind=setup_kind,
        capture_thread=spans[0],
        capture_ns=spans[1],
        capture_end_ns=spans[2],
    )


def _once(pid: np.ndarray, correlation_id: np.ndarray) -> np.ndarray:
    """The first row of each call: where call stacks are recorded, a call has a row for each of its names."""
    order = np.lexsort((correlation_id, pid))
    again = (np.diff(pid[order]) == 0) & (np.diff(correlation_id[order]) == 0)
    return np.sort(order[np.append(True, ~again)[: len(order)]])


def _ids_of(report: Report, pattern: str) -> np.ndarray:
    """The ids of the strings that begin with a pattern."""
    found = [text is not None and re.match(pattern, text) is not None for text in report.strings.values.to_pylist()]
    return report.strings.ids[np.array(found, dtype=bool)]


def _joined(parts: list[tuple[np.ndarray, ...]], types: tuple) -> list[np.ndarray]:
    empty = tuple(np.zeros(0, dtype=kind) for kind in types)
    return [np.concatenate(columns) for columns in zip(empty, *parts, strict=True)]
