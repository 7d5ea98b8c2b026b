"""The tables of a report in one schema, and where each column comes from in the exports of all Nsight versions.

Facts behind it: the comments of the SQLite exports of 2023.4.4 (schema 3.7.2) and 2025.3.1, and the exporter
chapter of NVIDIA's Nsight Systems manuals. Versions differ by missing tables and columns, by an integer type
that is signed here and unsigned there, and by two tables that changed their name or meaning.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True)
class SourceColumn:
    """A column of a normalised table: its Arrow type and the names that exports use, first one found wins.

    `text` columns hold text. With `ids`, the text is in StringIds and `exported` are columns of ids, tried in
    order row by row; the column then comes out as a dictionary array of strings. `time` says that numbers are times.
    """

    type: pa.DataType
    exported: tuple[str, ...]
    ids: tuple[str, ...] = ()
    time: bool = False


@dataclass(frozen=True, eq=False)
class SourceTable:
    """A normalised table: its columns, and the exported tables that can hold it.

    `exported` pairs a table's name with the columns that tell it from another of the same name. A `small` table, of
    which several want something, is read once and kept.
    """

    name: str
    columns: dict[str, SourceColumn]
    exported: tuple[tuple[str, tuple[str, ...]], ...]
    small: bool = False


def _int(*names: str) -> SourceColumn:
    return SourceColumn(pa.int64(), names)


def _time(name: str) -> SourceColumn:
    return SourceColumn(pa.int64(), (name,), time=True)


def _text(*names: str, ids: tuple[str, ...] = ()) -> SourceColumn:
    return SourceColumn(pa.string(), names, ids)


_TIMES = {"start_ns": _time("start"), "end_ns": _time("end")}
_PLACE = {
    "device_id": _int("deviceId"),
    "context_id": _int("contextId"),
    "stream_id": _int("streamId"),
    "correlation_id": _int("correlationId"),
    "global_pid": _int("globalPid"),
}

KERNELS = SourceTable(
    "kernels",
    {
        **_TIMES,
        **_PLACE,
        "graph_node_id": _int("graphNodeId"),
        "graph_id": _int("graphId"),
        "name": _text(ids=("demangledName", "shortName", "mangledName")),
        "short_name": _text(ids=("shortName", "demangledName", "mangledName")),
    },
    (("CUPTI_ACTIVITY_KIND_KERNEL", ()),),
)
_MEMORY = {**_TIMES, **_PLACE, "graph_node_id": _int("graphNodeId"), "bytes": _int("bytes")}
MEMCPYS = SourceTable("memcpys", {**_MEMORY, "copy_kind": _int("copyKind")}, (("CUPTI_ACTIVITY_KIND_MEMCPY", ()),))
MEMSETS = SourceTable("memsets", _MEMORY, (("CUPTI_ACTIVITY_KIND_MEMSET", ()),))
GRAPH_RUNS = SourceTable(
    "graph_runs",
    {
        **_TIMES,
        **_PLACE,
        "graph_node_id": _int(),
        "graph_id": _int("graphId"),
        "graph_exec_id": _int("graphExecId"),
    },
    (("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", ()),),
)
API_CALLS = SourceTable(
    "api_calls",
    {
        **_TIMES,
        "global_tid": _int("globalTid"),
        "correlation_id": _int("correlationId"),
        "name": _text(ids=("nameId",)),
        "return_value": _int("returnValue"),
    },
    (("CUPTI_ACTIVITY_KIND_RUNTIME", ()),),
)
SYNCS = SourceTable(
    "syncs",
    {**_TIMES, **_PLACE, "sync_type": _int("syncType"), "event_id": _int("eventId"),
     "event_sync_id": _int("eventSyncId")},
    (("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", ()),),
)  # fmt: skip
NVTX = SourceTable(
    "nvtx",
    {
        **_TIMES,
        "event_type": _int("eventType"),
        "range_id": _int("rangeId"),
        "domain_id": _int("domainId"),
        "global_tid": _int("globalTid"),
        "end_global_tid": _int("endGlobalTid"),
        "text": _text("text", ids=("textId",)),
        "payload": _text("jsonText", ids=("jsonTextId",)),
        "payload_bytes": SourceColumn(pa.binary(), ("binaryData",)),
    },
    (("NVTX_EVENTS", ()),),
)
PAYLOAD_FIELDS = SourceTable(
    "payload_fields",
    {"domain_id": _int("domainId"), "schema_id": _int("schemaId"), "name": _text("name"), "offset": _int("offset")},
    (("NVTX_PAYLOAD_SCHEMA_ENTRIES", ()),),
)
# Up to 2024 CUDA_GRAPH_EVENTS held the creation of graph nodes; later that moved to CUDA_GRAPH_NODE_EVENTS,
# and CUDA_GRAPH_EVENTS came to mean the creation of whole graphs.
GRAPH_NODES = SourceTable(
    "graph_nodes",
    {
        **_TIMES,
        "global_tid": _int("globalTid"),
        "graph_node_id": _int("graphNodeId"),
        "original_graph_node_id": _int("originalGraphNodeId"),
    },
    (("CUDA_GRAPH_NODE_EVENTS", ("graphNodeId",)), ("CUDA_GRAPH_EVENTS", ("graphNodeId",))),
)
GRAPHS = SourceTable(
    "graphs",
    {
        **_TIMES,
        "global_tid": _int("globalTid"),
        "graph_id": _int("graphId"),
        "original_graph_id": _int("originalGraphId"),
        "graph_exec_id": _int("graphExecId"),
    },
    (("CUDA_GRAPH_EVENTS", ("graphId",)),),
)
OVERHEAD = SourceTable(
    "overhead",
    {**_TIMES, "global_tid": _int("globalTid"), "name": _text(ids=("nameId",))},
    (("PROFILER_OVERHEAD", ()),),
    small=True,
)
GPUS = SourceTable(
    "gpus",
    {
        "gpu_id": _int("id"),
        "cuda_device": _int("cuDevice"),
        "name": _text("name"),
        "uuid": _text("uuid"),
        "chip": _text("chipName"),
        "memory_bandwidth_bytes_per_s": _int("memoryBandwidth"),
        "is_discrete": _int("isDiscrete"),
    },
    (("TARGET_INFO_GPU", ()),),
    small=True,
)
CUDA_DEVICES = SourceTable(
    "cuda_devices",
    {"gpu_id": _int("gpuId"), "cuda_id": _int("cudaId"), "pid": _int("pid"), "uuid": _text("uuid")},
    (("TARGET_INFO_CUDA_DEVICE", ()),),
    small=True,
)
CONTEXTS = SourceTable(
    "contexts",
    {"pid": _int("processId"), "device_id": _int("deviceId")},
    (("TARGET_INFO_CUDA_CONTEXT_INFO", ()),),
    small=True,
)
PROCESSES = SourceTable(
    "processes",
    {"global_pid": _int("globalPid"), "pid": _int("pid"), "name": _text("name")},
    (("PROCESSES", ()),),
    small=True,
)
THREADS = SourceTable(
    "threads",
    {"global_tid": _int("globalTid"), "name": _text(ids=("nameId",))},
    (("ThreadNames", ()),),
    small=True,
)
_PAIRS = {"name": _text("name"), "value": _text("value")}
EXPORT_INFO = SourceTable("export_info", _PAIRS, (("META_DATA_EXPORT", ()), ("EXPORT_META_DATA", ())), small=True)
CAPTURE_INFO = SourceTable("capture_info", _PAIRS, (("META_DATA_CAPTURE", ()), ("CAPTURE_META_DATA", ())), small=True)
SYSTEM_INFO = SourceTable("system_info", _PAIRS, (("TARGET_INFO_SYSTEM_ENV", ()),), small=True)
SESSION = SourceTable(
    "session", {"utc_epoch_ns": _int("utcEpochNs")}, (("TARGET_INFO_SESSION_START_TIME", ()),), small=True
)
STRINGS = SourceTable("strings", {"id": _int("id"), "value": _text("value")}, (("StringIds", ()),))
DIAGNOSTICS = SourceTable(
    "diagnostics",
    {"timestamp_ns": _time("timestamp"), "severity": _int("severity"), "text": _text("text")},
    (("DIAGNOSTIC_EVENT", ()),),
    small=True,
)

TABLES = (
    KERNELS, MEMCPYS, MEMSETS, GRAPH_RUNS, API_CALLS, SYNCS, NVTX, PAYLOAD_FIELDS, GRAPH_NODES, GRAPHS, OVERHEAD, GPUS,
    CUDA_DEVICES, CONTEXTS, PROCESSES, THREADS, EXPORT_INFO, CAPTURE_INFO, SYSTEM_INFO, SESSION, STRINGS, DIAGNOSTICS,
)  # fmt: skip

#: Every exported table that the pack can read.
EXPORTED = tuple(dict.fromkeys(name for table in TABLES for name, _ in table.exported))
