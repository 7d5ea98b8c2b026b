"""Whole small exports out of a seed: as a GPU would leave them, then spoilt in a way that is asked for.

An export is a dict of tables, a table a dict of columns, a column a list. The names are those of the real exports of
2025.3; `write_sqlite` and `write_parquet` put it on the disk in their form.
"""

from __future__ import annotations

import random
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

Export = dict[str, dict[str, list]]

_KIND = "CUPTI_ACTIVITY_KIND_"
KERNEL, MEMCPY, MEMSET, GRAPH, RUNTIME, SYNC = (
    _KIND + name for name in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE", "RUNTIME", "SYNCHRONIZATION")
)
WORK = (KERNEL, MEMCPY, MEMSET, GRAPH)
_PLACE = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid")
#: The columns of each table that the pack may look at.
COLUMNS = {
    "META_DATA_EXPORT": ("name", "value"),
    "META_DATA_CAPTURE": ("name", "value"),
    "TARGET_INFO_SYSTEM_ENV": ("name", "value"),
    "TARGET_INFO_SESSION_START_TIME": ("utcEpochNs", "utcTime"),
    "TARGET_INFO_GPU": ("id", "name", "uuid", "chipName", "cuDevice", "memoryBandwidth", "isDiscrete"),
    "TARGET_INFO_CUDA_DEVICE": ("gpuId", "cudaId", "pid", "uuid"),
    "PROCESSES": ("globalPid", "pid", "name"),
    "ThreadNames": ("nameId", "globalTid"),
    "StringIds": ("id", "value"),
    KERNEL: (*_PLACE, "demangledName", "shortName", "mangledName", "graphNodeId", "graphId"),
    MEMCPY: (*_PLACE, "bytes", "copyKind", "graphNodeId"),
    MEMSET: (*_PLACE, "bytes", "graphNodeId"),
    GRAPH: (*_PLACE, "graphId", "graphExecId"),
    RUNTIME: ("start", "end", "globalTid", "correlationId", "nameId", "returnValue"),
    SYNC: (*_PLACE, "syncType", "eventId", "eventSyncId"),
    "NVTX_EVENTS": ("start", "end", "eventType", "rangeId", "text", "globalTid", "endGlobalTid", "textId", "domainId",
                    "jsonTextId", "jsonText", "binaryData"),
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": ("domainId", "schemaId", "name", "offset"),
    "CUDA_GRAPH_NODE_EVENTS": ("start", "end", "globalTid", "graphNodeId", "originalGraphNodeId"),
    "CUDA_GRAPH_EVENTS": ("start", "end", "globalTid", "graphId", "originalGraphId", "graphExecId"),
    "PROFILER_OVERHEAD": ("start", "end", "globalTid", "nameId"),
    "DIAGNOSTIC_EVENT": ("timestamp", "timestampType", "source", "severity", "text", "globalPid"),
}  # fmt: skip
TEXTS = {"name", "value", "text", "uuid", "chipName", "jsonText", "utcTime"}
_BYTES = {"binaryData"}
KERNEL_NAMES = (
    "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm>(Params)",
    "flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64>>(Flash_fwd_params)",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "triton_red_fused_add_rms_norm_0",
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>>(int)",
    "rotary_embedding_kernel",
)
CALLS = (
    "cudaLaunchKernel_v7000", "cuLaunchKernelEx", "cudaGraphLaunch_v10000", "cudaMemcpyAsync_v3020",
    "cudaStreamSynchronize_v3020", "cudaMalloc_v3020",
)  # fmt: skip
STEP_TEXTS = (
    "step {n}", "execute_context_1(40)_generation_3(3)", "execute_context_0(0)_generation_4(4)", "prefill", "decode",
    "forward", "ProfilerStep#{n}", "step [DECODE bs={n}]",
)  # fmt: skip
#: Names that may hurt whoever shows, parses or stores them.
NASTY = (
    "", " ", "a\0b", 'say "hi", it\'s, me', "two\nlines\r\nand\ttab", "</script><script>alert(1)</script>",
    "\x1b[2J\x1b]0;title\x07", "\u202egnp.exe", "{quality}", "\n{quality}", "%s %d {0} {x!r}", "=cmd|' /C calc'!A0",
    b"\xff\xfe not UTF-8 \xc3", "[no name]", "all", "outside", "x" * 20_000, "A, seq = 12, op_id = 7", "\ud7ff\uffff",
    "step 99999999999999999999999999", "ncclKernel_" * 300, "<" * 3000 + ">" * 2999, "𝟙𝟚٣",
)  # fmt: skip
#: More than any double holds exactly, more than any capture lasts, and the ends of what the types hold.
HUGE = (2**53 + 1, 2**60, 2**62, 2**63 - 1, -(2**63) + 1, -1, 2**31, 2**32 - 1, 2**24)


