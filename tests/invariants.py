"""What holds for every recipe on any input whatever: the books of design, types, order; or one clear line instead."""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from recipes.base.errors import PackError
from recipes.base.tables import FILES, TYPES, Table
from recipes.run.recipe import load_recipe
from recipes.run.run import add_options, run
from recipes.run.worker_processes import one_by_one

Rows = dict[str, list[dict]]
#: Options that make a recipe work out all that it can.
OPTIONS = {"llm_decode_floor": ("--weight-bytes", "16G", "--batch", "4"), "llm_nccl_sum": ("--bytes", "4096")}
# Times on a clock, and differences between clocks; all other times are lengths.
_SIGNED = {"start_ns", "end_ns", "clock_ns", "clock_offset_ns", "arrival_ns", "first_ns", "last_ns"}
_IDLE_CAUSES = ("profiler", "graph", "sync", "api", "host", "launch", "queued", "unknown")


@dataclass(frozen=True)
class Result:
    """What a run left: the rows of each table, what it warned of; or the one line that it ended with."""

    tables: Rows
    warned: list[str]
    error: str | None

    @property
    def told(self) -> list[str]:
        """Every line in which an input was refused."""
        return [*self.warned, *([self.error] if self.error else [])]


def run_recipe(name: str, inputs: Sequence[Path], output: Path, *options: str) -> Result:
    """Runs a recipe in this process, every warning of a library being an error, and checks all that it leaves."""
    recipe = load_recipe(name)
    parser = argparse.ArgumentParser()
    add_options(recipe, parser.add_argument)
    own = OPTIONS.get(name, ())
    args = parser.parse_args(["--input", *map(str, inputs), "--output", str(output), "--csv", *own, *options])
    warned: list[str] = []
    printed = io.StringIO()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(printed):
            warnings.simplefilter("error")
            run(recipe, args, map_tasks=one_by_one, find_exporter=lambda: None, warn=warned.append)
    except PackError as error:
        assert not output.exists()
        check_line(str(error))
        return Result({}, warned, str(error))
    for line in warned:
        check_line(line)
    _check_printed(printed.getvalue())
    declared = {table.name: table for table in (*recipe.TABLES, *recipe.COMBINED, FILES)}
    assert {file.stem for file in output.glob("*.parquet")} == set(declared)
    tables = {name: _checked(table, pq.read_table(output / f"{name}.parquet")) for name, table in declared.items()}
    _check_files(tables["files"])
    _check_notebook(output / f"{name}.ipynb")
    for check in BOOKS.get(name, ()):
        check(tables)
    return Result(tables, warned, None)


def check_line(text: str) -> None:
    """One line: what, where, why; never a fault of ours."""
    assert "unexpected" not in text, text
    assert "Traceback" not in text, text
    assert len(text.splitlines()) == 1, text
    assert len(text) < 2000, text[:300]


def _check_printed(text: str) -> None:
    assert "quality: " in text
    assert all(character == "\n" or character.isprintable() for character in text), text


def _checked(table: Table, found: pa.Table) -> list[dict]:
    """The rows of a table whose types, order and numbers are as declared."""
    assert [(field.name, field.type) for field in found.schema] == [
        (column.name, TYPES[column.type]) for column in table.columns
    ]
    found.validate(full=True)
    rows = found.to_pylist()
    for row in rows:
        for name, value in row.items():
            _check_value(f"{table.name}.{name}", name, value)
    keys = [[_key(row[name], direction) for name, direction in table.sort] for row in rows]
    assert all(one <= other for one, other in itertools.pairwise(keys)), f"{table.name} is not sorted"
    return rows


def _check_value(where: str, name: str, value: object) -> None:
    if isinstance(value, float):
        assert math.isfinite(value), f"{where} is {value}"
    if value is None or isinstance(value, str):
        return
    if name.endswith("_ns") and name not in _SIGNED:
        assert value >= 0 or where == "timeline.start_ns", f"{where} is {value}"
    if "share" in name:
        assert -1e-9 <= value <= 1 + 1e-9, f"{where} is {value}"


def _key(value: object, direction: str) -> tuple:
    if value is None:
        return (1, 0)
    if isinstance(value, str):
        return (0, value.encode())
    return (0, -value if direction == "descending" else value)


def _check_files(files: list[dict]) -> None:
    for row in files:
        assert row["status"] in ("ok", "empty", "unreadable")
        assert row["quality"] in ("ok", "warn", "bad")
        if row["message"]:
            check_line(row["message"])
        if row["status"] == "unreadable":
            assert row["message"]
        else:
            assert row["kernels"] is not None
            assert (row["window_ns"] is None) == (row["status"] == "empty")


def _check_notebook(path: Path) -> None:
    text = path.read_text()
    notebook = json.loads(text)
    assert notebook["nbformat"] == 4
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            compile(cell["source"], "cell", "exec")


def grouped(rows: list[dict], *keys: str) -> dict[tuple, list[dict]]:
    """Rows by the values of some columns."""
    groups: dict[tuple, list[dict]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[key] for key in keys)].append(row)
    return groups


def total(rows: list[dict], column: str) -> int:
    return sum(row[column] or 0 for row in rows)


