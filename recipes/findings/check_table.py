"""The checks of findings.tsv: for each finding its severity, when it is looked for, by which function, its remedy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from recipes.base.rule_file import packaged_rows

FILE = Path(__file__).with_name("findings.tsv")


@dataclass(frozen=True)
class Check:
    """One row: `functions` by stage, as `package.module:function`; `needs` is WORK, NO_WORK or empty for both;
    `explained_by` the findings that say it all, so that this one is left out beside them."""

    id: str
    severity: str
    needs: str
    functions: dict[str, str]
    explained_by: frozenset[str]
    remedy: str


@cache
def checks() -> dict[str, Check]:
    """All checks by id, in the order in which their findings are told."""
    return {row["id"]: _check(row) for row in packaged_rows(FILE)}


def _check(row: dict[str, str]) -> Check:
    stages, functions = row["stage"].split(","), row["function"].split(",")
    return Check(
        id=row["id"],
        severity=row["severity"],
        needs=row["needs"],
        functions=dict(zip(stages, functions, strict=True)),
        explained_by=frozenset(filter(None, row["explained_by"].split(","))),
        remedy=row["remedy"],
    )
