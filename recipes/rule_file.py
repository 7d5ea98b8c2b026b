"""Files of rules that users write."""

from __future__ import annotations

from pathlib import Path

from recipes.errors import PackError


def read_rule_file(path: Path) -> str:
    """The text of a file of rules. PackError when it cannot be read or is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise PackError(f"{path}: not UTF-8 at byte {error.start}; save the rule file as UTF-8") from None
    except OSError as error:
        raise PackError(f"{path}: cannot read the rule file: {error.strerror}; check the path") from None
