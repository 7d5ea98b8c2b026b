"""The answers' tables, declared where they are worked out: in the comment of each SQL file."""

from __future__ import annotations

import re
from pathlib import Path

from recipes.base.tables import TYPES, Column, Table

SQL_FOLDER = Path(__file__).parent / "sql"
_ROW = re.compile(r"^-- A row: (.+)$", re.MULTILINE)
_COLUMN = re.compile(rf"^--   (\w+) +({'|'.join(TYPES)}) +(.+)$", re.MULTILINE)
_NAMES = (
    "overview", "family_shares", "slow_ranks", "slow_hosts", "step_percentiles", "idle_causes", "doubtful_captures",
    "capture_findings", "regressions",
)  # fmt: skip


def sql_of(name: str) -> str:
    """What a file in sql/ holds."""
    return (SQL_FOLDER / f"{name}.sql").read_text(encoding="utf-8")


def _table(name: str) -> Table:
    sql = sql_of(name)
    return Table(name, _ROW.findall(sql)[0], tuple(Column(*told) for told in _COLUMN.findall(sql)))


QUESTIONS = tuple(map(_table, _NAMES))
