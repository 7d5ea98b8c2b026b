"""The output folder of a run: parquet tables, CSV, notebook, manifest. It is there whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from recipes import __version__
from recipes.base.errors import PackError
from recipes.base.tables import Table

#: Raised when a column changes its meaning.
SCHEMA_VERSION = "2"
#: Rows, and bytes of repeated text, written at once: a long table is never in memory as a whole.
_ROWS_AT_ONCE, _BYTES_AT_ONCE = 1 << 17, 1 << 30


def choose_folder(name: str, output: str | None, *, force: bool) -> tuple[Path, str]:
    """The output folder, and a warning (empty when there is none).

    Without `output` it is the first free `<name>-<n>` here, and so it is when `output` exists and may not be
    overwritten. PackError when `output` is to be overwritten and is no folder of an earlier run.
    """
    if output is None:
        return _free(name), ""
    # Absolute, so that `.` has a name too.
    folder = Path(os.path.abspath(output)) if Path(output).name in ("", "..") else Path(output)
    if not os.path.lexists(folder):
        return folder, ""
    if not force:
        free = _free(name)
        return free, f"{folder} exists, so the output goes to {free}; use --force-overwrite to replace it"
    if folder.is_symlink() or not folder.is_dir() or not _is_output(folder):
        raise PackError(f"{folder} is not the output folder of a recipe, so it is not overwritten; choose another")
    return folder, ""


def _free(name: str) -> Path:
    number = 1
    while os.path.lexists(f"{name}-{number}"):
        number += 1
    return Path(f"{name}-{number}")


# What recipes write, Nsight's own included.
_WRITTEN = (".parquet", ".csv", ".ipynb", ".nsys-analysis", ".py")


def _is_output(folder: Path) -> bool:
    """Whether a folder is empty, or holds what recipes write and nothing else."""
    entries = list(folder.iterdir())
    ours = all(entry.is_file() and not entry.is_symlink() and entry.suffix in _WRITTEN for entry in entries)
    return not entries or (ours and any(entry.suffix == ".nsys-analysis" for entry in entries))


@dataclass
class Output:
    """A folder to write into, and the folder that it becomes: known for certain when it is in place."""

    part: Path
    folder: Path


@contextlib.contextmanager
def output_folder(folder: Path, *, force: bool) -> Iterator[Output]:
    """A new folder to write into, which becomes `folder` when the block ends well.

    It is made at once, so that an unwritable place is known before the work. An error leaves nothing behind. With
    `force` it replaces what `choose_folder` allowed to; without, when another run was faster, it becomes the next free
    name. PackError when the folder cannot be written.
    """
    part: Path | None = None
    try:
        with _writing(folder):
            parent = folder.absolute().parent
            parent.mkdir(parents=True, exist_ok=True)
            part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.part-", dir=parent))
        output = Output(part, folder)
        yield output
        with _writing(folder):
            output.folder = _replace(part, folder) if force else _put_in_place(part, folder)
    finally:
        if part is not None:
            shutil.rmtree(part, ignore_errors=True)


def write_outputs(
    part: Path,
    folder: Path,
    recipe: str,
    tables: Mapping[Table, Iterable[pa.Table]],
    *,
    csv: bool,
    texts: Mapping[str, str],
) -> None:
    """Writes tables, each given in pieces, and texts (file name to content) into `part`, which will be `folder`.

    PackError when it cannot be written.
    """
    with _writing(folder):
        for table, pieces in tables.items():
            _write_table(part, recipe, table, pieces, csv=csv)
        for name, text in texts.items():
            (part / name).write_text(text, encoding="utf-8")


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise PackError(f"{folder}: cannot be written ({reason}); choose another --output") from None


def _write_table(folder: Path, recipe: str, table: Table, pieces: Iterable[pa.Table], *, csv: bool) -> None:
    schema = table.schema()
    about = {"pack": f"nsys-llm-recipes {__version__}", "recipe": recipe, "schema_version": SCHEMA_VERSION}
    schema = schema.with_metadata({**schema.metadata, **about})
    # Numbers hardly repeat: looking for that takes longer than writing them, and more room.
    texts = [field.name for field in schema if field.type == pa.string()]
    with contextlib.ExitStack() as files:
        parquet = folder / f"{table.name}.parquet"
        writers = [pq.ParquetWriter(parquet, schema, compression="zstd", use_dictionary=texts or False)]
        if csv:
            writers.append(pyarrow.csv.CSVWriter(folder / f"{table.name}.csv", schema))
        for writer in writers:
            files.enter_context(writer)
        # Piece by piece: coded text is much longer when it is spelled out.
        for rows in _evenly(table.empty(), pieces):
            at_once = _rows_at_once(rows)
            for first in range(0, max(len(rows), 1), at_once):
                # In one piece: older Arrow writes the head of a CSV file again for each empty one.
                piece = rows.slice(first, at_once).cast(schema).combine_chunks()
                for writer in writers:
                    writer.write_table(piece)


def _rows_at_once(rows: pa.Table) -> int:
    """How many rows are spelled out together: fewer where coded texts are long, as names of kernels can be."""
    coded = (column for column in rows.columns if pa.types.is_dictionary(column.type))
    texts = [chunk.dictionary for column in coded for chunk in column.chunks]
    longest = max((pc.max(pc.binary_length(text)).as_py() or 1 for text in texts), default=1)
    return max(min(_ROWS_AT_ONCE, _BYTES_AT_ONCE // longest), 1)


def _evenly(empty: pa.Table, pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows, as many at once each time whatever pieces they came in: a file's bytes depend on that. The empty
    table when there are none."""
    rows, given = empty, False
    for piece in pieces:
        rows = pa.concat_tables([rows, piece])
        while len(rows) >= _ROWS_AT_ONCE:
            yield rows.slice(0, _ROWS_AT_ONCE)
            rows, given = rows.slice(_ROWS_AT_ONCE), True
    if len(rows) or not given:
        yield rows


def _put_in_place(part: Path, folder: Path) -> Path:
    """Gives the folder its name, or the next one when it is taken by now; never replaces anything."""
    _make_readable(part)
    stem, number = folder.name.rpartition("-")[::2]
    stem, start = (stem, int(number)) if number.isdecimal() and stem else (folder.name, 0)
    for place in chain([folder], (folder.with_name(f"{stem}-{start + turn}") for turn in range(1, 10_000))):
        # An empty folder would be replaced without an error.
        if not os.path.lexists(place):
            with contextlib.suppress(FileExistsError, NotADirectoryError):
                try:
                    part.rename(place)
                    return place
                except OSError as error:
                    if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                        raise
    raise PackError(f"{folder}: taken, and so are the next names; choose another --output")


def _make_readable(part: Path) -> None:
    # mkdtemp made it private; an output is as readable as the user's other files.
    umask = os.umask(0)
    os.umask(umask)
    part.chmod(0o777 & ~umask)


def _replace(part: Path, folder: Path) -> Path:
    """Puts the folder in place of what is there; that comes back when it cannot."""
    if not os.path.lexists(folder):
        return _put_in_place(part, folder)
    _make_readable(part)
    old = Path(tempfile.mkdtemp(prefix=f".{folder.name}.old-", dir=part.parent))
    try:
        folder.rename(old / folder.name)
        try:
            part.rename(folder)
        except OSError:
            (old / folder.name).rename(folder)
            raise
    finally:
        shutil.rmtree(old, ignore_errors=True)
    return folder
