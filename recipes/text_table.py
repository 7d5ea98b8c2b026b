"""Small tables of text, as they are printed."""

from __future__ import annotations

from collections.abc import Sequence


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lines of aligned columns; the first is set left, the others right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True)))
        for row in (head, *rows)
    ]  # fmt: skip
    return "\n".join(line.rstrip() for line in lines)


def shortened(text: str, width: int) -> str:
    """The text, cut in its middle when it is longer than width: kernel names differ at both ends."""
    if len(text) <= width:
        return text
    tail = (width - 3) // 3
    return f"{text[: width - 3 - tail]}...{text[-tail:]}"
