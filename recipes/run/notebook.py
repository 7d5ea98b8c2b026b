"""A notebook from a template, with the data it shows inside, so that it opens anywhere."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.csv

_DATA_MARK = "DATA = {}"
_SUMMARY_MARK = 'SUMMARY = ""'
_CELL = "# %%"


def render(template: Path, tables: Mapping[str, pa.Table], summary: str) -> str:
    """The notebook (nbformat 4 JSON) that a template, small tables and the printed summary make.

    The template is a Python file whose cells begin with `# %%`, text cells with `# %% [markdown]`. Its line
    `DATA = {}` is replaced by the tables as CSV, its line `SUMMARY = ""` by the summary.
    """
    text = template.read_text(encoding="utf-8").replace(_SUMMARY_MARK, f"SUMMARY = {json.dumps(summary)}")
    cells = [_cell(number, part, tables) for number, part in enumerate(_split(text))]
    return json.dumps(
        {
            "cells": cells,
            "metadata": {
                "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
                "language_info": {"name": "python"},
            },
            "nbformat": 4,
            "nbformat_minor": 5,
        },
        indent=1,
    )


def _split(template: str) -> list[str]:
    """The cells; what stands before the first (the template's own header) is left out."""
    return [_CELL + part for part in f"\n{template}".split(f"\n{_CELL}")[1:]]


def _cell(number: int, text: str, tables: Mapping[str, pa.Table]) -> dict:
    head, _, body = text.partition("\n")
    body = body.strip("\n")
    if "[markdown]" in head:
        lines = [line.removeprefix("#").removeprefix(" ") for line in body.splitlines()]
        return {"cell_type": "markdown", "id": f"cell-{number}", "metadata": {}, "source": "\n".join(lines)}
    metadata: dict = {}
    if body.startswith("SUMMARY = "):
        metadata = {"jupyter": {"source_hidden": True}, "tags": ["hide-input"]}
    if _DATA_MARK in body:
        body = body.replace(_DATA_MARK, _data(tables))
        # Long and of no interest to a reader: folded where the viewer can.
        metadata = {"jupyter": {"source_hidden": True}, "tags": ["hide-input"]}
    return {
        "cell_type": "code",
        "execution_count": None,
        "id": f"cell-{number}",
        "metadata": metadata,
        "outputs": [],
        "source": body,
    }


def _data(tables: Mapping[str, pa.Table]) -> str:
    # A JSON text is a Python literal of the same text, whatever names are in it.
    lines = [f"    {json.dumps(name)}: {json.dumps(_csv(table))}," for name, table in tables.items()]
    return "\n".join(["DATA = {", *lines, "}"])


def _csv(table: pa.Table) -> str:
    buffer = io.BytesIO()
    # In one piece: older Arrow writes the head again for each empty one.
    pyarrow.csv.write_csv(table.combine_chunks(), buffer)
    return buffer.getvalue().decode()
