"""Tables declared once: their columns, what a row is, how they are sorted, what the columns mean.

From a declaration come the empty table, the check before writing, and the metadata in the parquet file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

TYPES = {"int64": pa.int64(), "double": pa.float64(), "string": pa.string(), "bool": pa.bool_()}


@dataclass(frozen=True)
class Column:
    """A column: its name (units are part of it: `_ns`, `_bytes`), its type (a key of TYPES), its meaning."""

    name: str
    type: str
    meaning: str = ""


@dataclass(frozen=True)
class Table:
    """A table: its name, what one row stands for, its columns, and the columns it is sorted by."""

    name: str
    row: str
    columns: tuple[Column, ...]
    sort: tuple[tuple[str, str], ...] = ()

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    def schema(self) -> pa.Schema:
        """The Arrow schema, each field with its meaning as metadata."""
        return pa.schema(
            [
                pa.field(column.name, TYPES[column.type], metadata={"meaning": column.meaning})
                for column in self.columns
            ],
            metadata={"table": self.name, "row": self.row},
        )

    def empty(self) -> pa.Table:
        return self.schema().empty_table()

    def build(self, columns: dict) -> pa.Table:
        """The table from one sequence (list, NumPy or Arrow array) a column.

        KeyError when one is missing, ArrowInvalid when a value does not fit its type.
        """
        schema = self.schema()
        # Cast, not made with the type: that would cut 1.5 down to 1 without a word.
        arrays = [_arrow(columns[field.name]).cast(field.type) for field in schema]
        return pa.Table.from_arrays(arrays, schema=schema)

    def sorted(self, table: pa.Table) -> pa.Table:
        """The table in its declared order. Nulls come last."""
        if not self.sort or len(table) < 2:
            return table
        return table.take(pc.sort_indices(table, sort_keys=list(self.sort)))


def _arrow(values: Any) -> pa.Array | pa.ChunkedArray:
    return values if isinstance(values, (pa.Array, pa.ChunkedArray)) else pa.array(values)


REPORT_KEYS = (
    Column("report", "string", "short name of the report, unique in this run"),
    Column("rank", "int64", "rank of the process in its job; null if unknown"),
    Column("device", "int64", "physical GPU where the report tells, else the ordinal that the process sees"),
)

FILES = Table(
    "files",
    "one input",
    (
        REPORT_KEYS[0],
        Column("path", "string", "the input as found"),
        Column("host", "string", "host the report was captured on; null if unknown"),
        REPORT_KEYS[1],
        Column("rank_source", "string", "where the rank was read: environment, file name; null if unknown"),
        Column("pids", "string", "processes with GPU work, comma-separated"),
        Column("gpu_name", "string", "GPUs that did work, comma-separated"),
        Column("nsys_version", "string", "Nsight Systems that exported the report"),
        Column("schema_version", "string", "Nsight's export schema"),
        Column("kernels", "int64", "kernels in the time range looked at"),
        Column("window_ns", "int64", "first start to last end of GPU work over all devices"),
        Column("phase_rule", "string", "rule that gave the phases; null when there are none"),
        Column("attributed_share", "double", "share of GPU time that lies in a phase; null without phases"),
        Column("quality", "string", "ok, warn or bad"),
        Column("status", "string", "ok, empty or unreadable"),
        Column("message", "string", "what limits this report, empty when nothing does"),
    ),
    sort=(("report", "ascending"), ("path", "ascending")),
)
