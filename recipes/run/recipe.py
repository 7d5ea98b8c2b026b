"""What a recipe is to the runner: its options, its analysis of one report, its look at all together, its words."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from recipes.base.tables import Table
from recipes.capture.capture import Capture
from recipes.events.gpu_work import Span
from recipes.nsight.export import Exporter
from recipes.run.inputs import Input
from recipes.run.options import Add
from recipes.run.outcomes import Tables
from recipes.run.spill import Spill


class Analysis(NamedTuple):
    """What a recipe finds in one report: its tables by name, as TABLES declares them (types, units, order), without the
    columns report and rank; what limits them, in words; and what its summary wants to know beyond the tables, which
    pickles and is small."""

    tables: dict[str, pa.Table]
    remarks: Sequence[str] = ()
    told: Any = None


class Combined(NamedTuple):
    """What a recipe finds in all reports together: tables by name, as COMBINED declares them, and what its summary
    wants to know beyond them."""

    tables: dict[str, pa.Table]
    told: Any = None


@dataclass(frozen=True)
class Told:
    """What analysis tells the summary beyond tables: by report, and of all together."""

    by_report: dict[str, Any] = field(default_factory=dict)
    together: Any = None


class Recipe(Protocol):
    """What a recipe's module `recipe` offers."""

    NAME: str
    TABLES: tuple[Table, ...]

    def add_options(self, add: Add) -> None:
        """Adds the recipe's own options."""

    def settings(self, args: argparse.Namespace) -> Any:
        """The recipe's own options as one value that pickles. PackError when they cannot work."""

    def analyse(self, capture: Capture, settings: Any) -> Analysis:
        """What the recipe finds in one report. PackError when its export is damaged."""

    #: Tables made of those of all reports together, if there are any; and the function that makes them.
    COMBINED: tuple[Table, ...]

    def combine(self, tables: Tables, files: pa.Table, settings: Any) -> Combined:
        """The tables of COMBINED, less what cannot be made here, out of those of TABLES and FILES of all reports.

        PackError when the reports do not go together.
        """

    #: Whether the summary names what limits each report, so that the quality line need not.
    TELLS_FINDINGS: bool

    # Two more that a recipe may have, and need not:
    #
    # begin(settings, folder) -> settings         before the first report is read, with the output folder as it will be
    # publish(tables, file, task) -> tables       in the process that read a report, with its tables and its row of
    #                                             FILES; the tables to go on with. PackError ends the run

    def summarise(self, tables: Tables, settings: Any, told: Told) -> str:
        """The verdict line and the small table that are printed; {quality} stands for the quality line.

        `tables` are those of TABLES and COMBINED, by name, of all reports.
        """

    def notebook_tables(self, tables: Tables) -> dict[str, pa.Table]:
        """The small tables that the notebook shows, out of those that `summarise` gets."""


@dataclass(frozen=True)
class Task:
    """One report to analyse, as it is sent to a worker."""

    item: Input
    number: int
    count: int
    recipe: str
    settings: Any
    span: Span
    phases: Path | None
    exporter: Exporter | None
    #: The session start of the report on whose clock the span is, in ns since 1970; None: on this report's own.
    clock_ns: int | None = None
    #: So many steps of each process count nowhere.
    skip_steps: int = 0
    #: The rank that the user gives this report.
    rank: int | None = None
    #: Where its tables go; None for a single report, whose tables stay in memory.
    spill: Spill | None = None


def load_recipe(name: str) -> Recipe:
    """The recipe of a name, from its package in the pack's folder."""
    return importlib.import_module(f"{name}.recipe")
