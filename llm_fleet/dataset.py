"""The dataset: where its files are, when they count, and how rows come in and out.

    table=reports/run=RUN/KEY.parquet           one row: the report counts, with the rows of this version
    table=TABLE/run=RUN/KEY.VERSION.parquet     the report's rows in each other table
    table=runs/run=RUN/all-reports.parquet      one row: what was worked out over the run's reports counts
    table=TABLE/run=RUN/all-reports.VERSION.parquet

A report's rows are written first, its row in `reports` last. Until then, and after a crash for good, readers see the
rows of the version before; what lies about then goes away the next time the same report comes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import quote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from llm_fleet.storage import Storage, is_unfinished, open_storage
from llm_fleet.tables import DATASET_VERSION, REPORTS, RUNS
from recipes import __version__
from recipes.errors import PackError
from recipes.tables import Table

#: Says what the folder is. Readers of parquet skip names that begin so.
MARKER = "_llm_fleet.json"
ALL_REPORTS = "all-reports"
_LONGEST_NAME = 200


def run_folder(table: str, run: str) -> str:
    """Where a table's files of a run are. The run's name is escaped as Hive does it."""
    return f"table={table}/run={quote(run, safe='')}"


def file_of(table: str, run: str, key: str, version: str) -> str:
    """The file with the rows of one version of a report, or of all reports."""
    commits = (table, key == ALL_REPORTS) in ((REPORTS.name, False), (RUNS.name, True))
    return f"{run_folder(table, run)}/{key}{'' if commits else f'.{version}'}.parquet"


def check_run(run: str) -> None:
    """PackError for a run's name that no folder could have."""
    # The one name that means none to Hive's readers.
    if run in ("", "__HIVE_DEFAULT_PARTITION__") or len(quote(run, safe="")) > _LONGEST_NAME:
        raise PackError(f"a run named {run[:40]!r} cannot be: give --run a name of 1 to {_LONGEST_NAME} letters")


def encode(table: Table, rows: pa.Table) -> pa.Buffer:
    """A parquet file of a table of the dataset: the same bytes for the same rows."""
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
    """A dataset somewhere. PackError when it cannot be reached, or was written by a newer pack."""

    storage: Storage

    def begin(self) -> None:
        """Makes sure that this is a dataset of ours, or can become one."""
        told = self.storage.read(MARKER)
        if told is not None:
            self._check(told)
            return
        # Another process may be beginning it, or have done so meanwhile.
        others = [path for path in self.storage.names("") if not is_unfinished(path)]
        if others and self.storage.read(MARKER) is None:
            raise PackError(
                f"{self.storage.url}: holds files and is no dataset of llm_fleet ({MARKER} is missing); give --dataset "
                "an empty or a new folder"
            )
        self.storage.write(MARKER, json.dumps({"dataset_version": DATASET_VERSION}).encode())

    def _check(self, told: bytes) -> None:
        try:
            version = int(json.loads(told)["dataset_version"])
        except (ValueError, KeyError, TypeError):
            raise PackError(f"{self.storage.url}: {MARKER} is damaged; give --dataset another folder") from None
        if version > DATASET_VERSION:
            raise PackError(
                f"{self.storage.url}: the dataset has version {version}, this pack writes {DATASET_VERSION}; use the "
                "pack that wrote it, or a newer one"
            )

    def version_of(self, run: str, key: str) -> str | None:
        """The version of a report's rows that counts; None when the report is not there."""
        table = RUNS if key == ALL_REPORTS else REPORTS
        found = self.storage.read(file_of(table.name, run, key, ""))
        if found is None:
            return None
        return pq.read_table(pa.BufferReader(found), columns=["version"])["version"][0].as_py()

    def put(self, run: str, key: str, version: str, tables: Iterable[tuple[Table, pa.Table]]) -> None:
        """Writes the rows of a report, or of all reports; the table that makes them count comes last."""
        for table, rows in tables:
            path, content = file_of(table.name, run, key, version), encode(table, rows)
            # Nothing changes where there is nothing to change: not even the time of a file.
            if self.storage.read(path) != content.to_pybytes():
                self.storage.write(path, content)

    def sweep(self, run: str, versions: dict[str, set[str]]) -> None:
        """Removes what lies about of other versions of these reports (key to versions that stay)."""
        for table in self.tables():
            for path in self.storage.names(run_folder(table, run)):
                key, version = _key_and_version(path)
                if key in versions and (is_unfinished(path) or version not in {*versions[key], ""}):
                    self.storage.delete(path)

    def tables(self) -> list[str]:
        """The tables that have files, of newer packs too."""
        named = (name for name in self.storage.folders() if name.startswith("table="))
        return [name.removeprefix("table=") for name in named]

    def reports(self, run: str | None = None) -> pa.Table:
        """The reports that count, of one run or all, in order of run and key."""
        return self._entries(REPORTS, run).sort_by([("run_name", "ascending"), ("report_key", "ascending")])

    def runs(self, run: str | None = None) -> pa.Table:
        """The runs whose reports were looked at together."""
        return self._entries(RUNS, run).sort_by("run_name")

    def _entries(self, table: Table, run: str | None) -> pa.Table:
        folder = f"table={table.name}" if run is None else run_folder(table.name, run)
        paths = [path for path in self.storage.names(folder) if path.endswith(".parquet") and not is_unfinished(path)]
        return self._read(table, paths, table.names)

    def read(self, table: Table, entries: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of a table (as `in_dataset` gives it) that belong to some rows of `reports` or `runs`."""
        paths = self.files(table, entries)
        return self._read(table, paths, table.names if columns is None else columns)

    def count(self, table: Table, entries: pa.Table) -> int:
        """How many rows `read` would give."""
        paths = self.files(table, entries)
        return self._open(table, paths).count_rows() if paths else 0

    def files(self, table: Table, entries: pa.Table) -> list[str]:
        """The files of a table that belong to some rows of `reports` or `runs`."""
        run, version = entries["run_name"].to_pylist(), entries["version"].to_pylist()
        keys = entries["report_key"].to_pylist() if "report_key" in entries.column_names else [ALL_REPORTS] * len(run)
        return self.storage.existing([file_of(table.name, *one) for one in zip(run, keys, version, strict=True)])

    def _read(self, table: Table, paths: list[str], columns: Sequence[str]) -> pa.Table:
        if not paths:
            return table.schema().empty_table().select(columns)
        try:
            return self._open(table, paths).to_table(columns=list(columns))
        except (OSError, pa.ArrowException) as error:
            reason = " ".join(str(error).split())[:300]
            raise PackError(f"{self.storage.url}: table {table.name} cannot be read ({reason})") from None

    def _open(self, table: Table, paths: list[str]) -> ds.Dataset:
        # With the schema of today: what an older file lacks is null.
        places = [self.storage.place(path) for path in paths]
        return ds.dataset(places, schema=table.schema(), format="parquet", filesystem=self.storage.files)


def _key_and_version(path: str) -> tuple[str, str]:
    """The report key and the version in a file's name; of the files that make rows count the version is empty."""
    name = path.rpartition("/")[2].removeprefix(".").partition(".parquet")[0]
    key, _, version = name.partition(".")
    return key, version


def open_dataset(url: str) -> Dataset:
    """The dataset at a local path or a URL. PackError when no file system knows it."""
    return Dataset(open_storage(url))
