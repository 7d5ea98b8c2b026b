"""What the runner needs of this recipe: its options, its numbers, its words."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import pyarrow as pa

from llm_fleet.answers import answers
from llm_fleet.dataset import check_run, open_dataset
from llm_fleet.parts import NAME, add_options_of_parts, analyse_parts, parts
from llm_fleet.publish import FACTS, facts, publish
from llm_fleet.questions import QUESTIONS
from llm_fleet.settings import FleetSettings
from llm_fleet.storage import without_secrets
from llm_fleet.summary import notebook_tables, summarise
from llm_fleet.tables import PUBLISHED
from llm_fleet.whole_run import complete_run
from recipes.base.errors import PackError
from recipes.base.tables import Table
from recipes.capture.capture import Capture
from recipes.run.inputs import shown
from recipes.run.options import Add
from recipes.run.recipe import Analysis, Combined

__all__ = [
    "COMBINED", "NAME", "TABLES", "TELLS_FINDINGS", "add_options", "analyse", "begin", "combine",
    "notebook_tables", "publish", "settings", "summarise",
]  # fmt: skip

TELLS_FINDINGS = False
TABLES: tuple[Table, ...] = (PUBLISHED,)
COMBINED: tuple[Table, ...] = QUESTIONS


def add_options(add: Add) -> None:
    """Adds this recipe's own options, and those of all others."""
    add(
        "--dataset",
        metavar="URL",
        help="The dataset that the reports are added to: a folder, or a URL such as s3://bucket/path that pyarrow or\n"
        "fsspec can open. Created if it does not exist; by default a new one beside the output, OUTPUT-dataset",
    )
    add(
        "--run",
        metavar="NAME",
        help="Name of the run that the reports belong to; the name of their common folder by default",
    )
    add(
        "--tag",
        action="append",
        type=_tag,
        metavar="KEY=VALUE",
        help="A property of the run, such as commit=1a2b3c; may be given several times. The tag `model`\n"
        "names the model if --model is not given",
    )
    add(
        "--events",
        action="store_true",
        help="Also the tables with one row per event: gaps, timeline, matched. They make up most of a dataset's size",
    )
    add_options_of_parts(add)


def settings(args: argparse.Namespace) -> FleetSettings:
    """The options as one value. PackError when they cannot work."""
    tags = dict(args.tag or [])
    if len(tags) < len(args.tag or []):
        raise PackError("--tag names a key twice; give each one value")
    run = shown(args.run) if args.run is not None else _common_folder(args.input)
    check_run(run)
    model = getattr(args, "model", None)
    return FleetSettings(
        dataset=args.dataset or "",
        shown=shown(without_secrets(args.dataset)) if args.dataset else None,
        run=run,
        tags=tuple(sorted(tags.items())),
        events=args.events,
        model=_model_name(model) if model else None,
        parts={name: recipe.settings(args) for name, recipe in parts().items()},
    )


def _tag(text: str) -> tuple[str, str]:
    key, equals, value = shown(text).partition("=")
    if not equals or not key.strip() or (key.strip() == "model" and not value.strip()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a tag; write key=value, such as commit=1a2b3c")
    return key.strip(), value


def _common_folder(inputs: list[str]) -> str:
    """The name of the folder that all inputs lie in, or of the one that is given. PackError when there is none."""
    folders = []
    for text in inputs:
        # Of a list of reports the folder that it is in.
        path = Path(os.path.abspath(text[1:] if text.startswith("@") and not os.path.lexists(text) else text))
        if not path.exists() and ":" in text:
            path = Path(os.path.abspath(text.rpartition(":")[0]))
        if not path.exists():
            # Of a pattern the part in front of its first wildcard.
            fixed = list(takewhile(lambda part: not any(sign in part for sign in "*?["), path.parts))
            path = Path(*fixed)
        folders.append(path if path.is_dir() and not path.name.endswith("_pqtdir") else path.parent)
    name = Path(os.path.commonpath(folders)).name
    if not name:
        raise PackError("the inputs have no common folder to name the run after; give --run NAME")
    return shown(name)


def _model_name(model: str) -> str:
    """A model as people call it: a preset's name, or the folder of its config.json."""
    path = Path(os.path.abspath(model))
    if not path.exists():
        return shown(model)
    return shown((path.parent if path.is_file() else path).name)


def begin(settings: FleetSettings, folder: Path) -> FleetSettings:
    """The settings with the dataset that was meant. PackError when it is none, or cannot be written."""
    dataset = settings.dataset or str(folder.with_name(f"{folder.name}-dataset"))
    if "://" not in dataset:
        # Workers may have another working directory.
        dataset = os.path.abspath(dataset)
        if dataset == os.path.abspath(folder):
            raise PackError(f"{folder}: is both the dataset and the output; give --output another name")
    # A notebook is opened anywhere: a relative path would mean another place.
    named = shown(without_secrets(dataset)) if settings.dataset else None
    settings = replace(settings, dataset=dataset, shown=named)
    # Object stores are asked in the workers only: their clients do not survive a fork.
    if "://" not in settings.dataset:
        open_dataset(settings.dataset).begin()
    return settings


def analyse(capture: Capture, settings: FleetSettings) -> Analysis:
    """All recipes' tables of one report, and what limits them in words."""
    tables, remarks = analyse_parts(capture, settings.parts)
    return Analysis({**tables, FACTS: facts(capture)}, remarks)


def combine(tables: dict[str, pa.Table], files: pa.Table, settings: FleetSettings) -> Combined:
    """Adds what the reports of this run tell together; then the answers out of the whole dataset, where DuckDB is."""
    dataset = open_dataset(settings.dataset)
    dataset.begin()
    complete_run(dataset, tables[PUBLISHED.name], settings)
    return Combined(answers(dataset))
