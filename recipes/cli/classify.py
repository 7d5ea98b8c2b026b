"""The command `classify`: the family of kernel names, and the rule that decided, to write and test rules."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from recipes.base.errors import PackError
from recipes.kernels.families import load_rules


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `classify` to `parser`."""
    parser.add_argument("names", nargs="*", metavar="NAME", help="kernel names; without any, --file is read")
    parser.add_argument(
        "--file", default="-", metavar="FILE", help="names, one a line; - is standard input (default: -)"
    )
    parser.add_argument(
        "--families",
        type=Path,
        metavar="FILE",
        help="your own rules, asked first: pattern, tab, family on each line, or gputrc2graph's JSON",
    )


def main(args: argparse.Namespace) -> int:
    """Prints name, family, group and rule of each name, tab-separated. Returns 0.

    Raises PackError when the names or the rules cannot be read.
    """
    rules = load_rules(args.families)
    _write("\t".join((_one_cell(name), *rules.classify(name))) + "\n" for name in args.names or _lines(args.file))
    return 0


def _lines(file: str) -> Iterator[str]:
    try:
        with open(0 if file == "-" else file, "rb", closefd=file != "-") as lines:
            for line in lines:
                name = _unquoted(line.decode("utf-8", "surrogateescape").rstrip("\r\n"))
                if name.strip():
                    yield name
    except OSError as error:
        raise PackError(f"{file}: cannot read the names: {error.strerror}; check the path") from error


def _unquoted(name: str) -> str:
    """The name out of a cell of CSV, as `nsys stats` writes names with commas."""
    return name[1:-1].replace('""', '"') if len(name) > 1 and name[0] == name[-1] == '"' else name


def _one_cell(name: str) -> str:
    return name.translate({9: " ", 10: " ", 13: " "})


def _write(lines: Iterable[str]) -> None:
    for line in lines:
        sys.stdout.buffer.write(line.encode("utf-8", "surrogateescape"))
        sys.stdout.buffer.flush()
