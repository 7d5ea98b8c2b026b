"""What the runner needs of this recipe: its options, its numbers, its words."""

from __future__ import annotations

import argparse

from llm_idle_gaps.analysis import Settings, analyse
from llm_idle_gaps.summary import notebook_tables, summarise
from llm_idle_gaps.tables import TABLES
from recipes.base.tables import Table
from recipes.run.options import Add, duration_ns, step_time

__all__ = ["COMBINED", "NAME", "TABLES", "add_options", "analyse", "notebook_tables", "settings", "summarise"]

NAME = "llm_idle_gaps"
TELLS_FINDINGS = False
COMBINED: tuple[Table, ...] = ()


def add_options(add: Add) -> None:
    """Adds this recipe's own options."""
    add(
        "--min-gap",
        type=duration_ns,
        default=1e3,
        metavar="TIME",
        help="Shortest gap that gets a row in gaps.parquet, such as 5us or 0.5ms; 1us by default.\n"
        "All sums and the histogram count every gap",
    )
    add(
        "--step-time",
        type=step_time,
        metavar="TIME",
        help="Step time without the profiler, such as 15.2ms; shown for comparison, nothing is rescaled",
    )


def settings(args: argparse.Namespace) -> Settings:
    """The options as one value."""
    return Settings(args.min_gap, args.step_time)
