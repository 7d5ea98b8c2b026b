"""What a phase of an LLM is called: rules that read phase, batch and tokens from the text of an NVTX range.

The rules are data: those of engines in recipes/engines/, others in `phases.tsv` beside this file; a user's own file
goes in front. In each process the first rule that two ranges match is taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from recipes.base.errors import PackError
from recipes.base.rule_file import packaged_rows, read_rule_file
from recipes.engines.engines import RangeRule, engines

_GENERIC = Path(__file__).with_name("phases.tsv")
#: A rule is taken when at least so many ranges match: a single one may have the name of a step by chance.
ENOUGH = 2
USER_RULE = "user"
#: Phases that read all weights once for one token a sequence (several with speculation), and phases of much compute.
DECODE_PHASES = ("decode", "step", "generation")
COMPUTE_PHASES = ("prefill", "train step")
#: So much of a text is read: engines' texts are far shorter, and patterns of users may be slow on long ones.
LONGEST = 300
# Names of phases that mean something else in the tables.
_RESERVED = ("all", "outside")
# Larger numbers are no counts, and would not fit into a table.
_DIGITS = 15


@dataclass(frozen=True)
class Meaning:
    """What the text of a range says. Numbers it does not carry are None."""

    phase: str
    batch: int | None = None
    tokens: int | None = None
    kv_tokens: int | None = None
    number: int | None = None


@dataclass(frozen=True)
class Line:
    """One line of a rule file: the pattern of a whole text, the phase or how to work it out, the NVTX domain."""

    pattern: re.Pattern[str]
    phase: str
    domain: str


@dataclass(frozen=True)
class PhaseRule:
    """The lines of one name; the first that matches decides."""

    name: str
    lines: tuple[Line, ...]

    def meaning(self, text: str, domain: str = "") -> Meaning | None:
        """What a range's text says by this rule; None when it is no step by this rule."""
        text = text[:LONGEST]
        for line in self.lines:
            if line.domain and line.domain.lower() != domain.lower():
                continue
            match = line.pattern.fullmatch(text)
            if match:
                return _meaning(line, match.groupdict())
        return None


def _meaning(line: Line, groups: dict[str, str | None]) -> Meaning | None:
    digits = {name: text for name, text in groups.items() if text and text.isdecimal() and len(text) <= _DIGITS}
    numbers = {name: int(text) for name, text in digits.items()}
    context, generation = numbers.get("context", 0), numbers.get("generation", 0)
    phase = line.phase
    if phase == "<requests>":
        phase = {(True, False): "prefill", (False, True): "decode", (True, True): "mixed"}.get(
            (context > 0, generation > 0), ""
        )
    elif phase == "<phase>":
        phase = (groups.get("phase") or "").lower()
    if not phase:
        return None
    if phase in _RESERVED:
        phase += " phase"
    return Meaning(
        phase,
        batch=numbers.get("batch", context + generation or None),
        tokens=numbers.get("tokens", _added(numbers, "context_tokens", "generation_tokens")),
        kv_tokens=numbers.get("kv_tokens", _added(numbers, "context_kv", "generation_kv")),
        number=numbers.get("step"),
    )


def _added(numbers: dict[str, int], *names: str) -> int | None:
    """The sum of what is there; None when nothing is."""
    found = [numbers[name] for name in names if name in numbers]
    return sum(found) if found else None


def load_phase_rules(user_file: Path | None = None) -> list[PhaseRule]:
    """The packaged rules, behind the user's if a file is given. PackError with the place of a bad line.

    A user's file has lines of pattern, phase and, if need be, NVTX domain, separated by tabs. They make one rule.
    """
    own = _grouped(_line(one.rule, one.rule, one.pattern, one.phase, one.domain) for one in packaged_lines())
    if user_file is None:
        return own
    rows = ((USER_RULE, *row) for row in _rows(read_rule_file(user_file), user_file.name))
    lines = [_line(where, rule, *columns) for rule, where, *columns in rows]
    if not lines:
        raise PackError(f"{user_file}: no rules in this file; write lines of pattern, tab, phase")
    return [*_grouped(lines), *own]


def packaged_lines() -> list[RangeRule]:
    """The lines of the pack's own rules, of engines and generic, in the order in which they are tried."""
    generic = [RangeRule(order=int(row.pop("order")), **row) for row in packaged_rows(_GENERIC)]
    of_engines = [line for engine in engines().values() for line in engine.ranges.rules]
    return sorted([*generic, *of_engines], key=lambda line: line.order)


def _rows(text: str, file: str) -> Iterator[list[str]]:
    """The place and the columns of each line with a rule."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith(("#", "pattern\t")):
            yield [f"{file}:{number}", *line.split("\t")]


def _line(where: str, rule: str, pattern: str = "", phase: str = "", domain: str = "", *_: str) -> tuple[str, Line]:
    if not pattern.strip() or not phase.strip():
        raise PackError(f"{where}: no pattern or no phase in this line; write pattern, tab, phase")
    if phase.strip() in _RESERVED:
        raise PackError(f"{where}: {phase.strip()!r} means something else in the tables; choose another phase")
    try:
        compiled = re.compile(pattern, re.IGNORECASE)
    except (re.error, OverflowError, RecursionError) as error:
        raise PackError(f"{where}: {pattern!r} is not a regular expression: {error}; correct it") from None
    return rule, Line(compiled, phase.strip(), domain.strip())


def _grouped(lines: Iterable[tuple[str, Line]]) -> list[PhaseRule]:
    """Rules in order of their first line."""
    rules: dict[str, list[Line]] = {}
    for rule, line in lines:
        rules.setdefault(rule, []).append(line)
    return [PhaseRule(name, tuple(found)) for name, found in rules.items()]
