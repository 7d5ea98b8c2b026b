"""The answers to the fleet's questions: the files in sql/, run by DuckDB on the rows of the dataset that count."""

from __future__ import annotations

import glob
from typing import Any

import pyarrow as pa

from llm_fleet.dataset import Dataset, once
from llm_fleet.questions import QUESTIONS, sql_of
from llm_fleet.storage import reason
from llm_fleet.tables import dataset_tables
from recipes.base.errors import PackError
from recipes.base.tables import Table
from recipes.events.idle import CAUSES

_KEYS = ("run_name", "report_key", "version")
#: What the questions read of each table.
_READ = {
    "reports": (
        *_KEYS, "report", "host", "rank", "captured", "captured_ns", "quality", "status", "message", "model",
        "world_size", "tags", "tables",
    ),
    "runs": ("run_name", "version", "message", "tables"),
    "families": (*_KEYS, "phase", "family", "calls", "time_ns", "exclusive_ns"),
    "findings": (*_KEYS, "check", "severity", "message", "remedy"),
    "floor": (*_KEYS, "device", "phase", "batch", "floor_ns"),
    "idle": (*_KEYS, "captured", "phase", "window_ns", *(f"{cause}_ns" for cause in CAUSES)),
    "step_communication": (*_KEYS, "device", "step", "calls", "exposed_ns"),
    "steps": (
        *_KEYS, "device", "gpu_name", "gpu_uuid", "step", "phase", "batch", "tokens", "duration_ns", "period_ns",
        "busy_ns", "edge",
    ),
}  # fmt: skip
# In place of dataset.sql: the rows are there already, and of each file only what the questions need.
_GIVEN = """
CREATE TEMP MACRO files_of(name) AS TABLE FROM query_table('rows_' || name);
CREATE TEMP MACRO files_there() AS TABLE FROM there;
"""
# What several questions ask for is worked out once.
_KEPT = "CREATE TEMP TABLE kept_{0} AS FROM {0}(); CREATE OR REPLACE TEMP MACRO {0}() AS TABLE FROM kept_{0};"


def answers(dataset: Dataset) -> dict[str, pa.Table]:
    """The tables of all questions, by name; none without DuckDB. PackError when the dataset cannot be read, or DuckDB
    is too old."""
    try:
        import duckdb
    except ImportError:
        return {}
    with duckdb.connect() as database:
        if not (dataset.storage.is_local and _read_here(dataset, database, duckdb.Error)):
            for name, rows in _rows(dataset).items():
                database.register(f"rows_{name}", rows)
        there = pa.table({"file": pa.array(dataset.storage.names(""), pa.string())})
        database.register("there", there)
        try:
            found = _asked(database)
        except duckdb.Error as error:
            raise PackError(
                f"DuckDB {duckdb.__version__} cannot answer ({reason(error)}); pip install 'duckdb>=1.1.3'"
            ) from None
    return {table.name: table.build({name: found[table][name] for name in table.names}) for table in QUESTIONS}


def _read_here(dataset: Dataset, database: Any, failure: type[Exception]) -> bool:
    """Whether DuckDB itself could read the files, which is fastest: not where some lack columns that came later, are
    damaged or are being replaced."""
    try:
        database.begin()
        for name, columns in _READ.items():
            files = f"{glob.escape(dataset.storage.root)}/table={name}/*/*.parquet"
            rows = database.read_parquet(files, hive_partitioning=False)
            rows.project(", ".join(f'"{column}"' for column in columns)).create(f"rows_{name}")
        database.commit()
    except failure:
        database.rollback()
        return False
    return True


def _rows(dataset: Dataset) -> dict[str, pa.Table]:
    """The same rows by Arrow, from any storage and only of files that count; a column that a file lacks is null."""
    every, runs = dataset.every_report(), dataset.runs()
    reports, tables = once(every), {table.name: table for table in dataset_tables()}
    rows = {"reports": every.select(_READ["reports"]), "runs": runs.select(_READ["runs"])}
    for name in _READ.keys() - rows.keys():
        of_runs = [dataset.read(tables[name], runs, _READ[name])] if name == "findings" else []
        rows[name] = pa.concat_tables([dataset.read(tables[name], reports, _READ[name]), *of_runs])
    return rows


def _asked(database: Any) -> dict[Table, pa.Table]:
    """The answer to each question."""
    # With several the last bits of a sum would depend on who was first.
    database.execute("SET threads = 1")
    database.execute(_GIVEN + sql_of("views"))
    for name in ("steps_that_count", "steps_alike", "devices_alike"):
        database.execute(_KEPT.format(name))
    return {table: database.sql(sql_of(table.name)).to_arrow_table() for table in QUESTIONS}
