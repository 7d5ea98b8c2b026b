"""What the runner needs of this recipe: its options, its numbers, its words."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from llm_decode_floor.analysis import Settings, analyse
from llm_decode_floor.phase_floors import FloorSettings, check_settings
from llm_decode_floor.summary import notebook_tables, summarise
from llm_decode_floor.tables import TABLES
from recipes.base.errors import PackError
from recipes.base.tables import Table
from recipes.kernels import families
from recipes.models.config_file import preset_names
from recipes.models.decode_floor import ATTAINABLE
from recipes.models.layout import Layout
from recipes.models.model import Model
from recipes.models.read_model import load_model, opaque_model
from recipes.run.options import Add, step_time

__all__ = ["COMBINED", "NAME", "TABLES", "add_options", "analyse", "notebook_tables", "settings", "summarise"]

NAME = "llm_decode_floor"
TELLS_FINDINGS = False
COMBINED: tuple[Table, ...] = ()
_SIZES = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
# Parameters are counted in billions: 8B, and 8G too.
_COUNTS = {**_SIZES, "b": 1e9}
#: No language model is smaller, in bytes or parameters: less is a wrong unit.
_LEAST = 1e6


def add_options(add: Add) -> None:
    """Adds this recipe's own options."""
    add(
        "--model",
        metavar="MODEL",
        help="The model: a Hugging Face config.json, its folder, or one of\n" + ", ".join(preset_names()),
    )
    add(
        "--weight-bytes",
        type=_weight_bytes,
        metavar="BYTES",
        help="Instead of --model: total bytes of the weights, such as 16.1G",
    )
    add(
        "--params",
        type=_count,
        metavar="N",
        help="Instead of --model: number of parameters, such as 8.03B; with --weight-dtype",
    )
    add("--weight-dtype", metavar="DTYPE", help="Data type of weights that are not quantised, such as bf16 or fp8")
    add("--tp", type=int, default=1, metavar="N", help="Tensor-parallel ranks")
    add("--pp", type=int, default=1, metavar="N", help="Pipeline-parallel stages")
    add("--ep", type=int, default=1, metavar="N", help="Expert-parallel ranks")
    add("--kv-dtype", metavar="DTYPE", help="Data type of the KV cache; the model's own by default")
    add(
        "--context",
        type=_tokens,
        metavar="TOKENS",
        help="KV-cache tokens per sequence; from the NVTX ranges by default",
    )
    add("--batch", type=_tokens, metavar="N", help="Sequences per step (batch size); from the NVTX ranges by default")
    add(
        "--tokens-per-step",
        type=_tokens_per_step,
        metavar="N",
        help="Tokens per sequence per step; more than 1 with speculative decoding",
    )
    add("--gpu", metavar="NAME", help="GPU whose memory bandwidth is used; the report's own by default")
    add("--bandwidth", type=_size, metavar="BYTES_PER_S", help="Memory bandwidth, such as 3.35T")
    add(
        "--attainable",
        type=float,
        default=ATTAINABLE,
        metavar="SHARE",
        help=f"Attainable share of the memory bandwidth, {ATTAINABLE} by default",
    )
    add(
        "--step-time",
        type=step_time,
        metavar="TIME",
        help="Step time without the profiler, such as 15.2ms; shown for comparison, nothing is rescaled",
    )
    add(
        "--families",
        type=Path,
        metavar="FILE",
        help="Your own rules for kernel families, as in llm_kernel_families",
    )


def settings(args: argparse.Namespace) -> Settings:
    """The options as one value. PackError when they cannot work together."""
    families.check_rules(args.families)
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
    given = [name for name in ("model", "weight_bytes", "params") if getattr(args, name) is not None]
    if len(given) > 1:
        options = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise PackError(f"{options} each say how large the model is; give one of them")
    if args.model is not None:
        return load_model(args.model, args.weight_dtype)
    if args.weight_bytes is not None or args.params is not None:
        return opaque_model(args.weight_bytes, args.params, args.weight_dtype)
    return None


def _number(text: str, suffixes: dict[str, float], rest: str, example: str) -> float:
    """A number with a decimal suffix, and perhaps a unit behind it."""
    match = re.fullmatch(rf"(?i)(\d+(?:\.\d+)?(?:e\d+)?) ?([a-z]?){rest}", text.strip())
    if not match or match[2].lower() not in suffixes:
        raise argparse.ArgumentTypeError(f"{text!r} is no number here; write {example}")
    number = float(match[1]) * suffixes[match[2].lower()]
    if not 0 < number < 1e18:
        raise argparse.ArgumentTypeError(f"{text!r} is out of all bounds; write {example}")
    return number


def _size(text: str) -> float:
    """Bytes, or bytes per second: 16.1G, 16.1GB, 3.35TB/s."""
    return _number(text, _SIZES, "(?:b?(?:/s)?)", "3.35T")


def _weight_bytes(text: str) -> float:
    return _large(_number(text, _SIZES, "b?", "16.1G"), text, "16.1G")


def _count(text: str) -> float:
    return _large(_number(text, _COUNTS, "", "8.03B"), text, "8.03B")


def _large(number: float, text: str, example: str) -> float:
    if number < _LEAST:
        raise argparse.ArgumentTypeError(
            f"{text!r} is too small for a model's weights; check its unit, such as {example}"
        )
    return number


def _tokens(text: str) -> int:
    """A whole number from 1; 32k is 32,000."""
    number = _number(text, {"": 1, "k": 1e3}, "", "16 or 32k")
    if number < 1 or number != int(number):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1; write 16 or 32k")
    return int(number)


def _tokens_per_step(text: str) -> float:
    number = _number(text, {"": 1}, "", "1.8 or 4")
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is less than one token a step; write 1.8 or 4")
    return number