@dataclass(frozen=True)
class Shape:
    """How much of what an export holds; `spoilt` ways of `WAYS`, each in about `rate` of its cells or rows."""

    seed: int = 0
    processes: int = 1
    threads: int = 1
    devices: int = 1
    streams: int = 1
    steps: int = 4
    operations: int = 6
    graphs: bool = False
    ranges: bool = True
    mapped: bool = True
    origin: int = 0
    spoilt: tuple[str, ...] = ()
    rate: float = 0.1


@dataclass
class _Builder:
    shape: Shape
    random: random.Random
    tables: Export = field(default_factory=lambda: {t: {c: [] for c in names} for t, names in COLUMNS.items()})
    strings: dict[str, int] = field(default_factory=dict)

    def row(self, table: str, **values: object) -> None:
        for name, column in self.tables[table].items():
            column.append(values.get(name))

    def string(self, text: str) -> int:
        if text not in self.strings:
            self.strings[text] = len(self.strings) + 1
            self.row("StringIds", id=self.strings[text], value=text)
        return self.strings[text]


def global_pid(process: int) -> int:
    return (1 << 48) + ((1000 + process) << 24)


def build(shape: Shape) -> Export:
    """The export of a shape."""
    made = _Builder(shape, random.Random(shape.seed))
    _target(made)
    for process in range(shape.processes):
        _process(made, process)
    for way in sorted(shape.spoilt, key=list(WAYS).index):
        WAYS[way](made)
    return made.tables


def _target(made: _Builder) -> None:
    shape = made.shape
    for name, value in (("EXPORT_SCHEMA_VERSION", "3.20.2"), ("EXPORT_PRODUCT_VERSION", "2025.3.2.0")):
        made.row("META_DATA_EXPORT", name=name, value=value)
    made.row("META_DATA_CAPTURE", name="ENVIRONMENT_VARIABLE", value='RANK="0"')
    made.row("TARGET_INFO_SYSTEM_ENV", name="Hostname", value="node1")
    made.row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_790_000_000_000_000_000, utcTime="2026-09-21 12:53:20")
    for device in range(shape.devices):
        made.row("TARGET_INFO_GPU", id=device, name="NVIDIA H200", cuDevice=device, uuid=f"GPU-{device}",
                 chipName="GH100", memoryBandwidth=4_814_304_000_000, isDiscrete=1)  # fmt: skip
    made.row("DIAGNOSTIC_EVENT", timestamp=5, timestampType=1, source=2, severity=1, text="started", globalPid=None)


@dataclass
class _Host:
    """A process while it runs: its ids, the host's time, the last correlation id, until when each GPU is busy."""

    pid: int
    tids: list[int]
    now: int
    free: list[int]
    correlation: int = 0


def _process(made: _Builder, process: int) -> None:
    shape, rng, pid = made.shape, made.random, global_pid(process)
    made.row("PROCESSES", globalPid=pid, pid=1000 + process, name="python3")
    for device in range(shape.devices if shape.mapped else 0):
        made.row("TARGET_INFO_CUDA_DEVICE", gpuId=device, cudaId=device, pid=1000 + process, uuid=f"GPU-{device}")
    begun = shape.origin + rng.randrange(-1000, 10_000)
    host = _Host(pid, [pid + 1000 + process + n for n in range(shape.threads)], begun, [begun] * shape.devices)
    for tid in host.tids:
        made.row("ThreadNames", nameId=made.string("python3"), globalTid=tid)
    main, text = host.tids[0], rng.choice(STEP_TEXTS)
    if shape.ranges:
        made.row("NVTX_EVENTS", start=begun, eventType=75, text="NCCL", domainId=1, globalTid=main)
    made.row("PROFILER_OVERHEAD", start=begun, end=begun + 900, globalTid=main, nameId=made.string("Profiler start"))
    for step in range(shape.steps):
        begun = host.now
        _step(made, host)
        if shape.ranges:
            _step_ranges(made, begun, host.now, main, text.format(n=step))
        host.now += rng.choice((0, 5, 10_000))
    for node in range(shape.operations if shape.graphs else 0):
        made.row("CUDA_GRAPH_NODE_EVENTS", start=0, end=0, globalTid=main, graphNodeId=(1 << 33) + node)


