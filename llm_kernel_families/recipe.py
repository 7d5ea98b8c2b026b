"""What the runner needs of this recipe: its options, its numbers, its words."""

from __future__ import annotations

import argparse
from pathlib import Path

from llm_kernel_families.analysis import Settings, analyse
from llm_kernel_families.summary import notebook_tables, summarise
from llm_kernel_families.tables import TABLES
from recipes.base.tables import Table
from recipes.kernels.families import check_rules
from recipes.run.options import Add

__all__ = ["COMBINED", "NAME", "TABLES", "add_options", "analyse", "notebook_tables", "settings", "summarise"]

NAME = "llm_kernel_families"
TELLS_FINDINGS = False
COMBINED: tuple[Table, ...] = ()


def add_options(add: Add) -> None:
    """Adds this recipe's own options."""
    add(
        "--families",
        type=Path,
        metavar="FILE",
        help="Your own rules, tried before the pack's.\n"
        "Either tab-separated lines of pattern and family, or the JSON of vLLM's gputrc2graph.\n"
        "Test them with: python -m recipes classify --families FILE NAME",
    )


def settings(args: argparse.Namespace) -> Settings:
    """The options as one value. PackError when the rule file is bad."""
    check_rules(args.families)
    return Settings(args.families)
