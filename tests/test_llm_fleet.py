"""llm_fleet: what goes into the dataset, and what comes out of it by SQL and without."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import pandas as pd
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import FIXTURES, ROOT, pack
from fleet import TABLES, asked, committed, duckdb_on, fleet, put_by_hand
from llm_fleet import answers as answering
from llm_fleet import recipe, whole_run
from llm_fleet.answers import answers
from llm_fleet.dataset import open_dataset
from llm_fleet.parts import NAME, parts
from llm_fleet.publish import utc
from llm_fleet.questions import QUESTIONS, SQL_FOLDER
from llm_fleet.settings import FleetSettings
from llm_fleet.summary import SLOW_Z, summarise
from llm_fleet.tables import ABOUT, EVENTS, PUBLISHED, dataset_tables
from recipes.base.errors import PackError
from recipes.base.pack import recipe_names
from recipes.run import inputs
from recipes.run.local import run_locally
from recipes.run.recipe import Told

pytestmark = pytest.mark.nsight

OLD = FIXTURES / "2023.4.4"
REPORTS = [OLD / f"{name}.nsys-rep" for name in (
    "tp_slow_rank0", "tp_slow_rank1", "decode_batches_graph", "serving_vllm", "training_fused", "broken_no_cuda",
    "broken_startup", "shared_gpu",
)]  # fmt: skip


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """A dataset of real reports, the output folder of its second run in `out`."""
    folder = tmp_path_factory.mktemp("real")
    options = ["--dataset", folder / "ds", "--model", "llama-3.1-8b"]
    fleet("--input", *REPORTS[:2], "--run", "tp", "--output", folder / "first", *options, "--events")
    fleet(
        "--input",
        *REPORTS[2:],
        "--run",
        "all",
        "--output",
        folder / "out",
        *options,
        "--tag",
        "commit=1",
        "--tag",
        "x=",
    )
    return folder


@pytest.fixture(scope="module")
def database(real):
    return duckdb_on(real / "ds")


# What goes in.


def test_all_other_recipes_are_found():
    assert list(parts()) == [name for name in recipe_names() if name != NAME]
    assert {"llm_kernel_families", "llm_decode_floor", "llm_idle_gaps", "llm_nccl_sum"} <= set(parts())


@pytest.mark.parametrize("name", [name for name in recipe_names() if name != NAME])
def test_rows_are_those_of_each_recipe_alone(name, real, tmp_path):
    """The same numbers as the recipe's own tables, row by row."""
    options = ["--model", "llama-3.1-8b"] if "--model" in options_of(name) else []
    for run, reports in (("tp", REPORTS[:2]), ("all", REPORTS[2:])):
        alone = tmp_path / run
        run_locally(name, ["--mode", "none", "--input", *map(str, reports), "--output", str(alone), *options], "test")
        for table in parts()[name].TABLES:
            if run == "all" and table.name in EVENTS:
                continue
            rows = [row for row in committed(real / "ds", table.name).to_pylist() if row["run_name"] == run]
            rows = [{key: row[key] for key in table.names} for row in rows]
            # In the dataset a report has its folder's name.
            rows = [{**row, "report": row["report"].removeprefix("2023.4.4/")} for row in rows]
            wanted = pq.read_table(alone / f"{table.name}.parquet").to_pylist()
            if table in parts()[name].COMBINED:
                # What the reports show as a set is of the run.
                wanted = [row for row in wanted if row["report"] is not None]
            assert rows == wanted, table.name
            assert rows or table.name in ("layers", "communication"), table.name


def options_of(name: str) -> list[str]:
    found: list[str] = []
    parts()[name].add_options(lambda option, **_: found.append(option))
    return found


def test_options_of_one_name_mean_the_same():
    """They are added once and read by all, so they must be of one kind."""
    kinds: dict[str, dict] = {}
    for one in parts().values():

        def add(option, **settings):
            kind = {key: value for key, value in settings.items() if key not in ("help", "metavar")}
            assert kinds.setdefault(option, kind) == kind, option

        one.add_options(add)


def test_recipes_have_different_tables():
    names = [table.name for one in parts().values() for table in {*one.TABLES, *one.COMBINED}]
    assert len(set(names)) == len(names)


def test_missing_rank_is_a_finding_of_the_run(tmp_path):
    fleet("--input", REPORTS[1], "--run", "r", "--output", tmp_path / "out", "--dataset", tmp_path / "ds",
          "--rank-map", "tp_slow_rank1=1")  # fmt: skip
    fleet("--input", OLD / "layers.nsys-rep", "--run", "r", "--output", tmp_path / "out2", "--dataset", tmp_path / "ds",
          "--rank-map", "layers=2")  # fmt: skip
    (file,) = (tmp_path / "ds").glob("table=findings/run=r/all-reports.*.parquet")
    (missing,) = [row for row in pq.ParquetFile(file).read().to_pylist() if row["check"] == "missing_rank"]
    assert missing["evidence"] == "1 of at least 3: 0"
    assert (missing["report"], missing["report_key"], missing["run_name"]) == (None, None, "r")


def test_tables_over_a_run_are_those_of_the_recipe(real, tmp_path):
    run_locally("llm_nccl_sum", ["--mode", "none", "--input", *map(str, REPORTS[:2]), "--output", str(tmp_path / "out"),
                                 "--model", "llama-3.1-8b"], "test")  # fmt: skip
    for table in parts()["llm_nccl_sum"].COMBINED:
        (file,) = (real / "ds").glob(f"table={table.name}/run=tp/*.parquet")
        rows = pq.ParquetFile(file).read().to_pylist()
        wanted = pq.read_table(tmp_path / "out" / f"{table.name}.parquet").to_pylist()
        shared = [name for name in table.names if name != "report"]
        assert [[row[name] for name in shared] for row in rows] == [[row[name] for name in shared] for row in wanted]
        assert {row["report"] for row in rows} == {"2023.4.4/tp_slow_rank0", "2023.4.4/tp_slow_rank1"}


def test_rows_tell_what_they_are_of(real):
    for row in committed(real / "ds", "steps").to_pylist():
        assert row["run_name"] in ("tp", "all")
        assert row["host"] == "vm"
        assert row["nsys_version"] == "2023.4.4.54"
        assert row["schema_version"] == "3.7.2"
        assert row["dataset_version"] == 2
        assert row["device"] is None or row["gpu_name"] == "NVIDIA H200"
        assert re.fullmatch(r"2026-11-\d\dT\d\d:\d\d:\d\dZ", row["captured"])
        assert utc(row["captured_ns"]) == row["captured"]
    ranks = {
        row["report"]: row["rank"] for row in committed(real / "ds", "steps").to_pylist() if row["run_name"] == "tp"
    }
    assert ranks == {"2023.4.4/tp_slow_rank0": 0, "2023.4.4/tp_slow_rank1": 1}


