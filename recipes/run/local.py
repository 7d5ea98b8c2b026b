"""Running a recipe without Nsight's framework: the same options, outputs and bytes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

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
    args = parser.parse_args(arguments)
    folder = run(
        recipe, args, map_tasks=_MAP_TASKS[args.mode], find_exporter=find_exporter, warn=_warn,
        manifest={"Mode": args.mode},
    )  # fmt: skip
    print(f"Generated:\n    {folder}")
    return 0


def _warn(text: str) -> None:
    print(f"WARNING: {text}", file=sys.stderr)


def find_exporter() -> Exporter | None:
    """The newest Nsight Systems on this machine that can export, or None."""
    found = best_installation(need_recipes=False)
    return Exporter(found.nsys, found.version_text) if found else None
