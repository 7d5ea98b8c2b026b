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

_BYTES, _COMMUNICATOR = "Message size [bytes]", "NCCL communicator ID"


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
    found.bytes[inside], found.communicator[inside] = sizes[at[inside]], communicator[at[inside]]
    return found


def _with_groups(ranges: Payloads, sizes: np.ndarray, communicator: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sizes and communicators, those of a group's end being what its calls add up to."""
    order = np.lexsort((ranges.start_ns, ranges.global_tid))
    number, names = np.arange(len(order)), np.array(ranges.names)[ranges.name[order]]
    size, tid = sizes[order], ranges.global_tid[order]
    told = size != NONE
    added = np.append(0, np.cumsum(np.where(told, size, 0)))
    # The last group start, and the last call with a payload, up to each range.
    begin = np.maximum.accumulate(np.where(names == "ncclGroupStart", number, -1))
    member = np.maximum.accumulate(np.where(told, number, -1))
    end = (names == "ncclGroupEnd") & (begin >= 0) & (member > begin) & (tid[begin] == tid) & (tid[member] == tid)
    sizes, communicator = sizes.copy(), communicator.copy()
    sizes[order[end]] = (added[number] - added[begin + 1])[end]
    communicator[order[end]] = communicator[order[member[end]]]
    return sizes, communicator


def _decoded(payload: np.ndarray, texts: list[str]) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Bytes and communicator of each range, NONE where its payload does not say; and the communicators' names."""
    size, place, names = [], [], {}
    for text in texts:
        try:
            fields = json.loads(text)
        except ValueError:
            fields = {}
        fields = fields if isinstance(fields, dict) else {}
        bytes_ = fields.get(_BYTES)
        size.append(bytes_ if isinstance(bytes_, int) and 0 <= bytes_ < 1 << 62 else NONE)
        name = fields.get(_COMMUNICATOR)
        label = f"{name:x}" if isinstance(name, int) else str(name)
        place.append(NONE if name is None else names.setdefault(label, len(names)))
    # The last one stands for no payload.
    sizes, places = np.array([*size, NONE], dtype=np.int64), np.array([*place, NONE], dtype=np.int32)
    return sizes[payload], places[payload], list(names)
