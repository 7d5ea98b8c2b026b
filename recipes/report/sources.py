"""Exports of a report as they lie on the disk: a SQLite file, or a folder with one parquet file a table.

A source answers two questions, and knows no version: which columns a table has (none: no such table), and what
is in them. Integers come as Arrow integers of any width, text as Arrow binary or string.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from array import array
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recipes.base.errors import PackError

#: Rows read at once: a long table is never in memory as a whole.
_BATCH_ROWS = 1 << 18
#: With more row groups than this, the metadata of a file is kept: parsing it takes longer than reading a column.
_MANY_GROUPS = 100


class Source(Protocol):
    """What both kinds of export offer."""

    def tables(self) -> frozenset[str]:
        """The names of the tables."""

    def columns(self, table: str) -> frozenset[str]:
        """The columns of a table; empty when there is no such table."""

    def rows(self, table: str) -> int:
        """How many rows a table has that is there."""

    def read(self, table: str, integers: Sequence[str], texts: Sequence[str]) -> pa.Table:
        """The columns asked for, one row per row of the file. PackError when they cannot be read."""

    def batches(self, table: str, integers: Sequence[str]) -> Iterator[pa.Table]:
        """The same piece by piece, for columns of integers too long to hold at once. PackError as for `read`."""


class ParquetFolder:
    """A `_pqtdir` folder as `nsys export --type parquetdir` writes it, with what Source offers. PackError when it is
    damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._long: tuple[str, pq.FileMetaData] | None = None
        self._shapes: dict[str, tuple[frozenset[str], int]] = {}

    def tables(self) -> frozenset[str]:
        return frozenset(file.stem for file in self.path.glob("*.parquet"))

    def _metadata(self, table: str) -> pq.FileMetaData:
        # These files have thousands of small row groups, and parsing a long footer costs more than a column. Only the
        # last such is kept: it takes a hundred megabytes.
        if self._long is not None and self._long[0] == table:
            return self._long[1]
        file = self.path / f"{table}.parquet"
        with _reading(file):
            metadata = pq.read_metadata(file)
        if metadata.num_row_groups > _MANY_GROUPS:
            self._long = (table, metadata)
        return metadata

    def _shape(self, table: str) -> tuple[frozenset[str], int]:
        """The columns of a table and how many rows it has."""
        if table not in self._shapes:
            self._shapes[table] = self._read_shape(table)
        return self._shapes[table]

    def _read_shape(self, table: str) -> tuple[frozenset[str], int]:
        if not (self.path / f"{table}.parquet").is_file():
            return frozenset(), 0
        metadata = self._metadata(table)
        return frozenset(metadata.schema.to_arrow_schema().names), metadata.num_rows

    def columns(self, table: str) -> frozenset[str]:
        return self._shape(table)[0]

    def rows(self, table: str) -> int:
        return self._shape(table)[1]

    def read(self, table: str, integers: Sequence[str], texts: Sequence[str]) -> pa.Table:
        file = self.path / f"{table}.parquet"
        # No read-ahead: it holds the raw bytes of all row groups beside the columns made of them.
        with _reading(file), pq.ParquetFile(file, metadata=self._metadata(table), pre_buffer=False) as reader:
            return reader.read(columns=[*integers, *texts])

    def batches(self, table: str, integers: Sequence[str]) -> Iterator[pa.Table]:
        file = self.path / f"{table}.parquet"
        with _reading(file):
            reader = pq.ParquetFile(file, metadata=self._metadata(table), pre_buffer=False)
        # Not `with`, around the yield: left in the middle, it makes a cycle of references that keeps the report.
        try:
            # Not iter_batches: it opens a reader for each of the thousands of row groups at once.
            first, rows = 0, 0
            for group in range(reader.num_row_groups):
                rows += reader.metadata.row_group(group).num_rows
                if rows >= _BATCH_ROWS or group == reader.num_row_groups - 1:
                    with _reading(file):
                        piece = reader.read_row_groups(range(first, group + 1), columns=list(integers))
                    yield piece
                    first, rows = group + 1, 0
        finally:
            reader.close()