def test_tags_are_rows_and_json(real):
    tags = committed(real / "ds", "tags").to_pylist()
    assert {(row["tag"], row["value"]) for row in tags} == {("commit", "1"), ("x", "")}
    assert len(tags) == 2 * len(REPORTS[2:])
    reports = committed(real / "ds", "reports").to_pylist()
    assert {(row["run_name"], row["tags"]) for row in reports} == {("tp", "{}"), ("all", '{"commit": "1", "x": ""}')}
    assert {row["model"] for row in reports} == {"llama-3.1-8b"}


def test_uuid_is_that_of_the_gpu_that_a_process_saw(tmp_path, sqlite_of):
    """Two processes, each with a GPU of its own as device 0: the report maps them, process 1747 to GPU 0."""
    report = sqlite_of(FIXTURES / "2025.3.1" / "own_gpu.nsys-rep")
    fleet("--input", report, "--run", "r", "--output", tmp_path / "out", "--dataset", tmp_path / "ds")
    gpus = {row["device"]: row["gpu_uuid"] for row in committed(tmp_path / "ds", "steps").to_pylist()}
    assert gpus == {0: "GPU-573d7414-8c58-82aa-730b-a91843a88ae5", 1: "GPU-95e27d26-9e81-34c3-d01e-3f722d7dd4cf"}
    (one,) = committed(tmp_path / "ds", "reports").to_pylist()
    assert one["gpu_uuid"] == f"{gpus[0]},{gpus[1]}"


def test_uuid_that_the_report_leaves_open_is_null(real):
    """Two GPUs in the machine, and no map of what each process sees."""
    uuids = {row["gpu_uuid"] for row in committed(real / "ds", "steps").to_pylist() if row["run_name"] == "tp"}
    assert uuids == {None}


def test_one_export_and_one_reading_a_report(tmp_path, fresh_cache, monkeypatch):
    done = {"export": [], "open_export": []}
    for name, paths in done.items():
        plain = getattr(inputs, name)
        monkeypatch.setattr(inputs, name, lambda path, *rest, plain=plain, paths=paths: (
            paths.append(path), plain(path, *rest))[1])  # fmt: skip
    fleet("--input", *REPORTS[:2], "--run", "r", "--output", tmp_path / "out", "--dataset", tmp_path / "ds")
    assert done["export"] == REPORTS[:2]
    assert len(done["open_export"]) == 2


def test_recipe_that_fails_takes_nothing_from_the_others(tmp_path, monkeypatch):
    def broken(capture, settings):
        raise IndexError("oops\nhere")

    monkeypatch.delenv("NSYS_LLM_RECIPES_DEBUG", raising=False)
    monkeypatch.setattr(parts()["llm_idle_gaps"], "analyse", broken)
    fleet("--input", REPORTS[0], "--run", "r", "--output", tmp_path / "out", "--dataset", tmp_path / "ds")
    (report,) = committed(tmp_path / "ds", "reports").to_pylist()
    assert "llm_idle_gaps: unexpected IndexError (oops here)" in report["message"]
    assert report["quality"] == "warn"
    assert len(committed(tmp_path / "ds", "idle")) == 0
    assert len(committed(tmp_path / "ds", "families")) > 0
    assert len(committed(tmp_path / "ds", "steps")) > 0


def test_failure_over_all_reports_is_told(tmp_path, monkeypatch):
    def broken(tables, files, settings):
        raise IndexError("oops")

    monkeypatch.delenv("NSYS_LLM_RECIPES_DEBUG", raising=False)
    monkeypatch.setattr(parts()["llm_nccl_sum"], "combine", broken)
    fleet("--input", REPORTS[0], "--run", "r", "--output", tmp_path / "out", "--dataset", tmp_path / "ds")
    (run,) = pq.read_table(tmp_path / "out" / "overview.parquet").to_pylist()
    assert run["message"].startswith("llm_nccl_sum: unexpected IndexError (oops)")
    assert list((tmp_path / "ds").glob("table=ranks/run=r/all-reports.*.parquet"))


def test_run_with_too_many_rows_is_not_looked_at_together(tmp_path, monkeypatch):
    monkeypatch.setattr(whole_run, "MOST_ROWS", 100)
    fleet("--input", *REPORTS[:2], "--run", "r", "--output", tmp_path / "out", "--dataset", tmp_path / "ds")
    (run,) = pq.read_table(tmp_path / "out" / "overview.parquet").to_pylist()
    # 85 collectives a rank, and 5 steps in a table of their own.
    assert "llm_nccl_sum: 180 rows in 2 reports are too many to analyse together" in run["message"]


def test_tables_of_events_are_left_out(real):
    def files(run):
        return {file.parent.parent.name for file in (real / "ds").glob(f"table=*/run={run}/*")}

    assert files("tp") - files("all") == {f"table={name}" for name in EVENTS}
    assert files("all") == {f"table={table.name}" for table in dataset_tables() if table.name not in EVENTS}


def test_run_is_named_after_the_folder(tmp_path, monkeypatch):
    for place in ("job/a/r0", "job/b/r1"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(OLD / "broken_no_cuda.nsys-rep", tmp_path / f"{place}.nsys-rep")
    monkeypatch.chdir(tmp_path / "job")
    named = {
        ("a",): "a", ("a", "b"): "job", (".",): "job", ("a:1",): "a", ("a/r0.nsys-rep",): "a",
        ("a/r0.nsys-rep", "b/r1.nsys-rep"): "job", ("*/*.nsys-rep",): "job",
        ("@list.txt",): "job", ("**/r?.nsys-rep",): "job",
        ("*/../a/r0.nsys-rep",): "a", ("[ab]/r0.nsys-rep", "b/r1.nsys-rep"): "job",
    }  # fmt: skip
    assert {given: recipe._common_folder(list(given)) for given in named} == named


@pytest.mark.parametrize("tag", ["novalue", "=x", " =x"])
def test_bad_tag_is_one_usage_error(tag, tmp_path):
    done = pack("run", "llm_fleet", "--input", "x", "--tag", tag, "--output", tmp_path / "out")
    assert done.returncode == 2
    assert "write key=value" in done.stderr


def test_tag_given_twice_is_one_error(tmp_path):
    done = pack("run", "llm_fleet", "--input", "x", "--tag", "a=1", "--tag", "a=2", "--output", tmp_path / "out")
    assert done.returncode == 1
    assert done.stderr == "ERROR: --tag names a key twice; give each one value\n"


# Who reads it.


@pytest.mark.parametrize("table", dataset_tables(), ids=lambda table: table.name)
def test_columns_are_of_four_types_and_have_a_meaning(table):
    assert {str(kind) for kind in table.schema().types} <= {"int64", "double", "string", "bool"}
    assert all(column.meaning for column in table.columns)
    assert len(set(table.names)) == len(table.names)


def test_every_row_has_the_columns_that_tell_what_it_is_of():
    about = [column.name for column in ABOUT]
    for table in dataset_tables():
        if table.name != "runs":
            assert table.names[: len(about)] == about, table.name


def sums(frame: pd.DataFrame) -> dict[str, float]:
    numbers = frame.select_dtypes("number").columns
    return {name: float(frame[name].astype("float64").sum()) for name in sorted(numbers)}


def test_duckdb_pandas_and_polars_read_the_same(real, database):
    for table in dataset_tables():
        place = real / "ds" / f"table={table.name}"
        if table.name in ("matched", "ranks", "collectives", "runs"):
            continue
        by_arrow = committed(real / "ds", table.name).to_pandas()
        wanted = {"rows": len(by_arrow), **sums(by_arrow)}
        name = "reports" if table.name == "reports" else f"of_reports('{table.name}')"
        frames = {
            "duckdb": database.execute(f"SELECT * FROM {name}").df(),
            "pandas": pd.read_parquet(place).drop(columns=["run"]),
            "polars": polars.read_parquet(f"{place}/**/*.parquet", hive_partitioning=True).to_pandas().drop(
                columns=["run", "table"], errors="ignore"),
        }  # fmt: skip
        for reader, frame in frames.items():
            assert list(frame.columns) == table.names, (reader, table.name)
            assert {"rows": len(frame), **sums(frame)} == pytest.approx(wanted, nan_ok=True), (reader, table.name)


def test_hive_columns_can_be_filtered_by(real):
    place = f"'{real}/ds/table=steps/*/*.parquet', hive_partitioning = true"
    by_folder = duckdb.execute(f"SELECT DISTINCT run, run_name FROM read_parquet({place}) ORDER BY 1").fetchall()
    assert by_folder == [("all", "all"), ("tp", "tp")]
    assert set(pd.read_parquet(real / "ds" / "table=steps", filters=[("run", "=", "tp")])["run_name"]) == {"tp"}


# What comes out.


def test_every_question_has_its_sql():
    assert {file.stem for file in SQL_FOLDER.glob("*.sql")} == {table.name for table in QUESTIONS} | {
        "dataset",
        "views",
    }


def plain(row: dict) -> dict:
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in row.items()}


