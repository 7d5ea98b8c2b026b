"""What the GPUs did: kernels, copies, memsets and graph executions of a report as plain columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from recipes.base.memory import gather
from recipes.events.devices import Devices, find_devices, pid_of
from recipes.report import schema
from recipes.report.report import Report, numbers

#: Kinds of operation, as stored in GpuWork.kind.
KERNEL, MEMCPY, MEMSET, GRAPH = range(4)

_TABLES = {
    KERNEL: schema.KERNELS,
    MEMCPY: schema.MEMCPYS,
    MEMSET: schema.MEMSETS,
    GRAPH: schema.GRAPH_RUNS,
}
# Later than any end.
_NO_START_NS = np.iinfo(np.int64).max
#: No capture is that long (13 days): times that lie farther apart are damage. Sums of times are exact up to 2^53 ns.
_WIDEST_NS = 1 << 50
# By the kinds of copies in exports (ENUM_CUDA_MEMCPY_OPER). Pages of managed memory are moved by the driver itself: no
# call launches that.
_MIGRATION_NAMES = {11: "page migration HtoD", 12: "page migration DtoH", 13: "page migration DtoD"}
_MEMCPY_NAMES = {1: "memcpy HtoD", 2: "memcpy DtoH", 8: "memcpy DtoD", 10: "memcpy PtoP", **_MIGRATION_NAMES}


@dataclass(frozen=True)
class Span:
    """A time range in ns, open where None. Work that touches it counts, whole, as Nsight's own filter has it."""

    start_ns: int | None = None
    end_ns: int | None = None

    def touches(self, starts_ns: np.ndarray, ends_ns: np.ndarray) -> np.ndarray:
        """Which intervals (int64[n], ns) touch the range, bool[n]."""
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
    index into `names` and `short_names`. `dropped` counts operations without usable times, which are not here.
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
    #: What selects these operations among all records of the report, kind after kind.
    rows: np.ndarray | slice

    def __len__(self) -> int:
        return len(self.start_ns)


def read_gpu_work(report: Report) -> GpuWork:
    """The GPU work of a report. PackError when the report's export is damaged."""
    start_ns, end_ns, global_pid, device_id = _numbers(
        report, start_ns=_NO_START_NS, end_ns=-1, global_pid=0, device_id=-1
    )
    # A record without times has zeros in both.
    usable = _near((end_ns >= start_ns) & ((start_ns != 0) | (end_ns != 0)), start_ns, end_ns)
    keep = _selection(usable)
    devices, device = find_devices(report, global_pid[keep], device_id[keep])
    # Dropped before the next columns are read: there can be many millions of rows.
    del global_pid, device_id
    name, names, short_names, counts = _names(report)
    return GpuWork(
        start_ns=start_ns[keep],
        end_ns=end_ns[keep],
        kind=np.repeat(np.array(list(_TABLES), dtype=np.int8), counts)[keep],
        device=device,
        name=name[keep],
        names=names,
        short_names=short_names,
        devices=devices,
        dropped=int(len(usable) - np.count_nonzero(usable)),
        rows=keep,
    )


