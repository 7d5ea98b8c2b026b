"""The tables of many reports on disk until all are there, so that no process holds more than one report's.

A worker writes its report's tables itself, as Arrow files that are mapped into memory later: what goes between
processes is small. A worker on another machine that does not see the folder sends its tables back instead.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

_MARK = "mark"


@dataclass(frozen=True)
class Spill:
    """A folder for tables; `mark` tells it from one of the same name on another machine."""

    folder: Path
    mark: str

    def keep(self, number: int, tables: dict[str, pa.Table]) -> dict[str, pa.Table]:
        """Writes the tables of the report of a number, and returns those that have to be held in memory: none, or all
        when the folder is not here or is full."""
        try:
            if (self.folder / _MARK).read_text() != self.mark:
                return tables
            for name, rows in tables.items():
                _write(self._path(number, name), rows)
            return {}
        except OSError:
            return tables

    def read(self, number: int, name: str) -> pa.Table | None:
        """A table of a report, mapped into memory; None when it was not written."""
        try:
            # The mapping outlives the file: hundreds of reports would be too many open ones.
            with pa.memory_map(os.fspath(self._path(number, name))) as file:
                return pa.ipc.open_file(file).read_all()
        except FileNotFoundError:
            return None

    def _path(self, number: int, name: str) -> Path:
        return self.folder / f"{number}-{name}.arrow"


def _write(path: Path, rows: pa.Table) -> None:
    # Under a name of its own first: one report may be analysed twice at once when a worker is taken for dead.
    part = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    # A file holds one dictionary for each column.
    with pa.OSFile(os.fspath(part), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows.unify_dictionaries())
    part.rename(path)


@contextlib.contextmanager
def spill_in(folder: Path, *, wanted: bool = True) -> Iterator[Spill | None]:
    """A place for tables inside a folder, gone when the block ends; None when it is not wanted or cannot be made."""
    place: Path | None = None
    spill: Spill | None = None
    try:
        if wanted:
            with contextlib.suppress(OSError):
                place = Path(tempfile.mkdtemp(prefix=".tables-", dir=folder.absolute()))
                mark = secrets.token_hex(16)
                (place / _MARK).write_text(mark)
                spill = Spill(place, mark)
        yield spill
    finally:
        if place is not None:
            shutil.rmtree(place, ignore_errors=True)