def alike(one: dict, other: dict) -> None:
    """The same row, but for the last bits of its doubles."""
    for name, value in plain(one).items():
        expected = pytest.approx(other[name], rel=1e-12, abs=1e-15) if isinstance(other[name], float) else other[name]
        assert value == expected, name


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda table: table.name)
def test_answers_are_those_of_the_files_by_hand_on_real_reports(question, real, database):
    from_sql = asked(database, question.name)
    own = [plain(row) for row in pq.read_table(real / "out" / f"{question.name}.parquet").to_pylist()]
    assert [list(row) for row in from_sql] == [question.names] * len(from_sql)
    assert len(from_sql) == len(own)
    for one, other in zip(from_sql, own, strict=True):
        alike(one, other)
    # One host, and no week before this one.
    assert own or question.name in ("slow_hosts", "regressions")


def test_answers_do_not_depend_on_who_reads_the_files(real, monkeypatch):
    """DuckDB itself where it can, else Arrow, as from an object store."""
    dataset = open_dataset(str(real / "ds"))
    by_duckdb = answers(dataset)
    monkeypatch.setattr(answering, "_read_here", lambda *_: False)
    by_arrow = answers(dataset)
    for table in QUESTIONS:
        for one, other in zip(by_arrow[table.name].to_pylist(), by_duckdb[table.name].to_pylist(), strict=True):
            alike(one, other)


def test_damaged_file_of_the_dataset_is_one_line(tmp_path):
    dataset = put_by_hand(str(tmp_path), "r", [{"report": "a", **steps([100])}])
    (file,) = tmp_path.glob("table=steps/*/*.parquet")
    file.write_bytes(b"PAR1 no parquet PAR1")
    with pytest.raises(PackError, match="table steps cannot be read"):
        answers(dataset)


