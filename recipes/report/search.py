"""Reports, and exports of them, below a folder or by a pattern."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from recipes.base.cache_folder import cache_root

REPORT_SUFFIXES = (".nsys-rep", ".qdrep")
EXPORT_SUFFIXES = (".sqlite", "_pqtdir")
#: Exports that are unpacked before they are read.
PACKED_SUFFIXES = (".sqlite.xz", ".sqlite.gz")
_ANY_FOLDERS = "**"


@dataclass(frozen=True)
class Found:
    """A report or an export; or a folder that cannot be looked into, and why."""

    path: Path
    problem: str | None = None


def below(folder: Path) -> Iterator[Found]:
    """What is in a folder and all folders below it, hidden ones and the pack's own cache left out.

    Links are followed; a folder that several lead to is looked into once.
    """
    waiting, seen = [folder], {os.path.realpath(cache_root())}
    while waiting:
        place = waiting.pop()
        real = os.path.realpath(place)
        if real in seen:
            continue
        seen.add(real)
        try:
            entries = sorted(place.iterdir())
        except OSError as error:
            yield Found(place, f"{place}: {error.strerror or error}; check its permissions")
            continue
        inside = []
        for entry in entries:
            if is_report(entry):
                yield Found(entry)
            elif entry.is_dir() and not entry.name.startswith("."):
                inside.append(entry)
        waiting += reversed(inside)


def matching(pattern: str) -> Iterator[Found]:
    """What matches a shell's pattern, in which `**` stands for any folders. A folder that does stands for all in it."""
    parts = Path(pattern).parts
    cut = parts.index(_ANY_FOLDERS) if _ANY_FOLDERS in parts else len(parts)
    for name in sorted(glob.glob(os.path.join(*parts[:cut])) if cut else [os.curdir]):
        place = Path(name)
        if is_report(place):
            yield Found(place)
        elif place.is_dir():
            for found in below(place):
                if found.problem or _matches(found.path.relative_to(place).parts, parts[cut:]):
                    yield found


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether the parts of a path, or the first of them, match those of a pattern."""
    if not pattern:
        return True
    if pattern[0] == _ANY_FOLDERS:
        return any(_matches(parts[first:], pattern[1:]) for first in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


def is_report(path: Path) -> bool:
    """Whether a path has the looks of a report or of an export of one."""
    return path.name.endswith((*REPORT_SUFFIXES, ".sqlite", *PACKED_SUFFIXES)) or is_export_folder(path)


def is_export_folder(path: Path) -> bool:
    """Whether a path has the looks of an export as parquet files."""
    return path.is_dir() and (path.name.endswith("_pqtdir") or (path / "META_DATA_EXPORT.parquet").is_file())
