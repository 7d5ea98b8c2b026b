"""Killed at any moment: what is there afterwards is whole, inputs are as they were, and the next run works."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from conftest import FIXTURES, ROOT, pack
from recipes.base.pack import recipe_names
from recipes.base.tables import FILES
from recipes.run.recipe import load_recipe
from test_mutated_reports import digest

pytestmark = pytest.mark.slow

REPORTS = [FIXTURES / "2023.4.4" / f"tp_slow_rank{rank}.nsys-rep" for rank in (0, 1)]
#: For all recipes together: how a run ends is common to them.
KILLS = 12


def command(name: str, inputs: Path, output: Path) -> list[str]:
    return [sys.executable, "-m", "recipes", "run", name, "--input", str(inputs), "--output", str(output), "--csv"]


def check_whole(name: str, folder: Path) -> None:
    """Every table can be read, and the notebook and the manifest are there: the last to be written."""
    recipe = load_recipe(name)
    for table in (*recipe.TABLES, *recipe.COMBINED, FILES):
        assert pq.read_table(folder / f"{table.name}.parquet").column_names == table.names
        assert (folder / f"{table.name}.csv").is_file()
    assert (folder / f"{name}.ipynb").read_text().endswith("}")
    assert (folder / f"{folder.name}.nsys-analysis").read_text().endswith("}")


@pytest.mark.parametrize("name", recipe_names())
def test_killed_at_random_moments_leaves_nothing_half_written(name, nsys, tmp_path, fresh_cache):
    """With the export of the report to be made, which is killed too; all processes of the run at once."""
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    for report in REPORTS:
        shutil.copy(report, inputs)
    before = digest(inputs)
    begun = time.monotonic()
    done = pack(*command(name, inputs, tmp_path / "first")[3:])
    assert done.returncode == 0, done.stderr
    check_whole(name, tmp_path / "first")
    length_s, rng = time.monotonic() - begun, random.Random(name)
    whole = 0
    for number in range(KILLS // len(recipe_names())):
        if number % 2:
            shutil.rmtree(fresh_cache)
        out = tmp_path / f"out-{number}"
        process = subprocess.Popen(command(name, inputs, out), cwd=ROOT, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, start_new_session=True)  # fmt: skip
        # Most of the time goes into imports; the end, where the output is written, is looked at most.
        time.sleep(length_s * (1 - rng.random() ** 2 * 0.8))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if out.exists():
            whole += 1
            check_whole(name, out)
    assert digest(inputs) == before
    # What was left of the killed ones is hidden, and in nobody's way.
    assert all(path.name.startswith((".out-", "out-", "first", "inputs", "fresh-cache")) for path in tmp_path.iterdir())
    # A dataset is made to grow from run to run: it stays, and the next one makes it whole.
    assert len([path for path in tmp_path.glob("out-*") if not path.name.endswith("-dataset")]) == whole
    done = pack(*command(name, inputs, tmp_path / "last")[3:])
    assert done.returncode == 0, done.stderr
    for file in (tmp_path / "first").glob("*.parquet"):
        assert file.read_bytes() == (tmp_path / "last" / file.name).read_bytes()