def _step(made: _Builder, host: _Host) -> None:
    """One graph launch or one launch after the other, perhaps with a wait for the GPU behind."""
    rng = made.random
    graph = made.shape.graphs and rng.random() < 0.7
    host.correlation += 1
    if graph:
        _call(made, host.now, host.tids[0], host.correlation, CALLS[2], 500)
    for number in range(made.shape.operations):
        if rng.random() < 0.2:
            # The host comes late, and the GPU waits for it.
            host.now = max(host.now, *host.free) + rng.choice((0, 2000, 50_000))
        if not graph:
            host.correlation += 1
            name, length = rng.choice(CALLS[:4]), rng.choice((0, 5, 300, 2000))
            _call(made, host.now, rng.choice(host.tids), host.correlation, name, length)
            host.now += rng.choice((10, 200, 1500, 4000))
        _operation(made, host, (1 << 33) + number if graph else None)
    if rng.random() < 0.5:
        done = max(host.now, *host.free) + 500
        _call(made, host.now, host.tids[0], host.correlation + 10**6, CALLS[4], done - host.now)
        made.row(SYNC, start=host.now, end=done, deviceId=0, contextId=1, streamId=7, globalPid=host.pid, syncType=2,
                 correlationId=host.correlation + 10**6)  # fmt: skip
        host.now = done


def _call(made: _Builder, now: int, tid: int, *what: object) -> None:
    """A call on a thread: its correlation id, name and length."""
    correlation, name, length = what
    made.row(RUNTIME, start=now, end=now + length, globalTid=tid, correlationId=correlation,
             nameId=made.string(name), returnValue=0)  # fmt: skip


def _operation(made: _Builder, host: _Host, node: int | None) -> None:
    rng = made.random
    device = rng.randrange(made.shape.devices)
    start = max(host.now, host.free[device] + rng.choice((-300, 0, 1, 700, 90_000)))
    end = start + rng.choice((0, 1, 900, 12_345))
    host.free[device] = max(host.free[device], end)
    place = {"start": start, "end": end, "deviceId": device, "contextId": 1, "correlationId": host.correlation,
             "globalPid": host.pid, "streamId": 7 + rng.randrange(made.shape.streams), "graphNodeId": node}  # fmt: skip
    table = rng.choice((KERNEL,) * 6 + (MEMCPY, MEMSET, *((GRAPH,) if made.shape.graphs else ())))
    name = made.string(rng.choice(KERNEL_NAMES))
    more = {
        KERNEL: {"demangledName": name, "shortName": name, "mangledName": None},
        MEMCPY: {"bytes": 4096, "copyKind": rng.choice((1, 2, 8, 10))},
        MEMSET: {"bytes": 4096},
        GRAPH: {"graphId": 3, "graphExecId": 4, "graphNodeId": None},
    }[table]
    made.row(table, **{**place, **more})


def _step_ranges(made: _Builder, begun: int, now: int, tid: int, text: str) -> None:
    made.row("NVTX_EVENTS", start=begun, end=now + 1, eventType=made.random.choice((59, 59, 59, 60)), text=text,
             globalTid=tid, domainId=0)  # fmt: skip
    middle = (begun + now) // 2
    made.row("NVTX_EVENTS", start=begun, end=middle, eventType=59, textId=made.string("layers.0"), globalTid=tid,
             domainId=0)  # fmt: skip
    payload = '{"NCCL communicator ID": 77, "Message size [bytes]": 4096}'
    made.row("NVTX_EVENTS", start=middle, end=now, eventType=59, text="ncclAllReduce", globalTid=tid, domainId=1,
             jsonText=payload)  # fmt: skip


def _cells(made: _Builder, *tables: str, columns: tuple[str, ...] = ()) -> list[tuple[list, int, str]]:
    """Some cells of some tables, as column, row and name."""
    found = []
    for table in tables or tuple(COLUMNS):
        for name, column in made.tables[table].items():
            if not columns or name in columns:
                found += [(column, row, name) for row in range(len(column)) if made.random.random() < made.shape.rate]
    return found


