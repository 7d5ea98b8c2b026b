"""Which reports the paths on a command line stand for."""

from __future__ import annotations

import os
import shutil

import pytest

from conftest import FIXTURES
from recipes.errors import PackError
from recipes.report.inputs import find_inputs, open_input


@pytest.fixture
def folder(tmp_path):
    """A folder of mixed content: two reports, one of them with its export beside it, exports alone, and a note."""
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("b.nsys-rep", "a.qdrep", "b.sqlite", "c.sqlite", "notes.txt"):
        (folder / name).write_text(name)
    (folder / "d_pqtdir").mkdir()
    (folder / "empty_folder").mkdir()
    return folder


def names(inputs):
    return [item.path.name for item in inputs]


def test_folder_of_mixed_content(folder):
    inputs = find_inputs([str(folder)])
    assert names(inputs) == ["a.qdrep", "b.nsys-rep", "c.sqlite", "d_pqtdir"]
    assert [item.label for item in inputs] == ["a", "b", "c", "d"]
    # The export of b is not a second report.
    assert [item.export.name if item.export else None for item in inputs] == [None, "b.sqlite", None, None]


def test_first_n_of_a_folder(folder):
    assert names(find_inputs([f"{folder}:2"])) == ["a.qdrep", "b.nsys-rep"]


def test_each_report_once(folder):
    inputs = find_inputs([str(folder / "b.nsys-rep"), str(folder), str(folder / ".." / "run" / "b.nsys-rep")])
    assert names(inputs) == ["b.nsys-rep", "a.qdrep", "c.sqlite", "d_pqtdir"]


def test_colon_in_a_name_is_part_of_it(tmp_path):
    path = tmp_path / "host:8.nsys-rep"
    path.write_text("")
    assert names(find_inputs([str(path)])) == ["host:8.nsys-rep"]


def test_labels_take_as_many_folders_as_needed(tmp_path):
    for place in ("x/one", "y/one", "x/two"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "rep.nsys-rep").write_text("")
    (tmp_path / "x" / "one" / "rep.qdrep").write_text("")
    paths = [tmp_path / "x/one/rep.nsys-rep", tmp_path / "y/one/rep.nsys-rep", tmp_path / "x/two/rep.nsys-rep"]
    assert [item.label for item in find_inputs(map(str, paths))] == ["x/one/rep", "y/one/rep", "two/rep"]
    both = [tmp_path / "x/one/rep.nsys-rep", tmp_path / "x/one/rep.qdrep"]
    assert [item.label for item in find_inputs(map(str, both))] == ["rep.nsys-rep", "rep.qdrep"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("none.nsys-rep", "does not exist"),
        ("notes.txt", "is no report"),
        ("empty_folder", "holds no reports"),
        ("b.nsys-rep:3", "is no folder"),
    ],
)
def test_problem_is_told_and_stops_nothing(path, expected, folder):
    bad, good = find_inputs([str(folder / path), str(folder / "c.sqlite")])
    assert expected in bad.problem
    assert good.problem is None
    with pytest.raises(PackError, match=expected):
        open_input(bad, None, print)


def test_reports_one_level_down_are_pointed_at(tmp_path):
    (tmp_path / "rank0").mkdir()
    (tmp_path / "rank0" / "x.nsys-rep").write_text("")
    (problem,) = find_inputs([str(tmp_path)])
    assert problem.problem.endswith(f"give {tmp_path / 'rank0'}")


def test_name_that_is_not_utf8_gets_a_label(tmp_path):
    path = os.fsencode(tmp_path) + b"/caf\xe9.sqlite"
    with open(path, "w"):
        pass
    (item,) = find_inputs([os.fsdecode(path)])
    assert item.label == "caf\\xe9"


def test_without_nsight_the_export_beside_is_read(tmp_path, graph_sqlite):
    report = tmp_path / "r.nsys-rep"
    shutil.copy(FIXTURES / "decode_graph.nsys-rep", report)
    (item,) = find_inputs([str(report)])
    with pytest.raises(PackError, match="no Nsight Systems"):
        open_input(item, None, print)
    shutil.copy(graph_sqlite, tmp_path / "r.sqlite")
    (item,) = find_inputs([str(report)])
    assert open_input(item, None, print)[1] == "read from r.sqlite beside it"


def test_export_beside_that_is_older_is_not_read(tmp_path, graph_sqlite):
    report = tmp_path / "r.nsys-rep"
    shutil.copy(FIXTURES / "decode_graph.nsys-rep", report)
    stale = shutil.copy(graph_sqlite, tmp_path / "r.sqlite")
    os.utime(stale, (1, 1))
    (item,) = find_inputs([str(report)])
    with pytest.raises(PackError, match="older than the report"):
        open_input(item, None, print)
