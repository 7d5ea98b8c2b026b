"""The tables of many reports on disk until all are there, so that no process holds more than one report's.

A worker writes its report's tables itself, as compressed Arrow files that are read piece by piece later: what goes
between processes is small. A worker on another machine that does not see the folder sends its tables back instead.
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
# A twentieth of the room, in about the time that writing it all would take.
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd")
#: Rows that are read back at once: a long table is never in memory as a whole.
_PIECE_ROWS = 1 << 17


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

    def read(self, number: int, name: str) -> Iterator[pa.Table]:
        """A table of a report, piece by piece, as it was kept; nothing when it was not written."""
        try:
            file = pa.memory_map(os.fspath(self._path(number, name)))
        except FileNotFoundError:
            return
        with file:
            reader = pa.ipc.open_file(file)
            for batch in range(reader.num_record_batches):
                yield pa.Table.from_batches([reader.get_batch(batch)])

    def _path(self, number: int, name: str) -> Path:
        return self.folder / f"{number}-{name}.arrow"


def _write(path: Path, rows: pa.Table) -> None:
    # Under a name of its own first: one report may be analysed twice at once when a worker is taken for dead.
    part = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    with pa.OSFile(os.fspath(part), "wb") as file, pa.ipc.new_file(file, rows.schema, options=_COMPRESSED) as writer:
        # A file holds one dictionary for each column.
        writer.write_table(rows.unify_dictionaries(), max_chunksize=_PIECE_ROWS)
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
