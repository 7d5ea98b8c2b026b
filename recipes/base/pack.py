"""Where the pack is and which recipes it holds."""

from __future__ import annotations

import json
from pathlib import Path

#: The folder that Nsight searches: the parent of the recipe folders.
ROOT = Path(__file__).resolve().parents[2]


def recipe_names(root: Path = ROOT) -> list[str]:
    """The names of the recipes of a pack, in order."""
    return sorted(file.parent.name for file in root.glob("llm_*/metadata.json"))


def describe(name: str) -> str:
    """One line on a recipe: the first sentence of its description."""
    description = "".join(json.loads((ROOT / name / "metadata.json").read_text())["description"])
    return description.removeprefix("This recipe ").split(".\n")[0].split(". ")[0].rstrip(".")
