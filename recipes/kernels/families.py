"""Kernel families: which kind of work a GPU kernel does, read from its name.

The rules are data: `families.tsv` beside this file, ordered, first match wins. A user's own file goes in
front (`load_rules`). The packaged rules search the name in a plain spelling (`plain`), so that one rule covers
demangled, mangled and short names of nsys, kineto and c++filt; the user's rules search the name as printed.
Rules of a TSV file ignore case, so write `(?-i:Adam)` where it matters; rules of a JSON file mind it, as they
do in gputrc2graph. Of a name the packaged rules read the first 320 characters, the user's rules the first 1,024.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from recipes.base.errors import PackError
from recipes.base.rule_file import read_rule_file

PACKAGED = Path(__file__).with_name("families.tsv")

# Memory is everything that only moves or sets bytes, KV-cache writes included. An embedding lookup also only
# moves bytes, yet it is a layer of the model, and its backward pass adds: it stays in other. Rope and softmax
# are where the original six-family list had them.
GROUPS: dict[str, str] = {
    "communication": "communication",
    "attention": "attention",
    "gemm": "gemm",
    "optimizer": "optimizer",
    "norm": "norm/activation",
    "activation": "norm/activation",
    "rope": "norm/activation",
    "softmax": "norm/activation",
    "kv_cache": "memory",
    "copy": "memory",
    "memcpy": "memory",
    "memset": "memory",
    "embedding": "other",
    "sampling": "other",
    "moe": "other",
    "quantization": "other",
    "ssm": "other",
    "convolution": "other",
    "loss": "other",
    "reduction": "other",
    "elementwise": "other",
    "random": "other",
    "cuda_graph": "other",
    "other": "other",
}

LONGEST = 1024  # bounds the time that one hostile name can take
TELLING = 320  # the same for the packaged rules: in 2,000 names the word that decides ended before character 140
PROBES = ("a", "Z")  # a pattern that finds itself in both finds itself in nearly every name

RESERVED = re.compile(r"idle_.*|other_work|between_steps|.*_floor")  # parts of a step that are no family

LOCAL_SCOPE = re.compile(r"\(anonymous namespace\)::|<unnamed>::|\{anonymous\}::|_(?:INTERNAL|GLOBAL__N)_\w*?::")
RETURN_TYPE = re.compile(r"(?:static )?(?:void |(?:typename )?(?:std::)?enable_if<.*?>::type )")
CUTE_ARGUMENTS = re.compile(r"_object_at_|_tensorptr|_tensor0|(?<=TiledMMA)_|_CopyAtom_")  # layouts, after the name
MANGLED_PART = re.compile(r"L[a-zA-Z]?n?\d+E|[STE][0-9A-Z]*_|(\d+)(?=[A-Za-z_])")


class Match(NamedTuple):
    """The family of a name, its coarse group, and the rule that decided (`families.tsv:17 <pattern>`)."""

    family: str
    group: str
    rule: str


class Rule(NamedTuple):
    """One line of a rule file."""

    pattern: re.Pattern[str]
    family: str
    label: str


class Rules:
    """An ordered rule set; each distinct name is matched once and remembered."""

    def __init__(self, own: Iterable[Rule], user: Iterable[Rule] = ()) -> None:
        self._own, self._user = list(own), list(user)
        self._seen: dict[str, Match] = {}

    def classify(self, name: str) -> Match:
        """Return the match of the first rule that is found in `name`; without one: family other, rule ""."""
        match = self._seen.get(name)
        if match is None:
            match = self._seen[name] = self._match(name)
        return match

    def _match(self, name: str) -> Match:
        rule = _first(self._user, name[:LONGEST]) or _first(self._own, plain(name))
        family = rule.family if rule else "other"
        return Match(family, GROUPS.get(family, "other"), rule.label if rule else "")


def _first(rules: Iterable[Rule], text: str) -> Rule | None:
    return next((rule for rule in rules if rule.pattern.search(text)), None)


def plain(name: str) -> str:
    """Return the start of `name` without return type and unnamed scopes, and with mangling undone roughly."""
    text = name[:TELLING]
    if text.startswith("_Z"):
        text = _unmangle(text)
    elif text.startswith("kernel_cutlass_"):
        return CUTE_ARGUMENTS.split(text, maxsplit=1)[0]
    if "n" in text:
        text = LOCAL_SCOPE.sub("", text)
    found = RETURN_TYPE.match(text)
    return text[found.end() :] if found else text


def _unmangle(text: str) -> str:
    parts, at = [], 2
    while found := MANGLED_PART.search(text, at):
        at = found.end()
        if found[1]:
            end = at + int(found[1])
            parts.append(text[at:end] + ("<" if text[end : end + 1] == "I" else ""))
            at = end
    return "::".join(parts).replace("<::", "<")


def load_rules(user_file: Path | None = None) -> Rules:
    """Return the packaged rules, behind those of `user_file` if it is given.

    The file is in the shape of `families.tsv` (pattern and family are enough) or in gputrc2graph's JSON shape.
    Where that has several engines or models, `FILE:engine/model` selects one. A catch-all such as
    `".*": "misc"` at the end of a JSON list stands for "none of mine", so the packaged rules decide there.
    Raises PackError when the file cannot be read or has a bad rule.
    """
    user = _user_rules(user_file) if user_file is not None else ()
    return Rules(_packaged_rules(), user)


@cache
def _packaged_rules() -> tuple[Rule, ...]:
    # Compiling takes a tenth of a second, which of hundreds of small reports would be most of the time.
    return tuple(_table_rules(read_rule_file(PACKAGED), PACKAGED.name))


@cache
def packaged_labels() -> frozenset[str]:
    """The labels of the packaged rules, which tell them from a user's, whatever the user's file is called."""
    return frozenset(rule.label for rule in _table_rules(read_rule_file(PACKAGED), PACKAGED.name))


def check_rules(user_file: Path | None) -> None:
    """Raises PackError as `load_rules` does, in less time."""
    if user_file is not None:
        _user_rules(user_file)


def _user_rules(user_file: Path) -> list[Rule]:
    path, choice = user_file, ""
    if not path.exists() and ":" in str(path):
        start, _, choice = str(path).rpartition(":")
        path = Path(start)
    text = read_rule_file(path)
    if text.lstrip().startswith("{"):
        return list(_json_rules(text, path.name, choice))
    if choice:
        raise PackError(f"{path}: not JSON, so {choice!r} selects nothing; give the file name only")
    return list(_table_rules(text, path.name))


def _table_rules(text: str, file: str) -> Iterator[Rule]:
    for number, line in enumerate(text.split("\n"), 1):
        line = line.rstrip("\r")
        if not line.strip() or line.startswith(("#", "pattern\tfamily")):
            continue
        where = f"{file}:{number}"
        columns = line.split("\t")
        if len(columns) < 2:
            raise PackError(f"{where}: no tab in this line; write pattern, tab, family")
        rule = _rule(columns[0], columns[1], where, re.IGNORECASE | re.ASCII)
        if _finds_all(rule.pattern):
            raise PackError(f"{where}: {columns[0]!r} matches every name and hides all other rules; remove it")
        yield rule


def _rule(pattern: str, family: object, where: str, flags: int) -> Rule:
    if not pattern.strip():
        raise PackError(f"{where}: the pattern is empty; write a regular expression")
    if not isinstance(family, str) or not family.strip() or not family.strip().isprintable():
        raise PackError(f"{where}: the family is {family!r:.60}; write a name such as gemm")
    if RESERVED.fullmatch(family.strip()):
        raise PackError(f"{where}: the family {family.strip()!r} is the name of another part of a step; choose another")
    if not pattern.isprintable():
        raise PackError(f"{where}: control character in the pattern {pattern!r}; write an escape such as \\t")
    try:
        compiled = re.compile(pattern, flags)
    except (re.error, OverflowError, RecursionError) as error:
        raise PackError(f"{where}: {pattern!r} is not a regular expression: {error}; correct it") from error
    return Rule(compiled, family.strip(), f"{where} {pattern}")


def _finds_all(pattern: re.Pattern[str]) -> bool:
    return all(map(pattern.search, PROBES))


def _json_rules(text: str, file: str, choice: str) -> Iterator[Rule]:
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PackError(f"{file}: not valid JSON: {error}; correct it") from error
    where, table = _select(tree, file, choice)
    for number, (pattern, family) in enumerate(table.items(), 1):
        rule = _rule(pattern, family, f"{file}:{where}" if where else file, 0)
        if not _finds_all(rule.pattern):
            yield rule
        elif number < len(table):
            raise PackError(f"{rule.label}: matches every name and hides the rules after it; move it to the end")


def _select(tree: object, file: str, choice: str) -> tuple[str, dict]:
    tables = dict(_tables(tree, ""))
    if choice:
        tables = {key: table for key, table in tables.items() if key == choice}
    if len(tables) != 1:
        known = ", ".join(sorted(key for key, _ in _tables(tree, ""))) or "none"
        raise PackError(f"{file}: select one rule set with {file}:engine/model; rule sets: {known}")
    return next(iter(tables.items()))


def _tables(tree: object, path: str) -> Iterator[tuple[str, dict]]:
    if not isinstance(tree, dict):
        return
    inner = {key: value for key, value in tree.items() if isinstance(value, dict)}
    if len(inner) < len(tree):
        yield path, tree
    for key, value in inner.items() if len(inner) == len(tree) else ():
        yield from _tables(value, f"{path}/{key}" if path else key)
