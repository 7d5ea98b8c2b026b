"""The dataset of llm_fleet: whole or as it was before, whatever happens, wherever it lies."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from conftest import FIXTURES, ROOT, nsight, pack
from fleet import TABLES, committed, duckdb_on, fleet, put_by_hand, times, tree
from llm_fleet import publish as publishing
from llm_fleet.dataset import ALL_REPORTS, MARKER, Dataset, open_dataset, run_version
from llm_fleet.recipe import add_options, publish, settings
from llm_fleet.settings import FleetSettings
from llm_fleet.storage import Storage, open_storage, reason, without_secrets
from llm_fleet.tables import EVENTS, tables_of_reports
from recipes.base.errors import PackError
from recipes.events.gpu_work import Span
from recipes.run.inputs import find_inputs
from recipes.run.local import find_exporter
from recipes.run.recipe import Task, load_recipe
from recipes.run.run import _analyse

pytestmark = pytest.mark.nsight

OLD = FIXTURES / "2023.4.4"
RANKS = [OLD / f"tp_graph_rank{rank}.nsys-rep" for rank in (0, 1)]
OTHER_RANKS = [OLD / f"tp_slow_rank{rank}.nsys-rep" for rank in (0, 1)]


@pytest.fixture
def job(tmp_path):
    """A folder with the reports of two ranks."""
    folder = tmp_path / "job"
    folder.mkdir()
    for rank, report in enumerate(RANKS):
        shutil.copy(report, folder / f"rank{rank}.nsys-rep")
    return folder


def test_report_twice_changes_nothing(job, tmp_path):
    fleet("--input", job, "--output", tmp_path / "out1", "--dataset", tmp_path / "ds")
    before, when = tree(tmp_path / "ds"), times(tmp_path / "ds")
    fleet("--input", job, "--output", tmp_path / "out2", "--dataset", tmp_path / "ds")
    assert tree(tmp_path / "ds") == before
    assert times(tmp_path / "ds") == when
    changes = [pq.read_table(tmp_path / out / "published.parquet")["change"].to_pylist() for out in ("out1", "out2")]
    assert changes == [["new", "new"], ["unchanged", "unchanged"]]


def test_copy_elsewhere_is_the_same_report(job, tmp_path):
    fleet("--input", job, "--output", tmp_path / "out1", "--dataset", tmp_path / "ds")
    when = times(tmp_path / "ds")
    shutil.copytree(job, tmp_path / "elsewhere" / "job")
    fleet("--input", tmp_path / "elsewhere" / "job", "--output", tmp_path / "out2", "--dataset", tmp_path / "ds")
    assert times(tmp_path / "ds") == when


def test_recapture_replaces_its_rows_in_every_table(job, tmp_path):
    ranked = ["--rank-map", "rank1=1", "--events"]
    fleet("--input", job, "--output", tmp_path / "out1", "--dataset", tmp_path / "ds", *ranked)
    # The second capture of rank 1 has no GPU work, so no families.
    shutil.copy(OLD / "broken_no_cuda.nsys-rep", job / "rank1.nsys-rep")
    again = ["--input", job / "rank1.nsys-rep", "--run", "job", *ranked]
    fleet(*again, "--output", tmp_path / "out2", "--dataset", tmp_path / "ds")
    fleet("--input", job, "--output", tmp_path / "out3", "--dataset", tmp_path / "fresh", *ranked)
    assert pq.read_table(tmp_path / "out2" / "published.parquet")["change"].to_pylist() == ["replaced"]
    for table in tables_of_reports(events=True):
        assert committed(tmp_path / "ds", table.name) == committed(tmp_path / "fresh", table.name), table.name
    assert set(committed(tmp_path / "ds", "families")["report"].to_pylist()) == {"job/rank0"}
    # Nothing of the first capture lies about.
    names = [name for name in tree(tmp_path / "ds") if "rank1" in name]
    assert len(names) == len({name.partition("/")[0] for name in names})


def test_other_options_replace_the_rows_too(job, tmp_path):
    report = job / "rank0.nsys-rep"
    fleet("--input", report, "--output", tmp_path / "out1", "--dataset", tmp_path / "ds")
    fleet("--input", report, "--output", tmp_path / "out2", "--dataset", tmp_path / "ds", "--model", "llama-3.1-8b")
    assert len(committed(tmp_path / "ds", "reports")) == 1
    assert committed(tmp_path / "ds", "floor")["floor_ns"].null_count == 0


def test_unreadable_recapture_leaves_the_good_one(job, tmp_path):
    fleet("--input", job, "--output", tmp_path / "out1", "--dataset", tmp_path / "ds")
    before = tree(tmp_path / "ds")
    (job / "rank1.nsys-rep").write_bytes(RANKS[1].read_bytes()[:100_000])
    fleet("--input", job, "--output", tmp_path / "out2", "--dataset", tmp_path / "ds")
    assert tree(tmp_path / "ds") == before


def test_rank_of_the_job_on_another_host_is_the_same_report():
    assert publishing.report_key("job/r", 3, "node1") == publishing.report_key("job/r", 3, "node2")
    assert publishing.report_key("job/r", None, "node1") != publishing.report_key("job/r", None, "node2")
    keys = {publishing.report_key(name, 0, "h") for name in ("job/r", "Job/r", "job/R", "job.r", "jöb/r")}
    assert len(keys) == 5


def told_of(report: Path, rank: int | None = None, source: str | None = None, job_rank: int | None = None, **file):
    """What the dataset says of a report whose rank comes from there."""
    found = {"captured_ns": 1, "job_rank": job_rank, "devices": [], "gpu_names": [], "gpu_uuids": []}
    facts = pa.Table.from_pylist([found])
    item = find_inputs([str(report)])[0]
    chosen = FleetSettings("", None, "run", (), False, None, {})
    return publishing._about(facts, {"rank": rank, "rank_source": source, "host": "h", **file}, item, chosen).values


def test_host_tells_reports_apart_unless_the_job_or_the_user_gave_the_rank(job):
    """Two nodes may each call their first process rank0."""
    report = job / "rank0.nsys-rep"

    def key(*told, host, **more):
        return told_of(report, *told, host=host, **more)["report_key"]

    for told in ((0, "file name"), (0, "thread name"), (None, None)):
        assert key(*told, host="n1") != key(*told, host="n2")
    assert key(0, "environment RANK", 0, host="n1") == key(0, "environment RANK", 0, host="n2")
    assert key(0, "environment RANK", 0, host="n1") != key(1, "environment RANK", 1, host="n1")
    assert key(5, "--rank-map", host="n1") == key(5, "--rank-map", host="n2") != key(6, "--rank-map", host="n1")


def test_name_does_not_depend_on_other_inputs(tmp_path):
    """Folder and name, unless that is what two of them have."""
    for place in ("a/x/r", "b/x/r", "b/y/r", "b/y/s"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(OLD / "broken_no_cuda.nsys-rep", tmp_path / f"{place}.nsys-rep")

    def names(*places):
        return [publishing.report_name(item) for item in find_inputs([str(tmp_path / place) for place in places])]

    assert names("b/y/s.nsys-rep") == ["y/s"]
    assert names("a/x/r.nsys-rep") == ["x/r"]
    assert names("a/x/r.nsys-rep", "b/y") == ["x/r", "y/r", "y/s"]
    assert names("a", "b") == ["a/x/r", "b/x/r", "y/r", "y/s"]


def task_of(report: Path, dataset: Path, run: str = "run") -> Task:
    parser = argparse.ArgumentParser()
    parser.add_argument("--input", nargs="+")
    add_options(parser.add_argument)
    parts = settings(parser.parse_args(["--input", str(report)])).parts
    chosen = FleetSettings(str(dataset), None, run, (("a", "b"),), False, None, parts)
    item = find_inputs([str(report)])[0]
    return Task(item, 1, 1, "llm_fleet", chosen, Span(), None, find_exporter())


class Stop(BaseException):
    """As good as a kill."""


def test_crash_at_any_write_shows_the_old_rows_or_the_new(job, tmp_path, monkeypatch):
    """Every write and every delete of a re-capture fails in turn; the next run makes good."""
    one, two = task_of(job / "rank0.nsys-rep", tmp_path / "ds"), task_of(OTHER_RANKS[0], tmp_path / "ds")
    analysed = ((task, _analyse(task, lambda text: None)) for task in (one, two))
    old, new = ((found.tables, file, task) for task, (found, file, _) in analysed)
    wanted = {}
    for name, (tables, file, _) in (("old", old), ("new", new)):
        (tmp_path / name).mkdir()
        place = task_of(job / "rank0.nsys-rep", tmp_path / name)
        publish(tables, file, place)
        wanted[name] = {table: committed(tmp_path / name, table) for table in TABLES if table not in (*EVENTS, "runs")
                        and (tmp_path / name / f"table={table}").exists()}  # fmt: skip
    assert wanted["old"]["steps"] != wanted["new"]["steps"]
    plain, writes = {"write": Storage.write, "delete": Storage.delete}, 0

    def failing(name):
        def one(self, *given):
            nonlocal left
            if left == 0:
                raise Stop
            left -= 1
            plain[name](self, *given)

        return one

    seen = []
    while True:
        shutil.rmtree(tmp_path / "ds", ignore_errors=True)
        publish(*old)
        left = writes
        for name in plain:
            monkeypatch.setattr(Storage, name, failing(name))
        try:
            # The other capture under the first one's name.
            publish(*new[:2], one)
            break
        except Stop:
            pass
        finally:
            for name, kept in plain.items():
                monkeypatch.setattr(Storage, name, kept)
        found = {table: committed(tmp_path / "ds", table) for table in wanted["old"]}
        seen.append(next(name for name in wanted if found == wanted[name]))
        assert found["reports"].num_rows == 1
        writes += 1
    # First the writes, the last of which makes the new rows count; then a delete for each table but `reports`, and for
    # `runs`, which has no file of the report.
    assert seen == sorted(seen, reverse=True)
    assert seen.count("old") == len(wanted["old"])
    assert seen.count("new") == len(wanted["old"])
    assert {table: committed(tmp_path / "ds", table) for table in wanted["new"]} == wanted["new"]


def test_unfinished_work_of_others_stays_for_an_hour(tmp_path):
    """A version that does not count yet, and a file that is being written, may be another process's."""
    dataset = put_by_hand(str(tmp_path), "r", [{"report": "a", **steps_of(1)}])
    folder = tmp_path / "table=steps" / "run=r"
    mine, (counts,) = tree(tmp_path), folder.glob("a-key.*")
    for name in ("a-key.v-other.parquet", ".a-key.v-other.parquet.1-2.part", "b-key.v-other.parquet"):
        shutil.copy(counts, folder / name)
    before = tree(tmp_path)
    dataset.sweep("r", {"a-key", ALL_REPORTS})
    assert tree(tmp_path) == before
    for file in tmp_path.rglob("*.*"):
        os.utime(file, (time.time() - 3700,) * 2)
    dataset.sweep("r", {"a-key", ALL_REPORTS})
    # Of other reports nothing is touched, nor what counts.
    assert tree(tmp_path).keys() == {*mine, "table=steps/run=r/b-key.v-other.parquet"}