def test_without_duckdb_the_dataset_is_written_and_one_line_says_how_to_ask(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    options = ["--input", OLD / "broken_no_cuda.nsys-rep", "--run", "r", "--dataset", tmp_path / "ds"]
    fleet(*options, "--output", tmp_path / "out")
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "Run r: 1 report in the dataset (1 new)"
    (line,) = [line for line in said if "DuckDB" in line]
    assert line.startswith(f"no answers: {sys.executable} has no DuckDB") and "pip install duckdb" in line
    assert str(SQL_FOLDER) in line
    assert {file.stem for file in (tmp_path / "out").glob("*.parquet")} == {"files", "published"}
    assert "no answers: " in run_notebook(tmp_path / "out" / "llm_fleet.ipynb", tmp_path, hidden=("duckdb",))
    monkeypatch.undo()
    # Later, with it.
    fleet(*options, "--output", tmp_path / "again")
    assert pq.read_table(tmp_path / "again" / "published.parquet")["change"].to_pylist() == ["unchanged"]
    assert pq.read_table(tmp_path / "again" / "overview.parquet")["reports"].to_pylist() == [1]


def both(folder: Path, question: str) -> list[dict]:
    """A question's answer, which is that of its SQL file by hand too."""
    ours = [plain(row) for row in answers(open_dataset(str(folder)))[question].to_pylist()]
    theirs = asked(duckdb_on(folder), question)
    assert [list(row) for row in theirs] == [list(row) for row in ours]
    for one, other in zip(theirs, ours, strict=True):
        alike(one, other)
    return ours


DAY_NS = 86400 * 10**9
MONDAY_NS = 1_796_000_000 * 10**9


def steps(
    busy: list[int], *, period: int = 100, waited: int = 0, calls: int = 0, ranks: int | None = None, **more
) -> dict:
    """The tables of a report with one device: steps of such busy times, the first one an edge; waiting and calls in
    each, of a job of so many ranks."""
    row = {"device": 0, "gpu_name": "G", "phase": "decode", "batch": 16, **more}
    made = [
        {**row, "step": n, "busy_ns": ns + waited, "duration_ns": ns + waited, "period_ns": period, "edge": n == 0}
        for n, ns in enumerate([10**6, *busy])
    ]
    return {
        "steps": made,
        "step_communication": [
            {"device": 0, "step": n, "calls": calls, "exposed_ns": waited} for n in range(len(made))
        ],
        "world_size": ranks,
    }


def test_slow_rank_takes_longer_for_its_own_work(tmp_path):
    """Own medians 100, 101, 102, 103 and 200: median 102, so above is -2, -1, 0, 1 and 98 of 102, whose distances from
    their median 0 have the median 1 of 102: z is 0.6745 * 98 = 66.101. What a rank waits for others does not count:
    rank 3 waits for 1000 and is not slow."""
    own = [[90, 100, 110], [101], [102], [103], [200, 200]]
    put_by_hand(str(tmp_path), "a", [
        {"report": f"r{n}", "rank": n, "host": f"h{n}", "model": "m",
         **steps(busy, waited=1000 if n == 3 else 0, calls=4)} for n, busy in enumerate(own)
    ])  # fmt: skip
    found = both(tmp_path, "slow_ranks")
    assert [row["report"] for row in found] == ["r4", "r3", "r2", "r1", "r0"]
    assert found[0]["z"] == pytest.approx(66.101)
    assert found[0]["above"] == pytest.approx(98 / 102)
    assert (found[0]["run_ns"], found[0]["compared"], found[0]["steps"]) == (102, 5, 2)
    assert found[4]["z"] == pytest.approx(-0.6745 * 2)
    assert found[1]["own_ns"] == 103
    hosts = both(tmp_path, "slow_hosts")
    assert [(row["host"], round(row["z"], 4)) for row in hosts] == [
        ("h4", 66.101), ("h3", 0.6745), ("h2", 0.0), ("h1", -0.6745), ("h0", -1.349),
    ]  # fmt: skip


def fleet_of_runs(folder: Path, own: list[int], slower: list[float]) -> None:
    """A run for each factor, with a rank on each host of such own times."""
    for run, factor in enumerate(slower):
        put_by_hand(str(folder), f"run{run}", [
            {"report": f"r{n}", "rank": n, "host": f"h{n}", "model": "m", **steps([round(ns * factor)])}
            for n, ns in enumerate(own)
        ])  # fmt: skip


def test_run_that_is_slow_as_a_whole_names_nobody(tmp_path):
    """Own 10000, 10100, 10200, 10300 in each of eight runs, the newest 8 % slower: above is -150, -50, 50, 150 of
    10150 in all of them, the median distance 100 of 10150, so no z is beyond 0.6745 * 1.5 = 1.012."""
    fleet_of_runs(tmp_path, [10000, 10100, 10200, 10300], [1] * 7 + [1.08])
    found = both(tmp_path, "slow_ranks")
    assert {row["compared"] for row in found} == {32}
    assert max(row["z"] for row in found) == pytest.approx(1.01175)
    assert max(row["z"] for row in both(tmp_path, "slow_hosts")) == pytest.approx(1.01175)


def test_node_that_is_slow_in_all_runs_is_named_whatever_the_runs_take(tmp_path):
    """Own 9900, 10000, 10000, 10100 and 11500 in eight runs, those of the second week 8 % slower: above is -1, 0, 0, 1
    and 15 %, the median distance 1 %, so the node's z is 0.6745 * 15 in each run, and that of its host too."""
    fleet_of_runs(tmp_path, [9900, 10000, 10000, 10100, 11500], [1] * 4 + [1.08] * 4)
    named = [row for row in both(tmp_path, "slow_ranks") if row["z"] > SLOW_Z]
    assert sorted((row["run_name"], row["host"]) for row in named) == [(f"run{n}", "h4") for n in range(8)]
    assert [row["z"] for row in named] == pytest.approx([10.1175] * 8)
    assert [row["above"] for row in named] == pytest.approx([0.15] * 8)
    hosts = both(tmp_path, "slow_hosts")
    assert (hosts[0]["host"], hosts[0]["z"], hosts[0]["devices"]) == ("h4", pytest.approx(10.1175), 8)
    assert max(row["z"] for row in hosts[1:]) == pytest.approx(0.6745)


def test_layouts_are_not_compared(tmp_path):
    """One model alone on a GPU, on two and on four ranks, in one run and under one name."""
    kinds = {"no communication": (100, {}), "2 ranks": (60, {"ranks": 2, "calls": 64}),
             "4 ranks": (40, {"ranks": 4, "calls": 64}), "several ranks": (20, {"calls": 64})}  # fmt: skip
    put_by_hand(str(tmp_path), "a", [
        {"report": f"{layout}{n}", "model": "m", **steps([own + n], **told)}
        for layout, (own, told) in kinds.items() for n in range(4)
    ])  # fmt: skip
    found = both(tmp_path, "slow_ranks")
    assert {(row["layout"], row["run_ns"], row["compared"]) for row in found} == {
        (layout, own + 1.5, 4) for layout, (own, _) in kinds.items()
    }
    assert {row["layout"] for row in both(tmp_path, "step_percentiles")} == set(kinds)


def test_device_that_is_alone_in_its_run_is_compared_with_nobody(tmp_path):
    """It or its run may be slow."""
    fleet_of_runs(tmp_path, [100, 101, 102, 103], [1])
    put_by_hand(str(tmp_path), "b", [{"report": "alone", "host": "h9", "model": "m", **steps([200])}])
    (found,) = [row for row in both(tmp_path, "slow_ranks") if row["run_name"] == "b"]
    assert (found["own_ns"], found["above"], found["z"]) == (200, None, None)
    assert "h9" not in {row["host"] for row in both(tmp_path, "slow_hosts")}


def test_three_devices_are_too_few_for_a_z(tmp_path):
    put_by_hand(str(tmp_path), "a", [{"report": f"r{n}", "host": "h", **steps([100 + n])} for n in range(3)])
    assert [row["z"] for row in both(tmp_path, "slow_ranks")] == [None] * 3
    assert both(tmp_path, "slow_hosts") == []


def test_equal_devices_have_no_z(tmp_path):
    put_by_hand(str(tmp_path), "a", [{"report": f"r{n}", "host": "h", **steps([100])} for n in range(5)])
    assert [row["z"] for row in both(tmp_path, "slow_ranks")] == [None] * 5


def test_one_that_differs_from_equal_ones_has_a_z(tmp_path):
    """100 four times and 105: the median distance is 0, the mean one 1, so z is 5 / 1.2533."""
    put_by_hand(str(tmp_path), "a", [{"report": f"r{n}", "host": "h", **steps([100 + 5 * (n == 4)])} for n in range(5)])
    found = both(tmp_path, "slow_ranks")
    assert found[0]["report"] == "r4"
    assert [row["z"] for row in found] == [pytest.approx(3.98947, abs=1e-5), 0, 0, 0, 0]


def test_without_a_model_only_one_run_is_compared(tmp_path):
    """Two models that nobody named, in two runs: neither is slow."""
    for run, own in (("small", 100), ("large", 300)):
        reports = [{"report": f"r{n}", "host": f"h{n}", **steps([own + n], period=own)} for n in range(4)]
        put_by_hand(str(tmp_path), run, reports)
    found = both(tmp_path, "slow_ranks")
    assert {(row["run_name"], row["run_ns"], row["compared"]) for row in found} == {
        ("small", 101.5, 4), ("large", 301.5, 4),
    }  # fmt: skip
    found = both(tmp_path, "step_percentiles")
    assert [(row["model"], row["run_name"], row["runs"], row["period_p50_ns"]) for row in found] == [
        (None, "large", 1, 300), (None, "small", 1, 100),
    ]  # fmt: skip


def test_run_named_like_a_model_is_another_group(tmp_path):
    for run, model in (("m", None), ("x", "m")):
        put_by_hand(str(tmp_path), run, [{"report": "r", "model": model, **steps([100])}])
    assert [row["compared"] for row in both(tmp_path, "slow_ranks")] == [0, 0]
    assert len(both(tmp_path, "step_percentiles")) == 2


@pytest.mark.parametrize(
    ("phase", "batch", "tokens", "wanted"),
    [
        ("prefill", 1, [[8, 8], [8, 8], [9, 9], [8, 9], [None] * 2, [8, None]],
         {("r0", 8, 2), ("r1", 8, 2), ("r2", 9, 0)}),
        ("mixed", 1, [[8, 8], [8, 9], [None, None]], {("r0", 8, 0)}),
        ("step", None, [[8, 8], [8, 9], [None, None], [None, None]], {("r0", 8, 0), ("r2", None, 2), ("r3", None, 2)}),
        ("decode", 4, [[8, 9], [4, None]], {("r0", None, 2), ("r1", None, 2)}),
    ],
)  # fmt: skip
def test_work_that_varies_with_the_prompt_is_compared_by_its_tokens(phase, batch, tokens, wanted, tmp_path):
    """Each with the tokens of its two steps; what is left out, and by how many each other one is compared."""
    reports = []
    for n, told in enumerate(tokens):
        made = steps([100, 100], phase=phase, batch=batch)
        for step, count in zip(made["steps"][1:], told, strict=True):
            step["tokens"] = count
        reports.append({"report": f"r{n}", "host": "h", "model": "m", **made})
    put_by_hand(str(tmp_path), "a", reports)
    found = both(tmp_path, "slow_ranks")
    assert {(row["report"], row["tokens"], row["compared"]) for row in found} == wanted
    assert sum(row["steps"] for row in both(tmp_path, "step_percentiles")) == 2 * len(tokens)


def test_batches_that_only_one_host_ran_do_not_hide_that_it_is_slow(tmp_path):
    """Host 4 takes 200 where the others take 100 to 103, median 102; and three batches by itself, at its own median."""
    reports = [{"report": f"r{n}", "host": f"h{n}", "model": "m", **steps([100 + n])} for n in range(4)]
    made = [steps([200]), *(steps([50], batch=batch) for batch in (1, 2, 3))]
    rows = [{**row, "step": n} for n, row in enumerate(row for one in made for row in one["steps"])]
    put_by_hand(str(tmp_path), "a", [*reports, {"report": "r4", "host": "h4", "model": "m", "steps": rows}])
    hosts = {row["host"]: row for row in both(tmp_path, "slow_hosts")}
    assert hosts["h4"]["above"] == pytest.approx(98 / 102)
    # Distances from the median 0: 2, 1, 0, 1 and 98 of 102; their median is 1 of 102.
    assert hosts["h4"]["z"] == pytest.approx(0.6745 * 98)
    assert hosts["h4"]["compared"] == 5


def test_host_is_the_median_of_its_devices_whatever_number_of_batches_they_ran(tmp_path):
    """Of host s one device is 100 above in three batches, and two are even in one: the median device is even."""

    def report(name, host, own, batches=(16,)):
        made = [steps([own], batch=batch)["steps"] for batch in batches]
        rows = [{**row, "step": n} for n, row in enumerate(row for one in made for row in one)]
        return {"report": name, "host": host, "model": "m", "steps": rows}

    others = [report(f"o{n}", f"h{n}", 100, (16, 17, 18)) for n in range(4)]
    put_by_hand(str(tmp_path), "a", [
        *others, report("s0", "s", 200, (16, 17, 18)), report("s1", "s", 100), report("s2", "s", 100),
    ])  # fmt: skip
    (host,) = [row for row in both(tmp_path, "slow_hosts") if row["host"] == "s"]
    assert (host["above"], host["devices"], host["reports"]) == (0, 3, 3)


def test_devices_of_one_host_are_not_compared_by_host(tmp_path):
    put_by_hand(str(tmp_path), "a", [{"report": f"r{n}", "host": "h", "model": "m", **steps([n])} for n in range(1, 6)])
    assert both(tmp_path, "slow_hosts") == []


def test_same_content_twice_in_a_run_counts_once(tmp_path):
    made = {
        "model": "m", "version": "v", "host": "h", **steps([100]),
        "families": [{"phase": "all", "family": "gemm", "calls": 1, "time_ns": 100, "exclusive_ns": 100}],
        "idle": [{"phase": "all", "window_ns": 100, "host_ns": 50}],
        "findings": [{"check": "edges", "severity": "warn", "message": "m", "remedy": "r"}],
    }  # fmt: skip
    put_by_hand(str(tmp_path), "r", [
        {"report": "x/r", "report_key": "k", **made}, {"report": "a/x/r", "report_key": "z", **made},
    ])  # fmt: skip
    assert [row["reports"] for row in both(tmp_path, "overview")] == [1]
    assert [row["time_ns"] for row in both(tmp_path, "family_shares")] == [100]
    assert [row["report"] for row in both(tmp_path, "slow_ranks")] == ["x/r"]
    assert [row["steps"] for row in both(tmp_path, "step_percentiles")] == [1]
    assert [(row["idle_ns"], row["window_ns"]) for row in both(tmp_path, "idle_causes")] == [(50, 100)]
    assert [row["reports"] for row in both(tmp_path, "capture_findings")] == [1]
    found = both(tmp_path, "doubtful_captures")
    assert [(row["report"], row["same_as"]) for row in found] == [("a/x/r", "x/r"), ("x/r", "a/x/r")]


def test_tags_that_differ_in_a_run_are_various(tmp_path):
    put_by_hand(str(tmp_path), "a", [{"report": "r", "tags": '{"x": "1"}'}, {"report": "s", "tags": '{"x": "2"}'}])
    put_by_hand(str(tmp_path), "b", [{"report": "r", "tags": "{}"}, {"report": "s"}])
    assert {row["run_name"]: row["tags"] for row in both(tmp_path, "overview")} == {"a": "various", "b": "{}"}


def test_missing_files_are_told(tmp_path):
    put_by_hand(str(tmp_path), "a b/c=ü~'(x)*!$._-%20", [{"report": "x", **steps([1])}, {"report": "y"}], of_run=[
        {"check": "missing_rank", "severity": "warn", "message": "m", "remedy": "r"}])  # fmt: skip
    assert [row["message"] for row in both(tmp_path, "overview")] == [""]
    assert both(tmp_path, "doubtful_captures") == []
    for name in ("steps", "idle"):
        (file,) = tmp_path.glob(f"table={name}/*/x-key.*")
        file.unlink()
    assert [(row["report"], row["lost"]) for row in both(tmp_path, "doubtful_captures")] == [("x", "steps,idle")]
    assert len(both(tmp_path, "capture_findings")) == 1
    (file,) = tmp_path.glob("table=findings/*/all-reports.*")
    file.unlink()
    assert [row["message"] for row in both(tmp_path, "overview")] == [None]
    assert both(tmp_path, "capture_findings") == []


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda table: table.name)
def test_old_files_have_an_answer(question, tmp_path):
    """Without the columns that came later."""
    put_by_hand(str(tmp_path), "a", [{"report": "r", "quality": "warn", **steps([100])}])
    for file in tmp_path.glob("table=reports/*/*.parquet"):
        pq.write_table(pq.ParquetFile(file).read().drop_columns(["model", "tags", "tables"]), file)
    told = ("overview", "slow_ranks", "step_percentiles", "doubtful_captures")
    assert bool(both(tmp_path, question.name)) == (question.name in told)


