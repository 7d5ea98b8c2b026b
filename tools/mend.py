"""Mends the known faults of the pack's own copy of Nsight Systems. Other installations are left alone."""

from __future__ import annotations

import shutil
from ctypes.util import find_library
from pathlib import Path

from recipes.base.errors import PackError
from recipes.nsight.faults import FILE_LIST, SQLITE, package_hint, package_of, problems, sides
from recipes.nsight.locate import Installation


def mend(installation: Installation) -> list[str]:
    """Cure what can be cured inside the pack's own copy; says what was done. Other installations are left alone."""
    if not installation.is_ours:
        raise PackError(f"{installation.target} is not the pack's own copy: only its owner may mend it")
    return cure(installation)


def cure(installation: Installation) -> list[str]:
    """As mend, for a copy that is still being put together."""
    done = []
    for problem in problems(installation):
        if problem.name == "missing third_party":
            (package_of(installation) / "third_party").mkdir(exist_ok=True)
        elif problem.name == "missing libsqlite3" and find_library("sqlite3"):
            link = installation.target / SQLITE
            link.unlink(missing_ok=True)  # It may lead to a library that the system had.
            link.symlink_to(system_library(SQLITE))
        elif problem.name in ("missing nsysstats", "missing gpustats") and problem.mendable:
            copy_stats_module(installation, problem.name.removeprefix("missing ") + ".py")
        else:
            continue
        done.append(f"mended: {problem.what}")
    return done


def copy_stats_module(installation: Installation, name: str) -> None:
    """Give every side that has reports the statistics module that another side has."""
    source = next(side / "python/lib" / name for side in sides(installation) if (side / "python/lib" / name).exists())
    for side in sides(installation):
        copy = side / "python/lib" / name
        if (side / "reports").is_dir() and not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy)


def system_library(name: str) -> Path:
    """The path of one of the system's shared libraries."""
    folders = [*Path("/usr/lib").glob("*-linux-gnu"), Path("/usr/lib64"), Path("/usr/lib"), Path("/lib")]
    found = next((folder / name for folder in folders if (folder / name).exists()), None)
    if found is None:
        raise PackError(f"no {name} on this machine: install it (Debian: {package_hint(name)})")
    return found


def write_file_list(side: Path) -> None:
    """Note what a whole copy holds, for `incomplete` to compare."""
    files = sorted(path for path in side.rglob("*") if path.is_file())
    lines = [f"{path.stat().st_size}\t{path.relative_to(side)}\n" for path in files]
    (side / FILE_LIST).write_text("".join(lines))