def _nulls(made: _Builder) -> None:
    for column, row, _ in _cells(made):
        column[row] = None


def _times(*values: int):
    def spoil(made: _Builder) -> None:
        for column, row, _ in _cells(made, *WORK, RUNTIME, SYNC, "NVTX_EVENTS", "PROFILER_OVERHEAD",
                                     "CUDA_GRAPH_NODE_EVENTS", columns=("start", "end")):  # fmt: skip
            if column[row] is not None:
                column[row] = made.random.choice(values) if values else column[row] + made.random.randrange(-9999, 9999)

    return spoil


def _zeros(made: _Builder) -> None:
    for table in (*WORK, RUNTIME, "NVTX_EVENTS"):
        rows = made.tables[table]
        for row in range(len(rows["start"])):
            if made.random.random() < made.shape.rate:
                rows["end"][row] = rows["start"][row]


def _all_at_once(made: _Builder) -> None:
    for table in WORK:
        for row in range(len(made.tables[table]["start"])):
            if made.random.random() < max(made.shape.rate, 0.5):
                made.tables[table]["start"][row] = made.shape.origin + 5000
                made.tables[table]["end"][row] = made.shape.origin + 5000 + made.random.choice((0, 10, 10**6))


def _unclosed(made: _Builder) -> None:
    for column, row, _ in _cells(made, "NVTX_EVENTS", columns=("end",)):
        column[row] = None


def _big_ids(made: _Builder) -> None:
    ids = tuple(
        {name for names in COLUMNS.values() for name in names if name.endswith(("Id", "id", "Pid", "Tid"))} - TEXTS
    )
    for column, row, _ in _cells(made, columns=ids):
        column[row] = made.random.choice(HUGE)


def _big_numbers(made: _Builder) -> None:
    other = ("memoryBandwidth", "isDiscrete", "bytes", "copyKind", "eventType", "returnValue", "syncType", "offset",
             "utcEpochNs", "severity", "timestamp")  # fmt: skip
    for column, row, _ in _cells(made, columns=other):
        column[row] = made.random.choice(HUGE)


def _names(made: _Builder) -> None:
    for column, row, _ in _cells(made, columns=tuple(TEXTS)):
        column[row] = made.random.choice(NASTY)


def _payloads(made: _Builder) -> None:
    texts = ("[" * 100_000, "{", '{"Message size [bytes]": 1e999, "NCCL communicator ID": {"a": [NaN]}}', "null",
             '{"Message size [bytes]": true}', '{"Bytes": -5, "NCCL communicator ID": ' + "9" * 5000 + "}",
             '{"NCCL communicator ID": "\\ud800"}')  # fmt: skip
    for column, row, name in _cells(made, "NVTX_EVENTS", columns=("jsonText", "binaryData")):
        column[row] = made.random.choice(texts) if name == "jsonText" else made.random.randbytes(
            made.random.choice((0, 7, 32, 48, 4000)))  # fmt: skip


def _missing_strings(made: _Builder) -> None:
    strings = made.tables["StringIds"]
    keep = [made.random.random() >= max(made.shape.rate, 0.3) for _ in strings["id"]]
    for name, column in strings.items():
        strings[name] = [value for value, kept in zip(column, keep, strict=True) if kept]


def _twice(made: _Builder) -> None:
    """Rows that stand there twice, string ids included."""
    for table in made.tables.values():
        count = len(next(iter(table.values())))
        for row in [row for row in range(count) if made.random.random() < made.shape.rate]:
            for column in table.values():
                column.append(column[row])


def _shuffled(made: _Builder) -> None:
    for table in made.tables.values():
        order = list(range(len(next(iter(table.values())))))
        made.random.shuffle(order)
        for name, column in table.items():
            table[name] = [column[row] for row in order]


def _one_row(made: _Builder) -> None:
    for table in made.tables.values():
        for name, column in table.items():
            table[name] = column[:1]


def _no_rows(made: _Builder) -> None:
    for name in [name for name in made.tables if made.random.random() < max(made.shape.rate, 0.3)]:
        made.tables[name] = {column: [] for column in made.tables[name]}


def _no_tables(made: _Builder) -> None:
    for name in [name for name in made.tables if made.random.random() < made.shape.rate]:
        del made.tables[name]


def _no_columns(made: _Builder) -> None:
    for table in made.tables.values():
        for name in [name for name in list(table)[1:] if made.random.random() < made.shape.rate]:
            del table[name]


