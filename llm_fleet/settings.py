"""What the user can choose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FleetSettings:
    """`dataset` is a path or URL, empty for the one beside the output; `shown` the same as people may see it, None for
    that one; `parts` the settings of the other recipes by name."""

    dataset: str
    shown: str | None
    run: str
    tags: tuple[tuple[str, str], ...]
    events: bool
    model: str | None
    parts: dict[str, Any]
