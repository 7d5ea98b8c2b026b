"""Running a recipe without Nsight's framework: the same options, outputs and bytes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor

from recipes.errors import PackError
from recipes.nsight.export import Exporter
from recipes.nsight.installation import best_installation
from recipes.pack import describe
from recipes.run import MapTasks, Outcome, Task, add_options, load_recipe, run

_WORKERS = "NSYS_CONCURRENT_MAX_WORKERS"
MODES = ("none", "concurrent", "dask-futures")


def run_locally(name: str, arguments: Sequence[str], program: str) -> int:
    """Runs a recipe with command-line arguments. Returns the exit status; PackError as `recipes.run.run`."""
    recipe = load_recipe(name)
    parser = argparse.ArgumentParser(
        prog=program, description=describe(name), formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--mode", choices=MODES, default="concurrent", help="Mode to run tasks")
    add_options(recipe, parser.add_argument)
    args = parser.parse_args(arguments)
    manifest = {"Mode": args.mode}
    folder = run(recipe, args, map_tasks=_mapper(args.mode), find_exporter=find_exporter, warn=_warn, manifest=manifest)
    print(f"Generated:\n    {folder}")
    return 0


def _warn(text: str) -> None:
    print(f"WARNING: {text}", file=sys.stderr)


def find_exporter() -> Exporter | None:
    """The newest Nsight Systems on this machine that can export, or None."""
    found = best_installation(need_recipes=False)
    return Exporter(found.nsys, found.version_text) if found else None


def _mapper(mode: str) -> MapTasks:
    return {"none": _one_by_one, "concurrent": _concurrently, "dask-futures": _with_dask}[mode]


def _one_by_one(function: Callable[[Task], Outcome], tasks: Sequence[Task]) -> list[Outcome]:
    return [function(task) for task in tasks]


def _concurrently(function: Callable[[Task], Outcome], tasks: Sequence[Task]) -> list[Outcome]:
    chosen = os.environ.get(_WORKERS, "")
    if chosen and not (chosen.isdecimal() and int(chosen)):
        raise PackError(f"{_WORKERS} is {chosen!r}; set it to a number of processes from 1")
    workers = min(len(tasks), int(chosen or 0) or os.cpu_count() or 1)
    if workers < 2:
        return _one_by_one(function, tasks)
    with ProcessPoolExecutor(workers) as pool:
        return list(pool.map(function, tasks))


def _with_dask(function: Callable[[Task], Outcome], tasks: Sequence[Task]) -> list[Outcome]:
    try:
        from distributed import Client
    except ImportError:
        raise PackError(
            "--mode dask-futures needs Dask, which this Python lacks; pip install distributed, or --mode concurrent"
        ) from None
    with Client() as client:
        return client.gather(client.map(function, tasks))
