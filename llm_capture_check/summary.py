"""What the recipe says: can the captures be trusted, what was found in each, and what to do about it."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence

import pyarrow as pa

from recipes.base.terminal import text_width
from recipes.base.text_table import shortened, text_table
from recipes.base.units import format_ms, format_share
from recipes.findings.finding import ERROR, INFO, SEVERITIES, WARN, worst
from recipes.run.recipe import Told

_NAME_WIDTH, _WIDTH = 36, 118
#: At most so many reports and processes are shown; a fleet's are counted by check, and all are in findings.parquet.
_REPORTS, _PROCESSES = 8, 16
#: The notebook shows so many steps at most; more are thinned out evenly.
_NOTEBOOK_STEPS = 3000
_TRUST = {"": "can be trusted", INFO: "can be trusted", WARN: "can be trusted in part", ERROR: "cannot be used"}

#: Findings that only another capture mends.
_CAPTURE_AGAIN = {
    "no_gpu_work", "cuda_not_traced", "no_records", "processes", "records_stop", "lost_records", "lost_graph_work",
    "opaque_graphs", "startup", "no_nvtx", "library_ranges", "steps_silent", "steps_share", "window_end",
}  # fmt: skip

Row = dict


def summarise(tables: dict[str, pa.Table], settings: object, told: Told) -> str:
    """Verdict, the place of the quality line, the findings with their remedies, and the inventory."""
    findings = [row for row in tables["findings"].to_pylist() if row["observed"]]
    reports = tables["files"]["report"].to_pylist()
    by_report = {report: [row for row in findings if row["report"] == report] for report in (*reports, None)}
    engines = {row["report"]: row["engine"] for row in tables["captures"].to_pylist()}
    lines = [_verdict(reports, by_report), "{quality}"]
    shown = sorted(reports, key=lambda report: -_rank(by_report[report]))[:_REPORTS]
    if len(reports) > 1:
        # Of many, those without a fault are counted only.
        shown = [report for report in shown if _rank(by_report[report]) > SEVERITIES.index(INFO)]
    for report in (*shown, None):
        if by_report[report]:
            lines += ["", report or "all reports together", *_told(by_report[report])]
            lines += _command(engines.get(report), by_report[report])
    if len(reports) > len(shown) and findings:
        lines += ["", "over all reports, by check (details in findings.parquet):", _counts(findings)]
    captures = tables["captures"].to_pylist()
    if captures:
        lines += ["", _inventory(captures)]
    return "\n".join([*lines, *_process_table(tables["processes"].to_pylist())])


def _rank(rows: Sequence[Row]) -> int:
    level = worst(row["severity"] for row in rows)
    return SEVERITIES.index(level) if level else -1


def _verdict(reports: Sequence[str], by_report: dict) -> str:
    levels = {report: worst(row["severity"] for row in by_report[report]) for report in reports}
    if len(reports) == 1:
        rows = by_report[reports[0]] + by_report[None]
        level = worst(row["severity"] for row in rows)
        first = next((row["message"] for row in rows if row["severity"] == level and level != INFO), "")
        return f"This capture {_TRUST[level]}" + (f": {first}" if first else "")
    counts = Counter(_TRUST[level] for level in levels.values())
    told = [f"{counts[text]} {text}" for text in dict.fromkeys(_TRUST.values()) if counts[text]]
    together = [row["message"] for row in by_report[None] if row["severity"] != INFO]
    more = f", each by itself; but not as a set: {together[0]}" if together else ""
    return f"Of {len(reports)} captures {', '.join(told)}{more}"


def _told(rows: Sequence[Row]) -> list[str]:
    lines = []
    for row in rows:
        evidence = f" ({row['evidence']})" if row["evidence"] else ""
        lines += _wrapped(f"  {row['severity']:5s} {row['check']}: {row['message']}{evidence}")
        lines += _wrapped(f"        {row['remedy']}") if row["remedy"] else []
    return lines


def _wrapped(text: str) -> list[str]:
    """A text in lines that fit a terminal; names and commands are not broken."""
    return textwrap.wrap(
        text,
        min(text_width(_WIDTH), _WIDTH),
        subsequent_indent=" " * 8,
        drop_whitespace=True,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _command(engine: str | None, rows: Sequence[Row]) -> list[str]:
    """How to capture again, where that is what helps."""
    if not any(row["severity"] != INFO and row["check"] in _CAPTURE_AGAIN for row in rows):
        return []
    return [f"  command and code to start from: python -m recipes capture-command {engine or 'ENGINE'}"]


def _counts(findings: Sequence[Row]) -> str:
    counts = Counter((row["check"], row["severity"]) for row in findings)
    rows = [[check, severity, f"{count:,}"] for (check, severity), count in counts.most_common()]
    return text_table(["check", "severity", "reports"], rows)


def _inventory(captures: Sequence[Row]) -> str:
    rows = [
        [shortened(row["report"], _NAME_WIDTH), "-" if row["rank"] is None else str(row["rank"]), row["engine"] or "-",
         f"{row['devices']}", f"{row['working_processes']} of {row['cuda_processes']}", f"{row['operations']:,}",
         "-" if row["window_ns"] is None else format_ms(row["window_ns"]), f"{row['whole_steps']} of {row['steps']}",
         f"{row['recorded_launches']:,} of {row['launches']:,}",
         "-" if row["overhead_share"] is None else format_share(row["overhead_share"])]
        for row in captures[:_REPORTS]
    ]  # fmt: skip
    head = ["report", "rank", "engine", "GPUs", "processes", "operations", "window ms", "whole steps", "launches",
            "profiler"]  # fmt: skip
    return text_table(head, rows)


def _process_table(processes: Sequence[Row]) -> list[str]:
    """The processes of the reports in which one is without work."""
    due = [row for row in processes if row["uses_cuda"] and not row["traced_elsewhere"]]
    odd = {row["report"] for row in due if not row["operations"]}
    rows = [
        [f"{shortened(row['report'], _NAME_WIDTH)} {row['pid']} {row['name'] or ''}".strip(),
         "yes" if row["uses_cuda"] else "no", _traced(row),
         *(f"{row[name]:,}" for name in ("api_calls", "operations", "ranges"))]
        for row in processes if row["report"] in odd
    ]  # fmt: skip
    if not rows:
        return []
    more = [f"and {len(rows) - _PROCESSES:,} more: see processes.parquet"] if len(rows) > _PROCESSES else []
    head = ["process", "uses CUDA", "traced", "CUDA calls", "operations", "ranges"]
    return ["", text_table(head, rows[:_PROCESSES]), *more]


def _traced(row: Row) -> str:
    if row["traced_elsewhere"]:
        return "by another capture"
    return "yes" if row["traced"] else "no"


def notebook_tables(tables: dict[str, pa.Table]) -> dict[str, pa.Table]:
    """What the notebook shows; steps are thinned out when there are many."""
    steps = tables["step_times"]
    every = max(-(-len(steps) // _NOTEBOOK_STEPS), 1)
    return {
        "files": tables["files"],
        "findings": tables["findings"],
        "captures": tables["captures"],
        "processes": tables["processes"],
        "records": tables["records"].slice(0, 20 * 200),
        "steps": steps.take(pa.array(range(0, len(steps), every), pa.int64())),
    }
