"""What works on this machine, and what to do about the rest. Exit status 0 when the recipes run through nsys."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from recipes import __version__
from recipes.base.cache_folder import NOWHERE, cache_root
from recipes.base.pack import ROOT, recipe_names
from recipes.base.terminal import plain
from recipes.base.units import format_count
from recipes.cli.install import is_ours
from recipes.nsight.faults import importer
from recipes.nsight.installation import Installation, Search, best_of, problems, search, why_none
from recipes.nsight.recipe_python import FIRST_BUNDLED, NEEDED, RecipePython, how_to_add, recipe_python

OK, BAD, INFO, DO = "ok", "!!", "--", "->"
EXTRAS = (
    ("Dask", "distributed", "for --mode dask-futures"),
    ("Jupyter", "jupyterlab", "for opening the notebooks"),
    ("plotly", "plotly", "for the notebooks' figures"),
)
Row = tuple[str, str, str]  # what, state, text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """This command has no options."""


def main(args: argparse.Namespace) -> int:
    """Print the table; 0 when the main job can run through nsys, else 1."""
    found = search()
    best = best_of(found)
    python = recipe_python(best) if best else None
    for what, state, text in rows(found, best, python):
        print(f"{what:<16} {state}  {plain(text)}".rstrip())
    return 0 if python and python.is_ready else 1


def rows(found: Search, best: Installation | None, python: RecipePython | None) -> Iterator[Row]:
    """The whole table."""
    yield "pack", OK, f"nsys-llm-recipes {__version__} at {ROOT}: {format_count(len(recipe_names()), 'recipe')}"
    yield from nsight_rows(found, best)
    if best and python:
        yield from python_rows(best, python)
        yield from package_rows(python)
    yield from reach_rows(found.installations)
    if cache_root() == NOWHERE:
        yield "cache", BAD, "no home folder is known, so exports of reports cannot be kept"
        yield "", DO, "export NSYS_LLM_RECIPES_CACHE=FOLDER, one that you can write"
    else:
        yield "cache", INFO, f"{cache_root()}: {folder_size(cache_root()) / 1e6:.0f} MB (may be deleted at any time)"


def nsight_rows(found: Search, best: Installation | None) -> Iterator[Row]:
    """Every nsys found, with its faults and their remedies."""
    for installation in found.installations:
        faults = problems(installation)
        state = BAD if any(fault.blocks == "recipes" for fault in faults) else OK
        note = ", used" if installation == best else ""
        note += ", unpacked by the pack" if installation.is_ours else ""
        if installation.is_ours and not importer(installation):
            note += ", for reports only (it cannot capture)"
        yield f"nsys {installation.release}", state, f"{installation.nsys}{note}"
        for fault in faults:
            yield "", BAD if fault.blocks == "recipes" else INFO, f"{fault.name}: {fault.what} ({fault.blocks})"
            yield "", DO, fault.remedy
    for broken in found.broken:
        yield "nsys", BAD, f"{broken.nsys} does not work: {broken.why}"
    if best is None:
        yield "nsys", BAD, why_none(found)
        yield "", DO, "on Debian and Ubuntu, ./demo of the repository unpacks the distribution's package"


def python_rows(installation: Installation, python: RecipePython) -> Iterator[Row]:
    """The Python that runs recipes, and what it lacks."""
    name = f"{python.path or 'none yet'} ({python.why})"
    if python.trouble:
        yield "recipe Python", INFO if python.is_ready else BAD, f"{name}: {python.trouble}"
    else:
        yield "recipe Python", OK if python.is_ready else BAD, f"{python.version} at {name}"
        have = [f"{package} {python.packages[package]}" for package in NEEDED if python.packages.get(package)]
        yield "", INFO if python.missing else OK, ", ".join(have) or "none of the packages that recipes need"
    if python.is_ready:
        return
    if python.packages and python.missing:
        yield "", BAD, "missing: " + ", ".join(python.missing)
    own = own_environment()
    if own:
        bundled = installation.version >= FIRST_BUNDLED
        yield "", DO, f"export NSYSPYTHONEXE={own}/python3" if bundled else f"export PATH={own}:$PATH"
    if python.packages and python.missing:
        yield "", DO, how_to_add(python, python.missing)


def own_environment() -> Path | None:
    """Where the pack's own Python is: the environment of the checkout, or the one that the wheel is installed in."""
    places = [ROOT / ".venv/bin"]
    if sys.prefix != sys.base_prefix:
        places.append(Path(sys.prefix, "bin"))
    return next((place for place in places if (place / "python3").exists()), None)


def package_rows(python: RecipePython) -> Iterator[Row]:
    """What optional packages make possible, and one way to get those that are not there."""
    missing = []
    for what, package, use in EXTRAS if python.packages else ():
        version = python.packages.get(package)
        yield what, OK if version else INFO, f"{package} {version or 'is not there'}: {use}"
        if not version:
            missing.append("'dask[distributed]'" if what == "Dask" else package)
    if missing:
        yield "", DO, how_to_add(python, missing)


def reach_rows(installations: list[Installation]) -> Iterator[Row]:
    """From where `nsys recipe` finds the pack's recipes."""
    for installation in installations:
        if installation.recipe_package is None:
            continue
        links = [link for link in (installation.recipe_package / "recipes").glob("llm_*") if is_ours(link)]
        if links:
            where = os.readlink(links[0]).rpartition("/")[0]
            count = format_count(len(links), "recipe")
            yield "installed", OK, f"{count} of {where} in nsys {installation.release}, from any folder"
    variable = os.environ.get("NSYS_RECIPE_PATH")
    if variable:
        here = Path(variable).resolve() == ROOT
        text = "is this pack" if here else f"is {variable}, not this pack: it can name one folder only"
        yield "NSYS_RECIPE_PATH", OK if here else INFO, text
    elif Path.cwd() == ROOT:
        yield "this folder", OK, "`nsys recipe` finds the recipes from here; `install` makes them known everywhere"
    else:
        yield "this folder", INFO, f"for nsys to find the recipes: `install`, or export NSYS_RECIPE_PATH={ROOT}"


def folder_size(folder: Path) -> int:
    """Bytes of all files below a folder, 0 when there is none."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_size
            except OSError:
                continue  # Gone since it was listed.
    return total
