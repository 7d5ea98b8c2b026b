"""Makes the pack's recipes known to an Nsight installation, by links in its recipes folder, and takes that back."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from recipes.base.errors import PackError
from recipes.base.pack import ROOT, recipe_names
from recipes.nsight.installation import best_of, find_installations, search, why_none
from recipes.nsight.locate import Installation, named_by_user, read_installation


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of both commands."""
    parser.add_argument("--nsys", metavar="PATH", help="the nsys executable, or the folder of an installation, to use")


def main_install(args: argparse.Namespace) -> int:
    """Link all recipes of the pack into one installation, and print every link."""
    for line in install(recipes_folder(chosen(args.nsys))):
        print(line)
    print(f"`nsys recipe {recipe_names()[0]}` now works from any folder.")
    return 0


def main_uninstall(args: argparse.Namespace) -> int:
    """Remove the pack's links from one installation, or from all that are found, and print every link."""
    installations = [chosen(args.nsys)] if args.nsys else find_installations()
    folders = [recipes_folder(installation) for installation in installations if installation.recipe_package]
    lines = [line for folder in folders for line in uninstall(folder)]
    print("\n".join(lines) if lines else "Nothing to remove: no installation has links to the pack.")
    return 0


def chosen(named: str | None) -> Installation:
    """The installation that the user names, else the best one; PackError when there is none."""
    if named:
        return read_installation(named_by_user(named))
    found = search()
    installation = best_of(found)
    if installation is None:
        raise PackError(why_none(found))
    return installation


def recipes_folder(installation: Installation) -> Path:
    """Where an installation looks for its own recipes."""
    if installation.recipe_package is None:
        raise PackError(f"{installation.nsys}: version {installation.release} has no recipes; use 2023.1 or newer")
    return installation.recipe_package / "recipes"


def install(folder: Path, root: Path = ROOT) -> list[str]:
    """Link every recipe of the pack at `root` into a recipes folder; one line for each. Nothing else is touched."""
    names = recipe_names(root)
    strange = [folder / name for name in names if os.path.lexists(folder / name) and not is_ours(folder / name)]
    if strange:
        raise PackError(f"{strange[0]} exists and is not the pack's: left as it is, nothing was installed")
    lines = []
    for name in names:
        link, target = folder / name, root / name
        old = os.readlink(link) if link.is_symlink() else None
        if old == str(target):
            lines.append(f"already there  {link} -> {target}")
            continue
        change(folder, lambda link=link, target=target: replace_link(link, target), root)
        lines.append(f"linked  {link} -> {target}" + (f"  (was {old})" if old else ""))
    return lines


def uninstall(folder: Path, root: Path = ROOT) -> list[str]:
    """Remove the pack's links from a recipes folder; one line for each. Nothing else is touched."""
    lines = []
    for link in sorted(folder.glob("llm_*")):
        if is_ours(link):
            target = os.readlink(link)
            change(folder, link.unlink, root)
            lines.append(f"removed  {link} -> {target}")
    return lines


def is_ours(path: Path) -> bool:
    """Whether a path is a link to a recipe of this pack, in this copy or another, or of a copy that is gone."""
    if not path.is_symlink():
        return False
    target = Path(os.readlink(path))
    if target.name != path.name or not target.name.startswith("llm_"):
        return False
    return not target.exists() or (target.parent / "recipes/__main__.py").is_file()


def replace_link(link: Path, target: Path) -> None:
    """Put a link in place in one move, so that no reader ever finds it missing."""
    new = link.with_name(f".{link.name}.{os.getpid()}")
    new.symlink_to(target)
    try:
        os.replace(new, link)
    finally:
        new.unlink(missing_ok=True)


def change(folder: Path, action, root: Path) -> None:
    """Do something in an installation's folder; PackError with the alternatives when that is not allowed."""
    try:
        action()
    except OSError as error:
        without = f"or leave the installation alone: export NSYS_RECIPE_PATH={root}"
        raise PackError(f"cannot write {folder}: {error.strerror}; run it with sudo, {without}") from error
