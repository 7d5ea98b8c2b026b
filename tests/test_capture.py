"""The capture as the hub of all recipes: what is long is read at most twice, what is worked out is worked out once."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

import pytest

from conftest import FIXTURES
from recipes.capture import capture as hub
from recipes.report.report import Report
from recipes.run.recipe import load_recipe
from recipes.run.run import add_options, run
from recipes.run.worker_processes import one_by_one

#: Worked out of a whole report: each costs a pass over its operations or ranges.
WORKED_OUT = (
    "project", "incomplete_steps", "processes_of", "families_in_context", "read_gpu_work", "read_ranges", "find_layers",
)  # fmt: skip


@pytest.mark.parametrize("name", ["decode_graph", "tp_graph_rank0", "decode_no_nvtx"])
def test_a_fleet_run_reads_and_projects_once(name, sqlite_of, tmp_path, monkeypatch):
    path = sqlite_of(next(iter(sorted(FIXTURES.glob(f"**/{name}.nsys-rep"), reverse=True))))
    read, made = Counter(), Counter()

    def counting(owner, method, count):
        original = getattr(owner, method)

        def counted(*arguments, **options):
            count(arguments)
            return original(*arguments, **options)

        monkeypatch.setattr(owner, method, counted)

    counting(Report, "batches", lambda arguments: read.update([arguments[1].name]))
    counting(Report, "_read", lambda arguments: read.update([arguments[1].name]))
    for function in WORKED_OUT:
        counting(hub, function, lambda _, function=function: made.update([function]))
    run_fleet(path, tmp_path / "out")
    assert read["api_calls"] == 2
    assert {table: read[table] for table in ("overhead", "threads", "processes", "capture_info")} == dict.fromkeys(
        ("overhead", "threads", "processes", "capture_info"), 1
    )
    assert made == dict.fromkeys(WORKED_OUT, 1)


def run_fleet(path: Path, output: Path) -> None:
    recipe = load_recipe("llm_fleet")
    parser = argparse.ArgumentParser()
    add_options(recipe, parser.add_argument)
    args = parser.parse_args(["--input", str(path), "--output", str(output)])
    run(recipe, args, map_tasks=one_by_one, find_exporter=lambda: None, warn=print)