def test_path_of_a_dataset_is_no_pattern(tmp_path):
    place = tmp_path / "a[1]*?'x"
    put_by_hand(str(place), "r", [{"report": "a"}])
    put_by_hand(str(tmp_path / "a1zz'x"), "s", [{"report": "a"}])
    assert [row["run_name"] for row in both(place, "overview")] == ["r"]


def test_only_alike_is_compared(tmp_path):
    kinds = [("m", 1, "G"), ("m", 2, "G"), ("m", 1, "H"), (None, None, "G")]
    reports = [
        {"report": f"{kind}{n}", "model": model, **steps([100 * kind + n], batch=batch, gpu_name=gpu)}
        for kind, (model, batch, gpu) in enumerate(kinds, 1)
        for n in range(4)
    ]
    put_by_hand(str(tmp_path), "a", reports)
    found = both(tmp_path, "slow_ranks")
    assert {row["compared"] for row in found} == {4}
    assert {row["run_ns"] for row in found} == {101.5, 201.5, 301.5, 401.5}


def test_percentiles_are_those_of_steps(tmp_path):
    """Periods 1..99 in one report and a single 1000 in another: the median of all is 50.5, the 99th percentile is
    between the 99th and 100th value, at 0.01 of the way: 99 + 0.01 * 901 = 108.01. The mean of the reports' own would
    be about 549."""
    many = steps([80] * 99)
    for step, period in zip(many["steps"][1:], range(1, 100), strict=True):
        step["period_ns"] = period
    one = steps([100], period=1000)
    floor = [{"device": 0, "phase": "decode", "batch": 16, "floor_ns": 40}]
    put_by_hand(str(tmp_path), "a", [{"report": "many", "model": "m", "floor": floor, **many},
                                     {"report": "one", "model": "m", **one}])  # fmt: skip
    (found,) = both(tmp_path, "step_percentiles")
    assert found["period_p50_ns"] == 50.5
    assert found["period_p99_ns"] == pytest.approx(108.01)
    assert found["duration_p50_ns"] == 80
    # 80 over 40, of the 99 steps of the report that has a floor.
    assert (found["floor_ratio_p50"], found["steps_with_floor"]) == (2, 99)
    assert (found["runs"], found["reports"], found["steps"]) == (1, 2, 100)


