"""A big report out of a small one: its export repeated along the time axis, as SQLite file and parquet folder.

Each repetition is moved in time and gets correlation ids of its own; everything else stays as it was recorded.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

REPEATED = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "NVTX_EVENTS",
)
_TIMES, _IDS = ("start", "end"), "correlationId"
_ROWS_A_WRITE = 200_000


def build(report: Path, folder: Path, repeats: int, nsys: str = "nsys") -> tuple[Path, Path]:
    """The SQLite file and the parquet folder, made from a report's export in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    sqlite, parquet = folder / "big.sqlite", folder / "big_pqtdir"
    for kind, path in (("sqlite", sqlite), ("parquetdir", parquet)):
        command = [nsys, "export", "--quiet", "true", "--lazy", "false", "--force-overwrite", "true"]
        subprocess.run([*command, "--type", kind, "--output", path, report], check=True)
    stride_ns, ids = _strides(parquet)
    _repeat_sqlite(sqlite, repeats, stride_ns, ids)
    _repeat_parquet(parquet, repeats, stride_ns, ids)
    return sqlite, parquet


def _strides(parquet: Path) -> tuple[int, int]:
    """The time and the number of correlation ids that one repetition takes."""
    ends, lowest, highest = [], [], []
    for name in REPEATED:
        table = pq.read_table(parquet / f"{name}.parquet")
        ends.append(pc.max(table["end"]).as_py() or 0)
        if _IDS in table.column_names:
            ids = pc.min_max(table[_IDS].filter(pc.greater(table[_IDS], 0))).as_py()
            lowest.append(ids["min"])
            highest.append(ids["max"])
    # Ids are handed out one after the other, so one repetition follows the last without a hole.
    return max(ends) + 1_000_000, max(filter(None, highest)) - min(filter(None, lowest)) + 1


def _repeat_sqlite(path: Path, repeats: int, stride_ns: int, ids: int) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = OFF")
        db.execute("PRAGMA synchronous = OFF")
        db.execute("CREATE TEMP TABLE turn (k)")
        db.executemany("INSERT INTO turn VALUES (?)", ((k,) for k in range(repeats)))
        for table in REPEATED:
            columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
            moved = {**{time: f"t.{time} + k * {stride_ns}" for time in _TIMES}, _IDS: f"t.{_IDS} + k * {ids}"}
            picked = ", ".join(moved.get(column, f't."{column}"') for column in columns)
            db.execute(f"CREATE TEMP TABLE once AS SELECT * FROM {table}")
            db.execute(f"DELETE FROM {table}")
            db.execute(f"INSERT INTO {table} SELECT {picked} FROM turn CROSS JOIN once AS t")
            db.execute("DROP TABLE once")


def _repeat_parquet(folder: Path, repeats: int, stride_ns: int, ids: int) -> None:
    for name in REPEATED:
        path = folder / f"{name}.parquet"
        with pq.ParquetFile(path) as file:
            once = file.read()
            # Row groups as small and as plain as Nsight writes them: that is part of the work of reading.
            group = max((file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)), default=1)
        if not len(once):
            continue
        part = path.with_suffix(".part")
        together = max(_ROWS_A_WRITE // len(once), 1)
        with pq.ParquetWriter(part, once.schema, compression="NONE", use_dictionary=False) as writer:
            for first in range(0, repeats, together):
                turns = range(first, min(first + together, repeats))
                writer.write_table(pa.concat_tables(_moved(once, k, stride_ns, ids) for k in turns), group)
        shutil.move(part, path)


def _moved(once: pa.Table, turn: int, stride_ns: int, ids: int) -> pa.Table:
    for column, step in ((_TIMES[0], stride_ns), (_TIMES[1], stride_ns), (_IDS, ids)):
        if column in once.column_names:
            at = once.column_names.index(column)
            once = once.set_column(at, once.schema.field(at), pc.add(once[column], turn * step))
    return once
