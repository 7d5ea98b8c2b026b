"""Message bytes and communicator of collectives, from the payload that NCCL puts on its NVTX ranges.

It is in exports made with `--include-json=true` (as text, the pack's own) or `--include-blobs=true` (as bytes) by
Nsight versions that know these.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recipes.base.interval_lookup import Lookup
from recipes.events.launches import NONE, Launches
from recipes.report import schema
from recipes.report.report import Report
from recipes.steps.ranges import Payloads, read_payloads

#: The head of a payload in bytes: `<IIIIQQ`, see `_from_bytes`.
_HEAD_BYTES = 32
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
    """What NCCL's ranges say of the calls launched in them. PackError when the report's export is damaged.

    A call inside `ncclGroupEnd` launches the calls since the group's start together: their bytes are added up.
    """
    ranges = read_payloads(report, "nccl")
    count = len(launches.start_ns)
    sizes, communicator, names = _decoded(ranges.payload, ranges.payloads)
    found = Messages(np.full(count, NONE, dtype=np.int64), np.full(count, NONE, dtype=np.int32), names)
    if not len(ranges.start_ns):
        return found
    if (sizes == NONE).all():
        sizes, communicator, names = _from_bytes(report, ranges)
        found = replace(found, communicators=names)
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


def _from_bytes(report: Report, ranges: Payloads) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Bytes and communicator of each range, NONE where its payload does not say; and the communicators' names.

    A payload begins with six numbers (`<IIIIQQ`: domain, 0, schema, 1, its size, the size of this head); the fields
    follow at the offsets of their schema, 0 where none is given.
    """
    count = len(ranges.start_ns)
    values = {field: np.zeros(count, dtype=np.uint64) for field in (_BYTES[0], _COMMUNICATOR)}
    known = {field: np.zeros(count, dtype=bool) for field in values}
    fields = report.read(schema.PAYLOAD_FIELDS).to_pylist()
    size = np.nan_to_num(pc.binary_length(ranges.payload_bytes).to_numpy(zero_copy_only=False)).astype(np.int64)
    for length in np.unique(size[size >= _HEAD_BYTES]).tolist():
        rows = np.flatnonzero(size == length)
        raw = np.frombuffer(b"".join(ranges.payload_bytes.take(pa.array(rows)).to_pylist()), np.uint8)
        raw = raw.reshape(len(rows), length)
        numbers = raw[:, 8:12].copy().view("<u4").ravel()
        head = raw[:, 24:32].copy().view("<u8").ravel()
        for entry in fields:
            field = _BYTES[0] if entry["name"] in _BYTES else entry["name"]
            at = _HEAD_BYTES + (entry["offset"] or 0)
            mine = (
                (numbers == entry["schema_id"]) & (ranges.domain_id[rows] == entry["domain_id"]) & (head == _HEAD_BYTES)
            )
            if field in values and at + 8 <= length:
                values[field][rows[mine]] = raw[mine, at : at + 8].copy().view("<u8").ravel()
                known[field][rows[mine]] = True
    message = np.where(known[_BYTES[0]] & (values[_BYTES[0]] < 1 << 50), values[_BYTES[0]].astype(np.int64), NONE)
    names, place = np.unique(values[_COMMUNICATOR], return_inverse=True)
    return (
        message,
        np.where(known[_COMMUNICATOR], place, NONE).astype(np.int32),
        [f"{name:x}" for name in names.tolist()],
    )


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
        except (ValueError, RecursionError):
            continue
        if not isinstance(fields, dict):
            continue
        bytes_ = next((fields[name] for name in _BYTES if name in fields), None)
        if type(bytes_) is int and 0 <= bytes_ < 1 << 50:
            size[number] = bytes_
        name = fields.get(_COMMUNICATOR)
        if name is not None:
            text = f"{name:x}" if isinstance(name, int) else str(name).encode("utf-8", "backslashreplace").decode()
            place[number] = names.setdefault(text, len(names))
    return size[payload], place[payload], list(names)
