"""One schema for all versions and export formats."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import FIXTURES
from recipes.base.errors import PackError
from recipes.nsight.export import export
from recipes.report import schema
from recipes.report.report import open_export

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"


def kernels(**changed):
    columns = {"start": [10, 20], "end": [15, 30], "deviceId": [0, 0], "globalPid": [7 << 24, 7 << 24],
               "demangledName": [1, 1], "shortName": [1, 1]}  # fmt: skip
    return {name: values for name, values in {**columns, **changed}.items() if values is not None}


@pytest.mark.parametrize("table", schema.TABLES, ids=lambda table: table.name)
def test_sqlite_and_parquet_say_the_same(table, exporter, graph_sqlite):
    from_sqlite = open_export(graph_sqlite).read(table)
    from_parquet = open_export(export(FIXTURES / "decode_graph.nsys-rep", exporter)).read(table)
    assert from_sqlite.schema == from_parquet.schema
    if table in (schema.EXPORT_INFO, schema.CAPTURE_INFO):
        # The first describes the export itself; Nsight 2023.4 writes the second into SQLite only.
        assert len(from_sqlite)
    elif table is schema.STRINGS:
        assert dict(zip(*from_parquet.to_pydict().values(), strict=True)).items() <= dict(
            zip(*from_sqlite.to_pydict().values(), strict=True)).items()  # fmt: skip
    else:
        assert from_sqlite.equals(from_parquet)


def test_real_report_reads_as_recorded(graph_sqlite):
    report = open_export(graph_sqlite)
    rows = report.read(schema.KERNELS)
    assert len(rows) == 5215
    assert rows["name"].null_count == 0
    assert len(report.read(schema.GRAPH_NODES)) == 3191
    assert len(report.read(schema.GRAPHS)) == 0


@pytest.mark.parametrize("table", schema.TABLES, ids=lambda table: table.name)
def test_missing_table_is_empty_and_typed(table, make_export, graph_sqlite):
    path = make_export(bare=True, META_DATA_EXPORT={"name": [], "value": []}, TARGET_INFO_GPU={"id": []})
    empty = open_export(path).read(table)
    assert len(empty) == 0
    assert empty.schema == open_export(graph_sqlite).read(table).schema


def test_missing_column_is_null(make_export):
    report = open_export(make_export(**{KERNEL: kernels(shortName=None)}))
    assert report.read(schema.KERNELS, ["graph_id"])["graph_id"].to_pylist() == [None, None]
    # What is only a fallback steps in: the short name is then the demangled one.
    assert report.read(schema.KERNELS, ["short_name"])["short_name"].to_pylist() == ["gemm", "gemm"]


def test_name_falls_back_row_by_row(make_export):
    columns = kernels(demangledName=[1, None], shortName=[2, 99], mangledName=[3, 3])
    path = make_export(**{KERNEL: columns, "StringIds": {"id": [3, 1, 2], "value": ["_Z4gemm", "gemm<T>", "gemm"]}})
    assert open_export(path).read(schema.KERNELS, ["name"])["name"].to_pylist() == ["gemm<T>", "_Z4gemm"]


def test_unknown_ids_have_no_name(make_export):
    report = open_export(make_export(**{KERNEL: kernels(demangledName=[98, 1], shortName=[99, 1])}))
    assert report.read(schema.KERNELS, ["name"])["name"].to_pylist() == [None, "gemm"]


def test_one_text_under_two_ids_is_one_name(make_export):
    strings = {"id": [1, 2], "value": ["gemm", "gemm"]}
    report = open_export(make_export(**{KERNEL: kernels(demangledName=[1, 2]), "StringIds": strings}))
    name = report.read(schema.KERNELS, ["name"])["name"].combine_chunks()
    assert name.dictionary.to_pylist() == ["gemm"]
    assert name.to_pylist() == ["gemm", "gemm"]


def test_ids_above_two_to_the_63_wrap_in_both_formats(make_export, tmp_path):
    unsigned = 2**64 - 144115188075855872
    sqlite = make_export(**{KERNEL: kernels(globalPid=[-144115188075855872, 2**53 + 1])})
    folder = tmp_path / "made_pqtdir"
    folder.mkdir()
    for table in ("META_DATA_EXPORT", "TARGET_INFO_SYSTEM_ENV"):
        pq.write_table(pa.table({"name": ["n"], "value": ["v"]}), folder / f"{table}.parquet")
    pq.write_table(pa.table({"globalPid": pa.array([unsigned, 2**53 + 1], pa.uint64())}), folder / f"{KERNEL}.parquet")
    expected = [-144115188075855872, 2**53 + 1]
    for path in (sqlite, folder):
        assert open_export(path).read(schema.KERNELS, ["global_pid"])["global_pid"].to_pylist() == expected


def test_bytes_that_are_not_utf8_survive(make_export):
    path = make_export(StringIds={"id": [1], "value": [b"caf\xe9"]}, **{KERNEL: kernels()})
    assert open_export(path).read(schema.KERNELS, ["name"])["name"].to_pylist() == ["caf\\xe9"] * 2


def test_graph_events_before_2024_are_node_events(make_export):
    nodes = {"start": [1], "end": [1], "globalTid": [5], "graphNodeId": [8], "originalGraphNodeId": [4]}
    report = open_export(make_export(CUDA_GRAPH_EVENTS=nodes))
    assert report.read(schema.GRAPH_NODES, ["graph_node_id"])["graph_node_id"].to_pylist() == [8]
    assert len(report.read(schema.GRAPHS)) == 0


def test_graph_events_since_2024_are_whole_graphs(make_export):
    nodes = {"start": [1], "end": [1], "globalTid": [5], "graphNodeId": [8], "originalGraphNodeId": [4]}
    graphs = {"start": [2], "end": [3], "globalTid": [5], "graphId": [6], "originalGraphId": [1], "graphExecId": [9]}
    report = open_export(make_export(CUDA_GRAPH_EVENTS=graphs, CUDA_GRAPH_NODE_EVENTS=nodes))
    assert report.read(schema.GRAPH_NODES, ["original_graph_node_id"]).to_pydict() == {"original_graph_node_id": [4]}
    assert report.read(schema.GRAPHS, ["graph_exec_id"]).to_pydict() == {"graph_exec_id": [9]}


def test_registered_nvtx_text_is_resolved(make_export):
    nvtx = {"start": [1, 2, 3], "end": [9, 9, 9], "eventType": [59] * 3, "text": ["step 0", None, None],
            "textId": [None, 1, None]}  # fmt: skip
    report = open_export(make_export(NVTX_EVENTS=nvtx))
    assert report.read(schema.NVTX, ["text"])["text"].to_pylist() == ["step 0", "gemm", None]


def test_exports_of_2022_name_their_version_otherwise(make_export):
    info = {"name": ["EXPORT_SCHEMA_VERSION"], "value": ["2.9.0"]}
    report = open_export(make_export(bare=True, EXPORT_META_DATA=info, TARGET_INFO_GPU={"id": [0]}))
    assert report.pairs(schema.EXPORT_INFO) == [("EXPORT_SCHEMA_VERSION", "2.9.0")]


def test_exports_that_do_not_tell_their_version_are_read_where_they_can_be(make_export):
    strings = {"id": [1], "value": ["gemm"]}
    old = {
        "start": [10],
        "end": [20],
        "deviceId": [0],
        "globalPid": [7 << 24],
        "correlationId": [1],
        "demangledName": [1],
    }
    report = open_export(make_export(bare=True, StringIds=strings, **{KERNEL: old}))
    assert report.read(schema.KERNELS, ["start_ns", "name"]).to_pylist() == [{"start_ns": 10, "name": "gemm"}]
    older = {name: values for name, values in old.items() if name != "globalPid"}
    with pytest.raises(PackError, match=r"too old .*as in exports of 2021 and older"):
        open_export(make_export("older.sqlite", bare=True, StringIds=strings, **{KERNEL: older}))


def test_part_of_an_export_is_refused(make_export):
    with pytest.raises(PackError, match="not a whole Nsight export"):
        open_export(make_export(bare=True, **{KERNEL: kernels()}))


def test_text_in_a_column_of_times_is_refused(make_export):
    report = open_export(make_export(**{KERNEL: kernels(start=["ten", "twenty"])}))
    with pytest.raises(PackError, match="cannot be read as an Nsight export"):
        report.read(schema.KERNELS, ["start_ns"])


def test_file_that_is_no_database_is_refused(tmp_path):
    path = tmp_path / "x.sqlite"
    path.write_text("hello")
    with pytest.raises(PackError, match="not a SQLite file"):
        open_export(path)


def test_cut_off_database_is_refused(tmp_path, graph_sqlite):
    path = tmp_path / "cut.sqlite"
    path.write_bytes(graph_sqlite.read_bytes()[:300_000])
    with pytest.raises(PackError, match=r"cut\.sqlite: "):
        open_export(path).read(schema.KERNELS)
