"""The recipes inside the real `nsys recipe`, and beside it without: the same bytes, the same words."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from conftest import FIXTURES, ROOT, nsight, pack
from recipes.base.pack import recipe_names

EAGER, GRAPH = FIXTURES / "decode_eager.nsys-rep", FIXTURES / "decode_graph.nsys-rep"


def parquet(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.glob("*.parquet"))}


@pytest.mark.parametrize("name", recipe_names())
def test_nsight_and_pack_write_the_same_bytes(name, nsys, tmp_path):
    reports = ["--input", EAGER, GRAPH]
    runs = {
        "none": nsight(nsys, "recipe", name, *reports, "--output", tmp_path / "none", "--mode", "none"),
        "concurrent": nsight(nsys, "recipe", name, *reports, "--output", tmp_path / "concurrent"),
        "pack": pack("run", name, *reports, "--output", tmp_path / "pack"),
        "pack_none": pack("run", name, *reports, "--output", tmp_path / "pack_none", "--mode", "none"),
    }
    for label, done in runs.items():
        assert done.returncode == 0, f"{label}: {done.stdout}{done.stderr}"
        assert "Traceback" not in done.stdout + done.stderr
    expected = parquet(tmp_path / "none")
    assert "files.parquet" in expected
    for label in runs:
        assert parquet(tmp_path / label) == expected, label
        said = runs[label].stdout.split("Generated:")[0]
        assert said == runs["none"].stdout.split("Generated:")[0]


def test_export_gives_the_same_numbers_as_the_report(nsys, graph_sqlite, tmp_path):
    done = nsight(nsys, "recipe", "llm_kernel_families", "--input", GRAPH, "--output", tmp_path / "nsys")
    assert done.returncode == 0, done.stderr
    done = pack("run", "llm_kernel_families", "--input", graph_sqlite, "--output", tmp_path / "pack")
    assert done.returncode == 0, done.stderr
    ours, theirs = parquet(tmp_path / "pack"), parquet(tmp_path / "nsys")
    for table in ("families.parquet", "kernels.parquet"):
        assert ours[table] == theirs[table]


def test_recipe_runs_from_elsewhere_with_the_search_path(nsys, tmp_path):
    done = nsight(nsys, "recipe", "llm_kernel_families", "--input", GRAPH, cwd=tmp_path, NSYS_RECIPE_PATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    made = tmp_path / "llm_kernel_families-1"
    assert sorted(file.name for file in made.iterdir()) == [
        "families.parquet", "files.parquet", "kernels.parquet", "llm_kernel_families-1.nsys-analysis",
        "llm_kernel_families.ipynb",
    ]  # fmt: skip
    assert "Generated:\n    llm_kernel_families-1" in done.stdout
    manifest = json.loads((made / "llm_kernel_families-1.nsys-analysis").read_text())
    assert manifest["RecipeName"] == "llm_kernel_families"
    assert manifest["InputFiles"] == [str(GRAPH)]


def test_another_package_called_recipes_does_no_harm(nsys, tmp_path):
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "__init__.py").write_text("raise ImportError('not these recipes')")
    done = nsight(nsys, "recipe", "llm_kernel_families", "--input", GRAPH, cwd=tmp_path, NSYS_RECIPE_PATH=str(ROOT))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", recipe_names())
def test_help_is_that_of_a_recipe(name, nsys):
    done = nsight(nsys, "recipe", name, "--help")
    assert done.returncode == 0
    for option in ("--input", "--output", "--force-overwrite", "--csv", "--start", "--end", "--filter-time", "--mode"):
        assert option in done.stdout


def test_time_range_filters_as_nsights_own(nsys, sqlite_of_graph, tmp_path):
    start, end = 20_000_000, 30_000_000
    done = nsight(nsys, "recipe", "llm_kernel_families", "--input", GRAPH, "--start", start, "--end", end,
                  "--output", tmp_path / "out")  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = "cuda_gpu_kern_sum:base"
    theirs = nsight(nsys, "stats", "--quiet", "--report", report, "--format", "csv", "--filter-time", f"{start}/{end}",
                    sqlite_of_graph)  # fmt: skip
    rows = [line.split(",") for line in theirs.stdout.splitlines() if line[:1].isdigit()]
    ours = pq.read_table(tmp_path / "out" / "kernels.parquet").to_pandas()
    ours = ours[ours["phase"] == "all"]
    ours = ours[~ours["family"].isin(["memcpy", "memset"])]
    assert ours["calls"].sum() == sum(int(row[2]) for row in rows)
    assert ours["time_ns"].sum() == sum(int(row[1]) for row in rows)


@pytest.fixture
def sqlite_of_graph(graph_sqlite, tmp_path):
    """A copy that `nsys stats` may keep its notes beside."""
    return shutil.copy(graph_sqlite, tmp_path / "graph.sqlite")


def test_csv_holds_the_same_rows(nsys, tmp_path):
    import pandas as pd

    done = nsight(nsys, "recipe", "llm_kernel_families", "--input", GRAPH, "--csv", "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    for table in ("families", "kernels", "files"):
        csv = pd.read_csv(tmp_path / "out" / f"{table}.csv")
        assert len(csv) == pq.read_metadata(tmp_path / "out" / f"{table}.parquet").num_rows
        assert list(csv.columns) == pq.read_schema(tmp_path / "out" / f"{table}.parquet").names