def test_batch_that_is_not_known_finds_its_floor(tmp_path):
    floor = [{"device": 0, "phase": "decode", "batch": None, "floor_ns": 50}]
    put_by_hand(str(tmp_path), "a", [{"report": "r", "floor": floor, **steps([100], batch=None)}])
    assert [row["floor_ratio_p50"] for row in both(tmp_path, "step_percentiles")] == [2]


def test_family_shares_are_of_run_and_phase(tmp_path):
    def families(gemm, norm):
        spent = [(family, ns) for family, ns in (("gemm", gemm), ("norm", norm)) if ns]
        return [
            {"phase": phase, "family": family, "calls": 2, "time_ns": ns * times, "exclusive_ns": ns}
            for phase, times in (("all", 2), ("decode", 1))
            for family, ns in spent
        ]

    reports = [{"report": "x", "families": families(60, 20)}, {"report": "y", "families": families(20, 0)}]
    put_by_hand(str(tmp_path), "a", reports)
    put_by_hand(str(tmp_path), "b", [{"report": "x", "families": families(1, 3)}])
    found = {(row["run_name"], row["phase"], row["family"]): row for row in both(tmp_path, "family_shares")}
    assert len(found) == 8
    assert found["a", "decode", "gemm"]["share"] == 0.8
    assert found["a", "all", "norm"]["share"] == 0.2
    assert found["b", "all", "norm"]["share"] == 0.75
    gemm = found["a", "all", "gemm"]
    assert (gemm["reports"], gemm["calls"], gemm["time_ns"], gemm["exclusive_ns"]) == (2, 4, 160, 80)


def test_idle_is_by_day_and_cause(tmp_path):
    def idle(window, **causes):
        known = dict.fromkeys(("profiler", "graph", "sync", "api", "host", "launch", "queued", "unknown"), 0) | causes
        row = {"window_ns": window, **{f"{cause}_ns": ns for cause, ns in known.items()}}
        return [{"phase": "all", **row}, {"phase": "decode", **row}]

    put_by_hand(str(tmp_path), "a", [
        {"report": "x", "captured": "2026-11-30T23:59:59Z", "idle": idle(100, host=30, sync=10)},
        {"report": "y", "captured": "2026-11-30T00:00:00Z", "idle": idle(300, host=10)},
        {"report": "z", "captured": "2026-12-01T00:00:00Z", "idle": idle(50, launch=50)},
    ])  # fmt: skip
    found = both(tmp_path, "idle_causes")
    assert [(row["day"], row["cause"], row["idle_ns"], row["share"]) for row in found if row["idle_ns"]] == [
        ("2026-11-30", "host", 40, 0.1), ("2026-11-30", "sync", 10, 0.025), ("2026-12-01", "launch", 50, 1.0),
    ]  # fmt: skip
    assert {(row["day"], row["window_ns"], row["runs"], row["reports"]) for row in found} == {
        ("2026-11-30", 400, 1, 2), ("2026-12-01", 50, 1, 1),
    }  # fmt: skip


def test_cause_that_a_report_does_not_tell_is_not_zero(tmp_path):
    """Share is over the windows of those that tell it: 10 of 100, not of 400."""
    first, second = ({"phase": "all", "window_ns": window, "host_ns": 30} for window in (100, 300))
    reports = [{"report": "x", "idle": [{**first, "sync_ns": 10}]}, {"report": "y", "idle": [second]}]
    put_by_hand(str(tmp_path), "a", [{**report, "captured": "2026-11-30T00:00:00Z"} for report in reports])

    def found():
        rows = both(tmp_path, "idle_causes")
        return {row["cause"]: (row["reports"], row["idle_ns"], row["window_ns"], row["share"]) for row in rows}

    assert found() == {"host": (2, 60, 400, 0.15), "sync": (1, 10, 100, 0.1)}
    for file in tmp_path.glob("table=idle/*/*-key.*"):
        pq.write_table(pq.ParquetFile(file).read().drop_columns(["sync_ns", "queued_ns"]), file)
    assert found() == {"host": (2, 60, 400, 0.15)}


def test_remedy_is_that_of_the_message(tmp_path):
    told = {"check": "c", "severity": "warn"}
    put_by_hand(str(tmp_path), "x", [
        {"report": "a", "findings": [{**told, "message": "a", "remedy": "z"}]},
        {"report": "b", "findings": [{**told, "message": "b", "remedy": "y"}]},
    ])  # fmt: skip
    found = both(tmp_path, "capture_findings")
    assert [(row["message"], row["remedy"], row["reports"]) for row in found] == [("a", "z", 2)]


