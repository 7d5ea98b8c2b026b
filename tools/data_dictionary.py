"""Writes docs/tables.md from the table definitions.

.venv/bin/python -m tools.data_dictionary
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from llm_fleet.parts import parts
from llm_fleet.questions import QUESTIONS
from llm_fleet.tables import ABOUT, EVENTS, PUBLISHED, REPORTS, RUNS, TAGS
from recipes.base.tables import FILES, Column, Table

PLACE = Path(__file__).resolve().parents[1] / "docs/tables.md"
HEAD = """# Tables

Every table that the recipes write, generated from the table definitions (`tools/data_dictionary.py`). Types are int64,
double, string and bool. Times are integer nanoseconds (`_ns` in the name); sizes are bytes; shares are 0 to 1. Null
means not known or not applicable. In a Parquet file each column has its meaning as the metadata `meaning`, and the
file has the versions of the pack and of its tables.

## What changed in version 2

Files have the version in their metadata (`schema_version`), datasets of llm_fleet in each row (`dataset_version`).

* `phase` is `outside` for what lies in no step, in every table. In version 1 the tables of llm_idle_gaps (`gaps`,
  `largest_gaps`, `gap_histogram`, `idle`) called it `between_steps`; now tables of all recipes join on `phase`.
* `place` in `gaps` and `largest_gaps` says whether a gap lies in a step, between steps, before the first step or
  after the last one.
* The part `between_steps` of `step_parts` is not a phase, and keeps its name.
* llm_fleet refuses datasets of version 1: add the reports again to a new one.
"""


def main() -> None:
    """Writes the page."""
    PLACE.write_text(page(), encoding="utf-8")


def page() -> str:
    """The page as it should be."""
    return "\n".join([HEAD, *_of_recipes(), *_of_dataset(), *_of_answers()])


def _of_recipes() -> Iterable[str]:
    yield "## All recipes\n"
    yield _table(FILES, "in every output")
    for name, recipe in parts().items():
        yield f"## {name}\n"
        for table in dict.fromkeys((*recipe.TABLES, *recipe.COMBINED)):
            over = "over all reports together" if table in recipe.COMBINED else ""
            if table in recipe.COMBINED and table in recipe.TABLES:
                over = "of each report, and over all together"
            events = "in the dataset only with `--events`" if table.name in EVENTS else ""
            yield _table(table, "; ".join(text for text in (over, events) if text))


def _of_dataset() -> Iterable[str]:
    yield (
        "## The dataset of llm_fleet\n\n"
        "It holds the tables above, per report and over all reports of a run, and three of its own. All but `runs`\n"
        "start with these columns:\n"
    )
    yield _columns(ABOUT)
    yield "`files` is not in the dataset: `reports` has its columns.\n"
    own = tuple(column for column in REPORTS.columns if column.name not in {one.name for one in ABOUT})
    yield _table(Table(REPORTS.name, REPORTS.row, own), "beside the columns above")
    tag = tuple(column for column in TAGS.columns if column.name in ("tag", "value"))
    yield _table(Table(TAGS.name, TAGS.row, tag), "beside the columns above")
    yield _table(RUNS)


def _of_answers() -> Iterable[str]:
    yield "## The output of llm_fleet\n\nAnswers from the whole dataset; each has an SQL file of the same name.\n"
    yield _table(PUBLISHED)
    for table in QUESTIONS:
        yield _table(table)


def _table(table: Table, where: str = "") -> str:
    return f"### {table.name}\n\nA row: {table.row}{f' ({where})' if where else ''}.\n\n{_columns(table.columns)}"


def _columns(columns: Iterable[Column]) -> str:
    rows = [f"| `{column.name}` | {column.type} | {column.meaning.replace('|', chr(92) + '|')} |" for column in columns]
    return "\n".join(["| column | type | meaning |", "| --- | --- | --- |", *rows, ""])


if __name__ == "__main__":
    main()
