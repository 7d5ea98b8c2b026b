"""The reports that the paths on a command line stand for."""

from __future__ import annotations

import contextlib
import glob
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from recipes.base.errors import PackError
from recipes.nsight.export import Exporter, export, unpacked
from recipes.report.report import Report, open_export
from recipes.report.search import (
    EXPORT_SUFFIXES,
    PACKED_SUFFIXES,
    REPORT_SUFFIXES,
    Found,
    below,
    is_export_folder,
    is_report,
    matching,
)

# What files begin with that Git LFS has not fetched.
_LFS = b"version https://git-lfs.github.com/"


@dataclass(frozen=True)
class Input:
    """One report to analyse.

    `path` is what was found; `label` a short name of it, unique among the inputs; `export` an export of the same
    report that lies beside it; `problem` why there is nothing to read at the path, in one line.
    """

    path: Path
    label: str
    export: Path | None = None
    problem: str | None = None


def find_inputs(paths: Sequence[str]) -> list[Input]:
    """The inputs that files, folders, patterns and lists stand for, each report once.

    A folder or a pattern stands for all reports below, `folder:n` for the first n; `@file` for the paths in its lines.

    A path with nothing to read becomes an input with a problem, so that the others are still analysed.
    """
    found: dict[str, Input] = {}
    for path in paths:
        for item in _expand(path):
            found.setdefault(os.path.realpath(item.path), item)
    return _labelled(list(found.values()))


def open_input(item: Input, exporter: Exporter | None, announce: Callable[[str], None]) -> tuple[Report, str]:
    """The report behind an input, and a remark on how it was read (empty when there is none).

    Without an exporter, or when the exporter cannot read the report, the export beside it is used if it is not
    older than the report. PackError when nothing can be read.
    """
    if item.problem:
        raise PackError(item.problem)
    if not item.path.name.endswith(REPORT_SUFFIXES):
        _check_content(item.path)
        packed = item.path.name.endswith(PACKED_SUFFIXES)
        return open_export(unpacked(item.path, announce) if packed else item.path), ""
    try:
        _check_content(item.path)
        if exporter is None:
            raise PackError(
                f"{item.path}: no Nsight Systems was found to export it; see `python -m recipes check`, or give "
                "its export (nsys export --type sqlite) as the input"
            )
        return open_export(export(item.path, exporter, announce)), ""
    except PackError as error:
        if item.export is None:
            raise
        if item.export.stat().st_mtime < item.path.stat().st_mtime:
            why_not = f"{item.export.name} beside it is older than the report, so it was not used"
        else:
            try:
                return open_export(item.export), f"read from {item.export.name} beside it"
            except PackError as second:
                why_not = str(second)
        raise PackError(f"{error}; {why_not}") from None


