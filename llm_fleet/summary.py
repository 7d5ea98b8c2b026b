"""What the recipe says: what went where, and of each question's answer the lines that matter."""

from __future__ import annotations

import sys
from collections import Counter

import pyarrow as pa

from llm_fleet.questions import QUESTIONS, SQL_FOLDER, sql_of
from llm_fleet.settings import FleetSettings
from llm_fleet.tables import PUBLISHED
from recipes.base.terminal import plain
from recipes.base.text_table import shortened, text_table
from recipes.base.units import format_count, format_ms, format_share
from recipes.run.recipe import Told

#: A rank or host slower by less than this share is not reported, however close together the others are.
_WORTH = 0.02
#: Modified z-score above which a rank or host is reported as slow (3.5 as in Iglewicz and Hoaglin 1993).
SLOW_Z = 3.5
#: So many rows of each answer are printed; all are in the tables.
_SHOWN = 8
#: The layout of devices that do not communicate, which goes without saying.
ALONE = "no communication"
_NO_DUCKDB = (
    "has no DuckDB, which computes them; pip install duckdb there and run this again, or query the dataset with any "
    f"DuckDB and the files in {SQL_FOLDER}"
)
_CHANGES = ("new", "replaced", "repaired", "unchanged")
_UNNAMED = (
    "runs without a model are compared only within themselves, not week by week: give --model or --tag model=NAME"
)


def summarise(tables: dict[str, pa.Table], settings: FleetSettings, told: Told) -> str:
    """What was added to which dataset, the place of the quality line, what stands out, and step times."""
    changes = Counter(tables[PUBLISHED.name]["change"].to_pylist())
    added = ", ".join(f"{changes[what]} {what}" for what in _CHANGES if changes[what]) or "none"
    where = settings.shown or "beside the output, its name with -dataset"
    lines = [
        f"Run {plain(settings.run)}: {format_count(sum(changes.values()), 'report')} in the dataset ({added})",
        "{quality}",
        f"dataset: {where}",
    ]
    if "overview" not in tables:
        return "\n".join([*lines, f"no answers: {sys.executable} {_NO_DUCKDB}"])
    runs = tables["overview"].to_pylist()
    lines[0] += (
        f", which now holds {format_count(sum(run['reports'] for run in runs), 'report')} of "
        f"{format_count(len(runs), 'run')}"
    )
    lines += [
        *(f"over all reports: {run['message']}" for run in runs if run["run_name"] == settings.run and run["message"]),
        *_doubtful(tables),
        *_slow(tables),
        *_regressed(tables),
    ]
    return "\n".join([*lines, *_steps(tables), *_families(tables, settings.run)])


def _doubtful(tables: dict[str, pa.Table]) -> list[str]:
    """What the answers lack, and what they count once."""
    rows = tables["doubtful_captures"].to_pylist()
    kinds = {
        "lost": "lack files, so some of their rows are missing from the answers: add them again",
        "same_as": "duplicate another report of their run: each content counts once",
        "future": "are dated more than a day in the future: excluded from regressions",
    }
    counts = {name: sum(bool(row[name]) for row in rows) for name in kinds}
    return [
        f"{counts[name]} of all reports {text} (see doubtful_captures)" for name, text in kinds.items() if counts[name]
    ]


def _slow(tables: dict[str, pa.Table]) -> list[str]:
    ranks, hosts = (
        [row for row in tables[name].to_pylist() if (row["z"] or 0) > SLOW_Z and row["above"] > _WORTH]
        for name in ("slow_ranks", "slow_hosts")
    )
    told = []
    if ranks:
        worst = ranks[0]
        told.append(
            f"slow: {format_count(len(ranks), 'row')} of slow_ranks, the slowest is {worst['report']} (run "
            f"{worst['run_name']}, host {worst['host']}): {format_share(worst['above'])} above the median of "
            f"its run; {format_count(worst['compared'], 'device')} compared"
        )
    if hosts:
        names = ", ".join(str(row["host"]) for row in hosts[:_SHOWN])
        told.append(f"slow hosts: {names}")
    return told


def _regressed(tables: dict[str, pa.Table]) -> list[str]:
    """The regressions that are certain enough, the largest first."""
    rows = [row for row in tables["regressions"].to_pylist() if row["verdict"] == "slower"]
    return [
        f"slower since last week: {_named(row)}: {row['change']:+.1%} ({row['low']:+.1%} to {row['high']:+.1%}), "
        f"{row['runs_before']} against {row['runs_now']} runs"
        for row in rows[:_SHOWN]
    ]


def _named(row: dict) -> str:
    counts = [f" {name} {row[name]}" for name in ("batch", "tokens") if row.get(name) is not None]
    model = row["model"] or row.get("run_name")
    layout = "" if row["layout"] == ALONE else f", {row['layout']}"
    what = f"{row['phase']}{''.join(counts)}{layout}"
    return " ".join(str(part) for part in (model, what, "on", row["gpu_name"]) if part)


def _steps(tables: dict[str, pa.Table]) -> list[str]:
    rows = sorted(tables["step_percentiles"].to_pylist(), key=lambda row: -row["steps"])
    if not rows:
        return []
    cells = [
        [shortened(_named(row), 60), f"{row['reports']:,}", f"{row['steps']:,}", _ms(row["period_p50_ns"]),
         _ms(row["period_p99_ns"]), "" if row["floor_ratio_p50"] is None else f"{row['floor_ratio_p50']:.2f}"]
        for row in rows[:_SHOWN]
    ]  # fmt: skip
    unnamed = [] if all(row["model"] for row in rows) else [_UNNAMED]
    head = ["steps of the whole dataset", "reports", "steps", "period p50 ms", "p99 ms", "over floor"]
    return ["", text_table(head, cells), *_more(len(rows), "step_percentiles"), *unnamed]


def _ms(time_ns: float | None) -> str:
    return "" if time_ns is None else format_ms(time_ns)


def _families(tables: dict[str, pa.Table], run: str) -> list[str]:
    rows = [row for row in tables["family_shares"].to_pylist() if (row["run_name"], row["phase"]) == (run, "all")]
    if not rows:
        return []
    cells = [[row["family"], format_ms(row["time_ns"]), format_share(row["share"])] for row in rows[:_SHOWN]]
    return ["", text_table(["families of this run", "time ms", "share"], cells), *_more(len(rows), "family_shares")]


def _more(count: int, table: str) -> list[str]:
    return [f"and {count - _SHOWN} more: see {table}.parquet"] if count > _SHOWN else []


#: So many rows of an answer are in the notebook.
NOTEBOOK_ROWS = 2000


def notebook_tables(tables: dict[str, pa.Table]) -> dict[str, pa.Table]:
    """The answers, the longest cut, and the SQL behind them."""
    files = sorted(SQL_FOLDER.glob("*.sql"))
    sql = pa.table({"question": [file.stem for file in files], "sql": [sql_of(file.stem) for file in files]})
    none = {table.name: table.empty() for table in QUESTIONS}
    return {name: rows.slice(0, NOTEBOOK_ROWS) for name, rows in {**none, **tables}.items()} | {"sql": sql}
