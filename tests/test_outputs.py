"""The output folder: whole or not at all, nothing of the user's lost, tables as declared."""

from __future__ import annotations

import os

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from recipes.base.errors import PackError
from recipes.base.tables import Column, Table
from recipes.run.outputs import choose_folder, output_folder, write_outputs

TABLE = Table(
    "things", "one thing", (Column("name", "string", "its name"), Column("time_ns", "int64", "its time")),
    sort=(("time_ns", "descending"), ("name", "ascending")),
)  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(folder, rows, *, force=True, **more):
    with output_folder(folder, force=force) as output:
        settings = {"csv": False, "texts": {"out.nsys-analysis": "{}"}, **more}
        write_outputs(output.part, folder, "llm_test", {TABLE: [TABLE.sorted(TABLE.build(rows))]}, **settings)


def test_first_free_name_is_taken():
    assert choose_folder("llm_test", None, force=False)[0].name == "llm_test-1"
    os.mkdir("llm_test-1")
    assert choose_folder("llm_test", None, force=True)[0].name == "llm_test-2"


def test_existing_output_is_kept_and_said():
    os.mkdir("out")
    folder, warning = choose_folder("llm_test", "out", force=False)
    assert folder.name == "llm_test-1"
    assert "--force-overwrite" in warning


@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_what_is_not_an_output_is_never_overwritten(kind, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    target = {"file": "mine/thesis.tex", "link": "link", "folder": "mine"}[kind]
    os.symlink("mine", "link")
    with pytest.raises(PackError, match="not overwritten"):
        choose_folder("llm_test", target, force=True)
    assert (tmp_path / "mine" / "thesis.tex").exists()


def test_output_of_an_earlier_run_is_replaced_whole(tmp_path):
    folder = tmp_path / "out"
    write(folder, {"name": ["a"], "time_ns": [1]}, texts={"old.csv": "old", "out.nsys-analysis": "{}"})
    assert choose_folder("llm_test", "out", force=True)[0].name == "out"
    write(folder, {"name": ["b"], "time_ns": [2]})
    assert sorted(os.listdir(folder)) == ["out.nsys-analysis", "things.parquet"]
    assert os.listdir(tmp_path) == ["out"]


def test_tables_are_sorted_and_carry_their_meaning(tmp_path):
    write(tmp_path / "out", {"name": ["b", "a", "c"], "time_ns": [1, 1, 9]}, csv=True)
    table = pq.read_table(tmp_path / "out" / "things.parquet")
    assert table.to_pydict() == {"name": ["c", "a", "b"], "time_ns": [9, 1, 1]}
    about = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
    assert about["recipe"] == "llm_test"
    assert about["pack"].startswith("nsys-llm-recipes ")
    assert about["schema_version"] == "2"
    assert table.schema.field("time_ns").metadata[b"meaning"] == b"its time"
    assert (tmp_path / "out" / "things.csv").read_text() == '"name","time_ns"\n"c",9\n"a",1\n"b",1\n'


def test_error_while_writing_leaves_nothing(tmp_path):
    with pytest.raises(PackError, match="half way"), output_folder(tmp_path / "out", force=True) as output:
        (output.part / "things.parquet").write_text("half")
        raise PackError("half way")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("place", ["file/out", "/proc/nowhere/out"])
def test_unwritable_place_is_told_before_the_work(place, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PackError, match="cannot be written"), output_folder(tmp_path / place, force=False):
        pytest.fail("the work began")


def test_output_is_as_readable_as_other_files(tmp_path):
    os.mkdir("plain")
    write(tmp_path / "out", {"name": [], "time_ns": []})
    assert os.stat("out").st_mode == os.stat("plain").st_mode


def test_wrong_columns_never_reach_a_file():
    with pytest.raises(KeyError):
        TABLE.build({"name": ["a"]})
    with pytest.raises(pa.ArrowInvalid):
        TABLE.build({"name": ["a"], "time_ns": [1.5]})


def test_name_taken_in_the_meantime_is_left_alone(tmp_path):
    with output_folder(tmp_path / "out-1", force=False) as output:
        (output.part / "x.parquet").write_text("second")
        (tmp_path / "out-1").mkdir()
    assert output.folder.name == "out-2"
    assert os.listdir(tmp_path / "out-1") == []
    assert os.listdir(tmp_path / "out-2") == ["x.parquet"]


@pytest.mark.parametrize("extra", ["precious.txt", "report.sqlite", "folder"])
def test_output_with_files_of_the_users_is_never_overwritten(extra, tmp_path):
    write(tmp_path / "out", {"name": ["a"], "time_ns": [1]})
    (tmp_path / "out" / extra).mkdir() if extra == "folder" else (tmp_path / "out" / extra).write_text("mine")
    with pytest.raises(PackError, match="not overwritten"):
        choose_folder("llm_test", "out", force=True)


def test_csv_has_one_head_whatever_pieces_a_table_is_in(tmp_path):
    table = Table("t", "row", (Column("a", "int64"),))
    pieces = [table.empty(), table.build({"a": [1]}), table.empty(), table.build({"a": [2]})]
    write_outputs(tmp_path, tmp_path, "r", {table: pieces}, csv=True, texts={})
    assert (tmp_path / "t.csv").read_text() == '"a"\n1\n2\n'


@pytest.mark.parametrize("sizes", [[300_000], [1] * 5 + [131_067, 131_072, 37_856], [100_000] * 3, [0, 299_999, 1, 0]])
def test_bytes_do_not_depend_on_the_pieces(sizes, tmp_path):
    table = Table("t", "row", (Column("a", "int64"), Column("b", "string", coded=True)))
    values = pa.array(range(300_000))
    rows = table.build({"a": values, "b": pc.cast(pc.divide(values, 1000), pa.string())})
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    pieces = [rows.slice(start, size) for start, size in zip(starts, sizes, strict=True)]
    for name, given in (("whole", [rows]), ("pieces", pieces)):
        (tmp_path / name).mkdir()
        write_outputs(tmp_path / name, tmp_path, "r", {table: given}, csv=True, texts={})
    for file in ("t.parquet", "t.csv"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "pieces" / file).read_bytes()
    assert pq.read_metadata(tmp_path / "pieces" / "t.parquet").num_row_groups == 3
