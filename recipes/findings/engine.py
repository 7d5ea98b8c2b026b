"""Which engine a report is of, so that a remedy can be the engine's own."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from recipes.capture.capture import Capture
from recipes.engines.engines import engines
from recipes.report import schema
from recipes.report.report import Report

#: No engine is known.
ANY = "*"


def engine_of(capture: Capture) -> str:
    """The name of the engine, by the first sign that holds; ANY when none does."""
    texts = {
        "rule": list(capture.steps.rules.values()),
        "process": _process_names(capture.report),
        "command": _command(capture.report),
        "kernel": capture.work.names,
    }
    return next((engine for engine, where, pattern in _signs() if _any(pattern, texts[where])), ANY)


def _any(pattern: re.Pattern[str], texts: Iterable[str]) -> bool:
    return any(pattern.search(text) for text in texts)


def _process_names(report: Report) -> list[str]:
    names = [report.read(schema.PROCESSES, ["name"])["name"].to_pylist()]
    names.append(report.read(schema.THREADS, ["name"])["name"].combine_chunks().dictionary.to_pylist())
    return [name for some in names for name in some if name]


def _command(report: Report) -> list[str]:
    """The words of the traced command; they are looked at and never shown, since keys can be among them."""
    pairs = report.pairs(schema.CAPTURE_INFO)
    return [value for name, value in pairs if re.search(r"^PROCESS_\d+:(COMMAND$|ARGUMENT_)", name)]


@cache
def _signs() -> list[tuple[str, str, re.Pattern[str]]]:
    found = [(sign.order, name, sign) for name, engine in engines().items() for sign in engine.detection]
    in_order = sorted(found, key=lambda entry: entry[0])
    return [(name, sign.where, re.compile(sign.pattern, re.IGNORECASE)) for _, name, sign in in_order]