def test_doubtful_captures_are_those_with_a_limit_and_twins(tmp_path):
    put_by_hand(str(tmp_path), "a", [
        {"report": "good", "version": "1"},
        {"report": "once", "version": "2"},
        {"report": "twice", "version": "2"},
        {"report": "empty", "version": "3", "quality": "bad", "status": "empty", "message": "no GPU work"},
    ])  # fmt: skip
    put_by_hand(str(tmp_path), "b", [{"report": "other", "version": "1", "quality": "warn", "message": "no steps"}])
    found = both(tmp_path, "doubtful_captures")
    assert [(row["run_name"], row["report"], row["quality"], row["message"], row["same_as"]) for row in found] == [
        ("a", "empty", "bad", "no GPU work", None), ("a", "once", "ok", "", "twice"), ("a", "twice", "ok", "", "once"),
        ("b", "other", "warn", "no steps", None),
    ]  # fmt: skip


def test_findings_are_counted_by_report_and_sets_by_run(tmp_path):
    def finding(check, severity="warn", message="m"):
        return {"check": check, "severity": severity, "message": message, "remedy": f"do {check}"}

    put_by_hand(str(tmp_path), "a", [
        {"report": "x", "findings": [finding("edges"), finding("edges", message="a"), finding("lost", "error")]},
        {"report": "y", "findings": [finding("edges"), finding("fine", "info")]},
    ], of_run=[finding("missing_rank")])  # fmt: skip
    found = both(tmp_path, "capture_findings")
    assert [(row["severity"], row["check"], row["reports"], row["message"], row["remedy"]) for row in found] == [
        ("error", "lost", 1, "m", "do lost"), ("warn", "edges", 2, "a", "do edges"),
        ("warn", "missing_rank", 0, "m", "do missing_rank"),
    ]  # fmt: skip


def runs(folder: Path, periods: dict[str, tuple[float, list[float]]]) -> None:
    """Runs by name: how many days before Monday, and the period of each of its reports."""
    for name, (days, values) in periods.items():
        taken = {"model": "m", "captured_ns": int(MONDAY_NS - days * DAY_NS)}
        reports = [{"report": f"r{n}", **taken, **steps([10, 10], period=ns)} for n, ns in enumerate(values)]
        put_by_hand(str(folder), name, reports)


def test_regression_has_the_interval_of_its_runs(tmp_path):
    """Logarithms of 100, 110, 121 before, of 200, 220, 242 now: the means differ by ln 2; each side's variance is
    ln(1.1)^2, over 3 runs a third of it; their sum's root is ln(1.1) * sqrt(2/3) = 0.0778204; Welch's degrees of
    freedom are 4, t is 2.776: 0.2160294. exp(ln 2 -+ 0.2160294) - 1 = 0.611422 and 1.482277. Ten reports of one run are
    one run."""
    runs(tmp_path, {"b1": (8, [100] * 10), "b2": (9, [110]), "b3": (9, [121]),
                    "n1": (0, [200] * 10), "n2": (6.9, [220]), "n3": (1, [242])})  # fmt: skip
    (found,) = both(tmp_path, "regressions")
    assert (found["runs_before"], found["runs_now"]) == (3, 3)
    assert found["change"] == pytest.approx(1)
    assert found["before_ns"] == pytest.approx(110)
    assert (found["low"], found["high"]) == pytest.approx((0.611422, 1.482277), abs=2e-5)
    assert found["verdict"] == "slower"


def test_weeks_end_with_the_newest_capture(tmp_path):
    """Exactly seven days is last week, fourteen is too long ago."""
    runs(tmp_path, {"a": (14, [1]), "b": (13.99, [100]), "c": (7, [100]), "d": (6.99, [100]), "e": (0, [100])})
    (found,) = both(tmp_path, "regressions")
    assert (found["runs_before"], found["runs_now"]) == (2, 2)
    assert found["change"] == pytest.approx(0, abs=1e-12)


def test_two_runs_a_week_are_too_few_for_a_verdict(tmp_path):
    runs(tmp_path, {"b1": (8, [100, 101]), "b2": (8, [101]), "n1": (0, [200, 201]), "n2": (1, [200]), "n3": (1, [202])})
    (found,) = both(tmp_path, "regressions")
    assert (found["low"], found["high"], found["verdict"]) == (None, None, "too few runs")
    assert found["change"] > 0.9


@pytest.mark.parametrize("now", [[9_999_997] * 3, [20, 21, 22]], ids=["both", "before"])
def test_runs_that_do_not_differ_have_no_verdict(now, tmp_path):
    """Nothing is measured to the last bit: they are copies, or no measurement."""
    periods = {f"n{n}": (n, [value]) for n, value in enumerate(now)}
    runs(tmp_path, {**{f"b{n}": (8, [9_999_991]) for n in range(3)}, **periods})
    (found,) = both(tmp_path, "regressions")
    assert (found["low"], found["high"], found["verdict"]) == (None, None, "too few runs")


def test_difference_within_the_spread_is_none(tmp_path):
    runs(tmp_path, {"b1": (8, [100]), "b2": (8, [130]), "b3": (8, [115]), "n1": (0, [110]), "n2": (1, [131]),
                    "n3": (1, [120])})  # fmt: skip
    (found,) = both(tmp_path, "regressions")
    assert found["verdict"] == "no difference shown"
    assert found["low"] < 0 < found["high"]


FASTER = {"b1": (8, [200]), "b2": (9, [202]), "b3": (9, [201]), "n1": (0, [100]), "n2": (1, [101]), "n3": (1, [99])}


def test_faster_is_said_too_and_dates_that_are_missing_do_no_harm(tmp_path):
    runs(tmp_path, FASTER)
    put_by_hand(str(tmp_path), "undated", [{"report": "r", "model": "m", **steps([10], period=5)}])
    (found,) = both(tmp_path, "regressions")
    assert found["verdict"] == "faster"
    assert (found["runs_before"], found["runs_now"]) == (3, 3)


def test_clock_that_is_ahead_hides_nothing(tmp_path):
    """Its report is named, and the weeks end with the newest capture of the others."""
    runs(tmp_path, FASTER)
    before = both(tmp_path, "regressions")
    ahead = time.time_ns() + 2 * DAY_NS
    put_by_hand(str(tmp_path), "ahead", [{"report": "f", "model": "m", "captured_ns": ahead, **steps([10], period=5)}])
    alike(both(tmp_path, "regressions")[0], before[0])
    assert [(row["report"], row["future"]) for row in both(tmp_path, "doubtful_captures")] == [("f", True)]


def test_copies_are_no_more_runs(tmp_path):
    """The same content added as two runs."""
    runs(tmp_path, FASTER)
    before = both(tmp_path, "regressions")
    copy = {"report": "r", "model": "m", "captured_ns": MONDAY_NS, "version": "v-n1-r0-key", **steps([10], period=100)}
    put_by_hand(str(tmp_path), "n9", [copy])
    alike(both(tmp_path, "regressions")[0], before[0])


