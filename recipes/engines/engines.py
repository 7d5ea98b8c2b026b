"""What is known of each engine, one file each: how it is told apart, names its steps and is captured; its remedies.

An engine is added by a file NAME.json in this folder; its keys are the fields of the classes below, `Engine` at the
top. The `order` numbers of signs and of rules are among those of all engines: the lowest that holds is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from string import Template

from recipes.base.errors import PackError
from recipes.base.typed_json import read_typed

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Sign:
    """What tells that a report is of the engine: a regular expression that is searched for, whatever the case.

    `where`: rule (name of one that gave the steps), process (name of one or of a thread), command (a word of the traced
    one) or kernel (name of one).
    """

    order: int
    where: str  # rule | process | command | kernel
    pattern: str
    source: str


@dataclass(frozen=True)
class RangeRule:
    """One line of a rule that reads a phase from a range's text; phases.tsv beside steps/phases.py says how."""

    order: int  # one number for all lines of a rule
    rule: str
    pattern: str  # of the whole text
    phase: str
    source: str
    example: str
    not_example: str
    domain: str = ""  # the only NVTX domain that it is for


@dataclass(frozen=True)
class Text:
    """A sentence, and the code that belongs to it: a file in code/, or none."""

    how: str = ""
    code: str = ""


@dataclass(frozen=True)
class Ranges(Text):
    """How steps get their names, such names with their phases, and the rules that read them."""

    examples: Mapping[str, str] = field(default_factory=dict)
    rules: tuple[RangeRule, ...] = ()


@dataclass(frozen=True)
class HowToCapture:
    """The command that captures. Texts and words here and in `ranges` may hold the $ words that `values` fills in."""

    order: int  # among the engines that are shown
    program: tuple[str, ...]  # what is started, where the user gives nothing
    launchers: tuple[str, ...]  # the first one is taken for several ranks
    window: Text
    sources: tuple[str, ...]
    notes: tuple[str, ...] = ()
    program_of_ranks: tuple[str, ...] = ()  # more words for it with several ranks
    program_launched: tuple[str, ...] = ()  # words before it under a launcher
    launcher_options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    arguments: tuple[tuple[str, ...], ...] = ()  # for any program of this engine, unless it has them
    flags: tuple[str, ...] = ()  # of `nsys profile`, beyond those that are always used
    environment: tuple[tuple[str, str, str], ...] = ()  # name, value, why
    first: int = 20  # the first step of the window, where one has to be named

    @property
    def starts_ranks_itself(self) -> bool:
        """Whether one command starts all ranks, so that one report holds them all."""
        return self.launchers[0] == "none"


_NOT_CAPTURED = HowToCapture(0, (), (), Text(), ())


@dataclass(frozen=True)
class Engine:
    """One engine. Of some only the names of steps are known."""

    title: str
    detection: tuple[Sign, ...] = ()
    ranges: Ranges = Ranges()
    capture: HowToCapture = _NOT_CAPTURED
    remedies: Mapping[str, str] = field(default_factory=dict)  # by check, in place of those for any engine

    @property
    def names_first(self) -> bool:
        """Whether a window is opened at a step that is named, and not when it is asked for."""
        how = self.capture
        words = [value for _, value, _ in how.environment] + [word for words in how.arguments for word in words]
        texts = [text for part in (how.window, self.ranges) for text in (part.how, code_of(part.code))]
        return any(mark in text for text in (*words, *texts) for mark in ("$first", "$last", "$end"))


@cache
def engines() -> dict[str, Engine]:
    """All engines by name. PackError with the place of what is wrong in a file."""
    return {path.stem: read_typed(path, Engine) for path in sorted(FOLDER.glob("*.json"))}


@cache
def captured_engines() -> dict[str, Engine]:
    """Those that there is a command to capture with, in the order in which they are shown."""
    known = [(name, engine) for name, engine in engines().items() if engine.capture is not _NOT_CAPTURED]
    return dict(sorted(known, key=lambda pair: pair[1].capture.order))


def engine_of(name: str) -> Engine:
    """The engine of a name. PackError for one that is unknown, or that no command captures."""
    if name not in captured_engines():
        raise PackError(f"no advice for an engine {name!r}; there are {', '.join(captured_engines())}")
    return captured_engines()[name]


@dataclass(frozen=True)
class Launcher:
    """How one process a rank is started: words with $ranks and $environment, and the variable that tells the rank."""

    name: str
    rank_variable: str
    command: tuple[str, ...]


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


def values(how: HowToCapture, steps: int, first: int, ranks: int) -> dict[str, str]:
    """What the $ words of texts and words stand for."""
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
        "barrier": f"\n{barrier}" if ranks > 1 and not how.starts_ranks_itself else "",
    }


def filled(text: str, known: Mapping[str, str]) -> str:
    """The text with its $ words replaced; other dollars stay."""
    return Template(text).safe_substitute(known)