def steps_of(count: int) -> dict:
    return {"steps": [{"device": 0, "step": n, "phase": "decode", "edge": False} for n in range(count)]}


def test_writers_of_one_report_leave_the_last_one_s_rows(tmp_path):
    """A writes, B writes and commits, A commits: A's rows count and are there, B's are gone."""
    dataset = put_by_hand(str(tmp_path), "r", [])
    tables = {name: TABLES[name] for name in ("steps", "reports")}

    def rows(version):
        about = {"run_name": "r", "report": "x", "report_key": "x-key", "version": version}
        return [(table, pa.Table.from_pylist([about], schema=table.schema())) for table in tables.values()]

    def first():
        steps, reports = rows("vA")
        yield steps
        dataset.commit("r", "x-key", "vB", lambda: rows("vB"))
        dataset.sweep("r", {"x-key"})
        yield reports

    dataset.commit("r", "x-key", "vA", first)
    assert dataset.reports()["version"].to_pylist() == ["vA"]
    assert len(dataset.read(TABLES["steps"], dataset.reports())) == 1
    assert [file.name for file in tmp_path.glob("table=steps/*/*")] == ["x-key.vA.parquet"]


def test_store_that_does_not_tell_times_keeps_what_lies_about(tmp_path, monkeypatch):
    dataset = put_by_hand(str(tmp_path), "r", [{"report": "a"}])
    (file,) = tmp_path.glob("table=steps/*/a-key.*")
    shutil.copy(file, file.with_name("a-key.v-other.parquet"))
    before, written = tree(tmp_path), Storage.written
    monkeypatch.setattr(Storage, "written", lambda self, folder: dict.fromkeys(written(self, folder)))
    dataset.sweep("r", {"a-key"})
    assert tree(tmp_path) == before


