"""What to do about a capture that cannot be trusted, by engine. The data is `remedies.tsv`."""

from __future__ import annotations

from functools import cache

from recipes.advice.engines import engine_of, table_lines

_ANY = "*"


@cache
def remedies() -> dict[tuple[str, str], str]:
    """The remedy of each topic and engine; "*" is any engine."""
    rows = (line.split("\t") for line in table_lines("remedies.tsv"))
    return {(topic, engine): text for topic, engine, text in rows}


def remedy(topic: str, engine: str = "") -> str:
    """The remedy for an engine, or for any when the engine is unknown ("") or has none of its own.

    KeyError for a topic that is not in the table.
    """
    own = (topic, engine_of(engine).name) if engine else (topic, _ANY)
    return remedies().get(own) or remedies()[topic, _ANY]
