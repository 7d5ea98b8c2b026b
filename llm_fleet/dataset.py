"""The dataset: where its files are, when they count, and how rows come in and out.

    table=reports/run=RUN/KEY.parquet           one row: the report counts, with the rows of this version
    table=TABLE/run=RUN/KEY.VERSION.parquet     the report's rows in each other table
    table=runs/run=RUN/all-reports.parquet      one row: what was worked out over the run's reports counts
    table=TABLE/run=RUN/all-reports.VERSION.parquet

A report's rows are written first, its row in `reports` last. Until then, and after a crash for good, readers see the
rows of the version before. What lies about after a crash goes away when the same report comes again an hour later or
more: until then it may be that of another process, which is still writing.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import quote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from llm_fleet.storage import Storage, is_unfinished, open_storage, reason
from llm_fleet.tables import DATASET_VERSION, REPORTS, RUNS
from recipes import __version__
from recipes.base.errors import PackError
from recipes.base.tables import Table

#: Says what the folder is. Readers of parquet skip names that begin so.
MARKER = "_llm_fleet.json"
ALL_REPORTS = "all-reports"
#: A folder name has at most 255 bytes on common file systems; `run=` and the escapes count too.
_LONGEST_NAME = 200
_NO_RUN = "__HIVE_DEFAULT_PARTITION__"
_NO_RUNS = f"table={RUNS.name}/run={_NO_RUN}/none.parquet"
# What does not count and is older is no other process's unfinished work, whatever the clocks of two machines say.
_LEFT_BEHIND_S = 3600
# How often files that others take away meanwhile are written again.
_TURNS = 5


def run_folder(table: str, run: str) -> str:
    """Where a table's files of a run are. The run's name is escaped as Hive does it."""
    return f"table={table}/run={quote(run, safe='')}"


def file_of(table: str, run: str, key: str, version: str) -> str:
    """The file with the rows of one version of a report, or of all reports."""
    return f"{run_folder(table, run)}/{key}{'' if _commits(table, key) else f'.{version}'}.parquet"


def _commits(table: str, key: str) -> bool:
    """Whether a table's file of a report is the one that makes its rows count."""
    return (table, key == ALL_REPORTS) in ((REPORTS.name, False), (RUNS.name, True))


def check_run(run: str) -> None:
    """PackError for a run's name that no folder could have."""
    # The one name that means none to Hive's readers.
    if run in ("", _NO_RUN) or len(quote(run, safe="")) > _LONGEST_NAME:
        raise PackError(
            f"{run[:40]!r} cannot be the name of a run: give --run a name of 1 to {_LONGEST_NAME} characters"
        )


def encode(table: Table, rows: pa.Table) -> pa.Buffer:
    """A parquet file of a table of the dataset: the same bytes for the same rows, which have its columns (ValueError if
    not). ArrowInvalid when a value does not fit its type."""
    about = {"pack": f"nsys-llm-recipes {__version__}", "dataset_version": str(DATASET_VERSION)}
    schema = table.schema()
    schema = schema.with_metadata({**schema.metadata, **about})
    texts = [field.name for field in schema if field.type == pa.string()]
    sink = pa.BufferOutputStream()
    pq.write_table(rows.cast(schema).combine_chunks(), sink, compression="zstd", use_dictionary=texts)
    return sink.getvalue()


def run_version(versions: Sequence[str]) -> str:
    """What stands for the content of a run: MD5 of its reports' versions in order of key, joined by commas."""
    # Any reader can work it out, in SQL too; it guards against nobody.
    return hashlib.md5(",".join(versions).encode(), usedforsecurity=False).hexdigest()