def test_file_that_another_takes_away_is_written_again(tmp_path):
    dataset, turns = put_by_hand(str(tmp_path), "r", []), []
    about = {"run_name": "r", "report": "x", "report_key": "x-key", "version": "v"}

    def rows():
        turns.append(1)
        yield TABLES["steps"], pa.Table.from_pylist([about], schema=TABLES["steps"].schema())
        if len(turns) == 1:
            (tmp_path / "table=steps/run=r/x-key.v.parquet").unlink()
        yield TABLES["reports"], pa.Table.from_pylist([about], schema=TABLES["reports"].schema())

    dataset.commit("r", "x-key", "v", rows)
    assert len(dataset.read(TABLES["steps"], dataset.reports())) == 1
    assert len(turns) == 2


def test_lost_files_are_told_and_written_again(job, tmp_path):
    """Also those over all reports of the run."""
    options = ["--input", job, "--dataset", tmp_path / "ds"]
    fleet(*options, "--output", tmp_path / "out1")
    whole = tree(tmp_path / "ds")
    for pattern in ("table=steps/*/rank0-*", "table=tags/*/rank0-*", "table=ranks/*/all-reports.*"):
        (file,) = (tmp_path / "ds").glob(pattern.replace("/rank0", "/job-rank0"))
        file.unlink()
    fleet("--input", OLD / "layers.nsys-rep", "--dataset", tmp_path / "ds", "--run", "o", "--output", tmp_path / "out2")
    told = pq.read_table(tmp_path / "out2" / "doubtful_captures.parquet").to_pylist()
    assert [row["lost"] for row in told if row["report"] == "job/rank0"] == ["steps,tags"]
    runs = {row["run_name"]: row["message"] for row in pq.read_table(tmp_path / "out2/overview.parquet").to_pylist()}
    assert runs["job"] is None
    fleet(*options, "--output", tmp_path / "out3")
    assert pq.read_table(tmp_path / "out3" / "published.parquet")["change"].to_pylist() == ["repaired", "unchanged"]
    assert {name: content for name, content in tree(tmp_path / "ds").items() if name in whole} == whole


