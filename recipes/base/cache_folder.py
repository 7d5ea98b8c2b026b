"""Where the pack keeps what it can make again: exports of reports, an unpacked Nsight Systems."""

from __future__ import annotations

import os
from pathlib import Path

NAME = "nsys-llm-recipes"


#: Where nothing can be made: the cache folder of a user without a home folder, until they name one.
NOWHERE = Path(os.devnull, NAME)


def cache_root() -> Path:
    """The pack's cache folder: $NSYS_LLM_RECIPES_CACHE, else the XDG cache folder, else NOWHERE. Not created here."""
    own = os.environ.get("NSYS_LLM_RECIPES_CACHE")
    if own:
        return Path(os.path.expanduser(own)).absolute()
    # The XDG specification says to ignore relative paths.
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    if xdg.startswith("/"):
        return Path(xdg) / NAME
    home = home_folder()
    return NOWHERE if home is None else home / ".cache" / NAME


def home_folder() -> Path | None:
    """The user's home folder; None where neither HOME nor the system's list of users tells one, as in some pods."""
    # Not Path.home(): it raises.
    home = os.path.expanduser("~")
    return None if home == "~" else Path(home)
