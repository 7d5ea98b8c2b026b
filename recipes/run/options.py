"""The options that all recipes share, in the spelling of Nsight's own recipes."""

from __future__ import annotations

import argparse
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

from recipes.events.gpu_work import Span

#: Adds one option, as `argparse.ArgumentParser.add_argument` does.
Add = Callable[..., object]
_TIMES_NS = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}


def add_common_options(add: Add) -> None:
    """Adds input, output and filter options through `add`."""
    add(
        "--input",
        required=True,
        nargs="+",
        metavar="PATH",
        help="Reports (.nsys-rep), their exports (.sqlite, _pqtdir), or directories, searched recursively.\n"
        "DIR:n takes the first n reports of a directory, a quoted pattern such as 'run/**/*.nsys-rep' all matches,\n"
        "@FILE the paths listed in a text file, one per line",
    )
    add(
        "--output",
        type=expand_output_name,
        help="Name of the output directory; by default the first free RECIPE-n.\n"
        "%%q{VAR} stands for an environment variable, %%h for the host name, %%p for the process id,\n"
        "%%n for the smallest free number, %%%% for a per cent sign",
    )
    add("--force-overwrite", action="store_true", help="Replace the output directory of an earlier run")
    add("--csv", action="store_true", help="Also write the tables as CSV")
    add("--start", type=int, metavar="time", help="Leave out GPU work that ends before this time, in ns")
    add("--end", type=int, metavar="time", help="Leave out GPU work that starts after this time, in ns")
    add(
        "--filter-time",
        type=_time_filter,
        metavar="[start]/[end]",
        help="The same as --start and --end in one option, as newer Nsight versions have it.\n"
        "With several reports, times are on the first one's clock; the others are shifted by their session starts",
    )
    add(
        "--phases",
        type=Path,
        metavar="FILE",
        help="Your own rules for which NVTX ranges are steps, tried before the pack's:\n"
        "one pattern and phase per line, separated by a tab",
    )
    add(
        "--rank-map",
        type=_rank_map,
        default={},
        metavar="NAME=RANK,...",
        help="The rank of each report, by its file name without suffix: run_a=0,run_b=1.\n"
        "By default it is read from the environment in the report, the file name, or a thread name",
    )
    add(
        "--skip-steps",
        type=_count,
        default=0,
        metavar="N",
        help="Leave the first N steps of each process out of medians, means and matching, like incomplete steps",
    )
    add("--strict", action="store_true", help="Fail if any input cannot be used, not only if none can")


def span_of(args: argparse.Namespace) -> Span:
    """The time range asked for; --filter-time goes before --start and --end."""
    if args.filter_time is not None:
        return args.filter_time
    if args.start is not None and args.end is not None and args.start > args.end:
        raise argparse.ArgumentTypeError("the start time cannot be greater than the end time")
    return Span(args.start, args.end)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of steps; write a whole number such as 2")
    return int(text)


def _time_filter(text: str) -> Span:
    start, slash, end = text.partition("/")
    try:
        span = Span(int(start) if start else None, int(end) if end else None)
    except ValueError:
        slash = ""
        span = Span()
    if not slash or (span.start_ns is not None and span.end_ns is not None and span.start_ns > span.end_ns):
        raise argparse.ArgumentTypeError(f"'{text}' is not a range; write start/end in ns, such as 1000/2000 or /2000")
    return span


def _rank_map(text: str) -> dict[str, int]:
    pairs = [part.rpartition("=") for part in text.split(",")]
    if not all(name and rank.isascii() and rank.isdigit() and len(rank) < 10 for name, _, rank in pairs):
        raise argparse.ArgumentTypeError(f"{text!r} is not a rank map; write report_a=0,report_b=1")
    if len({name for name, _, _ in pairs}) < len(pairs):
        raise argparse.ArgumentTypeError(f"{text!r} names a report twice; give each one rank")
    return {name: int(rank) for name, _, rank in pairs}


def duration_ns(text: str) -> float:
    """A time with its unit, in ns. ArgumentTypeError when it is none."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(ns|us|ms|s)", text.strip())
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time with a unit; write 15.2ms or 800us")
    return float(match[1]) * _TIMES_NS[match[2]]


def byte_size(text: str) -> int:
    """A whole number of bytes, with a binary suffix if it has one: 131072, 128K, 4MiB. ArgumentTypeError for others."""
    match = re.fullmatch(r"(?i)(\d{1,15})(?:([kmg])(?:i?b)?|b)?", text.strip())
    size = int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[(match[2] or "").lower()] if match else 0
    if not 0 < size < 1 << 50:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write 131072 or 128K")
    return size


def step_time(text: str) -> float:
    """The time of a step, in ns. ArgumentTypeError when it is none."""
    time_ns = duration_ns(text)
    if not time_ns:
        raise argparse.ArgumentTypeError("the step time must be above zero; write 15.2ms or 800us")
    return time_ns


def expand_output_name(text: str) -> str:
    """An output name with its % patterns replaced, as in Nsight. ArgumentTypeError for an unknown pattern."""
    parts: list[str] = []
    counted = False
    rest = text
    while rest:
        before, percent, rest = rest.partition("%")
        parts.append(before)
        if not percent:
            break
        token, rest = rest[:1], rest[1:]
        if token == "n":
            counted = True
            parts.append("\0")
        elif token == "q" and rest.startswith("{") and "}" in rest:
            variable, _, rest = rest[1:].partition("}")
            parts.append(_variable(variable))
        elif token in ("h", "p", "%"):
            parts.append({"h": socket.gethostname(), "p": str(os.getpid()), "%": "%"}[token])
        else:
            raise argparse.ArgumentTypeError(
                f"'%{token}' in '{text}' is not a pattern; use %q{{VAR}}, %h, %p, %n or %%"
            )
    name = "".join(parts)
    if not counted:
        return name
    number = 1
    while Path(name.replace("\0", str(number))).exists():
        number += 1
    return name.replace("\0", str(number))


def _variable(name: str) -> str:
    if name not in os.environ:
        raise argparse.ArgumentTypeError(f"environment variable '{name}' is not set")
    return os.environ[name]