@pytest.mark.parametrize("mode", ["none", "concurrent"])
def test_killed_run_and_another_are_as_good_as_one(mode, job, tmp_path):
    """kill -9 at random moments; what readers see meanwhile is whole, and the next run leaves nothing behind."""
    shutil.copy(OLD / "layers.nsys-rep", job / "layers.nsys-rep")
    options = ["--input", job, "--mode", mode, "--run", "job", "--events"]
    started = time.monotonic()
    assert (
        pack("run", "llm_fleet", *options, "--output", tmp_path / "a", "--dataset", tmp_path / "whole").returncode == 0
    )
    seconds = time.monotonic() - started
    undisturbed = tree(tmp_path / "whole")
    chance = random.Random(7)
    command = [sys.executable, "-m", "recipes", "run", "llm_fleet", *map(str, options), "--dataset", tmp_path / "ds"]
    for turn in range(6):
        process = subprocess.Popen(
            [*map(str, command), "--output", str(tmp_path / f"k{turn}")], cwd=ROOT, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        time.sleep(seconds * chance.uniform(0.3, 1.0))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for table in ("steps", "families"):
            if (tmp_path / "ds" / f"table={table}").exists():
                rows, whole = committed(tmp_path / "ds", table), committed(tmp_path / "whole", table)
                here = set(committed(tmp_path / "ds", "reports")["report_key"].to_pylist())
                assert rows.to_pylist() == [row for row in whole.to_pylist() if row["report_key"] in here]
    # What was left behind goes when it is an hour old.
    for file in (tmp_path / "ds").rglob("*.*"):
        os.utime(file, (time.time() - 3700,) * 2)
    assert pack("run", "llm_fleet", *options, "--output", tmp_path / "b", "--dataset", tmp_path / "ds").returncode == 0
    assert tree(tmp_path / "ds") == undisturbed


@pytest.mark.parametrize(
    "runs", [[("fast", RANKS), ("slow", OTHER_RANKS)], [("one", RANKS[:1]), ("one", RANKS[1:])]], ids=["two", "one"]
)
def test_runs_are_written_by_two_processes_at_once(runs, tmp_path):
    """One dataset that neither finds there; two runs, and one of which each has a rank."""
    for turn, (name, reports) in enumerate(runs):
        fleet("--input", *reports, "--run", name, "--output", tmp_path / f"o{turn}", "--dataset", tmp_path / "one")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "recipes", "run", "llm_fleet", "--input", *map(str, reports), "--run", name,
             "--output", str(tmp_path / f"b{turn}"), "--dataset", str(tmp_path / "both")],
            cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for turn, (name, reports) in enumerate(runs)
    ]  # fmt: skip
    for process in started:
        said, _ = process.communicate(timeout=300)
        assert process.returncode == 0, said
    assert tree(tmp_path / "both") == tree(tmp_path / "one")