#: What can be wrong with an export, by name. The last two take away what others look for.
WAYS = {
    "nulls": _nulls,
    "jitter": _times(),
    "far times": _times(*HUGE, 10**18, -(10**18)),
    "no times": _times(0, -1),
    "zeros": _zeros,
    "all at once": _all_at_once,
    "unclosed": _unclosed,
    "big ids": _big_ids,
    "big numbers": _big_numbers,
    "names": _names,
    "payloads": _payloads,
    "missing strings": _missing_strings,
    "twice": _twice,
    "shuffled": _shuffled,
    "one row": _one_row,
    "no rows": _no_rows,
    "no columns": _no_columns,
    "no tables": _no_tables,
}


def write_sqlite(export: Export, path: Path) -> Path:
    """Writes an export as a SQLite file. Bytes in columns of text stay the bytes they are, as text."""
    path.unlink(missing_ok=True)
    db = sqlite3.connect(path)
    for table, columns in export.items():
        if not columns:
            continue
        kinds = ", ".join(f'"{name}" {"TEXT" if name in TEXTS else "INTEGER"}' for name in columns)
        db.execute(f'CREATE TABLE "{table}" ({kinds})')
        marks = ", ".join("CAST(? AS TEXT)" if name in TEXTS else "?" for name in columns)
        db.executemany(f'INSERT INTO "{table}" VALUES ({marks})', zip(*columns.values(), strict=True))
    db.commit()
    db.close()
    return path


def write_parquet(export: Export, folder: Path, types: dict[tuple[str, str], pa.Array] | None = None) -> Path:
    """Writes an export as a parquet folder; `types` puts other arrays in place of columns, by table and column."""
    folder.mkdir()
    for table, columns in export.items():
        if columns:
            arrays = {name: (types or {}).get((table, name), _array(name, values)) for name, values in columns.items()}
            pq.write_table(pa.table(arrays), folder / f"{table}.parquet")
    return folder


def _array(name: str, values: list) -> pa.Array:
    if name in _BYTES:
        return pa.array(values, pa.binary())
    if name in TEXTS:
        raw = [value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value for value in values]
        # As Nsight does: the type says text, whatever the bytes are.
        return pa.array(raw, pa.binary()).view(pa.string())
    if name == "isDiscrete":
        return pa.array([None if value is None else bool(value) for value in values], pa.bool_())
    if name.endswith(("Pid", "Tid")):
        return pa.array([None if value is None else value % 2**64 for value in values], pa.uint64())
    return pa.array(values, pa.int64())


#: Types that a column of numbers, or of text, should not have; those of the first group say the same all the same.
SAME_TYPES = ("int32", "dictionary", "large_string", "binary", "null")
WRONG_TYPES = ("double", "text", "decimal", "timestamp", "duration", "list", "struct", "date", "half", "number")


def as_type(kind: str, name: str, values: list) -> pa.Array:
    """The values of a column (or something like them where the type cannot hold them) in another type."""
    count, text = len(values), name in TEXTS
    plain = _array(name, values)
    made = {
        "int32": lambda: pa.array([None if v is None else v % 1000 for v in values], pa.int32()),
        "dictionary": plain.dictionary_encode,
        "large_string": lambda: plain.cast(pa.large_string()),
        "binary": lambda: plain.cast(pa.binary()),
        "null": lambda: pa.nulls(count),
        "double": lambda: pa.array([1.5 + row for row in range(count)]),
        "text": lambda: pa.array([str(row) for row in range(count)]),
        "decimal": lambda: pa.array(range(count), pa.int64()).cast(pa.decimal128(30, 2)),
        "timestamp": lambda: pa.array(range(count), pa.timestamp("ns")),
        "duration": lambda: pa.array(range(count), pa.duration("ns")),
        "list": lambda: pa.array([[row] for row in range(count)], pa.list_(pa.int64())),
        "struct": lambda: pa.array([{"a": row} for row in range(count)], pa.struct([("a", pa.int64())])),
        "date": lambda: pa.array(range(count), pa.int32()).cast(pa.date32()),
        "half": lambda: pa.array([float(row % 1000) for row in range(count)]).cast(pa.float32()),
        "number": lambda: pa.array(range(count), pa.int64()),
    }
    if (kind in ("large_string", "binary") and not text) or (kind == "int32" and text):
        kind = "dictionary"
    return made[kind]()
