"""Which Nsight Systems the pack uses, and why not another.

Standard library only, like the two modules below it: this runs before the pack's environment exists.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from recipes.base.errors import PackError
from recipes.nsight.faults import Problem, blocking, problems
from recipes.nsight.locate import HOW_TO_GET, NAMED_BY, Broken, Installation, Search, search

__all__ = [
    "Broken",
    "Installation",
    "Problem",
    "Search",
    "best_installation",
    "best_of",
    "find_installations",
    "problems",
    "search",
    "why_none",
]


def find_installations(environ: Mapping[str, str] | None = None, root: Path = Path("/")) -> list[Installation]:
    """The usable installations, newest first; only the one that the user names, if any."""
    return search(environ, root).installations


def best_installation(
    need_recipes: bool = True, environ: Mapping[str, str] | None = None, root: Path = Path("/")
) -> Installation | None:
    """The newest installation that can export and, if needed, run recipes; None when there is none.

    PackError when the user names one that cannot.
    """
    return best_of(search(environ, root), need_recipes, environ)


def best_of(found: Search, need_recipes: bool = True, environ: Mapping[str, str] | None = None) -> Installation | None:
    """As best_installation, of what a search has found already."""
    for installation in found.installations:
        faults = blocking(installation) if need_recipes else []
        if not faults:
            return installation
        if len(found.installations) == 1 and named(environ):
            raise PackError(f"{installation.nsys} (named by {NAMED_BY}): {faults[0].what}; {faults[0].remedy}")
    return None


def named(environ: Mapping[str, str] | None) -> bool:
    """Whether the user names an installation."""
    return bool((os.environ if environ is None else environ).get(NAMED_BY))


def why_none(found: Search) -> str:
    """One line for a user without a usable Nsight Systems: what was found and how to get one."""
    if found.installations:
        best = found.installations[0]
        reason = f"{best.nsys}: {blocking(best)[0].what}; {blocking(best)[0].remedy}"
    elif found.broken:
        reason = found.broken[0].why
    else:
        reason = "none found on PATH or in the usual places"
    return f"no usable Nsight Systems ({reason}): {HOW_TO_GET}"
