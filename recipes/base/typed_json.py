"""JSON as dataclasses, checked: the pack's own files say at once, in one line, what is wrong in them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from recipes.base.errors import PackError

T = TypeVar("T")
_WORDS = {str: "a text", int: "a whole number", tuple: "a list", dict: "an object"}


def read_typed(path: Path, kind: type[T]) -> T:
    """The dataclass that a file holds. PackError with the place of what does not fit: keys, types, JSON itself."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise PackError(f"{path}:{error.lineno}: this is not JSON: {error.msg}; correct it") from None
    return _typed(kind, value, path.name)


def _typed(kind: Any, value: Any, where: str) -> Any:
    """A value as what its annotation says: an object is a dataclass or a mapping, a list is a tuple."""
    shape: Any = dict if is_dataclass(kind) else {tuple: tuple, Mapping: dict}.get(get_origin(kind), kind)
    if type(value) is not (list if shape is tuple else shape):
        raise PackError(f"{where}: {str(value)[:60]!r} is not {_WORDS[shape]}; correct it")
    if isinstance(value, dict) and is_dataclass(kind):
        return cast(Any, kind)(**_checked_fields(kind, value, where))
    inner = get_args(kind)
    if isinstance(value, dict):
        return {key: _typed(inner[1], one, f"{where}: {key}") for key, one in value.items()}
    if shape is not tuple:
        return value
    kinds = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
    if len(kinds) != len(value):
        raise PackError(f"{where}: {len(value)} entries instead of {len(kinds)}; correct it")
    return tuple(_typed(*pair, f"{where}[{place}]") for place, pair in enumerate(zip(kinds, value, strict=True)))


def _checked_fields(kind: Any, value: dict[str, Any], where: str) -> dict[str, Any]:
    known = {one.name for one in fields(kind)}
    needed = {one.name for one in fields(kind) if one.default is MISSING and one.default_factory is MISSING}
    if unknown := sorted(value.keys() - known):
        raise PackError(f"{where}: no such key as {unknown[0]!r}; there are {', '.join(sorted(known))}")
    if missing := sorted(needed - value.keys()):
        raise PackError(f"{where}: {missing[0]!r} is missing; add it")
    hints = _hints(kind)
    return {key: _typed(hints[key], one, f"{where}: {key}") for key, one in value.items()}


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)