@contextlib.contextmanager
def _reading(file: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise _damaged(file, error) from None


class SqliteFile:
    """A `.sqlite` file as `nsys export --type sqlite` writes it."""

    # NOT INDEXED in every query: a user's index would give columns in its own order, one unlike the other.

    # Stands for NULL while integers pass through NumPy; no id, time or size is that small.
    _NULL = -(2**63)

    def __init__(self, path: Path) -> None:
        self.path = path
        self._columns: dict[str, frozenset[str]] = {}
        self._counts: dict[str, int] = {}

    def _connect(self) -> sqlite3.Connection:
        # immutable: nobody writes an export, and no lock or journal is to be made beside it.
        connection = sqlite3.connect(f"file:{quote(os.fsencode(self.path))}?mode=ro&immutable=1", uri=True)
        connection.text_factory = bytes
        return connection

    def _rows(self, query: str) -> list[tuple]:
        try:
            connection = self._connect()
            try:
                return connection.execute(query).fetchall()
            finally:
                connection.close()
        except (sqlite3.Error, UnicodeError) as error:
            # SQLite's own message may quote what is not text.
            raise _damaged(self.path, error) from None

    def tables(self) -> frozenset[str]:
        return self._tables

    @cached_property
    def _tables(self) -> frozenset[str]:
        rows = self._rows("SELECT name FROM sqlite_master WHERE type = 'table'")
        return frozenset(_name(name) for (name,) in rows)

    def columns(self, table: str) -> frozenset[str]:
        if table not in self._tables:
            return frozenset()
        if table not in self._columns:
            rows = self._rows(f"PRAGMA table_info({_quoted(table)})")
            self._columns[table] = frozenset(_name(row[1]) for row in rows)
        return self._columns[table]

    def rows(self, table: str) -> int:
        if table not in self._counts:
            ((self._counts[table],),) = self._rows(f"SELECT count(*) FROM {_quoted(table)} NOT INDEXED")
        return self._counts[table]

    def read(self, table: str, integers: Sequence[str], texts: Sequence[str]) -> pa.Table:
        columns: dict[str, pa.ChunkedArray] = {}
        if integers:
            pieces = list(self.batches(table, integers))
            empty = pa.schema([(name, pa.int64()) for name in integers]).empty_table()
            columns.update(zip(integers, pa.concat_tables([empty, *pieces]).columns, strict=True))
        for text in texts:
            rows = self._rows(f"SELECT CAST({_quoted(text)} AS TEXT) FROM {_quoted(table)} NOT INDEXED")
            columns[text] = pa.array([value for (value,) in rows], type=pa.binary())
        return pa.table(columns)

    def batches(self, table: str, integers: Sequence[str]) -> Iterator[pa.Table]:
        wanted = ", ".join(f"ifnull({_quoted(name)}, {self._NULL})" for name in integers)
        try:
            with contextlib.closing(self._connect()) as connection:
                rows = connection.execute(f"SELECT {wanted} FROM {_quoted(table)} NOT INDEXED")
                # Not np.fromiter: it makes whole numbers of doubles and of texts without a word.
                while len(flat := array("q", chain.from_iterable(islice(rows, _BATCH_ROWS)))):
                    values = np.frombuffer(flat, dtype=np.int64).reshape(-1, len(integers))
                    yield pa.table({n: _with_nulls(values[:, i], self._NULL) for i, n in enumerate(integers)})
        except TypeError:
            wrong = ValueError(f"one of {', '.join(integers)} in {table} holds other than whole numbers")
            raise _damaged(self.path, wrong) from None
        except (sqlite3.Error, ValueError, OverflowError) as error:
            raise _damaged(self.path, error) from None


def _with_nulls(values: np.ndarray, null: int) -> pa.Array:
    values = np.ascontiguousarray(values)
    missing = values == null
    return pa.array(values, mask=missing if missing.any() else None)


def _name(raw: bytes) -> str:
    # One that is not UTF-8 is none of ours.
    return raw.decode("utf-8", "backslashreplace")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _damaged(file: Path, error: Exception) -> PackError:
    reason = " ".join(str(error).split())
    return PackError(f"{file}: cannot be read as an Nsight export ({reason}); export the report again")
