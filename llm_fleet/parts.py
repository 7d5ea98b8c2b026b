"""The recipes whose analyses are put together here: all others of the pack, found by name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import pyarrow as pa

from recipes.base.errors import PackError
from recipes.base.pack import recipe_names
from recipes.capture.capture import Capture
from recipes.run.options import Add
from recipes.run.recipe import Recipe, load_recipe

NAME = "llm_fleet"


@lru_cache(maxsize=1)
def parts() -> dict[str, Recipe]:
    """All recipes of the pack but this one."""
    return {name: load_recipe(name) for name in recipe_names() if name != NAME}


def add_options_of_parts(add: Add) -> None:
    """Adds each of their options once: the same name means the same to all."""
    seen: set[str] = set()

    def once(option: str, **settings: Any) -> None:
        if option not in seen:
            seen.add(option)
            add(option, **settings)

    for recipe in parts().values():
        recipe.add_options(once)


def analyse_parts(capture: Capture, settings: Mapping[str, Any]) -> tuple[dict[str, pa.Table], list[str]]:
    """The tables of all of them, and what limits them in words.

    One that fails is a remark, and its tables have no rows: the others' do not suffer.
    """
    capture.share_passes()
    tables: dict[str, pa.Table] = {}
    remarks: list[str] = []
    for name, recipe in parts().items():
        tables |= {table.name: table.of_report({name: [] for name in table.names}) for table in recipe.TABLES}
        try:
            own, said, _ = recipe.analyse(capture, settings[name])
        except Exception as error:  # noqa: BLE001: one recipe must not take the others' tables away
            remarks.append(f"{name}: {told(error)}")
        else:
            tables |= own
            remarks += said
    return tables, list(dict.fromkeys(remarks))


def told(error: Exception) -> str:
    """What a recipe failed with, in one line. Raises it again without memory, or for those who look for faults."""
    if isinstance(error, PackError):
        return str(error)
    if isinstance(error, MemoryError) or os.environ.get("NSYS_LLM_RECIPES_DEBUG"):
        raise error
    return (
        f"unexpected {type(error).__name__} ({' '.join(str(error).split())}); please report it with the output of "
        "NSYS_LLM_RECIPES_DEBUG=1"
    )
