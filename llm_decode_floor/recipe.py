"""What the runner needs of this recipe: its options, its numbers, its words."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from llm_decode_floor.analysis import Settings, analyse
from llm_decode_floor.config import preset_names
from llm_decode_floor.floor import ATTAINABLE
from llm_decode_floor.floors import FloorSettings, check_settings
from llm_decode_floor.model import Model, load_model, opaque_model
from llm_decode_floor.model_bytes import Layout
from llm_decode_floor.summary import notebook_tables, summarise
from llm_decode_floor.tables import TABLES
from recipes import families
from recipes.options import Add

__all__ = ["NAME", "NEEDS_LAUNCHES", "TABLES", "add_options", "analyse", "notebook_tables", "settings", "summarise"]

NAME = "llm_decode_floor"
NEEDS_LAUNCHES = True
_SIZES = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_TIMES_NS = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}


def add_options(add: Add) -> None:
    """Adds this recipe's own options."""
    add(
        "--model",
        metavar="MODEL",
        help="The model: a Hugging Face config.json, its folder, or one of\n" + ", ".join(preset_names()),
    )
    add("--weight-bytes", type=_size, metavar="BYTES", help="Instead of --model: bytes of all weights, such as 16.1G")
    add("--params", type=_size, metavar="N", help="Instead of --model: parameters, such as 8.03G; with --weight-dtype")
    add("--weight-dtype", metavar="DTYPE", help="Type of the weights that are not quantised, such as bf16 or fp8")
    add("--tp", type=int, default=1, metavar="N", help="Tensor parallel ranks")
    add("--pp", type=int, default=1, metavar="N", help="Pipeline parallel stages")
    add("--ep", type=int, default=1, metavar="N", help="Expert parallel ranks")
    add("--kv-dtype", metavar="DTYPE", help="Type of the KV cache, the model's own by default")
    add("--context", type=_size, metavar="TOKENS", help="Tokens a sequence in the KV cache, if the ranges do not tell")
    add("--batch", type=_size, metavar="N", help="Sequences in a step, if the ranges do not tell")
    add(
        "--tokens-per-step",
        type=float,
        metavar="N",
        help="Tokens a sequence in a step, more than 1 with speculative decoding",
    )
    add("--gpu", metavar="NAME", help="GPU whose bandwidth to take, the report's own by default")
    add("--bandwidth", type=_size, metavar="BYTES_PER_S", help="Memory bandwidth, such as 3.35T")
    add(
        "--attainable",
        type=float,
        default=ATTAINABLE,
        metavar="SHARE",
        help=f"Share of the bandwidth that is within reach, {ATTAINABLE} by default",
    )
    add(
        "--step-time",
        type=_time,
        metavar="TIME",
        help="Step time without the profiler, such as 15.2ms: shown beside, nothing is rescaled",
    )
    add(
        "--families",
        type=Path,
        metavar="FILE",
        help="Rules of your own for kernel families, as in llm_kernel_families",
    )


def settings(args: argparse.Namespace) -> Settings:
    """The options as one value. PackError when they cannot work together."""
    families.load_rules(args.families)
    floor = FloorSettings(
        model=_model(args),
        layout=Layout(args.tp, args.pp, args.ep),
        kv_dtype=args.kv_dtype,
        context=args.context,
        batch=args.batch,
        tokens_per_step=args.tokens_per_step,
        gpu=args.gpu,
        bandwidth_bytes_per_s=args.bandwidth,
        attainable=args.attainable,
        step_time_ns=args.step_time,
    )
    check_settings(floor)
    return Settings(args.families, floor)


def _model(args: argparse.Namespace) -> Model | None:
    if args.model is not None:
        return load_model(args.model, args.weight_dtype)
    if args.weight_bytes is not None or args.params is not None:
        return opaque_model(args.weight_bytes, args.params, args.weight_dtype)
    return None


def _size(text: str) -> float:
    """A number with a decimal suffix: 16.1G."""
    match = re.fullmatch(r"(?i)(\d+(?:\.\d+)?(?:e\d+)?) ?([kmgt]?)b?(?:/s)?", text.strip())
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is no number; write 16.1G, 3.35T or 1024")
    return float(match[1]) * _SIZES[match[2].lower()]


def _time(text: str) -> float:
    """A time with its unit, in ns."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(ns|us|ms|s)", text.strip())
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; write 15.2ms or 800us")
    return float(match[1]) * _TIMES_NS[match[2]]
