"""A recipe of the pack inside Nsight's own framework. Import it only where `nsys_recipe` is there.

Of the framework only what every version has is used: Recipe, ArgumentParser.add_recipe_argument, the context's mode,
map and wait, and the exception that ends a run with one line. See `tests/test_with_nsys.py` for the versions tested.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from nsys_recipe.lib import exceptions, nsys_path, recipe
from nsys_recipe.log import logger

from recipes.base.errors import PackError
from recipes.base.terminal import use_terminal_of
from recipes.nsight.export import Exporter
from recipes.nsight.locate import read_installation
from recipes.run.dask_cluster import on_cluster
from recipes.run.modes import concurrently
from recipes.run.recipe import load_recipe
from recipes.run.run import MapTasks, add_options, run
from recipes.run.worker_processes import one_by_one


class LlmRecipe(recipe.Recipe):
    """The base of the pack's recipe classes: the class in a recipe's own module adds nothing but its place."""

    # Nsight removes its own output folder when a run fails, and prints where it is when one ends. Ours is written
    # whole or not at all, so only the second is wanted.
    _folder: Path | None = None

    @property
    def output_dir(self) -> str | None:
        return None if self._folder is None else str(self._folder)

    def run(self, context) -> None:
        super().run(context)

        use_terminal_of(os.getppid())
        try:
            self._folder = run(
                load_recipe(self.get_recipe_name()),
                self._parsed_args,
                map_tasks=_map_tasks(context),
                find_exporter=_own_exporter,
                # nsys shows what a recipe writes to its standard output, and nothing of its standard error.
                warn=logger.warning,
                manifest=dict(self._analysis_dict),
            )
        except (PackError, argparse.ArgumentTypeError) as error:
            raise exceptions.ValueError(str(error)) from None

    @classmethod
    def get_argument_parser(cls) -> argparse.ArgumentParser:
        parser = super().get_argument_parser()

        def add(option: str, **settings):
            # Newer frameworks bring some of the options themselves.
            if option not in parser._option_string_actions:
                parser.add_recipe_argument(option, **settings)

        add_options(load_recipe(cls.get_recipe_name()), add)
        return parser


def _map_tasks(context) -> MapTasks:
    """The mode that the context is for. Its map gives all results at once, and none when a process dies: ours does
    better with the same settings, and on the context's own Dask cluster."""
    mode = getattr(getattr(context, "mode", None), "name", "")
    if mode == "DASK_FUTURES":
        return _on_its_cluster
    known = {"NONE": one_by_one, "CONCURRENT": concurrently}
    return known.get(mode) or (lambda function, lost, tasks: context.wait(context.map(function, tasks)))


def _on_its_cluster(function, lost, tasks):
    from distributed import get_client

    # The context has made it Dask's default.
    return on_cluster(get_client(), lost, tasks)


def _own_exporter() -> Exporter:
    """The nsys that this recipe runs in."""
    try:
        found = nsys_path.find_installed_file("nsys")
    except exceptions.ValueError:
        found = sys.argv[0]
    installation = read_installation(Path(found))
    return Exporter(installation.nsys, installation.version_text)
