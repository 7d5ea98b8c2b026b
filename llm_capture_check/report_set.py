"""Do the reports of a run belong together? Findings about all of them, and about inputs that could not be read."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pyarrow as pa

from llm_capture_check.tables import FINDINGS, finding_columns
from recipes.base.units import format_ns
from recipes.findings.finding import INFO, WARN, Finding, Scope
from recipes.findings.registry import REPORTS, find, make
from recipes.run.recipe import Combined

#: Files that were copied together may differ in time by so much, without the older one being out of date.
_COPIED_S = 60
#: Windows of one job differ in length by this factor at most; beyond, the ranks did not capture the same steps.
_LENGTHS = 1.5
_SHOWN = 5
_REPORTS, _EXPORTS = (".nsys-rep", ".qdrep"), (".sqlite", "_pqtdir")

Row = dict


@dataclass(frozen=True)
class ReportSet:
    """The reports of a run: `inputs` rows of FILES, `captures` rows of CAPTURES and FILES of those with GPU work."""

    inputs: list[Row]
    captures: list[Row]


def combine(tables: dict[str, pa.Table], files: pa.Table, settings: object) -> Combined:
    """The findings of all reports, with those of the inputs and of the reports as a set."""
    inputs = files.to_pylist()
    captures = [row for row in tables["captures"].to_pylist() if row["operations"]]
    of_file = {row["report"]: row for row in inputs}
    captures = [{**of_file[row["report"]], **row} for row in captures]
    found = find(REPORTS, ReportSet(inputs, captures))
    added = {"report": [finding.scope.report for finding in found], **finding_columns(found)}
    return Combined({FINDINGS.name: pa.concat_tables([tables[FINDINGS.name], FINDINGS.build(added)])})


def unreadable(reports: ReportSet) -> Iterator[Finding]:
    """Inputs that could not be read; the message says what to do."""
    for row in reports.inputs:
        if row["status"] == "unreadable":
            yield make("unreadable", row["message"], scope=Scope(row["report"]))


def stale_exports(reports: ReportSet) -> Iterator[Finding]:
    """Exports that are older than the report beside them."""
    for row in reports.inputs:
        path = Path(row["path"])
        for older, newer in _stale(path):
            # This run read the report itself, or the export that is old.
            severity = WARN if path.name == older else INFO
            message = f"{older} is older than {newer}: tools that read it may show another capture"
            evidence, scope = "by their times of change", Scope(row["report"])
            yield make("stale_export", message, evidence, severity=severity, scope=scope)


def _stale(path: Path) -> Iterator[tuple[str, str]]:
    """Names of an export and of the report beside it that is newer."""
    for suffix in (*_REPORTS, *_EXPORTS):
        if path.name.endswith(suffix):
            stem, others = path.name[: -len(suffix)], _EXPORTS if suffix in _REPORTS else _REPORTS
            beside = [path.with_name(stem + other) for other in others]
            pairs = [(one, path) if suffix in _REPORTS else (path, one) for one in beside]
            yield from ((old.name, new.name) for old, new in pairs if _older(old, new))


def _older(export: Path, report: Path) -> bool:
    try:
        return export.stat().st_mtime < report.stat().st_mtime - _COPIED_S
    except OSError:
        return False


def same_twice(reports: ReportSet) -> Iterator[Finding]:
    """The same capture under two names."""
    for same in _alike(reports.captures, "session", "begin_utc_ns", "end_utc_ns", "pids", "operations"):
        if len(same) > 1 and (same[0]["session"] or same[0]["begin_utc_ns"] is not None):
            message = f"the same capture is given {len(same)} times, and its numbers count as often"
            evidence = _listed([row["report"] for row in same])
            yield make("duplicate_report", message, evidence, numbers={"reports": len(same)})


def _first_of_each(captures: Sequence[Row]) -> list[Row]:
    """One report of each capture, and of each series of windows that one Nsight recorded of a rank."""
    known = [rows for rows in _alike(captures, "session", "rank") if rows[0]["session"]]
    return [*(rows[0] for rows in known), *(row for row in captures if not row["session"])]


def _alike(captures: Sequence[Row], *columns: str) -> list[list[Row]]:
    """The reports that have the same values in some columns, together."""
    same = defaultdict(list)
    for row in captures:
        same[tuple(row[column] for column in columns)].append(row)
    return list(same.values())


def of_one_job(reports: ReportSet) -> Iterator[Finding]:
    """Reports with ranks are taken for one job."""
    ranked = [row for row in _first_of_each(reports.captures) if row["rank"] is not None]
    if len(ranked) < 2:
        # One rank alone is mostly meant so.
        return
    counts = Counter(row["rank"] for row in ranked)
    twice = sorted(rank for rank, count in counts.items() if count > 1)
    if twice:
        names = [row["report"] for row in ranked if row["rank"] == twice[0]]
        message = f"rank {twice[0]} is given by {len(names)} reports: they are not of one run"
        yield make("duplicate_rank", message, _listed(names), scope=Scope(rank=twice[0]))
        return
    told = max((row["world_size"] or 0 for row in ranked), default=0)
    size = max(told, max(counts) + 1)
    absent = size - len(counts)
    if absent:
        missing = islice((rank for rank in range(size) if rank not in counts), _SHOWN)
        ranks = ", ".join(map(str, missing)) + (", ..." if absent > _SHOWN else "")
        # More missing than there are have been left out on purpose.
        severity = WARN if absent <= len(counts) else INFO
        size_told = f"{size}" if told >= size else f"at least {size}"
        evidence, figures = f"{absent} of {size_told}: {ranks}", {"missing": absent, "ranks": size}
        yield make("missing_rank", "reports of ranks are missing", evidence, severity=severity, numbers=figures)
    yield from _unlike(ranked, "gpu_name", "other_gpu", "ranks ran on different GPUs")
    yield from _unlike(ranked, "nsys_version", "other_version", "reports were exported by different versions")
    yield from _windows(ranked)


def _unlike(ranked: Sequence[Row], column: str, check: str, message: str) -> Iterator[Finding]:
    values = Counter(row[column] or "unknown" for row in ranked)
    if len(values) > 1:
        told = ", ".join(f"{value} ({count})" for value, count in values.most_common(_SHOWN))
        yield make(check, message, told)


def _windows(ranked: Sequence[Row]) -> Iterator[Finding]:
    placed = [row for row in ranked if row["begin_utc_ns"] is not None]
    if len(placed) > 1:
        last = max(placed, key=lambda row: row["begin_utc_ns"])
        first = min(placed, key=lambda row: row["end_utc_ns"])
        apart_ns = last["begin_utc_ns"] - first["end_utc_ns"]
        if apart_ns > 0:
            evidence = f"rank {last['rank']} begins {format_ns(apart_ns)} after rank {first['rank']} ended"
            message, figures = "the windows do not overlap in time", {"apart_ns": apart_ns}
            yield make("other_window", message, evidence, numbers=figures)
            return
    longest = max(ranked, key=lambda row: row["window_ns"])
    shortest = min(ranked, key=lambda row: row["window_ns"])
    if longest["window_ns"] > _LENGTHS * shortest["window_ns"]:
        evidence = (
            f"rank {longest['rank']} {format_ns(longest['window_ns'])}, rank {shortest['rank']} "
            f"{format_ns(shortest['window_ns'])}"
        )
        yield make("other_window", "the windows are of different lengths", evidence)


def _listed(reports: Sequence[str]) -> str:
    more = f" and {len(reports) - _SHOWN} more" if len(reports) > _SHOWN else ""
    return ", ".join(reports[:_SHOWN]) + more
