"""How each engine opens the window of a capture and writes the ranges that name its steps. In `engines.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from string import Template

from recipes.base.errors import PackError

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Text:
    """A sentence, the code that belongs to it (a file in code/, or none), and names of ranges with their phases."""

    how: str
    code: str = ""
    examples: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Engine:
    """One engine. Texts and words may hold $steps, $first, $last, $end, $ranks, $rank_list and $rank_list_of_config."""

    name: str
    title: str
    program: tuple[str, ...]  # what is started, where the user gives nothing
    launchers: tuple[str, ...]  # the first one is taken for several ranks
    window: Text
    ranges: Text
    notes: tuple[str, ...]
    sources: tuple[str, ...]
    program_of_ranks: tuple[str, ...] = ()  # more words for it with several ranks
    program_launched: tuple[str, ...] = ()  # words before it under a launcher
    launcher_options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    arguments: tuple[tuple[str, ...], ...] = ()  # for any program of this engine, unless it has them
    flags: tuple[str, ...] = ()  # of `nsys profile`, beyond those that are always used
    environment: tuple[tuple[str, str, str], ...] = ()  # name, value, why
    first: int = 20  # the first step of the window, where one has to be named

    @property
    def names_first(self) -> bool:
        """Whether a window is opened at a step that is named, and not when it is asked for."""
        words = [value for _, value, _ in self.environment] + [word for words in self.arguments for word in words]
        texts = [text for part in (self.window, self.ranges) for text in (part.how, code_of(part.code))]
        return any(mark in text for text in (*words, *texts) for mark in ("$first", "$last", "$end"))

    @property
    def starts_ranks_itself(self) -> bool:
        """Whether one command starts all ranks, so that one report holds them all."""
        return self.launchers[0] == "none"


@dataclass(frozen=True)
class Launcher:
    """How one process a rank is started: words with $ranks and $environment, and the variable that tells the rank."""

    name: str
    rank_variable: str
    command: tuple[str, ...]


@cache
def engines() -> dict[str, Engine]:
    """All engines by name, in the order in which they are shown."""
    found = json.loads((FOLDER / "engines.json").read_text(encoding="utf-8"))
    return {name: _engine(name, entry) for name, entry in found.items()}


def engine_of(name: str) -> Engine:
    """The engine of a name. PackError for an unknown one."""
    if name not in engines():
        raise PackError(f"no advice for an engine {name!r}; there are {', '.join(engines())}")
    return engines()[name]


def _engine(name: str, entry: dict) -> Engine:
    texts = {part: Text(**entry.pop(part)) for part in ("window", "ranges")}
    return Engine(name=name, **texts, **{key: _frozen(value) for key, value in entry.items()})


def _frozen(value):
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    return {key: _frozen(inner) for key, inner in value.items()} if isinstance(value, dict) else value


@cache
def launchers() -> dict[str, Launcher]:
    """All launchers by name."""
    rows = (line.split("\t") for line in table_lines("launchers.tsv"))
    return {name: Launcher(name, variable, tuple(command.split())) for name, variable, command, _ in rows}


def table_lines(name: str) -> list[str]:
    """The lines of a table in this folder, without its head and its comments."""
    lines = (FOLDER / name).read_text(encoding="utf-8").splitlines()
    return [line for line in lines[1:] if line and not line.startswith("#")]


def code_of(name: str) -> str:
    """The text of a file in code/; empty for no name."""
    return (FOLDER / "code" / name).read_text(encoding="utf-8") if name else ""


def values(engine: Engine, steps: int, first: int, ranks: int) -> dict[str, str]:
    """What the $ words of an engine stand for."""
    barrier = code_of("barrier.txt").rstrip("\n")
    ranks_named = [str(rank) for rank in range(ranks)]
    return {
        "steps": str(steps),
        "first": str(first),
        "last": str(first + steps - 1),
        "end": str(first + steps),
        "ranks": str(ranks),
        "rank_list": " ".join(ranks_named),
        "rank_list_of_config": ",".join(ranks_named),
        "barrier": f"\n{barrier}" if ranks > 1 and not engine.starts_ranks_itself else "",
    }


def filled(text: str, known: Mapping[str, str]) -> str:
    """The text with its $ words replaced; other dollars stay."""
    return Template(text).safe_substitute(known)
