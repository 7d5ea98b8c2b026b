"""Where the pack keeps what it can make again: exports of reports, an unpacked Nsight Systems."""

from __future__ import annotations

import os
from pathlib import Path

NAME = "nsys-llm-recipes"


def cache_root() -> Path:
    """The pack's cache folder: $NSYS_LLM_RECIPES_CACHE, else the XDG cache folder. Not created here."""
    own = os.environ.get("NSYS_LLM_RECIPES_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    # The XDG specification says to ignore relative paths.
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(xdg) if xdg.startswith("/") else Path("~/.cache").expanduser()
    return base / NAME