def test_workers_of_a_cluster_write_the_same_dataset(job, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fleet("--input", job, "--output", tmp_path / "out1", "--dataset", tmp_path / "plain")
    done = pack("run", "llm_fleet", "--input", job, "--output", tmp_path / "out2", "--dataset", tmp_path / "cluster",
                "--mode", "dask-futures", NSYS_DASK_N_WORKERS="2", NSYS_DASK_THREADS_PER_WORKER="1")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert tree(tmp_path / "cluster") == tree(tmp_path / "plain")


def test_relative_dataset_is_in_the_user_s_folder(job, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fleet("--input", job / "rank0.nsys-rep", "--output", "out", "--dataset", "here/ds")
    assert (tmp_path / "here" / "ds" / MARKER).exists()


def test_dataset_that_cannot_be_is_one_line_inside_nsight(nsys, tmp_path):
    (tmp_path / "file").write_text("mine")
    done = nsight(nsys, "recipe", "llm_fleet", "--input", RANKS[0], "--output", tmp_path / "out",
                  "--dataset", tmp_path / "file" / "ds")  # fmt: skip
    one_error(done, "check --dataset")


def test_ranks_of_one_run_come_one_by_one(tmp_path):
    """As from the nodes of a job: the tables over all ranks are those of all ranks at once."""
    for rank, report in enumerate(RANKS):
        fleet("--input", report, "--run", "tp", "--output", tmp_path / f"out{rank}", "--dataset", tmp_path / "single")
    fleet("--input", *RANKS, "--run", "tp", "--output", tmp_path / "out", "--dataset", tmp_path / "together")
    assert tree(tmp_path / "single") == tree(tmp_path / "together")
    (ranks,) = (tmp_path / "single").glob("table=ranks/*/*.parquet")
    assert pq.ParquetFile(ranks).read()["rank"].to_pylist() == [0, 1]


def test_tables_over_a_run_do_not_count_after_a_report_has_changed(tmp_path):
    dataset = put_by_hand(str(tmp_path), "r", [{"report": "a"}, {"report": "b"}])
    told = dataset.runs()["version"].to_pylist()
    assert told == [run_version(dataset.reports("r")["version"].to_pylist())]
    assert told == [hashlib.md5(b"v-r-a-key,v-r-b-key").hexdigest()]
    row = dataset.reports("r").slice(0, 1)
    row = row.set_column(row.column_names.index("version"), "version", [["v2"]])
    dataset.put("r", "a-key", "v2", [(TABLES["reports"], row)])
    assert dataset.runs()["version"].to_pylist() == told
    assert run_version(dataset.reports("r")["version"].to_pylist()) != told[0]
    assert duckdb_on(tmp_path).execute("SELECT count(*) FROM runs").fetchall() == [(0,)]


@pytest.mark.parametrize("run", ["a/b=c %20 ü '\".. ", "2026-11-30", "7", "..", "null", "$(x)\n;--", "x" * 200])
def test_odd_run_names_are_names(run, tmp_path):
    import duckdb
    import pandas as pd
    import polars as pl

    report = OLD / "broken_no_cuda.nsys-rep"
    fleet("--input", report, "--run", run, "--output", tmp_path / "out", "--dataset", tmp_path / "ds" / "x")
    assert os.listdir(tmp_path / "ds") == ["x"]
    place = str(tmp_path / "ds" / "x" / "table=reports")
    found = [
        duckdb.execute(f"SELECT run_name FROM '{place}/*/*.parquet'").fetchall()[0][0],
        pd.read_parquet(place)["run_name"][0],
        pl.read_parquet(f"{place}/**/*.parquet")["run_name"][0],
    ]
    assert found == [run] * 3


@pytest.mark.parametrize("run", ["", "x" * 201, "ü" * 40, "__HIVE_DEFAULT_PARTITION__"])
def test_impossible_run_names_are_refused(run, tmp_path):
    done = pack("run", "llm_fleet", "--input", RANKS[0], "--run", run, "--output", tmp_path / "out")
    one_error(done, "give --run a name")
    assert os.listdir(tmp_path) == []


def one_error(done: subprocess.CompletedProcess[str], expected: str) -> None:
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert "Traceback" not in said
    assert [line for line in said.splitlines() if line.startswith("ERROR: ") and expected in line], said
    assert said.count("ERROR: ") == 1


def test_unwritable_dataset_is_one_line_before_the_work(tmp_path):
    (tmp_path / "file").write_text("mine")
    done = pack(
        "run", "llm_fleet", "--input", RANKS[0], "--output", tmp_path / "out", "--dataset", tmp_path / "file/ds"
    )
    one_error(done, "check --dataset")
    assert os.listdir(tmp_path) == ["file"]


def test_full_disk_is_one_line_and_readers_see_nothing_half(tmp_path):
    """A limit on the size of files stands for the disk."""
    command = [sys.executable, "-m", "recipes", "run", "llm_fleet", "--mode", "concurrent", "--input", *map(str, RANKS),
               "--output", str(tmp_path / "out"), "--dataset", str(tmp_path / "ds")]  # fmt: skip

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))

    fleet("--input", *RANKS, "--output", tmp_path / "export", "--dataset", tmp_path / "made")
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        preexec_fn=limited, check=False,
    )  # fmt: skip
    one_error(done, "cannot be written")
    assert not list((tmp_path / "ds").glob("table=reports/*/*.parquet"))
    assert not list((tmp_path / "ds").rglob("*.part"))
    assert not (tmp_path / "out").exists()


