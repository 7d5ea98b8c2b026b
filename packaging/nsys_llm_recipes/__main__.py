"""The pack's command in an installed wheel: `nsys-llm-recipes`, or `python -m nsys_llm_recipes`."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> int:
    """The same command as `python -m recipes` in a checkout, under the name that was typed."""
    # The pack's modules import each other as in a checkout: from the folder that holds them.
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    typed = Path(sys.argv[0]).name
    os.environ["NSYS_LLM_RECIPES_PROGRAM"] = "python -m nsys_llm_recipes" if typed == "__main__.py" else typed
    from recipes.__main__ import main as command

    return command()


if __name__ == "__main__":
    sys.exit(main())
