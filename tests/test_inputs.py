"""Which reports the paths on a command line stand for."""

from __future__ import annotations

import gzip
import lzma
import os
import shutil

import pytest

from conftest import FIXTURES
from recipes.base.errors import PackError
from recipes.report import schema
from recipes.report.report import open_export
from recipes.run.inputs import find_inputs, open_input


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


def tree(folder, *names):
    """Empty files of these names below a folder; those that end in _pqtdir are folders with a table in them."""
    for name in names:
        path = folder / name
        (path if name.endswith("_pqtdir") else path.parent).mkdir(parents=True, exist_ok=True)
        (path / "META_DATA_EXPORT.parquet" if name.endswith("_pqtdir") else path).write_text("")


def found(*paths):
    """The inputs, as paths from the current folder."""
    return [os.path.relpath(item.path) for item in find_inputs(paths)]


@pytest.fixture
def run_folder(tmp_path, monkeypatch):
    """A current folder with a run in it: nested reports, exports beside them and alone, and what is none of these."""
    tree(
        tmp_path / "run", "b.nsys-rep", "node0/rank0/r.nsys-rep", "node0/rank0/r.sqlite", "node0/rank0/r_pqtdir",
        "node0/rank1/r.nsys-rep", "node1/rank2/r_pqtdir", "node1/rank2/r.sqlite", "node1/alone_pqtdir",
        ".hidden/h.nsys-rep", "out/families.parquet", "out/out.nsys-analysis", "notes.txt",
    )  # fmt: skip
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"


ALL = [
    "run/b.nsys-rep", "run/node0/rank0/r.nsys-rep", "run/node0/rank1/r.nsys-rep", "run/node1/alone_pqtdir",
    "run/node1/rank2/r.sqlite",
]  # fmt: skip


def test_folder_is_searched_with_all_below_it(run_folder):
    assert found("run") == ALL
    assert found("run:2") == ALL[:2]
    assert [item.label for item in find_inputs(["run"])] == ["b", "rank0/r", "rank1/r", "alone", "rank2/r"]


def test_links_are_followed_and_loops_end(run_folder, tmp_path):
    (run_folder / "node0" / "up").symlink_to(run_folder)
    (run_folder / "again").symlink_to(run_folder / "node0")
    tree(tmp_path / "far", "f.nsys-rep")
    (run_folder / "far").symlink_to(tmp_path / "far")
    assert [os.path.realpath(path) for path in found("run")] == [
        os.path.realpath(path) for path in ["run/again/rank0/r.nsys-rep", "run/again/rank1/r.nsys-rep",
                                            "run/b.nsys-rep", "far/f.nsys-rep", *ALL[3:]]
    ]  # fmt: skip


def test_own_cache_inside_the_folder_is_no_input(run_folder, monkeypatch):
    tree(run_folder / "cache" / "exports", "0123_pqtdir")
    monkeypatch.setenv("NSYS_LLM_RECIPES_CACHE", str(run_folder / "cache"))
    assert found("run") == ALL


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("run/**/*.nsys-rep", ALL[:3]),
        ("run/**/*.nsys-rep:2", ALL[:2]),
        ("run/**/rank[01]/*.nsys-rep", ALL[1:3]),
        ("run/*/rank0/*.nsys-rep", ALL[1:2]),
        # An export is chosen by its ending, and is no second input beside its report.
        ("run/**/*.sqlite", ["run/node0/rank0/r.sqlite", "run/node1/rank2/r.sqlite"]),
        ("run/**/r*", [*ALL[1:3], ALL[4]]),
        # A folder that matches stands for all in it.
        ("run/node?", ALL[1:]),
        ("run/**", ALL),
        ("**/b.nsys-rep", ALL[:1]),
    ],
)
def test_pattern_in_quotes(pattern, expected, run_folder):
    assert found(pattern) == expected


def test_name_with_the_signs_of_a_pattern_is_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tree(tmp_path, "a[0].nsys-rep", "a0.nsys-rep")
    assert found("a[0].nsys-rep") == ["a[0].nsys-rep"]


def test_list_of_paths(run_folder, tmp_path):
    (tmp_path / "list.txt").write_text("# ranks\n\nrun/b.nsys-rep\nrun/node0/*/r.nsys-rep\nrun/node1:1\nnone.sqlite\n")
    assert found("@list.txt") == [*ALL[:4], "none.sqlite"]
    assert [item.problem for item in find_inputs(["@list.txt"]) if item.problem] == [
        "none.sqlite does not exist; check the path"
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("@none.txt", "cannot be read"),
        ("@run", "cannot be read"),
        ("@run/notes.txt", "names no report"),
        ("run/**/*.qdrep", "matches no reports"),
        ("bad\0name", "null byte"),
    ],
)
def test_problem_of_a_pattern_or_list_is_told(text, expected, run_folder):
    (problem,) = find_inputs([text])
    assert expected in problem.problem


def test_folder_that_cannot_be_read_is_told(run_folder, monkeypatch):
    import errno
    from pathlib import Path

    listed = Path.iterdir

    def refuse(path):
        # As for another user: root may read everything.
        if path.name == "rank0":
            raise PermissionError(errno.EACCES, "Permission denied")
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", refuse)
    inputs = find_inputs(["run"])
    assert [item.problem for item in inputs if item.problem] == [
        "run/node0/rank0: Permission denied; check its permissions"
    ]
    assert len(inputs) == len(ALL)


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


@pytest.mark.parametrize(("suffix", "pack"), [(".xz", lzma.compress), (".gz", gzip.compress)])
def test_packed_export_is_unpacked_once(make_export, tmp_path, fresh_cache, suffix, pack):
    export = make_export("whole.sqlite")
    packed = tmp_path / "in" / f"run_rank3.sqlite{suffix}"
    packed.parent.mkdir()
    packed.write_bytes(pack(export.read_bytes()))
    (item,) = find_inputs([str(packed.parent)])
    announced: list[str] = []
    for _ in range(2):
        report, _ = open_input(item, None, announced.append)
        assert report.pairs(schema.EXPORT_INFO) == open_export(export).pairs(schema.EXPORT_INFO)
    assert (item.label, announced) == ("run_rank3", [f"unpacking {packed.name}"])
    # Beside the export itself it is no second report.
    shutil.copy(export, packed.parent / "run_rank3.sqlite")
    assert names(find_inputs([str(packed.parent)])) == ["run_rank3.sqlite"]


@pytest.mark.parametrize("suffix", [".xz", ".gz"])
def test_packed_export_that_is_cut_off_is_told(make_export, tmp_path, fresh_cache, suffix):
    pack = lzma.compress if suffix == ".xz" else gzip.compress
    packed = tmp_path / f"cut.sqlite{suffix}"
    packed.write_bytes(pack(make_export("whole.sqlite").read_bytes())[:-20])
    with pytest.raises(PackError, match=r"cut\.sqlite.*cannot be unpacked .*; copy it again"):
        open_input(find_inputs([str(packed)])[0], None, print)
    assert not list((fresh_cache / "exports").glob("*.sqlite"))


@pytest.mark.parametrize("name", ["run.nsys-rep", "run.sqlite", "run.sqlite.xz"])
def test_pointer_of_git_lfs_is_named(tmp_path, name):
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:13\nsize 67910142\n")
    with pytest.raises(PackError, match=f"{name}: a Git LFS pointer, not the file itself; run git lfs pull"):
        open_input(find_inputs([str(tmp_path / name)])[0], None, print)
