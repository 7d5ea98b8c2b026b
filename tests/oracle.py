"""Slow and plain answers, straight from a report's SQLite export, to hold the fast ones against."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from pathlib import Path

OPERATIONS = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET",
              "CUPTI_ACTIVITY_KIND_GRAPH_TRACE")  # fmt: skip


def operations(path: Path, device: int | None = None) -> list[tuple[int, int, str, str | None]]:
    """Every GPU operation, or those of one ordinal: start, end, table, kernel name (None for others)."""
    db = sqlite3.connect(path)
    db.text_factory = lambda raw: raw.decode("utf-8", "backslashreplace")
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    strings = dict(db.execute("SELECT id, value FROM StringIds"))
    found = []
    for table in OPERATIONS:
        if table in tables:
            name = "demangledName" if table.endswith("KERNEL") else "NULL"
            chosen = "" if device is None else f"WHERE deviceId = {device}"
            rows = db.execute(f"SELECT start, end, {name} FROM {table} {chosen}")
            found += [(start, end, table, strings.get(id)) for start, end, id in rows]
    db.close()
    return [op for op in found if op[1] >= op[0] and op[:2] != (0, 0)]


def busy_ns(intervals: list[tuple[int, int]]) -> int:
    """Length of the union, by a sweep."""
    total, until = 0, None
    for start, end in sorted(intervals):
        if until is None or start > until:
            total += end - start
            until = end
        elif end > until:
            total += end - until
            until = end
    return total


def exclusive_ns(ordered: list[tuple[int, int, str]]) -> dict[str, int]:
    """What each family adds to the union when operations claim time in the order given, interval by interval."""
    covered: list[tuple[int, int]] = []
    added: dict[str, int] = defaultdict(int)
    for start, end, family in ordered:
        before = busy_ns(covered)
        covered = _merged([*covered, (start, end)])
        added[family] += busy_ns(covered) - before
    return dict(added)


def _merged(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def per_name(path: Path) -> dict[str, dict[str, int]]:
    """Calls, time, shortest, median and longest of each kernel name, in ns."""
    durations: dict[str, list[int]] = defaultdict(list)
    for start, end, table, name in operations(path):
        if table.endswith("KERNEL"):
            durations[name].append(end - start)
    return {
        name: {"calls": len(d), "time_ns": sum(d), "min_ns": min(d), "median_ns": _median(d), "max_ns": max(d)}
        for name, d in durations.items()
    }


def _median(values: list[int]) -> int:
    ordered = sorted(values)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return (low + high) // 2