def test_dataset_of_a_newer_pack_is_refused(tmp_path):
    (tmp_path / "ds").mkdir()
    (tmp_path / "ds" / MARKER).write_text(json.dumps({"dataset_version": 3}))
    done = pack("run", "llm_fleet", "--input", RANKS[0], "--output", tmp_path / "out", "--dataset", tmp_path / "ds")
    one_error(done, "the dataset has version 3, this pack writes 2; use the pack that wrote it, or a newer one")


def test_dataset_of_version_1_is_refused_and_left_alone(tmp_path):
    """The one in tests/data was written by the first version."""
    shutil.copytree(ROOT / "tests" / "data" / "dataset_1", tmp_path / "ds")
    before = tree(tmp_path / "ds")
    done = pack("run", "llm_fleet", "--input", RANKS[0], "--output", tmp_path / "out", "--dataset", tmp_path / "ds")
    one_error(
        done, "the dataset has version 1, this pack writes 2; give --dataset a new folder and add the reports again"
    )
    assert tree(tmp_path / "ds") == before


@pytest.mark.parametrize("content", [None, "{", "[]", '{"dataset_version": null}'])
def test_folder_of_something_else_is_left_alone(content, tmp_path):
    (tmp_path / "precious.txt").write_text("mine")
    if content is not None:
        (tmp_path / MARKER).write_text(content)
    before = tree(tmp_path)
    with pytest.raises(PackError, match="damaged" if content else "is not a dataset of llm_fleet"):
        open_dataset(str(tmp_path)).begin()
    assert tree(tmp_path) == before


