"""What to do about a finding: the remedy of its row in findings.tsv, or the engine's own in remedies.tsv."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from recipes.base.rule_file import packaged_rows
from recipes.findings.check_table import checks
from recipes.findings.engine import ANY


def remedy(check: str, engine: str = ANY) -> str:
    """The remedy for a check with an engine; that for any engine where it has none of its own. KeyError without one."""
    return engine_remedies().get((check, engine)) or checks()[check].remedy


@cache
def engine_remedies() -> dict[tuple[str, str], str]:
    """The remedies of engines, by check and engine."""
    rows = packaged_rows(Path(__file__).with_name("remedies.tsv"))
    return {(row["check"], row["engine"]): row["remedy"] for row in rows}
