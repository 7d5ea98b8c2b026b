"""What Nsight itself complains of."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from recipes.checks.finding import ERROR, INFO, WARN, Finding
from recipes.checks.subject import Subject
from recipes.report import schema

# Nsight's severities (table ENUM_DIAGNOSTIC_SEVERITY_LEVEL); the others are information.
_BY_NSIGHT = {2: WARN, 3: ERROR}
_LENGTH = 160


def diagnostics(subject: Subject) -> Iterator[Finding]:
    """Messages of Nsight's that say records are missing or tracing failed, alike ones as one."""
    rows = subject.capture.report.read(schema.DIAGNOSTICS, ["severity", "text"])
    texts = zip(rows["severity"].fill_null(0).to_pylist(), rows["text"].fill_null("").to_pylist(), strict=True)
    counts = Counter((_severity(severity, text), _alike(text)) for severity, text in texts)
    for (severity, text), count in counts.items():
        if severity != INFO:
            times = f"{count} times" if count > 1 else "once"
            yield subject.found("diagnostics", severity, f"Nsight says: {text}", times)


def _severity(severity: int, text: str) -> str:
    for known, pattern in _rules():
        if pattern.search(text):
            return known
    return _BY_NSIGHT.get(severity, INFO)


def _alike(text: str) -> str:
    """A message without the numbers that differ from process to process, in one short line."""
    line = " ".join(re.sub(r"\d+", "N", text).split())
    return line if len(line) <= _LENGTH else f"{line[:_LENGTH]}..."


@cache
def _rules() -> list[tuple[str, re.Pattern[str]]]:
    lines = Path(__file__).with_name("diagnostics.tsv").read_text(encoding="utf-8").splitlines()
    rows = csv.DictReader((line for line in lines if not line.startswith("#")), delimiter="\t", quoting=csv.QUOTE_NONE)
    return [(row["severity"], re.compile(row["pattern"], re.IGNORECASE)) for row in rows]
