"""Message bytes and communicator of collectives, from the payload that NCCL puts on its NVTX ranges.

The payload is in an export made with `nsys export --include-json=true` (Nsight 2024.2 or newer).
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np

from recipes.launches import NONE, Launches
from recipes.ranges import Payloads, read_payloads
from recipes.report.report import Report
from recipes.timeline import Lookup

# Older versions of NCCL say Bytes.
_BYTES, _COMMUNICATOR = ("Message size [bytes]", "Bytes"), "NCCL communicator ID"


@dataclass(frozen=True)
class Messages:
    """For each launch: bytes int64, NONE where not known; communicator int32, an index into `communicators`, NONE for
    none."""

    bytes: np.ndarray
    communicator: np.ndarray
    communicators: list[str]


def read_messages(report: Report, launches: Launches) -> Messages:
    """What NCCL's ranges say of the calls launched in them.

    A call inside `ncclGroupEnd` launches the calls since the group's start together: their bytes are added up.
    """
    ranges = read_payloads(report, "nccl")
    count = len(launches.start_ns)
    sizes, communicator, names = _decoded(ranges.payload, ranges.payloads)
    found = Messages(np.full(count, NONE, dtype=np.int64), np.full(count, NONE, dtype=np.int32), names)
    if not len(ranges.start_ns):
        return found
    sizes, communicator = _with_groups(ranges, sizes, communicator)
    enclosing = Lookup(ranges.global_tid, ranges.start_ns, ranges.end_ns, np.arange(len(ranges.start_ns)))
    at = enclosing.find(launches.thread, launches.start_ns)
    inside = np.flatnonzero(at >= 0)
    # Of several kernels that one call launched, nobody knows which has how much.
    crowded = np.bincount(at[inside], minlength=len(sizes))[at[inside]] > 1
    crowded &= ranges.name[at[inside]] == ranges.code("ncclGroupEnd")
    found.bytes[inside] = np.where(crowded, NONE, sizes[at[inside]])
    found.communicator[inside] = communicator[at[inside]]
    return found


def _with_groups(ranges: Payloads, sizes: np.ndarray, communicator: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sizes and communicators, those of the end of an outermost group being what its calls add up to.

    Sends and receives of a group go at the same time: the larger sum counts. A group of several communicators launches
    a kernel for each, which cannot be told apart.
    """
    sizes, communicator = sizes.copy(), communicator.copy()
    start, end, send, receive = (
        ranges.code(name) for name in ("ncclGroupStart", "ncclGroupEnd", "ncclSend", "ncclRecv")
    )
    for thread in np.unique(ranges.global_tid[ranges.name == end]).tolist():
        rows = np.flatnonzero(ranges.global_tid == thread)
        name = ranges.name[rows]
        opened = np.cumsum((name == start).astype(np.int64) - (name == end))
        # An end without a start opens nothing.
        depth = opened - np.minimum(np.minimum.accumulate(opened), 0)
        before = np.append(0, depth[:-1])
        begins = np.maximum.accumulate(np.where((name == start) & (before == 0), np.arange(len(rows)), -1))
        ends = np.flatnonzero((name == end) & (before == 1))
        told = sizes[rows] != NONE
        sums = {
            kind: np.append(0, np.cumsum(np.where(told & chosen, sizes[rows], 0)))
            for kind, chosen in (("send", name == send), ("receive", name == receive),
                                 ("other", (name != send) & (name != receive)))
        }  # fmt: skip
        member = np.maximum.accumulate(np.where(told, np.arange(len(rows)), -1))
        code = communicator[rows][np.maximum(member, 0)]
        changes = np.append(0, np.cumsum(np.append(0, np.diff(code)) != 0))
        first = np.searchsorted(np.flatnonzero(told), begins[ends])
        first = np.append(np.flatnonzero(told), len(rows))[first]
        some = ends[first < ends]
        begin, first = begins[ends][first < ends], first[first < ends]
        within = {kind: total[some] - total[begin] for kind, total in sums.items()}
        one = changes[some] == changes[first + 1]
        total = within["other"] + np.maximum(within["send"], within["receive"])
        sizes[rows[some]] = np.where(one, total, NONE)
        communicator[rows[some]] = np.where(one, communicator[rows[first]], NONE)
    return sizes, communicator


def _decoded(payload: np.ndarray, texts: list[str]) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Bytes and communicator of each range, NONE where its payload does not say; and the communicators' names."""
    used = np.unique(payload[payload >= 0])
    # The last one stands for no payload.
    size, place = np.full(len(texts) + 1, NONE, dtype=np.int64), np.full(len(texts) + 1, NONE, dtype=np.int32)
    names: dict[str, int] = {}
    for number in used.tolist():
        try:
            fields = json.loads(texts[number])
        except ValueError:
            continue
        if not isinstance(fields, dict):
            continue
        bytes_ = next((fields[name] for name in _BYTES if name in fields), None)
        if isinstance(bytes_, int) and 0 <= bytes_ < 1 << 50:
            size[number] = bytes_
        name = fields.get(_COMMUNICATOR)
        if name is not None:
            place[number] = names.setdefault(f"{name:x}" if isinstance(name, int) else str(name), len(names))
    return size[payload], place[payload], list(names)
