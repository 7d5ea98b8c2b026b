"""What to do about a finding, and which is told first: data in remedies.tsv, an engine's own remedies in its file."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from recipes.base.rule_file import packaged_rows
from recipes.engines.engines import engines
from recipes.findings.engine import ANY
from recipes.findings.finding import SEVERITIES, Finding


def remedy(check: str, engine: str = ANY) -> str:
    """The remedy for a check with an engine; that for any engine where it has none of its own. KeyError without one."""
    own = engines()[engine].remedies if engine in engines() else {}
    return own.get(check) or remedies()[check, ANY]


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """The worst first, and of these causes before what follows from them, as the checks stand in remedies.tsv."""
    place = {check: number for number, check in enumerate(dict.fromkeys(check for check, _ in remedies()))}
    return sorted(findings, key=lambda finding: (-SEVERITIES.index(finding.severity), place[finding.check]))


@cache
def remedies() -> dict[tuple[str, str], str]:
    """All remedies that hold for any engine, by check and ANY."""
    rows = packaged_rows(Path(__file__).with_name("remedies.tsv"))
    return {(row["check"], row["engine"]): row["remedy"] for row in rows}
