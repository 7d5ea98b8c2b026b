"""What the runner needs of this recipe: its options, its numbers, its words."""

from __future__ import annotations

import argparse
from pathlib import Path

from llm_nccl_sum.all_ranks import combine
from llm_nccl_sum.analysis import Settings, analyse
from llm_nccl_sum.summary import notebook_tables, summarise
from llm_nccl_sum.tables import COMBINED, TABLES
from recipes.kernels.families import check_rules
from recipes.models.config_file import layer_count, preset_names
from recipes.run.options import Add, byte_size

__all__ = [
    "COMBINED", "NAME", "TABLES", "add_options", "analyse", "combine", "notebook_tables", "settings",
    "summarise",
]  # fmt: skip

NAME = "llm_nccl_sum"
TELLS_FINDINGS = False


def add_options(add: Add) -> None:
    """Adds this recipe's own options."""
    add(
        "--bytes",
        type=_sizes,
        default={},
        metavar="BYTES",
        help="Message size where NCCL's ranges do not tell it: 128K for all, or all_reduce=128K,all_gather=2M",
    )
    add(
        "--ranks",
        type=_ranks,
        metavar="N",
        help="Ranks in a collective, where communicators are not known; the number of devices given by default",
    )
    add(
        "--model",
        metavar="MODEL",
        help="The model, to say how many all-reduces a step should have under tensor parallelism: a Hugging Face\n"
        "config.json, its folder, or one of " + ", ".join(preset_names()),
    )
    add(
        "--families",
        type=Path,
        metavar="FILE",
        help="Rules of your own for kernel families, as in llm_kernel_families",
    )


def settings(args: argparse.Namespace) -> Settings:
    """The options as one value. PackError when the model or the rule file is bad."""
    check_rules(args.families)
    layers = layer_count(args.model) if args.model else None
    return Settings(args.families, args.bytes, args.ranks, layers)


def _sizes(text: str) -> dict[str, int]:
    """The size for each operation, under "" for all others."""
    parts = [part.rpartition("=") for part in text.split(",")]
    return {operation: byte_size(size) for operation, _, size in parts}


def _ranks(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 2 <= int(text) < 10**7):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of ranks; write 2 or more")
    return int(text)
