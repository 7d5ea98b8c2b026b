"""What the GPUs did: kernels, copies, sets and graph executions of a report as plain columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recipes.devices import Devices, find_devices
from recipes.report import schema
from recipes.report.report import Report

#: Kinds of operation, as stored in GpuWork.kind.
KERNEL, MEMCPY, MEMSET, GRAPH = range(4)

_TABLES = {
    KERNEL: schema.KERNELS,
    MEMCPY: schema.MEMCPYS,
    MEMSET: schema.MEMSETS,
    GRAPH: schema.GRAPH_RUNS,
}
_MEMCPY_NAMES = {1: "memcpy HtoD", 2: "memcpy DtoH", 8: "memcpy DtoD", 10: "memcpy PtoP"}


@dataclass(frozen=True)
class Span:
    """A time range in ns, open where None. Work that touches it counts, whole, as Nsight's own filter has it."""

    start_ns: int | None = None
    end_ns: int | None = None

    def touches(self, starts_ns: np.ndarray, ends_ns: np.ndarray) -> np.ndarray:
        touching = np.ones(len(starts_ns), dtype=bool)
        if self.start_ns is not None:
            touching &= ends_ns >= self.start_ns
        if self.end_ns is not None:
            touching &= starts_ns <= self.end_ns
        return touching


@dataclass(frozen=True)
class GpuWork:
    """All GPU operations of a report: arrays of one entry per operation, kinds one after the other.

    start_ns, end_ns int64; kind int8 (KERNEL…); device int32, an index into `devices.numbers`; name int32, an
    index into `names` and `short_names`. `dropped` operations had no usable times and are not here.
    """

    start_ns: np.ndarray
    end_ns: np.ndarray
    kind: np.ndarray
    device: np.ndarray
    name: np.ndarray
    names: list[str]
    short_names: list[str]
    devices: Devices
    dropped: int

    def __len__(self) -> int:
        return len(self.start_ns)


def read_gpu_work(report: Report, span: Span = Span()) -> GpuWork:
    """The GPU work of a report that touches a span. PackError when the report's export is damaged."""
    parts = [_read(report, kind, span) for kind in _TABLES]
    names: list[str] = []
    short_names: list[str] = []
    name_codes = []
    for part in parts:
        name_codes.append(part.name + len(names))
        names += part.names
        short_names += part.short_names
    devices, device = find_devices(
        report,
        np.concatenate([part.global_pid for part in parts]),
        np.concatenate([part.device_id for part in parts]),
    )
    return GpuWork(
        start_ns=np.concatenate([part.start_ns for part in parts]),
        end_ns=np.concatenate([part.end_ns for part in parts]),
        kind=np.repeat(np.array(list(_TABLES), dtype=np.int8), [len(part.start_ns) for part in parts]),
        device=device,
        name=np.concatenate(name_codes).astype(np.int32, copy=False),
        names=names,
        short_names=short_names,
        devices=devices,
        dropped=sum(part.dropped for part in parts),
    )


@dataclass(frozen=True)
class _Part:
    start_ns: np.ndarray
    end_ns: np.ndarray
    global_pid: np.ndarray
    device_id: np.ndarray
    name: np.ndarray
    names: list[str]
    short_names: list[str]
    dropped: int


def _read(report: Report, kind: int, span: Span) -> _Part:
    """The operations of one kind, with what has no usable times left out."""
    label = {KERNEL: ["name", "short_name"], MEMCPY: ["copy_kind"]}.get(kind, [])
    table = report.read(_TABLES[kind], ["start_ns", "end_ns", "global_pid", "device_id", *label])
    start_ns, end_ns = _ints(table["start_ns"], 0), _ints(table["end_ns"], -1)
    usable = end_ns >= start_ns
    # A record without times has zeros in both.
    usable &= (start_ns != 0) | (end_ns != 0)
    dropped = int(len(usable) - np.count_nonzero(usable))
    keep = usable & span.touches(start_ns, end_ns)
    name, names, short_names = _names(table, kind)
    columns = [start_ns, end_ns, _ints(table["global_pid"], 0), _ints(table["device_id"], -1), name]
    if not keep.all():
        columns = [column[keep] for column in columns]
    start_ns, end_ns, global_pid, device_id, name = columns
    # Narrow types where the values are small: millions of rows.
    return _Part(start_ns, end_ns, global_pid, device_id.astype(np.int32), name, names, short_names, dropped)


def _names(table: pa.Table, kind: int) -> tuple[np.ndarray, list[str], list[str]]:
    """A code per operation, and the name and short name of each code."""
    if kind == KERNEL:
        return _kernel_names(table["name"].combine_chunks(), table["short_name"].combine_chunks())
    if kind == MEMCPY:
        encoded = table["copy_kind"].combine_chunks().fill_null(-1).dictionary_encode()
        names = [_MEMCPY_NAMES.get(code, "memcpy") for code in encoded.dictionary.to_pylist()]
        return encoded.indices.to_numpy(), names, names
    name = "memset" if kind == MEMSET else "CUDA graph (traced as a whole)"
    return np.zeros(len(table), dtype=np.int32), [name], [name]


def _kernel_names(name: pa.DictionaryArray, short: pa.DictionaryArray) -> tuple[np.ndarray, list[str], list[str]]:
    unnamed = len(name.dictionary)
    codes = name.indices.fill_null(unnamed).to_numpy()
    # Any kernel of a name tells its short name.
    short_of = np.full(unnamed + 1, -1)
    short_of[codes] = short.indices.fill_null(-1).to_numpy()
    texts = [*short.dictionary.to_pylist(), None]
    names = [text or "[no name]" for text in [*name.dictionary.to_pylist(), None]]
    return codes, names, [texts[at] or long for at, long in zip(short_of.tolist(), names, strict=True)]


def _ints(column: pa.ChunkedArray, null: int) -> np.ndarray:
    array = column.combine_chunks()
    return (pc.fill_null(array, null) if array.null_count else array).to_numpy(zero_copy_only=False)
