"""What to do about a finding: the engine's own remedy, in its file, or the one of the finding's row in findings.tsv."""

from __future__ import annotations

from recipes.engines.engines import engines
from recipes.findings.check_table import checks
from recipes.findings.engine import ANY


def remedy(check: str, engine: str = ANY) -> str:
    """The remedy for a check with an engine; that for any engine where it has none of its own. KeyError without one."""
    own = engines()[engine].remedies if engine in engines() else {}
    return own.get(check) or checks()[check].remedy
