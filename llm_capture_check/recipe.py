"""What the runner needs of this recipe: its options, its checks, its words."""

from __future__ import annotations

import argparse

from llm_capture_check.analysis import Settings, analyse
from llm_capture_check.report_set import combine
from llm_capture_check.summary import notebook_tables, summarise
from llm_capture_check.tables import COMBINED, TABLES
from recipes.run.options import Add, step_time

__all__ = [
    "COMBINED", "NAME", "TABLES", "add_options", "analyse", "combine", "notebook_tables", "settings",
    "summarise",
]  # fmt: skip

NAME = "llm_capture_check"
TELLS_FINDINGS = True


def add_options(add: Add) -> None:
    """Adds this recipe's own options."""
    add(
        "--step-time",
        type=step_time,
        metavar="TIME",
        help="Step time without the profiler, such as 15.2ms, to tell how much the profiler slows the program",
    )


def settings(args: argparse.Namespace) -> Settings:
    """The options as one value."""
    return Settings(args.step_time)
