"""What came of the reports of a run: gathered as it arrives, put together again in an order of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from recipes.base.errors import PackError
from recipes.base.tables import Table
from recipes.base.terminal import Progress, plain, progress
from recipes.run.spill import Spill

#: The status of a report that gave nothing.
UNREADABLE = "unreadable"
_BY_REPORT = (("report", "ascending"),)


@dataclass(frozen=True)
class Outcome:
    """What came of one report: its row of FILES, and those of its tables that are not on disk.

    `number` is its place among the inputs, from 1.
    """

    number: int
    file: dict[str, Any]
    tables: dict[str, pa.Table] = field(default_factory=dict)
    #: How the steps were found and what they cover, in words; empty without GPU work.
    steps: str = ""
    #: What its analysis tells the summary beyond tables.
    told: Any = None
    #: Why it could not be published, which ends the run; empty when it could.
    failure: str = ""


def collect(
    arriving: Iterable[Outcome], count: int, spill: Spill | None, warn: Callable[[str], None], *, strict: bool
) -> list[Outcome]:
    """The outcomes in the order of the inputs. A report that failed is told at once, in one line.

    PackError when all failed or, if strict, one did; and when one could not be published.
    """
    outcomes: list[Outcome] = []
    failures, told = [], 0
    shown = Progress(count)
    if count > 1:
        shown.show(0, 0)
    for outcome in arriving:
        if outcome.failure:
            raise PackError(outcome.failure)
        if spill and outcome.tables:
            outcome = replace(outcome, tables=spill.keep(outcome.number, outcome.tables))
        outcomes.append(outcome)
        if outcome.file["status"] == UNREADABLE:
            failures.append(outcome.file["message"])
        # The last one waits as long as it may be the error that the run ends with.
        may_fail = strict or len(failures) == len(outcomes)
        for message in failures[told : len(failures) - may_fail]:
            progress("")
            warn(plain(message))
            told += 1
        if count > 1:
            shown.show(len(outcomes), len(failures))
    if failures and (strict or len(failures) == count):
        raise PackError(failures[-1])
    return sorted(outcomes, key=lambda outcome: outcome.number)


class Tables(dict[str, pa.Table]):
    """Tables by name. Those of the reports are put together when they are asked for; long ones can be had in pieces."""

    def __init__(self, makers: Mapping[str, Callable[[], Iterator[pa.Table]]]) -> None:
        self._makers = makers

    def __missing__(self, name: str) -> pa.Table:
        self[name] = pa.concat_tables(self._makers[name]())
        return self[name]

    def pieces(self, name: str) -> Iterator[pa.Table]:
        """A table's rows, some at a time, so that they are never together; KeyError for a name that is none."""
        return iter([self[name]]) if name in self else self._makers[name]()


def pieces(table: Table, outcomes: list[Outcome], spill: Spill | None) -> Iterator[pa.Table]:
    """One table of all reports, in its order, piece by piece; the first is empty."""
    yield table.empty()
    if table.sort[:1] == _BY_REPORT:
        # Reports are in order each, and so are all when their names are.
        yield from _of_reports(table, sorted(outcomes, key=lambda outcome: outcome.file["report"]), spill)
    else:
        yield table.sorted(pa.concat_tables([table.empty(), *_of_reports(table, outcomes, spill)]))


def _of_reports(table: Table, outcomes: list[Outcome], spill: Spill | None) -> Iterator[pa.Table]:
    for outcome in outcomes:
        if table.name in outcome.tables:
            yield outcome.tables[table.name]
        elif spill is not None:
            yield from spill.read(outcome.number, table.name)