def _families(tables: Rows) -> None:
    kernels = grouped(tables["kernels"], "report", "device", "phase", "family")
    for key, rows in grouped(tables["families"], "report", "device", "phase").items():
        assert math.isclose(total(rows, "share"), 1, abs_tol=1e-9) or not total(rows, "time_ns")
        for row in rows:
            own = kernels[(*key, row["family"])]
            assert row["exclusive_ns"] <= row["time_ns"]
            assert (total(own, "calls"), total(own, "time_ns")) == (row["calls"], row["time_ns"])
    for row in tables["kernels"]:
        assert row["min_ns"] <= row["median_ns"] <= row["max_ns"] <= row["time_ns"]
        assert row["time_ns"] <= row["calls"] * row["max_ns"]
    for rows in grouped(tables["families"], "report", "device").values():
        phases = grouped(rows, "phase")
        parts = [row for (phase,), own in phases.items() if phase != "all" for row in own]
        if parts:
            assert total(parts, "calls") == total(phases[("all",)], "calls")
            assert total(parts, "time_ns") == total(phases[("all",)], "time_ns")


def _idle(tables: Rows) -> None:
    for row in tables["idle"]:
        assert row["busy_ns"] + row["idle_ns"] == row["window_ns"]
        assert sum(row[f"{cause}_ns"] for cause in _IDLE_CAUSES) == row["idle_ns"]
        assert row["copy_only_ns"] <= row["busy_ns"]
        assert row["after_sync_ns"] <= row["idle_ns"]
        assert row["launches"] <= row["launched"] <= row["operations"]
    histogram = grouped(tables["gap_histogram"], "report", "device", "phase")
    for key, (row, *more) in grouped(tables["idle"], "report", "device", "phase").items():
        assert not more
        assert (total(histogram[key], "gaps"), total(histogram[key], "time_ns")) == (row["gaps"], row["idle_ns"])
    for rows in grouped(tables["idle"], "report", "device").values():
        (whole,) = (row for row in rows if row["phase"] == "all")
        parts = [row for row in rows if row["phase"] != "all"]
        for column in ("window_ns", "idle_ns", "gaps", "operations") if parts else ():
            assert total(parts, column) == whole[column], column
    for row in tables["gap_histogram"]:
        assert row["low_ns"] * row["gaps"] <= row["time_ns"]
        assert row["high_ns"] is None or row["time_ns"] < row["high_ns"] * row["gaps"]
    for row in (*tables["gaps"], *tables["largest_gaps"]):
        assert row["end_ns"] - row["start_ns"] == row["duration_ns"] > 0
        assert row["cause_ns"] <= row["duration_ns"] <= row["cause_ns"] * len(_IDLE_CAUSES)
    for row in tables["step_idle"]:
        assert sum(row[f"{cause}_ns"] for cause in _IDLE_CAUSES) == row["idle_ns"] <= row["duration_ns"]


def _floor(tables: Rows) -> None:
    parts = grouped(tables["step_parts"], "report", "device", "step")
    for row in tables["steps"]:
        if row["duration_ns"] is None:
            assert row["operations"] == 0
            continue
        own = [part for part in parts[row["report"], row["device"], row["step"]] if part["part"] != "between_steps"]
        assert row["end_ns"] - row["start_ns"] == row["duration_ns"] == row["busy_ns"] + row["idle_ns"]
        assert total(own, "time_ns") == row["duration_ns"]
        idle = [part for part in own if part["part"].startswith("idle_")]
        assert total(idle, "time_ns") == row["idle_ns"]
        assert 0 <= row["launches"] <= row["operations"]
    for row in tables["phases"]:
        for what in ("duration", "period", "itl"):
            points = [row[f"{what}_p{q}_ns"] for q in (10, 50, 90, 99)]
            known = [point for point in points if point is not None]
            assert known == sorted(known)
    for row in tables["floor"]:
        assert row["mbu"] is None or 0 <= row["mbu"] <= 1
        assert row["mfu"] is None or 0 <= row["mfu"] <= 1


def _nccl(tables: Rows) -> None:
    for row in (*tables["communication"], *tables["step_communication"]):
        assert row["exposed_ns"] <= (row["duration_ns"] if row.get("name") else row["time_ns"])
    # A start of work in no device or step is nothing that can be looked up.
    steps = grouped(tables["step_communication"], "report", "device")
    for key, rows in grouped(tables["communication"], "report", "device").items():
        assert total(steps[key], "calls") == len(rows)
        assert total(steps[key], "time_ns") == total(rows, "duration_ns")
        assert total(steps[key], "exposed_ns") == total(rows, "exposed_ns")
    assert total(tables["collectives"], "calls") == len(tables["communication"]) == total(tables["ranks"], "calls")
    assert total(tables["collectives"], "time_ns") == total(tables["communication"], "duration_ns")
    for row in tables["matched"]:
        assert row["transfer_ns"] + row["wait_ns"] == row["duration_ns"]
    for row in tables["ranks"]:
        assert row["wait_ns"] + row["transfer_ns"] <= row["time_ns"]
        assert row["times_last"] <= row["matched"] <= row["calls"]


def _check_capture(tables: Rows) -> None:
    for row in tables["findings"]:
        assert row["severity"] in ("info", "warn", "error")
        assert row["check"]
        assert row["message"]


#: The books of each recipe's own tables.
BOOKS: dict[str, tuple[Callable[[Rows], None], ...]] = {
    "llm_kernel_families": (_families,),
    "llm_idle_gaps": (_idle,),
    "llm_decode_floor": (_floor,),
    "llm_nccl_sum": (_nccl,),
    "llm_capture_check": (_check_capture,),
}


def check_together(families: Rows, idle: Rows) -> None:
    """What two recipes say of one device is the same: busy time and operations."""
    by_device = grouped(families["families"], "report", "device", "phase")
    for (report, device, phase), (row,) in grouped(idle["idle"], "report", "device", "phase").items():
        if phase == "all":
            own = by_device[report, device, "all"]
            assert total(own, "exclusive_ns") == row["busy_ns"]
            assert total(own, "calls") == row["operations"]