def test_runs_without_a_model_are_not_compared_by_week(tmp_path):
    for name, (days, (period,)) in FASTER.items():
        taken = {"captured_ns": int(MONDAY_NS - days * DAY_NS)}
        put_by_hand(str(tmp_path), name, [{"report": "r", **taken, **steps([10], period=period)}])
    assert both(tmp_path, "regressions") == []


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda table: table.name)
def test_dataset_without_steps_has_an_answer(question, tmp_path):
    put_by_hand(str(tmp_path), "a", [{"report": "r"}])
    rows = both(tmp_path, question.name)
    assert len(rows) == (question.name == "overview")


def test_rows_that_do_not_count_are_in_no_answer(tmp_path):
    dataset = put_by_hand(str(tmp_path), "a", [{"report": "r", **steps([100])}])
    (file,) = tmp_path.glob("table=steps/*/*.parquet")
    rows = pq.ParquetFile(file).read()
    other = rows.set_column(rows.column_names.index("version"), "version", pa.array(["old"] * len(rows)))
    dataset.put("a", "r-key", "old", [(TABLES["steps"], other)])
    assert [row["steps"] for row in both(tmp_path, "slow_ranks")] == [1]


# What is said and shown.


def test_summary_tells_what_was_added(tmp_path):
    options = ["--input", *REPORTS[:2], "--run", "tp\n{quality}", "--dataset", tmp_path / "ds"]
    first = pack("run", "llm_fleet", *options, "--output", tmp_path / "one")
    second = pack("run", "llm_fleet", *options, "--output", tmp_path / "two")
    name = r"Run tp\n{quality}: "
    assert first.stdout.startswith(
        name + "2 reports in the dataset (2 new), which now holds 2 reports of 1 run\nquality: ok"
    )
    assert second.stdout.startswith(
        name + "2 reports in the dataset (2 unchanged), which now holds 2 reports of 1 run\n"
    )
    assert f"\ndataset: {tmp_path / 'ds'}\n" in first.stdout
    published = pq.read_table(tmp_path / "two" / "published.parquet")
    assert published.column_names == PUBLISHED.names
    assert published["dataset"].to_pylist() == [str(tmp_path / "ds")] * 2


def test_summary_tells_what_is_not_compared_and_what_counts_once(tmp_path):
    """Of three reports two are the same, one lacks a file and is from next week; none has a model."""
    twin = {"version": "v", **steps([100])}
    put_by_hand(str(tmp_path), "a", [{"report": "one", **twin}, {"report": "two", **twin}])
    put_by_hand(str(tmp_path), "b", [{"report": "x", "captured_ns": time.time_ns() + 7 * DAY_NS}])
    next(tmp_path.glob("table=idle/run=b/x-key.*")).unlink()
    chosen = FleetSettings("", None, "a", (), False, None, {})
    given = {PUBLISHED.name: PUBLISHED.empty(), **answers(open_dataset(str(tmp_path)))}
    said = summarise(given, chosen, Told()).splitlines()
    assert [line for line in said if "(see doubtful_captures)" in line] == [
        "1 of all reports lack files, so some of their rows are missing from the answers: add them again "
        "(see doubtful_captures)",
        "2 of all reports duplicate another report of their run: each content counts once (see doubtful_captures)",
        "1 of all reports are dated more than a day in the future: excluded from regressions (see doubtful_captures)",
    ]
    assert said[-1].endswith("not week by week: give --model or --tag model=NAME")


def test_dataset_is_beside_the_output_by_default(tmp_path):
    done = pack("run", "llm_fleet", "--input", OLD / "broken_no_cuda.nsys-rep", "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out-dataset"]
    # So it is not lost when the output is made again.
    done = pack("run", "llm_fleet", "--input", OLD / "broken_no_cuda.nsys-rep", "--output", tmp_path / "out",
                "--force-overwrite", "--run", "again")  # fmt: skip
    assert "which now holds 2 reports of 2 runs" in done.stdout


def test_notebook_asks_the_dataset_where_duckdb_is(real, tmp_path):
    said = run_notebook(real / "out" / "llm_fleet.ipynb", tmp_path, hidden=())
    assert said.count("figure") >= 6
    assert "run_name  reports" in said


def test_notebook_needs_pandas_and_plotly_only(real, tmp_path):
    said = run_notebook(
        real / "out" / "llm_fleet.ipynb", tmp_path, hidden=("duckdb", "pyarrow", "recipes", "llm_fleet")
    )
    assert said.count("figure") >= 6
    assert "DuckDB is not installed" in said


def run_notebook(notebook: Path, folder: Path, hidden: tuple[str, ...]) -> str:
    cells = json.loads(notebook.read_text())["cells"]
    code = "\n".join(cell["source"] for cell in cells if cell["cell_type"] == "code")
    guard = (
        "import sys\n"
        "display = print\n"
        "class Guard:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] in {hidden!r}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Guard())\n"
        "import plotly.graph_objects as _go\n"
        "_go.Figure.show = lambda self, *a, **k: print('figure', self.to_json())\n"
    )
    (folder / "notebook.py").write_text(guard + code)
    done = subprocess.run([sys.executable, "notebook.py"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_hostile_names_stay_text(tmp_path):
    """In the notebook as in the dataset."""
    name = "<b>x</b>'); DROP TABLE reports; --"
    put_by_hand(str(tmp_path / "ds"), name, [{"report": "r", "host": name, "model": name, **steps([100])}])
    assert both(tmp_path / "ds", "slow_ranks")[0]["host"] == name
    fleet("--input", OLD / "broken_no_cuda.nsys-rep", "--run", "r", "--output", tmp_path / "out",
          "--dataset", tmp_path / "ds")  # fmt: skip
    said = run_notebook(tmp_path / "out" / "llm_fleet.ipynb", tmp_path, hidden=("duckdb",))
    figures = [json.loads(line.removeprefix("figure ")) for line in said.splitlines() if line.startswith("figure ")]
    # JSON has other ways to write a bracket, so it is read again.
    texts = [text for figure in figures for text in texts_in([figure["data"], figure["layout"].get("title")])]
    assert any("&lt;b&gt;x&lt;/b&gt;" in text for text in texts)
    assert not [text for text in texts if "<b>x" in text]


def texts_in(value) -> list[str]:
    if isinstance(value, dict):
        value = list(value.values())
    return [text for one in value for text in texts_in(one)] if isinstance(value, list) else [str(value)]


def test_data_dictionary_is_that_of_the_code(tmp_path):
    """`tools/data_dictionary.py` writes docs/tables.md."""
    code = "from tools import data_dictionary; print(data_dictionary.page(), end='')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == (ROOT / "docs" / "tables.md").read_text()
    for table in (*dataset_tables(), *QUESTIONS, PUBLISHED):
        assert f"### {table.name}\n" in done.stdout