def _near(usable: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
    """Which of the usable times lie where most do; mostly all."""
    starts_ns = start_ns if usable.all() else start_ns[usable]
    if not len(starts_ns) or int(end_ns.max(where=usable, initial=-_NO_START_NS)) - int(starts_ns.min()) <= _WIDEST_NS:
        return usable
    # Not np.median: it takes the mean of two, and of times that is a double.
    middle_ns = np.partition(starts_ns, len(starts_ns) // 2)[len(starts_ns) // 2]
    return usable & (start_ns >= middle_ns - _WIDEST_NS // 2) & (end_ns <= middle_ns + _WIDEST_NS // 2)


def page_migrations(work: GpuWork) -> np.ndarray:
    """Which operations are page migrations of managed memory, which no API call launches, bool per operation."""
    code = np.flatnonzero(np.isin(work.names, list(_MIGRATION_NAMES.values())))
    return (work.kind == MEMCPY) & np.isin(work.name, code) if len(code) else np.zeros(len(work), dtype=bool)


def read_correlation(report: Report, work: GpuWork) -> Iterator[tuple[int, np.ndarray | slice, np.ndarray]]:
    """Process by process: its id, which operations are its (a slice, or int64 places), and the correlation id of each
    of these, int64, -1 for none. PackError when the report's export is damaged.

    Process and correlation id tie an operation to the call that launched it.
    """
    return _by_process(report, work, "correlation_id")


def read_graph_nodes(report: Report, work: GpuWork) -> Iterator[tuple[int, np.ndarray | slice, np.ndarray]]:
    """The same with the graph node that each operation ran, int64, -1 for none."""
    return _by_process(report, work, "graph_node_id")


def read_streams(report: Report, work: GpuWork) -> np.ndarray:
    """The stream of each operation, int64; -1 where the report does not tell. PackError when its export is damaged."""
    (streams,) = _numbers(report, stream_id=-1)
    return streams[work.rows]


def _by_process(report: Report, work: GpuWork, column: str) -> Iterator[tuple[int, np.ndarray | slice, np.ndarray]]:
    """Ids that are handed out per process, int64; -1 for null."""
    (ids,) = _numbers(report, **{column: -1})
    ids = ids[work.rows]
    if len(work.devices.pids) == 1:
        yield work.devices.pids[0], slice(None), ids
        return
    (global_pid,) = _numbers(report, global_pid=0)
    pid = pid_of(global_pid[work.rows])
    for process in work.devices.pids:
        rows = np.flatnonzero(pid == process)
        yield process, rows, ids[rows]


def select(work: GpuWork, rows: np.ndarray) -> GpuWork:
    """The operations that a mask selects, bool per operation."""
    chosen = {name: getattr(work, name)[rows] for name in ("start_ns", "end_ns", "kind", "device", "name")}
    if isinstance(work.rows, slice):
        places = np.flatnonzero(rows)
    else:
        places = (work.rows if work.rows.dtype != bool else np.flatnonzero(work.rows))[rows]
    return replace(work, **chosen, rows=places)


def _selection(keep: np.ndarray) -> np.ndarray | slice:
    """What selects the rows to keep; a full slice, which copies nothing, when that is all of them."""
    return slice(None) if keep.all() else keep


def _numbers(report: Report, **null: int) -> list[np.ndarray]:
    """Columns of all operations, int64, kind after kind, with what stands for null in each."""
    batches = (batch for table in _TABLES.values() for batch in report.batches(table, list(null)))
    pieces = ([numbers(batch[name], value) for name, value in null.items()] for batch in batches)
    return gather(pieces, sum(report.count(table) for table in _TABLES.values()), [np.int64] * len(null))


def _names(report: Report) -> tuple[np.ndarray, list[str], list[str], list[int]]:
    """A name code (int32) per operation, kind after kind; the name and short name of each code; rows per kind."""
    codes: list[np.ndarray] = []
    names: list[str] = []
    short_names: list[str] = []
    for kind in _TABLES:
        code, long, short = _names_of_kind(report, kind)
        codes.append(code + np.int32(len(names)) if names else code)
        names += long
        short_names += short
    counts = [len(code) for code in codes]
    code = np.concatenate(codes)
    if len(set(names)) < len(names):
        # One name may have several codes: kinds of copies, names that are missing or empty.
        first: dict[str, int] = {}
        place = np.array([first.setdefault(name, number) for number, name in enumerate(names)], dtype=np.int32)
        code = place[code]
    return code, names, short_names, counts


def _names_of_kind(report: Report, kind: int) -> tuple[np.ndarray, list[str], list[str]]:
    if kind == KERNEL:
        # One after the other: the ids behind them are as long as the report.
        return _kernel_names(*(_column(report, schema.KERNELS, name) for name in ("name", "short_name")))
    if kind == MEMCPY:
        encoded = _column(report, schema.MEMCPYS, "copy_kind").fill_null(-1).dictionary_encode()
        names = [_MEMCPY_NAMES.get(code, "memcpy") for code in encoded.dictionary.to_pylist()]
        return encoded.indices.to_numpy(), names, names
    name = "memset" if kind == MEMSET else "CUDA graph (traced as a whole)"
    count = len(_column(report, _TABLES[kind], "start_ns"))
    return np.zeros(count, dtype=np.int32), [name], [name]


def _column(report: Report, table: schema.SourceTable, name: str) -> pa.Array:
    return report.read(table, [name])[name].combine_chunks()


def _kernel_names(name: pa.DictionaryArray, short: pa.DictionaryArray) -> tuple[np.ndarray, list[str], list[str]]:
    unnamed = len(name.dictionary)
    codes = name.indices.fill_null(unnamed).to_numpy()
    # Any kernel of a name tells its short name.
    short_of = np.full(unnamed + 1, -1)
    short_of[codes] = short.indices.fill_null(-1).to_numpy()
    texts = [*short.dictionary.to_pylist(), None]
    names = [text or "[no name]" for text in [*name.dictionary.to_pylist(), None]]
    return codes, names, [texts[at] or long for at, long in zip(short_of.tolist(), names, strict=True)]
