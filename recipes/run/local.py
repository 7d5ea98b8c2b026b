"""Running a recipe without Nsight's framework: the same options, outputs and bytes."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterable, Sequence

from recipes.base.pack import describe
from recipes.nsight.export import Exporter
from recipes.nsight.installation import best_installation
from recipes.run.modes import MODES, concurrently, on_dask
from recipes.run.recipe import load_recipe
from recipes.run.run import add_options, run
from recipes.run.worker_processes import one_by_one

_MAP_TASKS = dict(zip(MODES, (one_by_one, concurrently, on_dask), strict=True))


def run_locally(name: str, arguments: Sequence[str], program: str) -> int:
    """Runs a recipe with command-line arguments. Returns the exit status; PackError as `recipes.run.run.run`."""
    recipe = load_recipe(name)
    parser = argparse.ArgumentParser(
        prog=program, description=describe(name), formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--mode", choices=MODES, default="concurrent", help="Mode to run tasks")
    add_options(recipe, parser.add_argument)
    if wrong := unknown_option(arguments, parser._option_string_actions):
        parser.error(wrong)
    args = parser.parse_args(arguments)
    folder = run(
        recipe, args, map_tasks=_MAP_TASKS[args.mode], find_exporter=find_exporter, warn=_warn,
        manifest={"Mode": args.mode},
    )  # fmt: skip
    print(f"Generated:\n    {folder}")
    return 0


def unknown_option(arguments: Sequence[str], known: Iterable[str]) -> str:
    """What is wrong with the first option that is none, and which one may be meant; empty when all are known.

    argparse itself would complain of a required option instead, which `--inpt` was meant to be.
    """
    names = [argument.partition("=")[0] for argument in arguments if argument.startswith("--")]
    for name in names[: names.index("--") if "--" in names else None]:
        if not any(option.startswith(name) for option in known):
            near = difflib.get_close_matches(name, known, 1)
            return f"unknown option {name}" + (f"; did you mean {near[0]}?" if near else "; see --help")
    return ""


def _warn(text: str) -> None:
    print(f"WARNING: {text}", file=sys.stderr)


def find_exporter() -> Exporter | None:
    """The newest Nsight Systems on this machine that can export, or None."""
    found = best_installation(need_recipes=False)
    return Exporter(found.nsys, found.version_text) if found else None
