"""A report's tables in one schema, whatever Nsight version and export format they come from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recipes.base.errors import PackError
from recipes.report import schema
from recipes.report.schema import SourceColumn, SourceTable
from recipes.report.sources import ParquetFolder, Source, SqliteFile

#: Times in ns lie within this of zero, be that the session's start or 1970; any other is damage. Two of them can be
#: subtracted.
FARTHEST_NS = 1 << 61
#: The first so many characters of a name are kept: the longest real ones have a few thousand, and names repeat in rows.
LONGEST_NAME = 1 << 14
_CUT = " [cut]"
# What can be read of an export of 2021 or older, which says nothing of itself: tables and columns as they are today.
_OLD = {
    "StringIds": {"id", "value"},
    "CUPTI_ACTIVITY_KIND_KERNEL": {"start", "end", "deviceId", "globalPid", "correlationId", "demangledName"},
}


@dataclass(frozen=True)
class Strings:
    """StringIds: ids in order (int64[n]) and the text of each (string[n])."""

    ids: np.ndarray
    values: pa.Array

    def positions(self, ids: np.ndarray) -> np.ndarray:
        """Where each id (int64[n]) is in `values`, int64[n]; -1 for an id that is not there."""
        if len(self.ids) == 0:
            return np.full(len(ids), -1)
        at = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return np.where(self.ids[at] == ids, at, -1)


class Report:
    """One report, read table by table and column by column from an export of it."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._kept: dict[SourceTable, pa.Table] = {}

    def read(self, table: SourceTable, columns: Sequence[str] | None = None) -> pa.Table:
        """The columns of a normalised table, all of them by default.

        Empty when the export has no such table; a column that it lacks is null. Integers are int64 (ids that
        are unsigned in some exports wrap, as SQLite stores them), times beyond FARTHEST_NS are null, text is string,
        bytes are binary, text behind ids is a dictionary array. PackError when the export is damaged.
        """
        names = list(table.columns) if columns is None else list(columns)
        if table.small:
            if table not in self._kept:
                self._kept[table] = self._read(table, list(table.columns))
            return self._kept[table].select(names)
        return self._read(table, names)

    def _read(self, table: SourceTable, names: list[str]) -> pa.Table:
        exported = self._exported(table)
        if exported is None:
            fields = [(name, _result_type(table.columns[name])) for name in names]
            return pa.schema(fields).empty_table()
        present = self._source.columns(exported)
        wanted = {name: _present(table.columns[name], present) for name in names}
        integers, texts = _split(table, wanted)
        if not integers and not texts:
            # Some column must tell how many rows there are.
            texts = [min(present)]
        raw = self._source.read(exported, integers, texts)
        arrays = [self._column(exported, table.columns[name], wanted[name], raw) for name in names]
        return pa.table(dict(zip(names, arrays, strict=True)))

    def batches(self, table: SourceTable, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Columns of integers piece by piece, int64 as `read` gives them whole; ids of text stay ids. PackError when
        the export is damaged."""
        exported = self._exported(table)
        if exported is None:
            return
        present = self._source.columns(exported)
        found = {name: _present(table.columns[name], present)[:1] for name in columns}
        wanted = [name for names in found.values() for name in names]
        if not wanted:
            yield pa.table({name: pa.nulls(self._source.rows(exported), pa.int64()) for name in columns})
            return
        for raw in self._source.batches(exported, wanted):
            arrays = [
                _numbers(exported, table.columns[name], names[0], raw) if names else pa.nulls(len(raw), pa.int64())
                for name, names in found.items()
            ]
            yield pa.table(dict(zip(columns, arrays, strict=True)))

    def count(self, table: SourceTable) -> int:
        """How many rows a table has, 0 when the export has no such table. PackError when it is damaged."""
        exported = self._exported(table)
        return 0 if exported is None else self._source.rows(exported)

    def has(self, table: SourceTable) -> bool:
        """Whether the export holds the table, with or without rows."""
        return self._exported(table) is not None

    def tells(self, table: SourceTable, column: str) -> bool:
        """Whether the export has what a column is made of."""
        exported = self._exported(table)
        return exported is not None and bool(_present(table.columns[column], self._source.columns(exported)))

    def pairs(self, table: SourceTable) -> list[tuple[str, str]]:
        """A table of names and values as a list of pairs; a null is an empty text. PackError when it is damaged."""
        rows = self.read(table, ["name", "value"])
        values = rows["value"].fill_null("").to_pylist()
        return list(zip(rows["name"].fill_null("").to_pylist(), values, strict=True))

    @cached_property
    def strings(self) -> Strings:
        """StringIds, in order of id. PackError when the export is damaged."""
        rows = self.read(schema.STRINGS)
        ids = rows["id"].fill_null(-1).to_numpy()
        order = np.argsort(ids, kind="stable")
        return Strings(ids[order], _shortened(rows["value"].combine_chunks()).take(pa.array(order)))

    def _exported(self, table: SourceTable) -> str | None:
        for name, required in table.exported:
            columns = self._source.columns(name)
            if columns and columns.issuperset(required):
                return name
        return None

    def _column(self, exported: str, column: SourceColumn, names: list[str], raw: pa.Table) -> pa.Array:
        if not names:
            return pa.nulls(len(raw), _result_type(column))
        if pa.types.is_integer(column.type):
            return _numbers(exported, column, names[0], raw)
        direct = [_bytes(exported, name, raw) for name in names if name in column.exported][:1]
        if column.type == pa.binary():
            return direct[0].cast(pa.binary())
        if not column.ids:
            return _text(direct[0])
        ids = [name for name in names if name in column.ids]
        resolved = self._resolve(exported, ids, raw) if ids else None
        return _coalesced(_shortened(_text(direct[0])), resolved) if direct else resolved

    def _resolve(self, exported: str, ids: list[str], raw: pa.Table) -> pa.DictionaryArray:
        """The text behind the first of the id columns that has one, row by row."""
        # Few distinct ids stand in many rows: each is looked up once.
        encoded = _integers(exported, ids[0], raw).dictionary_encode()
        found = self.strings.positions(encoded.dictionary.to_numpy(zero_copy_only=False))
        if encoded.indices.null_count == 0 and (found >= 0).all():
            return self._named(encoded.indices, found)
        at = np.append(found, -1)[encoded.indices.fill_null(len(found)).to_numpy()]
        for name in ids[1:]:
            # Read only now: mostly the first column has a text in every row.
            column = _integers(exported, name, self._source.read(exported, [name], [])).fill_null(-1).to_numpy()
            missing = at < 0
            at[missing] = self.strings.positions(column[missing])
        encoded = pa.array(at).dictionary_encode()
        return self._named(encoded.indices, encoded.dictionary.to_numpy())

    def _named(self, indices: pa.Array, positions: np.ndarray) -> pa.DictionaryArray:
        """Rows that point to positions in the strings (-1: no text), as texts."""
        texts = self.strings.values.take(pa.array(np.maximum(positions, 0), mask=positions < 0))
        # One text under two ids is one name.
        merged = texts.dictionary_encode()
        if len(merged.dictionary) < len(texts):
            indices, texts = merged.indices.take(indices), merged.dictionary
        return pa.DictionaryArray.from_arrays(indices, texts)


def numbers(column: pa.ChunkedArray, null: int) -> np.ndarray:
    """A column of integers as one array of its dtype (int64 in a report), one entry per row, `null` for null."""
    whole = column.combine_chunks()
    # Arrow copies even where there is nothing to fill.
    return (whole.fill_null(null) if whole.null_count else whole).to_numpy()


def open_export(path: Path) -> Report:
    """The report behind a SQLite file or a parquet folder. PackError when it is not an export or only a part."""
    if path.is_dir():
        source: Source = ParquetFolder(path)
    else:
        with _readable(path) as file:
            if file.read(16) != b"SQLite format 3\0":
                raise PackError(f"{path}: not a SQLite file; export the report again with nsys export")
        source = SqliteFile(path)
    tables = source.tables()
    told = any(name in tables for name, _ in schema.EXPORT_INFO.exported)
    targets = any(name.startswith("TARGET_INFO_") for name in tables)
    if told and targets:
        return Report(source)
    # Before an export told its version it had neither.
    if told or targets or not _OLD.keys() <= tables or not all(_OLD[name] <= source.columns(name) for name in _OLD):
        raise PackError(
            f"{path}: not a whole Nsight export, or too old (META_DATA_EXPORT or the TARGET_INFO tables are missing, "
            "as in exports of 2021 and older); export the report again with nsys export"
        )
    return Report(source)


def _readable(path: Path):
    try:
        return path.open("rb")
    except OSError as error:
        raise PackError(f"{path}: {error.strerror or error}; check the path and its permissions") from None


def _present(column: SourceColumn, present: frozenset[str]) -> list[str]:
    return [name for name in (*column.exported, *column.ids) if name in present]


def _split(table: SourceTable, wanted: dict[str, list[str]]) -> tuple[list[str], list[str]]:
    """The exported columns to read, as integers and as texts, each once. Of id columns, the first."""
    integers: list[str] = []
    texts: list[str] = []
    for name, exported in wanted.items():
        column = table.columns[name]
        direct = [found for found in exported if found in column.exported]
        (integers if pa.types.is_integer(column.type) else texts).extend(direct)
        integers += [found for found in exported if found in column.ids][:1]
    return list(dict.fromkeys(integers)), list(dict.fromkeys(texts))


def _result_type(column: SourceColumn) -> pa.DataType:
    if column.ids:
        return pa.dictionary(pa.int32(), pa.string())
    return column.type


def _coalesced(text: pa.Array, resolved: pa.DictionaryArray | None) -> pa.DictionaryArray:
    """The text of a row, or where it has none the resolved one, as a dictionary array."""
    encoded = text.dictionary_encode()
    if resolved is None:
        return encoded
    beside = pc.add(resolved.indices, len(encoded.dictionary))
    texts = pa.concat_arrays([encoded.dictionary, resolved.dictionary])
    merged = texts.dictionary_encode()
    indices = merged.indices.take(pc.coalesce(encoded.indices, beside))
    return pa.DictionaryArray.from_arrays(indices, merged.dictionary)


def _numbers(table: str, column: SourceColumn, name: str, raw: pa.Table) -> pa.Array:
    """A column of numbers; a time that can be none is null."""
    values = _integers(table, name, raw)
    if not column.time or len(values) == values.null_count:
        return values
    span = pc.min_max(values)
    if span["min"].as_py() >= -FARTHEST_NS and span["max"].as_py() <= FARTHEST_NS:
        return values
    near = pc.and_(pc.greater_equal(values, -FARTHEST_NS), pc.less_equal(values, FARTHEST_NS))
    return pc.if_else(near, values, None)


def _integers(table: str, name: str, raw: pa.Table) -> pa.Array:
    column = _plain(raw[name])
    if not _is_number(column.type):
        raise _wrong_type(table, name, raw, "whole numbers")
    if column.type == pa.uint64():
        # Ids wrap as in SQLite; a view does that without a copy.
        column = pa.chunked_array([chunk.view(pa.int64()) for chunk in column.chunks], pa.int64())
    return column.cast(pa.int64()).combine_chunks()


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column without an encoding that Arrow remembers of the writer."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _wrong_type(table: str, name: str, raw: pa.Table, wanted: str) -> PackError:
    return PackError(f"{table}.{name} holds {raw[name].type} instead of {wanted}; export the report again")


def _bytes(table: str, name: str, raw: pa.Table) -> pa.Array:
    """A column of text or bytes as it is, in one piece. PackError when it holds anything else."""
    column = _plain(raw[name])
    kinds = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.null())
    if column.type not in kinds:
        raise _wrong_type(table, name, raw, "text")
    whole = column.combine_chunks()
    return whole if column.type == pa.string() else whole.cast(pa.binary())


def _text(array: pa.Array) -> pa.Array:
    """Text as valid UTF-8: bytes that are not UTF-8 survive as \\xNN."""
    try:
        text = array.cast(pa.string())
        text.validate(full=True)
        return text
    except pa.ArrowException:
        values = array.cast(pa.binary()).to_pylist()
        return pa.array([v if v is None else v.decode("utf-8", "backslashreplace") for v in values], pa.string())


def _shortened(text: pa.Array) -> pa.Array:
    """Names that repeat in rows, none of them enormous."""
    if (pc.max(pc.binary_length(text)).as_py() or 0) <= LONGEST_NAME:
        return text
    cut = pc.binary_join_element_wise(pc.utf8_slice_codeunits(text, 0, LONGEST_NAME), _CUT, "")
    return pc.if_else(pc.greater(pc.utf8_length(text), LONGEST_NAME), cut, text)