def _check_content(path: Path) -> None:
    """PackError for a file that only stands for what is in Git LFS."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        if file.read(len(_LFS)) == _LFS:
            raise PackError(f"{path}: a Git LFS pointer, not the file itself; run git lfs pull in its repository")


def _expand(text: str) -> Iterable[Input]:
    if text.startswith("@") and not os.path.lexists(text):
        return _in_list(Path(text[1:]))
    return _of_path(text)


def _in_list(path: Path) -> Iterable[Input]:
    """What the lines of a text file stand for."""
    try:
        text = path.read_text(encoding="utf-8-sig", errors="surrogateescape")
    except OSError as error:
        return [_problem(path, f"@{path}: the list cannot be read ({error.strerror or error}); check the path")]
    lines = [line.strip() for line in text.splitlines()]
    named = [line for line in lines if line and not line.startswith("#")]
    if not named:
        return [_problem(path, f"@{path}: the list names no report; write one path a line")]
    return [item for line in named for item in _of_path(line)]


def _of_path(text: str) -> Iterable[Input]:
    path, limit = _split_limit(text)
    try:
        path.stat()
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        # A list may hold anything, a null byte too.
        reason = getattr(error, "strerror", None) or error
        return [_problem(Path(text.replace("\0", "")), f"{text[:60]}: {reason}; check the path")]
    if limit == 0:
        return [_problem(path, f"{text}: no report is asked for; give a number from 1 behind the colon")]
    if not path.exists():
        if glob.has_magic(str(path)):
            return _inputs(path, matching(str(path)), limit, "matches")
        return [_problem(path, f"{path} does not exist; check the path")]
    if path.is_dir() and not is_export_folder(path):
        return _inputs(path, below(path), limit, "holds")
    if limit is not None:
        return [_problem(path, f"{path} is no folder, so :{limit} means nothing; give a folder or leave :{limit} away")]
    if is_report(path):
        return [Input(path, "", _export_beside(path))]
    kinds = ".nsys-rep, .qdrep, .sqlite (also .sqlite.xz, .sqlite.gz) or _pqtdir"
    return [_problem(path, f"{path} is no report; give {kinds}, or a folder of them")]


def _split_limit(text: str) -> tuple[Path, int | None]:
    """`folder:n` as Nsight takes it; a colon that belongs to an existing path stays in it."""
    folder, colon, count = text.rpartition(":")
    if colon and count.isdecimal() and len(count) < 10 and not os.path.exists(text):
        return Path(folder), int(count)
    return Path(text), None


def _inputs(place: Path, found: Iterable[Found], limit: int | None, verb: str) -> Iterable[Input]:
    """The first of what was found, in order; an export of a report that is there too is no input of its own."""
    problems = []
    paths = []
    for one in found:
        if one.problem:
            problems.append(_problem(one.path, one.problem))
        else:
            paths.append(one.path)
    inputs = [Input(path, "", _export_beside(path)) for path in _without_doubles(paths)[:limit]]
    if not inputs and not problems:
        problems = [_problem(place, f"{place} {verb} no reports (.nsys-rep, .qdrep, .sqlite, _pqtdir); check the path")]
    return inputs + problems


def _without_doubles(paths: list[Path]) -> list[Path]:
    """Of a report and its exports in one folder the report, else the SQLite file, else what comes first; in order.

    x.nsys-rep and x.qdrep are two reports.
    """
    order: tuple[str | tuple[str, ...], ...] = (REPORT_SUFFIXES, ".sqlite", "_pqtdir", *PACKED_SUFFIXES)
    # A parquet folder may have any name.
    kind_of = {path: next((n for n, end in enumerate(order) if path.name.endswith(end)), 2) for path in paths}
    best: dict[tuple[Path, str], int] = {}
    for path, kind in kind_of.items():
        key = path.parent, _stem(path)
        best[key] = min(kind, best.get(key, kind))
    return sorted(path for path, kind in kind_of.items() if kind == best[path.parent, _stem(path)])


def _export_beside(path: Path) -> Path | None:
    """An export of a report as Nsight names it: same name, other ending."""
    if not path.name.endswith(REPORT_SUFFIXES):
        return None
    candidates = (path.with_name(_stem(path) + suffix) for suffix in EXPORT_SUFFIXES)
    return next((candidate for candidate in candidates if candidate.exists()), None)


def _stem(path: Path) -> str:
    for suffix in (*REPORT_SUFFIXES, *EXPORT_SUFFIXES, *PACKED_SUFFIXES):
        if path.name.endswith(suffix):
            return path.name[: -len(suffix)]
    return path.name


def _problem(path: Path, problem: str) -> Input:
    return Input(path, "", problem=problem)


def shown(name: str | Path) -> str:
    """A path as text that fits anywhere: bytes in it that are not UTF-8 as \\xNN."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _labelled(inputs: list[Input]) -> list[Input]:
    """Each input labelled by its name without ending; as many folders in front as tell all inputs apart."""
    parts = [(*item.path.absolute().parts[:-1], _stem(item.path)) for item in inputs]
    # Names that a file name allows and UTF-8 does not would not fit into a table.
    parts = [tuple(map(shown, path)) for path in parts]
    labels = [path[-1] for path in parts]
    for depth in range(2, max(map(len, parts), default=0) + 1):
        count = Counter(labels)
        labels = [
            "/".join(path[-depth:]) if count[label] > 1 else label for path, label in zip(parts, labels, strict=True)
        ]
    count = Counter(labels)
    # The same stem in the same folder: x.nsys-rep and x.qdrep. Then their names tell, or at last their whole paths.
    names = [shown(item.path.name) if count[label] > 1 else label for item, label in zip(inputs, labels, strict=True)]
    count = Counter(names)
    names = [shown(item.path) if count[name] > 1 else name for item, name in zip(inputs, names, strict=True)]
    return [replace(item, label=name) for item, name in zip(inputs, names, strict=True)]
