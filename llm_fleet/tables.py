"""The tables of the dataset, and those of the answers.

A table of the dataset is a table of another recipe with the columns of ABOUT in front, so that each row tells alone
what it is of. Only int64, double, string and bool; columns are added, never given another meaning.
"""

from __future__ import annotations

from llm_fleet.parts import parts
from recipes.base.tables import FILES, Column, Table
from recipes.run.outputs import SCHEMA_VERSION

#: That of the recipes' tables: raised when a column or a file changes its meaning; new ones need no new version.
DATASET_VERSION = int(SCHEMA_VERSION)

ABOUT = (
    Column(
        "run_name", "string", "name of the run; always text, even where a reader parses the folder name as a number"
    ),
    Column("report", "string", "the report: its folder and its name without ending"),
    Column("report_key", "string", "unique key of the report in its run: from report, rank and, if needed, host"),
    Column(
        "version",
        "string",
        "version of the report's rows; they count if `reports` has the same version for the report_key",
    ),
    Column("captured", "string", "start of the profiler's session, UTC, as 2026-11-30T01:34:37Z; null if unknown"),
    Column("captured_ns", "int64", "the same in ns since 1970"),
    Column("host", "string", "host the report was captured on; null if unknown"),
    Column("rank", "int64", "rank of the process in its job; null if unknown"),
    Column("gpu_name", "string", "the device's GPU; in tables without device, all GPUs of the report, comma-separated"),
    Column("gpu_uuid", "string", "its UUID, as nvidia-smi writes it; null if the report does not identify it"),
    Column("nsys_version", "string", "Nsight Systems that exported the report"),
    Column("schema_version", "string", "Nsight's export schema"),
    Column("pack_version", "string", "version of this pack"),
    Column("dataset_version", "int64", "version of the dataset's tables"),
)
_NAMES = {column.name for column in ABOUT}


def in_dataset(table: Table) -> Table:
    """A recipe's table as the dataset has it."""
    own = {column.name: Column(column.name, column.type, column.meaning) for column in table.columns}
    # A rank of the job, or a place where ranks are not known: what a table says of its rows stays.
    about = (own.get("rank", column) if column.name == "rank" else column for column in ABOUT)
    rest = (column for name, column in own.items() if name not in _NAMES)
    return Table(table.name, table.row, (*about, *rest), table.sort)


#: One row per report: with it the report's rows in all other tables begin to count.
REPORTS = Table(
    "reports",
    "one report; written last, so its other rows count only once all are written",
    (
        *(in_dataset(FILES).columns),
        Column(
            "world_size",
            "int64",
            "ranks of the job, from the launcher's environment; null if the report does not record it",
        ),
        Column("model", "string", "the model, from --model or the tag `model`; null if neither is given"),
        Column("tags", "string", "the run's tags as one JSON object"),
        Column("tables", "string", "tables that have a file for this report, comma-separated; null if not recorded"),
    ),
)
TAGS = in_dataset(
    Table(
        "tags",
        "one tag of one report",
        (Column("tag", "string", "its name"), Column("value", "string", "its value")),
    )
)
#: One row per run: with it the run's rows in the tables over all its reports begin to count.
RUNS = Table(
    "runs",
    "one run whose reports were analysed together",
    (
        ABOUT[0],
        Column("version", "string", "MD5 of the versions of its reports in order of report_key, joined by commas"),
        Column("reports", "int64", "reports in it"),
        Column("ranks", "int64", "distinct ranks among these; null if none is known"),
        Column("message", "string", "what could not be computed over all reports; empty if nothing"),
        Column("tables", "string", "tables that have a file for this run, comma-separated; null if not recorded"),
        *ABOUT[-2:],
    ),
)
#: A row an event each, millions of them: in the dataset only when asked for.
EVENTS = ("gaps", "timeline", "matched")


def tables_of_reports(*, events: bool) -> list[Table]:
    """The recipes' tables that the dataset holds of each report."""
    return [table for recipe in parts().values() for table in recipe.TABLES if events or table.name not in EVENTS]


def tables_of_runs(*, events: bool) -> list[Table]:
    """The recipes' tables that the dataset holds of all reports of a run together."""
    return [table for recipe in parts().values() for table in recipe.COMBINED if events or table.name not in EVENTS]


def dataset_tables() -> list[Table]:
    """Every table of the dataset, as its files have it."""
    return [REPORTS, TAGS, RUNS, *map(in_dataset, [*tables_of_reports(events=True), *tables_of_runs(events=True)])]


PUBLISHED = Table(
    "published",
    "one report that is in the dataset",
    (
        Column("report", "string", "short name of the report, unique in this run of the recipe"),
        Column("rank", "int64", "rank of the process in its job; null if unknown"),
        ABOUT[0],
        Column("report_key", "string", "unique key of the report in its run"),
        Column("version", "string", "version of its rows"),
        Column("change", "string", "new, replaced, repaired (files were missing) or unchanged"),
        Column("dataset", "string", "the dataset given with --dataset; null for the one beside the output"),
    ),
    sort=(("report", "ascending"), ("report_key", "ascending")),
)
