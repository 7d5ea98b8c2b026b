"""Files of rules: those of the pack, and those that users write."""

from __future__ import annotations

import csv
from pathlib import Path

from recipes.base.errors import PackError


def packaged_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a table of the pack's own: tab-separated, its first line the head, lines of # left out."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))


def read_rule_file(path: Path) -> str:
    """The text of a file of rules. PackError when it cannot be read or is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise PackError(f"{path}: not UTF-8 at byte {error.start}; save the rule file as UTF-8") from None
    except OSError as error:
        raise PackError(f"{path}: cannot read the rule file: {error.strerror}; check the path") from None
