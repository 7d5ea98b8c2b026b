"""Which engine a report is of, so that a remedy can be the engine's own."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

import numpy as np
import pyarrow as pa

from recipes.capture.capture import Capture
from recipes.engines.engines import engines
from recipes.events.devices import pid_of
from recipes.report import schema
from recipes.report.report import Report, numbers

#: No engine is known.
ANY = "*"


def engine_of(capture: Capture) -> str:
    """The name of the engine, by the first sign that holds; ANY when none does."""
    texts = {
        "rule": list(capture.steps.rules.values()),
        "process": _process_names(capture),
        "command": _command(capture.report),
        "kernel": capture.work.names,
    }
    return next((engine for engine, where, pattern in _signs() if _any(pattern, texts[where])), ANY)


def _any(pattern: re.Pattern[str], texts: Iterable[str]) -> bool:
    return any(pattern.search(text) for text in texts)


def _process_names(capture: Capture) -> list[str]:
    """The names of the processes that were traced or worked, and of their threads; others are of other jobs."""
    own = {process.pid: process.name for process in capture.processes if process.traced or process.working}
    threads = capture.report.read(schema.THREADS, ["global_tid", "name"])
    of_own = np.isin(pid_of(numbers(threads["global_tid"], 0)), list(own))
    names = threads["name"].combine_chunks().filter(pa.array(of_own)).unique().to_pylist()
    return [name for name in (*own.values(), *names) if name]


def _command(report: Report) -> list[str]:
    """The words of the traced command; they are looked at and never shown, since keys can be among them."""
    pairs = report.pairs(schema.CAPTURE_INFO)
    return [value for name, value in pairs if re.search(r"^PROCESS_\d+:(COMMAND$|ARGUMENT_)", name)]


@cache
def _signs() -> list[tuple[str, str, re.Pattern[str]]]:
    found = [(sign.order, name, sign) for name, engine in engines().items() for sign in engine.detection]
    in_order = sorted(found, key=lambda entry: entry[0])
    return [(name, sign.where, re.compile(sign.pattern, re.IGNORECASE)) for _, name, sign in in_order]
