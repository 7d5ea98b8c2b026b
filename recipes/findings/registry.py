"""Running the checks of findings.tsv, and what is told of what they find.

A new check is a function that takes the subject of its stage and yields findings (`make`, `cannot_tell`), and a row in
findings.tsv that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Any

from recipes.base.terminal import plain
from recipes.findings.check_table import checks
from recipes.findings.engine import ANY
from recipes.findings.finding import INFO, SEVERITIES, Finding
from recipes.findings.remedies import remedy

#: When checks run: for the quality line of every recipe, so they cost next to nothing; for llm_capture_check; on its
#: reports as a set; for the numbered findings of llm_idle_gaps and llm_decode_floor.
QUALITY, CAPTURE, REPORTS, IDLE, FLOOR = STAGES = ("quality", "capture", "reports", "idle", "floor")
#: What a check can need: GPU work in the report, or a report without any.
WORK, NO_WORK = "work", "no work"


def find(stage: str, subject: Any, *, holds: str = WORK) -> list[Finding]:
    """What the checks of a stage find on their subject, which holds WORK or NO_WORK, and what they cannot tell."""
    names = (
        check.functions[stage] for check in checks().values() if stage in check.functions and check.needs in ("", holds)
    )
    return [finding for name in dict.fromkeys(names) for finding in function_of(name)(subject)]


def function_of(name: str) -> Callable[[Any], Iterator[Finding]]:
    """The function behind a name of findings.tsv: `package.module:function`."""
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)


def make(check: str, message: str, evidence: str = "", *, engine: str = ANY, **fields: Any) -> Finding:
    """A finding with the severity and remedy of its row, unless `fields` (others of Finding) say something else.

    Texts become plain lines whatever names are in them. KeyError for a check without a row.
    """
    known = {"severity": checks()[check].severity, "remedy": remedy(check, engine), **fields}
    return Finding(id=check, message=plain(message), evidence=plain(evidence), **known)


def cannot_tell(check: str, why: str) -> Finding:
    """That a check could not look, and why."""
    return make(check, f"cannot tell: {why}", severity=INFO, remedy="", observed=False)


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """The worst first, and of these causes before what follows from them, as they stand in findings.tsv."""
    place = {check: number for number, check in enumerate(checks())}
    return sorted(findings, key=lambda finding: (-SEVERITIES.index(finding.severity), place[finding.id]))


def without_effects(findings: list[Finding]) -> list[Finding]:
    """The findings without those that another one explains, and without doubts about what was found after all."""
    found = {finding.id for finding in findings if finding.observed}
    return [
        finding
        for finding in findings
        if not checks()[finding.id].explained_by & found and (finding.observed or finding.id not in found)
    ]