def test_file_url_is_the_same_folder(job, tmp_path):
    fleet("--input", job, "--output", tmp_path / "out1", "--dataset", tmp_path / "plain")
    fleet("--input", job, "--output", tmp_path / "out2", "--dataset", (tmp_path / "url").as_uri())
    assert tree(tmp_path / "url") == tree(tmp_path / "plain")


@pytest.mark.parametrize("url", ["memory://fleet/ds", "memory://fleet"])
def test_fsspec_url_holds_the_same_files(url, job, tmp_path):
    import fsspec

    fleet("--input", job, "--output", tmp_path / "out1", "--dataset", tmp_path / "plain")
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    for out in ("out2", "out3"):
        fleet("--input", job, "--output", tmp_path / out, "--dataset", url)
    root = memory._strip_protocol(url)
    assert {path.removeprefix(root)[1:]: memory.cat(path) for path in memory.find(root)} == tree(tmp_path / "plain")
    assert pq.read_table(tmp_path / "out3" / "published.parquet")["change"].to_pylist() == ["unchanged"] * 2


def test_listing_is_never_an_old_one(tmp_path):
    """File systems of fsspec may remember listings."""
    from fsspec.implementations.local import LocalFileSystem

    class Remembering(LocalFileSystem):
        protocol = "remembering"

        def ls(self, path, detail=False, **options):
            if path not in self.dircache:
                self.dircache[path] = super().ls(path, detail=True, **options)
            found = self.dircache[path]
            return found if detail else [one["name"] for one in found]

        def invalidate_cache(self, path=None):
            self.dircache.clear()

    files = Remembering(skip_instance_cache=True)
    storage = Storage("x", pafs.PyFileSystem(pafs.FSSpecHandler(files)), str(tmp_path), whole=False)
    assert storage.names("") == []
    (tmp_path / "a").write_text("1")
    assert storage.names("") == ["a"]