@dataclass(frozen=True)
class Dataset:
    """A dataset somewhere. PackError when it cannot be reached, or is of another version."""

    storage: Storage

    def begin(self) -> None:
        """Makes sure that this is a dataset of ours, or can become one."""
        told = self.storage.read(MARKER)
        if told is not None:
            self._check(told)
        else:
            # Another process may be beginning it, or have done so meanwhile.
            others = [path for path in self.storage.names("") if not is_unfinished(path)]
            if others and self.storage.read(MARKER) is None:
                raise PackError(
                    f"{self.storage.url}: holds files and is not a dataset of llm_fleet ({MARKER} is missing); give "
                    "--dataset an empty or new folder"
                )
            self.storage.write(MARKER, json.dumps({"dataset_version": DATASET_VERSION}).encode())
        # A file without rows: readers find the table before the first run is complete.
        if not self.storage.existing([_NO_RUNS]):
            self.storage.write(_NO_RUNS, encode(RUNS, RUNS.schema().empty_table()).to_pybytes())

    def _check(self, told: bytes) -> None:
        try:
            version = int(json.loads(told)["dataset_version"])
        except (ValueError, KeyError, TypeError):
            raise PackError(f"{self.storage.url}: {MARKER} is damaged; give --dataset another folder") from None
        if version != DATASET_VERSION:
            older = "give --dataset a new folder and add the reports again, or use the pack that wrote it"
            raise PackError(
                f"{self.storage.url}: the dataset has version {version}, this pack writes {DATASET_VERSION}; "
                f"{older if version < DATASET_VERSION else 'use the pack that wrote it, or a newer one'}"
            )

    def version_of(self, run: str, key: str) -> str | None:
        """The version of a report's rows that counts; None when the report is not there."""
        table = RUNS if key == ALL_REPORTS else REPORTS
        found = self.storage.read(file_of(table.name, run, key, ""))
        if found is None:
            return None
        return pq.read_table(pa.BufferReader(found), columns=["version"])["version"][0].as_py()

    def put(self, run: str, key: str, version: str, tables: Iterable[tuple[Table, pa.Table]]) -> None:
        """Writes the rows of a report, or of all reports; the table that makes them count comes last.

        Rows are as their table declares them. PackError when the dataset cannot be written.
        """
        for table, rows in tables:
            path, content = file_of(table.name, run, key, version), encode(table, rows)
            # Nothing changes where there is nothing to change: not even the time of a file.
            if self.storage.read(path) != content.to_pybytes():
                self.storage.write(path, content)

    def commit(self, run: str, key: str, version: str, tables: Callable[[], Iterable[tuple[Table, pa.Table]]]) -> None:
        """The same, and makes sure that all its files are there; what counted before goes away."""
        before: set[str | None] = set()
        for _ in range(_TURNS):
            names: list[str] = []

            def named(names: list[str] = names) -> Iterable[tuple[Table, pa.Table]]:
                for table, rows in tables():
                    names.append(table.name)
                    if _commits(table.name, key):
                        # Another process's may have begun to count meanwhile.
                        before.add(self.version_of(run, key))
                    yield table, rows

            self.put(run, key, version, named())
            if not self.lacks(run, key, version, names):
                break
        for old in before - {None, version, self.version_of(run, key)}:
            for table in self.tables():
                if not _commits(table, key):
                    self.storage.delete(file_of(table, run, key, old or ""))

    def lacks(self, run: str, key: str, version: str, tables: Sequence[str]) -> bool:
        """Whether a file of these tables is missing."""
        paths = [file_of(table, run, key, version) for table in tables]
        return len(self.storage.existing(paths)) < len(paths)

    def sweep(self, run: str, keys: set[str]) -> None:
        """Removes what does not count of these reports, and has lain there so long that nobody is writing it."""
        old = time.time() - _LEFT_BEHIND_S
        found = []
        for table in self.tables():
            for path, written in self.storage.written(run_folder(table, run)).items():
                key, version = _key_and_version(path)
                if key in keys and (version or is_unfinished(path)) and written is not None and written < old:
                    found.append((path, key, version))
        # Looked up last, so that what has begun to count meanwhile stays.
        counting = {key: self.version_of(run, key) for _, key, _ in found}
        for path, key, version in found:
            if is_unfinished(path) or version != counting[key]:
                self.storage.delete(path)

    def tables(self) -> list[str]:
        """The tables that have files, of newer packs too."""
        named = (name for name in self.storage.folders() if name.startswith("table="))
        return [name.removeprefix("table=") for name in named]

    def reports(self, run: str | None = None) -> pa.Table:
        """The reports that count, rows of REPORTS, of one run or all, in order of run and key; of copies the first.

        PackError when the dataset cannot be read.
        """
        return once(self.every_report(run))

    def every_report(self, run: str | None = None) -> pa.Table:
        """The same with all copies."""
        return self._entries(REPORTS, run).sort_by([("run_name", "ascending"), ("report_key", "ascending")])

    def runs(self, run: str | None = None) -> pa.Table:
        """The runs whose reports were looked at together, rows of RUNS in order of name. PackError as for `reports`."""
        return self._entries(RUNS, run).sort_by("run_name")

    def _entries(self, table: Table, run: str | None) -> pa.Table:
        folder = f"table={table.name}" if run is None else run_folder(table.name, run)
        paths = [path for path in self.storage.names(folder) if path.endswith(".parquet") and not is_unfinished(path)]
        return self._read(table, paths, table.names)

    def read(self, table: Table, entries: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of a table (as `in_dataset` gives it) that belong to some rows of `reports` or `runs`; all columns,
        or those named."""
        return self._read(table, self.files(table, entries), columns or table.names)

    def count(self, table: Table, entries: pa.Table) -> int:
        """How many rows `read` would give."""
        paths = self.files(table, entries)
        return self._open(table, paths).count_rows() if paths else 0

    def files(self, table: Table, entries: pa.Table) -> list[str]:
        """The files of a table that belong to some rows of `reports` or `runs`."""
        return self.storage.existing([file_of(table.name, *one) for one in zip(*_named(entries), strict=True)])

    def _read(self, table: Table, paths: list[str], columns: Sequence[str]) -> pa.Table:
        if not paths:
            return table.schema().empty_table().select(columns)
        try:
            return self._open(table, paths).to_table(columns=list(columns))
        except (OSError, pa.ArrowException) as error:
            raise PackError(f"{self.storage.url}: table {table.name} cannot be read ({reason(error)})") from None

    def _open(self, table: Table, paths: list[str]) -> ds.Dataset:
        # With the schema of today: what an older file lacks is null.
        places = [self.storage.place(path) for path in paths]
        return ds.dataset(places, schema=table.schema(), format="parquet", filesystem=self.storage.files)


def _key_and_version(path: str) -> tuple[str, str]:
    """The report key and the version in a file's name; of the files that make rows count the version is empty."""
    name = path.rpartition("/")[2].removeprefix(".").partition(".parquet")[0]
    key, _, version = name.partition(".")
    return key, version


def _named(entries: pa.Table) -> tuple[list[str], list[str], list[str]]:
    """Run, key and version of rows of `reports` or `runs`."""
    run, version = entries["run_name"].to_pylist(), entries["version"].to_pylist()
    keys = entries["report_key"].to_pylist() if "report_key" in entries.column_names else [ALL_REPORTS] * len(run)
    return run, keys, version


def once(reports: pa.Table) -> pa.Table:
    """Rows of `reports` in order of run and key without copies: the first of each content in a run."""
    named = zip(reports["run_name"].to_pylist(), reports["version"].to_pylist(), strict=True)
    first: dict[tuple[str, str], int] = {}
    for row, content in enumerate(named):
        first.setdefault(content, row)
    return reports.take(pa.array(first.values(), pa.int64()))


def open_dataset(url: str) -> Dataset:
    """The dataset at a local path or a URL. PackError when no file system knows it."""
    return Dataset(open_storage(url))
