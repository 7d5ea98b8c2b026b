"""What Nsight itself complains of."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from recipes.base.rule_file import packaged_rows
from recipes.base.units import format_count
from recipes.findings.finding import INFO, WARN, Finding
from recipes.findings.registry import WORK, cannot_tell
from recipes.findings.subject import Subject
from recipes.report import schema

# Of Nsight's severities (table ENUM_DIAGNOSTIC_SEVERITY_LEVEL) the one that counts where no rule knows the text.
_ERROR = 3
#: What the rules call a message that says why there is no GPU work, where there is none.
_REASON = "reason"
#: Messages are cut to so many characters; so many kinds of them are told.
_LENGTH, _SHOWN = 120, 3
# Numbers, addresses and paths differ from process to process, and a path can tell what is nobody's business.
# Versions of two numbers stay.
_PARTICULARS = re.compile(r"(?:[\w.~-]*/)+[\w.~-]*|0x[0-9a-fA-F]+|\d+(?:\.\d+){2,}|(?<![\d.])\d+(?!\.?\d)")


def diagnostics(subject: Subject) -> Iterator[Finding]:
    """Messages of Nsight's that say records are missing or tracing failed, as one finding."""
    if not subject.capture.report.has(schema.DIAGNOSTICS):
        yield cannot_tell("diagnostics", "the export has no messages of Nsight's")
        return
    rows = subject.capture.report.read(schema.DIAGNOSTICS, ["severity", "text"])
    works = subject.holds == WORK
    texts = zip(rows["severity"].fill_null(0).to_pylist(), rows["text"].fill_null("").to_pylist(), strict=True)
    counts = Counter(_alike(text) for severity, text in texts if judged(severity, text, working=works) == WARN)
    if counts:
        told = "; ".join(text for text, _ in counts.most_common(_SHOWN))
        more = f"; and {len(counts) - _SHOWN} more kinds" if len(counts) > _SHOWN else ""
        said, evidence = f"Nsight says: {told}{more}", format_count(counts.total(), "message")
        yield subject.found("diagnostics", said, evidence, numbers={"messages": counts.total()})


def judged(severity: int, text: str, *, working: bool = True) -> str:
    """`warn` or `info`, by the rules of diagnostics.tsv, else by the severity that Nsight gives; `working` says that
    the report has GPU work."""
    for known, pattern in _rules():
        if pattern.search(text):
            return (INFO if working else WARN) if known == _REASON else known
    return WARN if severity == _ERROR else INFO


def _alike(text: str) -> str:
    """A message without particulars, in one short line."""
    line = " ".join(_PARTICULARS.sub("...", text).split())
    return line if len(line) <= _LENGTH else f"{line[:_LENGTH]}..."


@cache
def _rules() -> list[tuple[str, re.Pattern[str]]]:
    rows = packaged_rows(Path(__file__).with_name("diagnostics.tsv"))
    return [(row["severity"], re.compile(row["pattern"], re.IGNORECASE)) for row in rows]
