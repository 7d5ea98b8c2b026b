"""An export is made once, whole, for the very report, and shared."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conftest import FIXTURES, ROOT
from recipes.base.cache_folder import NOWHERE, cache_root, home_folder
from recipes.base.errors import PackError
from recipes.nsight.export import Exporter, _reason, content_digest, export
from recipes.report import schema
from recipes.report.report import open_export

GRAPH, EAGER = FIXTURES / "decode_graph.nsys-rep", FIXTURES / "decode_eager.nsys-rep"


@pytest.fixture
def report(tmp_path, fresh_cache):
    return Path(shutil.copy(GRAPH, tmp_path / "run.nsys-rep"))


@pytest.fixture
def made(report, exporter):
    """A made export, and a function that tells whether asking again exports again."""
    folder = export(report, exporter)

    def again(path: Path = report) -> bool:
        announced = []
        export(path, exporter, announced.append)
        return bool(announced)

    return folder, again


def test_second_recipe_finds_the_export(made):
    _, again = made
    assert not again()


def test_chmod_does_not_export_again(made, report):
    report.chmod(0o444)
    assert not made[1]()


def test_copy_does_not_export_again(made, report, tmp_path):
    copied = tmp_path / "elsewhere" / "other-name.nsys-rep"
    copied.parent.mkdir()
    shutil.copyfile(report, copied)
    assert not made[1](copied)


def test_changed_report_exports_again(made, report):
    folder, again = made
    shutil.copyfile(EAGER, report)
    assert again()
    assert len(list(folder.parent.glob("*/manifest.json"))) == 2


def test_edit_that_keeps_size_and_time_is_noticed(report):
    before = content_digest(report)
    stat = report.stat()
    data = bytearray(report.read_bytes())
    data[1000] ^= 1
    report.write_bytes(data)
    os.utime(report, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert content_digest(report) != before


def test_another_nsight_version_exports_again(report, exporter):
    first = export(report, exporter)
    assert export(report, Exporter(exporter.nsys, "2099.1")) != first


@pytest.mark.parametrize("damage", ["delete", "truncate", "manifest"])
def test_broken_cache_is_made_again(made, damage):
    folder, again = made
    kernels = folder / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
    if damage == "delete":
        kernels.unlink()
    elif damage == "truncate":
        os.truncate(kernels, 100)
    else:
        (folder / "manifest.json").write_text("{")
    assert again()
    assert len(open_export(folder).read(schema.KERNELS, ["start_ns"])) == 5215


def test_what_a_killed_run_left_is_cleared(report, exporter):
    folder = export(report, exporter)
    left = folder.parent / f"{folder.name}.part-dead"
    left.mkdir()
    (left / "CUPTI_ACTIVITY_KIND_KERNEL.parquet").write_text("half")
    os.utime(left, (1, 1))
    shutil.rmtree(folder)
    assert export(report, exporter) == folder
    assert not left.exists()


def test_two_recipes_at_once_export_once(report, exporter):
    announced = []
    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(lambda _: export(report, exporter, announced.append), range(4)))
    assert len(folders) == 1
    assert len(announced) == 1


def test_nothing_is_written_beside_the_report(made, report):
    assert {path.name for path in report.parent.iterdir()} == {"run.nsys-rep", "fresh-cache"}


def test_only_the_tables_of_the_pack_are_exported(made):
    folder, _ = made
    assert {file.stem for file in folder.glob("*.parquet")} <= set(schema.EXPORTED)


def test_cache_is_private(made):
    # Reports carry the environment of the machine that they come from.
    assert cache_root().stat().st_mode & 0o077 == 0


def test_manifest_names_report_and_version(made, exporter):
    manifest = json.loads((made[0] / "manifest.json").read_text())
    assert (manifest["report"], manifest["nsys"]) == ("run.nsys-rep", exporter.version)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (GRAPH.read_bytes()[:200_000], "damaged, cut off or not an Nsight report"),
        (b"hello\n", "damaged, cut off or not an Nsight report"),
        (b"", "is empty"),
    ],
    ids=["truncated", "text", "empty"],
)
def test_file_that_is_no_report_is_told_in_one_line(content, expected, tmp_path, fresh_cache, exporter):
    path = tmp_path / "bad.nsys-rep"
    path.write_bytes(content)
    with pytest.raises(PackError, match=expected) as caught:
        export(path, exporter)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)
    assert not list((fresh_cache / "exports").glob("*part*"))


def test_report_of_a_newer_nsight_says_what_to_do(fresh_cache, exporter, installation):
    if installation.version >= (2025,):
        pytest.skip("this Nsight is new enough to read it")
    with pytest.raises(
        PackError, match="probably since a newer one wrote it or it is damaged; use that version or newer, or give"
    ):
        export(FIXTURES / "2025.3.1" / "layers.nsys-rep", exporter)


def test_missing_report(tmp_path, fresh_cache, exporter):
    with pytest.raises(PackError, match="No such file"):
        export(tmp_path / "none.nsys-rep", exporter)


def test_nsys_that_is_missing(report):
    with pytest.raises(PackError, match="cannot be run"):
        export(report, Exporter(Path("/nowhere/nsys"), "1"))


def test_nsys_that_fails(report, tmp_path):
    nsys = tmp_path / "nsys"
    nsys.write_text("#!/bin/sh\necho 'out of licences' >&2; exit 3\n")
    nsys.chmod(0o755)
    with pytest.raises(PackError, match="out of licences"):
        export(report, Exporter(nsys, "1"))


def test_nsys_that_exports_nothing(report, tmp_path):
    nsys = tmp_path / "nsys"
    nsys.write_text("#!/bin/sh\nexit 0\n")
    nsys.chmod(0o755)
    with pytest.raises(PackError, match="exported no META_DATA_EXPORT"):
        export(report, Exporter(nsys, "1"))


def test_unwritable_cache_is_told(report, exporter, monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("NSYS_LLM_RECIPES_CACHE", str(blocked / "cache"))
    with pytest.raises(PackError, match="set NSYS_LLM_RECIPES_CACHE"):
        export(report, exporter)


def test_full_disk_is_told_and_leaves_nothing(report, exporter, fresh_cache):
    # A limit on file sizes fails writes as a full disk does, and needs no rights to set up.
    program = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from recipes.base.errors import PackError\n"
        "from recipes.nsight.export import Exporter, export\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "try: export(Path(sys.argv[1]), Exporter(Path(sys.argv[2]), 'x'))\n"
        "except PackError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, report, exporter.nsys], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.stdout.startswith(str(report))
    assert len(done.stdout.splitlines()) == 1
    assert not [path for path in (fresh_cache / "exports").iterdir() if path.suffix != ".lock"]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_full_disk_for_real(report, exporter, tmp_path, monkeypatch):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k", "none", disk], check=False)
    if mounted.returncode:
        pytest.skip("this machine does not let root mount a tmpfs")
    try:
        monkeypatch.setenv("NSYS_LLM_RECIPES_CACHE", str(disk))
        with pytest.raises(PackError) as caught:
            export(report, exporter)
        assert "NSYS_LLM_RECIPES_CACHE" in str(caught.value)
        assert not list(disk.glob("exports/*/manifest.json"))
    finally:
        subprocess.run(["umount", disk], check=True)


def without_home(patch: pytest.MonkeyPatch) -> None:
    """As in a pod: neither HOME nor a line in the list of users."""
    for name in ("HOME", "XDG_CACHE_HOME", "NSYS_LLM_RECIPES_CACHE"):
        patch.delenv(name, raising=False)

    def unknown(uid: int):
        raise KeyError(uid)

    patch.setattr("pwd.getpwuid", unknown)


def test_without_a_home_the_line_names_the_variable(report, exporter, monkeypatch):
    without_home(monkeypatch)
    assert (home_folder(), cache_root()) == (None, NOWHERE)
    with pytest.raises(PackError, match="no home folder is known; set NSYS_LLM_RECIPES_CACHE to a folder"):
        export(report, exporter)


def test_home_that_cannot_be_written_is_told_as_the_cache_s(report, exporter, monkeypatch, tmp_path):
    without_home(monkeypatch)
    (tmp_path / "file").touch()
    # As HOME=/ does for a user without rights: the folder that cannot be made lies above the cache.
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    with pytest.raises(PackError, match="set NSYS_LLM_RECIPES_CACHE to a folder with space and write permission"):
        export(report, exporter)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Error: the report was created by a newer version 2026.2.1.106 of Nsight Systems.", "2026.2.1.106"),
        (
            "[ERROR /dvs/2022.1/x.cpp] Nsight Systems 2023.4.4.54\nExportation error: version 2025.5.1 is needed",
            "2025.5.1",
        ),
    ],
)
def test_refused_report_tells_the_version_that_nsys_told(tmp_path, said, told):
    (tmp_path / "new.nsys-rep").write_text("report")
    line = _reason(tmp_path / "new.nsys-rep", said, 1, Exporter(Path("nsys"), "2023.4.4.54-234433681190v0"))
    assert line.startswith(f"was written by Nsight {told} and cannot be read by 2023.4.4.54; use that version or newer")