@pytest.mark.parametrize("url", ["nosuch://bucket/x", "s3x://a"])
def test_unknown_file_system_is_one_line(url, tmp_path):
    done = pack(
        "run", "llm_fleet", "--input", RANKS[0], "--output", tmp_path / "out", "--dataset", url, "--mode", "none"
    )
    one_error(done, url.partition(":")[0])


def test_missing_fsspec_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(PackError, match="pip install fsspec"):
        open_storage.__wrapped__("memory://x")


def test_missing_package_of_a_file_system_is_one_line():
    # Named in fsspec, and its package is one that nothing here needs.
    with pytest.raises(PackError, match="pip install"):
        open_storage.__wrapped__("dropbox://x")


def test_secrets_of_a_url_are_never_shown():
    url = "s3://key:secret@bucket/path?endpoint_override=host&token=secret"
    assert without_secrets(url) == "s3://bucket/path"
    odd = ("key:se/cret@bucket/path", "key:p@secret@bucket/path", "bucket/path#secret", "key:sec#ret@bucket/path")
    assert {without_secrets(f"s3://{rest}") for rest in odd} == {"s3://bucket/path"}
    assert "sec" not in without_secrets("s3://key:sec?ret@bucket/path")
    assert without_secrets("s3://bucket:9000/path?a=b") == "s3://bucket:9000/path"
    assert reason(ValueError("no s3://key:secret@bucket/x here")) == "no s3://bucket/x here"
    with pytest.raises(PackError) as error:
        open_storage.__wrapped__("nosuch://key:secret@bucket/path?token=secret")
    assert "secret" not in str(error.value)


def test_column_that_an_older_file_lacks_is_null(tmp_path):
    dataset = put_by_hand(str(tmp_path), "r", [{"report": "a", "model": "m"}])
    (file,) = tmp_path.glob("table=reports/*/*.parquet")
    pq.write_table(pq.ParquetFile(file).read().drop_columns(["model", "tags"]), file)
    put_by_hand(str(tmp_path), "s", [{"report": "a", "model": "m"}])
    assert dataset.reports()["model"].to_pylist() == [None, "m"]
    import duckdb

    files = f"read_parquet('{tmp_path}/table=reports/*/*.parquet', union_by_name = true)"
    assert duckdb.execute(f"SELECT model FROM {files} ORDER BY run_name").fetchall() == [(None,), ("m",)]


def test_damaged_file_is_one_line(tmp_path):
    dataset = put_by_hand(str(tmp_path), "r", [{"report": "a"}])
    (file,) = tmp_path.glob("table=steps/*/*.parquet")
    file.write_bytes(b"PAR1 no parquet PAR1")
    with pytest.raises(PackError, match="table steps cannot be read"):
        dataset.read(TABLES["steps"], dataset.reports())


def test_all_reports_is_no_report():
    assert ALL_REPORTS not in {
        publishing.report_key(name, rank, None) for name in ("all-reports",) for rank in (None, 0)
    }
    assert isinstance(open_dataset("x"), Dataset)
    assert load_recipe("llm_fleet").COMBINED


def test_dataset_that_another_process_is_beginning_is_one(tmp_path):
    """Its marker is not complete yet."""
    (tmp_path / f".{MARKER}.123-abc.part").write_text("{")
    open_dataset(str(tmp_path)).begin()
    assert json.loads((tmp_path / MARKER).read_text()) == {"dataset_version": 2}


def test_questions_can_be_asked_before_the_first_run_is_complete(tmp_path):
    """A run that was killed in its middle left reports, and no row in `runs`."""
    dataset = open_dataset(str(tmp_path / "ds"))
    dataset.begin()
    assert dataset.runs().num_rows == 0
    import duckdb

    counted = duckdb.sql(f"SELECT count(*) FROM read_parquet('{tmp_path}/ds/table=runs/*/*.parquet')").fetchall()
    assert counted == [(0,)]
