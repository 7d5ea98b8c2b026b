"""Golden files: what a recipe prints and digests of its tables, as text that makes a readable diff."""

from __future__ import annotations

import hashlib
import json
import textwrap
from pathlib import Path

import pyarrow as pa

from golden_runs import RECIPES, Case, Outcome, result

GOLDEN = Path(__file__).parent / "golden"
#: Columns that tell of the machine, the release or the last bits of doubles rather than of the report.
LEFT_OUT = {"path", "dataset", "version", "pack_version"}
_WIDTH = 120


def golden_file(case: Case) -> Path:
    return GOLDEN / f"{case.name}.txt"


def golden_text(case: Case) -> str:
    """The text of a case's golden file, as the recipes are now."""
    outcome = result(case.recipe, case.inputs, case.options)
    return "\n".join([outcome.text, "", *_digests(case, outcome), ""])


def _digests(case: Case, outcome: Outcome) -> list[str]:
    """Of each table its rows and a digest a column, columns of nulls alone left out; one digest in all of a table that
    another recipe's golden file tells of in full."""
    lines = []
    for name, table in outcome.tables.items():
        of_dataset = name.startswith("dataset ")
        columns = _columns(table, in_order=not of_dataset)
        if of_dataset or (name == "files" and case.recipe != RECIPES[0]):
            lines.append(f"{name}: {len(table)} rows {_digest(columns)}")
            continue
        told = [f"{key}:{_digest(values)}" for key, values in columns.items() if any(v is not None for v in values)]
        lines += [f"{name}: {len(table)} rows", *_wrapped(told)]
    return lines


def _wrapped(words: list[str]) -> list[str]:
    # Names and digests stay whole.
    wrapper = textwrap.TextWrapper(_WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
    return wrapper.wrap(" ".join(words))


def _columns(table: pa.Table, in_order: bool) -> dict[str, list]:
    """The values of the columns, doubles as nine digits; the rows in an order of their own where they have none."""
    names = [name for name in table.column_names if name not in LEFT_OUT]
    columns = {name: [_plain(value) for value in table[name].to_pylist()] for name in names}
    if in_order:
        return columns
    rows = sorted(zip(*columns.values(), strict=True), key=json.dumps)
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}


def _plain(value: object) -> object:
    # What is added to nothing is no negative nothing.
    return f"double {value + 0.0:.9g}" if isinstance(value, float) else value


def _digest(values: object) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:6]
