"""What the tests of llm_fleet share: running it here, a dataset as bytes, a dataset made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from llm_fleet.dataset import ALL_REPORTS, Dataset, open_dataset, run_version
from llm_fleet.questions import sql_of
from llm_fleet.tables import REPORTS, RUNS, dataset_tables
from recipes.run.local import run_locally

TABLES = {table.name: table for table in dataset_tables()}


def fleet(*arguments: object, mode: str = "none") -> None:
    """Runs the recipe in this process."""
    assert run_locally("llm_fleet", ["--mode", mode, *map(str, arguments)], "test") == 0


def tree(folder: Path) -> dict[str, bytes]:
    """Every file of a dataset, hidden ones too."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def times(folder: Path) -> dict[str, int]:
    return {str(file.relative_to(folder)): file.stat().st_mtime_ns for file in folder.rglob("*") if file.is_file()}


def committed(folder: Path, table: str) -> pa.Table:
    """The rows of a table that count, found the plain way: file by file, row by row."""
    reports = {
        (row["run_name"], row["report_key"], row["version"])
        for file in folder.glob("table=reports/*/*.parquet")
        for row in pq.ParquetFile(file).read().to_pylist()
    }
    files = sorted(folder.glob(f"table={table}/*/*.parquet"))
    rows = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
    kept = [row for row in rows if (row["run_name"], row["report_key"], row["version"]) in reports]
    return pa.Table.from_pylist(kept, schema=TABLES[table].schema())


def put_by_hand(
    url: str, run: str, reports: Sequence[dict[str, Any]], of_run: Sequence[dict[str, Any]] = ()
) -> Dataset:
    """A run of reports written down in a test: each a dict with its columns of `reports` and, under the names of
    tables, lists of rows; and findings of the run as a set. What is not given is null."""
    dataset = open_dataset(url)
    dataset.begin()
    for report in reports:
        own = {name: value for name, value in report.items() if name not in TABLES or name in REPORTS.names}
        key = own.setdefault("report_key", f"{own['report']}-key")
        own = {
            "run_name": run,
            "version": f"v-{quote(run, safe='')}-{key}",
            "quality": "ok",
            "status": "ok",
            "message": "",
            **own,
        }
        names = ("families", "steps", "step_communication", "floor", "idle", "findings")
        own.setdefault("tables", ",".join(names))
        rows = [(TABLES[name], _rows(TABLES[name], own, report.get(name, []))) for name in names]
        dataset.put(run, key, own["version"], [*rows, (REPORTS, _rows(REPORTS, own, [own]))])
    entries = dataset.reports(run)
    version = run_version(entries["version"].to_pylist())
    row = {"run_name": run, "version": version, "reports": len(entries), "message": "", "tables": "findings"}
    findings = TABLES["findings"]
    dataset.put(run, ALL_REPORTS, version, [(findings, _rows(findings, row, of_run)), (RUNS, _rows(RUNS, row, [row]))])
    return dataset


def _rows(table: Any, about: dict[str, Any], rows: Sequence[dict[str, Any]]) -> pa.Table:
    shared = {name: value for name, value in about.items() if name in table.names}
    return pa.Table.from_pylist([{**shared, **row} for row in rows], schema=table.schema())


def duckdb_on(folder: object) -> duckdb.DuckDBPyConnection:
    """A DuckDB connection on a dataset, with the views that the questions need."""
    database = duckdb.connect()
    quoted = str(folder).replace("'", "''")
    database.execute(f"SET VARIABLE dataset = '{quoted}'")
    for name in ("dataset", "views"):
        database.execute(sql_of(name))
    return database


def asked(database: Any, question: str) -> list[dict[str, Any]]:
    """The answer of a shipped SQL file, as rows."""
    done = database.execute(sql_of(question))
    names = [column[0] for column in done.description]
    return [dict(zip(names, row, strict=True)) for row in done.fetchall()]
