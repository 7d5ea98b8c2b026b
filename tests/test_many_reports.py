"""Hundreds of reports: one line for each that fails, the memory of one, the same bytes in any order."""

from __future__ import annotations

import gc
import os
import pty
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import FIXTURES, ROOT, pack
from recipes.base.errors import PackError
from recipes.base.tables import Column, Table
from recipes.base.terminal import progress_text
from recipes.events.gpu_work import Span
from recipes.report.report import Report
from recipes.report.sources import ParquetFolder, SqliteFile
from recipes.run import local, run
from recipes.run import outcomes as gather
from recipes.run.inputs import find_inputs
from recipes.run.spill import Spill, spill_in
from recipes.run.worker_processes import in_processes, one_by_one

pytestmark = pytest.mark.slow

COUNT = 200


@pytest.fixture
def fleet(request, tmp_path: Path, graph_sqlite: Path) -> Path:
    """A folder for each node with a report for each rank, among them some that cannot be read."""
    folder = tmp_path / "fleet"
    for rank in range(getattr(request, "param", COUNT)):
        place = folder / f"node{rank // 8:02}" / f"rank{rank:03}"
        place.mkdir(parents=True)
        (place / "decode.sqlite").hardlink_to(graph_sqlite)
    for node in range(3):
        (folder / f"node{node:02}" / "bad.sqlite").write_text("no export")
    return folder


def outputs(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.suffix in (".parquet", ".csv", ".ipynb")}


