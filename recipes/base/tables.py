"""Tables declared once: their columns, what a row is, how they are sorted, what the columns mean.

From a declaration come the empty table, the check before writing, and the metadata in the parquet file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

TYPES = {"int64": pa.int64(), "double": pa.float64(), "string": pa.string(), "bool": pa.bool_()}


# Text that repeats over millions of rows, as it is held in memory.
_CODED = pa.dictionary(pa.int32(), pa.string())
_OF_RUN = ("report", "rank")


@dataclass(frozen=True)
class Column:
    """A column: its name (units are part of it: `_ns`, `_bytes`), its type (a key of TYPES), its meaning.

    `coded`: text that repeats in a long table; a dictionary array in memory, plain text in every file.
    """

    name: str
    type: str
    meaning: str = ""
    coded: bool = False


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
        """The Arrow schema of its files, each field with its meaning as metadata."""
        return self._schema(coded=False)

    def _schema(self, *, coded: bool) -> pa.Schema:
        types = [_CODED if coded and column.coded else TYPES[column.type] for column in self.columns]
        fields = [
            pa.field(column.name, kind, metadata={"meaning": column.meaning})
            for column, kind in zip(self.columns, types, strict=True)
        ]
        return pa.schema(fields, metadata={"table": self.name, "row": self.row})

    def empty(self) -> pa.Table:
        """The table without rows, as it is held in memory."""
        return self._schema(coded=True).empty_table()

    def build(self, columns: dict) -> pa.Table:
        """The table from one sequence (list, NumPy or Arrow array) per column, all equally long.

        KeyError when one is missing, ArrowInvalid when a value does not fit its type or lengths differ.
        """
        return _built(self._schema(coded=True), columns)

    def of_report(self, columns: dict) -> pa.Table:
        """The same for one report, without the columns that tell reports apart, which the run adds."""
        schema = self._schema(coded=True)
        return _built(pa.schema([field for field in schema if field.name not in _OF_RUN]), columns)

    def sorted(self, table: pa.Table) -> pa.Table:
        """The table (with the columns that it is sorted by) in its declared order. Nulls come last."""
        keys = [_sort_key(table[name], direction) for name, direction in self.sort]
        if not keys or len(table) < 2 or _in_order(keys):
            return table
        return table.take(pa.array(np.lexsort(keys[::-1])))


def _built(schema: pa.Schema, columns: dict) -> pa.Table:
    # Cast, not made with the type: that would cut 1.5 down to 1 without a word.
    return pa.Table.from_arrays([_cast(columns[field.name], field.type) for field in schema], schema=schema)


def _cast(values: Any, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    array = values if isinstance(values, (pa.Array, pa.ChunkedArray)) else pa.array(values)
    if kind == _CODED and not pa.types.is_dictionary(array.type):
        array = array.cast(pa.string()).dictionary_encode()
    return array.cast(kind)


def coded(code: np.ndarray, texts: pa.Array) -> pa.DictionaryArray:
    """Texts (string[k]) by their number (int[n], 0 to k - 1; a negative one is null), dictionary of int32 to string."""
    missing = code < 0
    indices = pa.array(np.where(missing, 0, code).astype(np.int32), mask=missing if missing.any() else None)
    return pa.DictionaryArray.from_arrays(indices, texts)


def _sort_key(column: pa.ChunkedArray, direction: str) -> np.ndarray:
    """Whole numbers that sort as the column (text or whole numbers) does; nulls last either way."""
    if not pa.types.is_integer(column.type):
        codes = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        whole = codes.unify_dictionaries().combine_chunks()
        order = pc.sort_indices(whole.dictionary).to_numpy()
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        column = pa.chunked_array([pa.array(rank).take(whole.indices)])
    missing = column.is_null().to_numpy()
    values = column.fill_null(0).to_numpy()
    values = -values if direction == "descending" else values
    return np.where(missing, np.iinfo(np.int64).max, values) if missing.any() else values


def _in_order(keys: list[np.ndarray]) -> bool:
    """Whether rows are sorted by the keys, the first being the first."""
    equal = np.ones(len(keys[0]) - 1, dtype=bool)
    for key in keys:
        if (equal & (key[1:] < key[:-1])).any():
            return False
        equal &= key[1:] == key[:-1]
    return True


REPORT_KEYS = (
    Column("report", "string", "short name of the report, unique in this run"),
    Column("rank", "int64", "rank of the process in its job; null if unknown"),
    Column("device", "int64", "physical GPU where the report identifies it, else the ordinal that the process sees"),
)

FILES = Table(
    "files",
    "one input",
    (
        REPORT_KEYS[0],
        Column("path", "string", "the input as found"),
        Column("host", "string", "host the report was captured on; null if unknown"),
        REPORT_KEYS[1],
        Column(
            "rank_source",
            "string",
            "where the rank was read: --rank-map, environment, file or thread name",
        ),
        Column("pids", "string", "processes with GPU work, comma-separated"),
        Column("gpu_name", "string", "GPUs that did work, comma-separated"),
        Column("nsys_version", "string", "Nsight Systems that exported the report"),
        Column("schema_version", "string", "Nsight's export schema"),
        Column("kernels", "int64", "kernels in the selected time range"),
        Column("window_ns", "int64", "first start to last end of GPU work over all devices"),
        Column("phase_rule", "string", "rule that gave the steps their phases; null without steps"),
        Column("attributed_share", "double", "share of GPU time in steps; null without steps"),
        Column("quality", "string", "ok, warn or bad"),
        Column("status", "string", "ok, empty or unreadable"),
        Column("message", "string", "what limits the numbers of this report; empty if nothing does"),
    ),
    sort=(("report", "ascending"), ("path", "ascending")),
)
