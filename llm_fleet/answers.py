"""The answers to the fleet's questions: the files in sql/, run by DuckDB on the rows of the dataset that count."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from llm_fleet.dataset import Dataset, once
from llm_fleet.questions import QUESTIONS
from llm_fleet.tables import REPORTS, RUNS, dataset_tables
from recipes.base.errors import PackError
from recipes.base.tables import Table
from recipes.events.idle import CAUSES

SQL_FOLDER = Path(__file__).parent / "sql"
#: What the questions read of the recipes' tables, beside run_name, report_key and version.
_READ = {
    "captures": ("world_size",),
    "families": ("phase", "family", "calls", "time_ns", "exclusive_ns"),
    "findings": ("check", "severity", "message", "remedy"),
    "floor": ("device", "phase", "batch", "floor_ns"),
    "idle": ("captured", "phase", "window_ns", *(f"{cause}_ns" for cause in CAUSES)),
    "step_communication": ("device", "step", "calls", "exposed_ns"),
    "steps": (
        "device", "gpu_name", "gpu_uuid", "step", "phase", "batch", "tokens", "duration_ns", "period_ns", "busy_ns",
        "edge",
    ),
}  # fmt: skip
_KEYS = ("run_name", "report_key", "version")
# In place of dataset.sql: DuckDB itself reads no file, so that it needs no extension for any kind of URL.
_GIVEN = """
CREATE TEMP MACRO files_of(name) AS TABLE FROM query_table('rows_' || name);
CREATE TEMP MACRO files_there() AS TABLE FROM there;
"""


def answers(dataset: Dataset) -> dict[str, pa.Table]:
    """The tables of all questions, by name; none without DuckDB. PackError when the dataset cannot be read, or DuckDB
    is too old."""
    try:
        import duckdb
    except ImportError:
        return {}
    # With several threads the last bits of a sum depend on who was first.
    with duckdb.connect(config={"threads": 1}) as database:
        for name, rows in _rows(dataset).items():
            database.register(name, rows)
        try:
            database.execute(_GIVEN + (SQL_FOLDER / "views.sql").read_text())
            found = {table: database.sql((SQL_FOLDER / f"{table.name}.sql").read_text()) for table in QUESTIONS}
            return {table.name: _built(table, rows.to_arrow_table()) for table, rows in found.items()}
        except duckdb.Error as error:
            raise PackError(
                f"DuckDB {duckdb.__version__} cannot answer ({' '.join(str(error).split())[:200]}); pip install "
                "'duckdb>=1.1.3'"
            ) from None


def _built(table: Table, rows: pa.Table) -> pa.Table:
    return table.build({name: rows[name] for name in table.names})


def _rows(dataset: Dataset) -> dict[str, pa.Table]:
    """What the questions read, under the names that they know it by: each file once, and of it what is needed."""
    every, runs = dataset.every_report(), dataset.runs()
    reports, tables = once(every), {table.name: table for table in dataset_tables()}
    given = {
        "there": pa.table({"file": pa.array(dataset.storage.names(""), pa.string())}),
        f"rows_{REPORTS.name}": every,
        f"rows_{RUNS.name}": runs,
    }
    for name, columns in _READ.items():
        chosen = [*_KEYS, *columns]
        of_runs = [dataset.read(tables[name], runs, chosen)] if name == "findings" else []
        given[f"rows_{name}"] = pa.concat_tables([dataset.read(tables[name], reports, chosen), *of_runs])
    return given