def test_hundreds_of_reports_in_one_run(fleet, graph_sqlite, tmp_path):
    done = pack("run", "llm_kernel_families", "--csv", "--input", f"{fleet}/**/*.sqlite", "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert sorted(line.partition(":")[0] for line in done.stderr.splitlines()) == ["WARNING"] * 3
    kernels = 5215 * COUNT
    assert f"quality: warn ({COUNT} reports, {kernels:,} kernels; 3 inputs could not be read)" in done.stdout
    single = pack("run", "llm_kernel_families", "--input", graph_sqlite, "--output", tmp_path / "one")
    assert single.returncode == 0, single.stderr
    files = pq.read_table(tmp_path / "out" / "files.parquet")
    assert files["status"].to_pylist().count("ok") == COUNT
    one = pq.read_table(tmp_path / "one" / "families.parquet").drop_columns(["report"])
    rows = pq.read_table(tmp_path / "out" / "families.parquet")
    labels = [label for label in files["report"].to_pylist() if label.endswith("decode")]
    assert rows["report"].to_pylist() == [label for label in labels for _ in range(len(one))]
    # The rank is that of the folder's name; the rest is that of the one report.
    assert rows.slice(0, len(one)).drop_columns(["report", "rank"]).equals(one.drop_columns(["rank"]))
    assert sorted(file.suffix for file in (tmp_path / "out").iterdir()) == [
        ".csv", ".csv", ".csv", ".ipynb", ".nsys-analysis", ".parquet", ".parquet", ".parquet",
    ]  # fmt: skip
    assert sorted(os.listdir(tmp_path)) == ["fleet", "one", "out"]


@pytest.mark.parametrize("name", ["llm_idle_gaps", "llm_nccl_sum"])
def test_order_of_completion_does_not_matter(name, tmp_path, monkeypatch, capsys):
    ranks = [str(FIXTURES / "2023.4.4" / f"tp_{kind}_rank{rank}.nsys-rep") for kind in ("eager",) for rank in (0, 1)]
    others = [str(FIXTURES / f"decode_{kind}.nsys-rep") for kind in ("eager", "graph")]
    reports = ranks if name == "llm_nccl_sum" else ranks + others

    def shuffled(function, lost, tasks):
        tasks = list(tasks)
        random.Random(1).shuffle(tasks)
        assert [task.number for task in tasks] != sorted(task.number for task in tasks)
        return reversed([function(task) for task in tasks]) if len(tasks) > 2 else map(function, tasks)

    made = {}
    for label, mapper in (("in order", one_by_one), ("shuffled", shuffled)):
        monkeypatch.setitem(local._MAP_TASKS, "none", mapper)
        arguments = ["--mode", "none", "--csv", "--input", *reports, "--output", str(tmp_path / label)]
        assert local.run_locally(name, arguments, "run") == 0
        made[label] = outputs(tmp_path / label)
    assert made["in order"] == made["shuffled"]


def task_for(path: Path, spill: Spill | None = None) -> run.Task:
    (item,) = find_inputs([str(path)])
    return run.Task(item, 1, 2, "llm_kernel_families", run.load_recipe("llm_kernel_families").settings(_Options()),
                    Span(), None, None, spill=spill)  # fmt: skip


class _Options:
    families = None


def test_tables_wait_on_disk(graph_sqlite, tmp_path):
    held = run.analyse_report(task_for(graph_sqlite))
    with spill_in(tmp_path) as spill:
        kept = run.analyse_report(task_for(graph_sqlite, spill))
        assert kept.tables == {}
        assert kept.file == held.file
        for name, rows in held.tables.items():
            assert pa.concat_tables(spill.read(1, name)).equals(rows)
        assert list(spill.read(2, "families")) == []
    assert os.listdir(tmp_path) == []


def test_a_folder_of_the_same_name_elsewhere_is_not_written(graph_sqlite, tmp_path):
    with spill_in(tmp_path) as spill:
        other = Spill(spill.folder, "another")
        outcome = run.analyse_report(task_for(graph_sqlite, other))
        assert set(outcome.tables) == {"families", "kernels"}
        assert [file.name for file in spill.folder.iterdir()] == ["mark"]
    gone = run.analyse_report(task_for(graph_sqlite, Spill(tmp_path / "gone", "")))
    assert set(gone.tables) == {"families", "kernels"}


@pytest.mark.parametrize("kind", ["sqlite", "parquet"])
def test_nothing_of_a_report_outlives_its_analysis(kind, graph_sqlite, exporter):
    from recipes.nsight.export import export

    path = graph_sqlite if kind == "sqlite" else export(FIXTURES / "decode_graph.nsys-rep", exporter)
    task = task_for(path)
    gc.collect()
    gc.disable()
    try:
        assert run.analyse_report(task).file["status"] == "ok"
        left = [thing for thing in gc.get_objects() if isinstance(thing, (Report, ParquetFolder, SqliteFile))]
    finally:
        gc.enable()
    assert left == []


def test_table_that_is_not_sorted_by_report_is_sorted_as_a_whole():
    table = Table("t", "row", (Column("report", "string"), Column("a", "int64")), sort=(("a", "ascending"),))
    outcomes = [
        run.Outcome(number, {"report": name}, {"t": table.build({"report": [name, name], "a": values})})
        for number, name, values in ((1, "y", [1, 4]), (2, "x", [2, 3]))
    ]
    joined = pa.concat_tables(gather.pieces(table, outcomes, None))
    assert joined.to_pydict() == {"report": ["y", "x", "x", "y"], "a": [1, 2, 3, 4]}


def lost(number: int, reason: str) -> tuple[int, str]:
    return number, reason


def ten_times(number: int) -> tuple[int, int]:
    return number, 10 * number


def kills_on_three(number: int) -> tuple[int, int]:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return ten_times(number)


def kills_once(pair: tuple[int, Path]) -> tuple[int, int]:
    number, flag = pair
    if number == 3 and not flag.exists():
        flag.write_text("")
        os.kill(os.getpid(), signal.SIGKILL)
    return ten_times(number)


def test_worker_that_dies_costs_its_report_only():
    found = dict(in_processes(kills_on_three, lost, range(12), 3))
    assert "killed twice" in found.pop(3)
    assert found == {number: 10 * number for number in range(12) if number != 3}


def test_worker_that_dies_once_costs_nothing(tmp_path):
    tasks = [(number, tmp_path / "flag") for number in range(12)]
    found = dict(in_processes(kills_once, lost, tasks, 3))
    assert (tmp_path / "flag").exists()
    assert found == {number: 10 * number for number in range(12)}


@pytest.mark.parametrize("fleet", [24], indirect=True)
@pytest.mark.parametrize("inside", [True, False], ids=["nsys", "pack"])
def test_killed_worker_loses_no_report(inside, fleet, nsys, tmp_path):
    arguments = ["llm_kernel_families", "--input", fleet, "--output", tmp_path / "out", "--mode"]
    done = pack("run", *arguments[:-2], tmp_path / "none", "--mode", "none")
    assert done.returncode == 0, done.stderr
    command = [nsys, "recipe"] if inside else [sys.executable, "-m", "recipes", "run"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with subprocess.Popen(
        [*command, *arguments, "concurrent"], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PATH": path, "NSYS_CONCURRENT_MAX_WORKERS": "2"},
    ) as started:  # fmt: skip
        until = time.monotonic() + 60
        while not list(tmp_path.glob(".out.part-*/.tables-*/*.arrow")):
            assert time.monotonic() < until and started.poll() is None
            time.sleep(0.02)
        # A worker has no children of its own.
        workers = [child for child in psutil.Process(started.pid).children(recursive=True) if not child.children()]
        workers[-1].kill()
        said, warned = started.communicate(timeout=120)
    assert started.returncode == 0, said + warned
    assert "Traceback" not in said + warned
    assert (said + warned).count("WARNING: ") == 3
    assert outputs(tmp_path / "out") == outputs(tmp_path / "none")


def test_report_whose_worker_dies_is_named(graph_sqlite, tmp_path, monkeypatch, capsys):
    other = tmp_path / "other.sqlite"
    other.hardlink_to(graph_sqlite)

    def one_is_lost(function, lost, tasks):
        yield lost(tasks[0], "its worker process was killed twice")
        yield function(tasks[1])

    monkeypatch.setitem(local._MAP_TASKS, "none", one_is_lost)
    arguments = ["--mode", "none", "--input", str(other), str(graph_sqlite), "--output", str(tmp_path / "out")]
    assert local.run_locally("llm_kernel_families", arguments, "run") == 0
    assert capsys.readouterr().err == f"WARNING: {other}: its worker process was killed twice\n"
    with pytest.raises(PackError, match="killed twice"):
        local.run_locally("llm_kernel_families", [*arguments, "--strict"], "run")


@pytest.mark.parametrize(
    ("done", "failed", "seconds", "expected"),
    [
        (0, 0, 9, "0 of 200 reports done"),
        (1, 0, 0.5, "1 of 200 reports done, about 2 min left"),
        (100, 3, 50, "100 of 200 reports done, 3 failed, about 50 s left"),
        (50, 0, 3600, "50 of 200 reports done, about 3 h left"),
        (200, 1, 60, "200 of 200 reports done, 1 failed"),
    ],
)
def test_progress_tells_done_failed_and_time_left(done, failed, seconds, expected):
    assert progress_text(done, failed, 200, seconds) == expected


@pytest.mark.parametrize("inside", [True, False], ids=["nsys", "pack"])
def test_progress_of_many_reports_on_a_terminal(inside, nsys, graph_sqlite, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for number in range(3):
        (folder / f"r{number}.sqlite").hardlink_to(graph_sqlite)
    (folder / "a.sqlite").write_text("no export")
    command = [nsys, "recipe"] if inside else [sys.executable, "-m", "recipes", "run"]
    arguments = ["llm_kernel_families", "--mode", "none", "--input", folder, "--output", tmp_path / "out"]
    master, slave = pty.openpty()
    path = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"
    ended = subprocess.run(
        [*command, *arguments], cwd=ROOT, stdin=slave, stdout=slave, stderr=slave, timeout=120, check=False,
        env={**os.environ, "PATH": path},
    )  # fmt: skip
    os.close(slave)
    shown = os.read(master, 100_000).decode()
    os.close(master)
    assert ended.returncode == 0
    lines = [line.rpartition("\x1b[K")[2] for line in shown.replace("\r\n", "\n").split("\r")]
    for text in ("0 of 4 reports done", "1 of 4 reports done, 1 failed", "4 of 4 reports done, 1 failed"):
        assert any(line.startswith(text) for line in lines), text
    # Never behind a line of progress.
    assert any(line.startswith("WARNING: ") for line in lines) or inside


def _children(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_ended_run_leaves_no_process_and_little_else(number, tmp_path, graph_sqlite):
    folder = tmp_path / "in"
    folder.mkdir()
    for place in range(40):
        os.link(graph_sqlite, folder / f"r{place}.sqlite")
    command = [sys.executable, "-m", "recipes", "run", "llm_idle_gaps", "--input", folder, "--output", tmp_path / "out"]
    environment = {**os.environ, "NSYS_CONCURRENT_MAX_WORKERS": "2"}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 30
    while len(workers := _children(process.pid)) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    assert len(workers) >= 2
    process.send_signal(number)
    process.wait(timeout=30)
    until = time.monotonic() + 15
    while any(map(psutil.pid_exists, workers)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not any(map(psutil.pid_exists, workers))
    assert not (tmp_path / "out").exists()
    if number == signal.SIGTERM:
        assert [file.name for file in tmp_path.iterdir()] == ["in"]
