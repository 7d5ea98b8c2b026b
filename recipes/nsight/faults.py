"""Known faults of an Nsight Systems installation, and what to do about each."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from recipes.base.errors import PackError
from recipes.nsight.locate import FIRST_WITH_RECIPES, HOW_TO_GET, Installation, run_quietly

STATS_MODULES = ("nsysstats.py", "gpustats.py")
SQLITE = "libsqlite3.so.0"
FILE_LIST = ".nsys-llm-recipes-files"


@dataclass(frozen=True)
class Problem:
    """One fault: its name, what is wrong, what to do, whether ./demo mends it in our own copy, what it blocks."""

    name: str
    what: str
    remedy: str
    mendable: bool
    blocks: str  # recipes | statistics | captures


def problems(installation: Installation) -> list[Problem]:
    """The known faults of an installation, those that keep recipes from running first."""
    if installation.version < FIRST_WITH_RECIPES:
        what = f"version {installation.release} has no recipes (they came with 2023.1)"
        return [Problem("no recipes", what, f"a newer one: {HOW_TO_GET}", False, "recipes")]
    if installation.recipe_package is None:
        what = f"no folder python/packages/nsys_recipe in {installation.target}"
        return [Problem("no recipe package", what, "install the complete Nsight Systems package", False, "recipes")]
    finders = (incomplete, third_party, sqlite, stats_modules, libraries)
    found = [problem for finder in finders for problem in finder(installation)]
    cured = installation.is_ours
    return [replace(one, remedy="./demo mends it") if cured and one.mendable else one for one in found]


def blocking(installation: Installation) -> list[Problem]:
    """The faults that keep recipes from running."""
    return [problem for problem in problems(installation) if problem.blocks == "recipes"]


def incomplete(installation: Installation) -> list[Problem]:
    """Files that have gone from the pack's own copy: a cache folder may be cleaned at any time."""
    found = []
    for side in sides(installation):
        gone = [name for name, size in read_file_list(side) if file_size(side / name) != size]
        if gone:
            blocks = "recipes" if side == installation.target else "captures"
            remedy = f"remove {side}: ./demo fetches it again"
            what = f"{len(gone)} files damaged in {side}: {gone[0]}"
            found.append(Problem("incomplete", what, remedy, False, blocks))
    return found


def read_file_list(side: Path) -> list[tuple[str, int]]:
    """The files of a copy and their sizes, nothing for a copy that is not ours."""
    pairs = (line.split("\t", 1) for line in read(side / FILE_LIST).splitlines())
    return [(name, int(size)) for size, name in pairs]


def file_size(path: Path) -> int:
    """Bytes of a file, -1 when there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return -1


def third_party(installation: Installation) -> list[Problem]:
    """Debian's 2023.4 package leaves this folder out, and the framework refuses to start without it."""
    package = package_of(installation)
    folder = package / "third_party"
    if folder.is_dir() or "third_party" not in read(package / "nsys_constants.py"):
        return []
    return [Problem("missing third_party", f"no folder {folder}", f"mkdir {folder} (empty is enough)", True, "recipes")]


def sqlite(installation: Installation) -> list[Problem]:
    """The framework wants a libsqlite3 inside the installation."""
    if SQLITE not in read(package_of(installation) / "nsys_constants.py"):
        return []
    if any((folder / SQLITE).exists() for folder in [*sides(installation), installation.target.parent]):
        return []
    remedy = f"link the system's {SQLITE} (Debian: libsqlite3-0) into {installation.target}"
    return [Problem("missing libsqlite3", f"no {SQLITE} in {installation.target}", remedy, True, "recipes")]


def stats_modules(installation: Installation) -> list[Problem]:
    """Modules of `nsys stats`: each side that has reports needs its own copy of them."""
    found = []
    for name in STATS_MODULES:
        having = [side for side in sides(installation) if (side / "python/lib" / name).exists()]
        for side in sides(installation):
            if side in having or not (side / "reports").is_dir() or not (having or name == STATS_MODULES[0]):
                continue
            what = f"no {name} in {side / 'python/lib'}"
            remedy = f"copy it from {having[0] / 'python/lib'}" if having else "reinstall Nsight Systems"
            blocks = "statistics" if having else "recipes"
            found.append(Problem(f"missing {name.removesuffix('.py')}", what, remedy, bool(having), blocks))
    return found


def libraries(installation: Installation) -> list[Problem]:
    """Shared libraries that the importer of new captures misses; exports and recipes work without it."""
    program = importer(installation)
    missing = missing_libraries(program) if program else []
    if not missing:
        return []
    names = ", ".join(missing)
    remedy = "install the packages that have them (Debian: " + ", ".join(map(package_hint, missing)) + ")"
    name = "missing libssh" if any(library.startswith("libssh.so") for library in missing) else "missing libraries"
    return [Problem(name, f"{program} misses {names}: no new captures", remedy, False, "captures")]


def importer(installation: Installation) -> Path | None:
    """The program that makes a report of a new capture, where the installation has one."""
    near = [side / "QdstrmImporter" for side in sides(installation)]
    # Inside Nsight Compute the host's folder has the name of a platform.
    near += sorted(installation.nsys.parent.parent.glob("*/QdstrmImporter"))
    return next((program for program in near if program.exists()), None)


def missing_libraries(program: Path) -> list[str]:
    """The shared libraries that a program needs and the loader does not find."""
    try:
        return sorted(set(re.findall(r"^\s*(\S+) => not found", run_quietly(["ldd", str(program)]), re.MULTILINE)))
    except PackError:
        return []  # No ldd, or not a program of this machine: starting it says more.


def package_hint(library: str) -> str:
    """A guess at the Debian package of a shared library: libssh.so.4 -> libssh-4, libelf.so.1 -> libelf1."""
    stem, _, version = library.partition(".so.")
    if stem == "libssh":
        return "libssh-4"
    return f"{stem}-{version}" if stem[-1:].isdigit() else stem + version


def package_of(installation: Installation) -> Path:
    """The recipe package, of an installation that has one."""
    assert installation.recipe_package is not None  # `problems` names the lack of one first.
    return installation.recipe_package


def sides(installation: Installation) -> list[Path]:
    """The target folder and, where there is one, the host folder beside it."""
    return [installation.target, *sorted(installation.target.parent.glob("host-linux-*"))]


def read(path: Path) -> str:
    """A text file's content, empty when there is none."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
