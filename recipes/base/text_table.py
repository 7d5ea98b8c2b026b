"""Small tables of text, as they are printed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lines of aligned columns; the first is set left, the others right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        first, *others = zip(cells, widths, strict=True)
        return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]).rstrip()

    return "\n".join(map(line, (head, *rows)))


def shortened(text: str, width: int) -> str:
    """The text, cut in its middle when it is longer than width: kernel names differ at both ends."""
    if len(text) <= width:
        return text
    tail = (width - 3) // 3
    return f"{text[: width - 3 - tail]}...{text[-tail:]}"


def told_apart(texts: Sequence[str], width: int) -> list[str]:
    """The texts, the longer ones cut to width, but so that those that differ still do: where cuts in the middle would
    be alike, they begin where the texts begin to differ; whole where that is not enough."""
    different = len(set(texts))
    alike = (len(set(letters)) == 1 for letters in zip(*texts, strict=False))
    begin = sum(takewhile(bool, alike))
    for cut in (
        [shortened(text, width) for text in texts],
        [_from(text, begin, width) for text in texts],
    ):
        if len(set(cut)) == different:
            return cut
    return list(texts)


def _from(text: str, begin: int, width: int) -> str:
    """The text, cut to width so that it shows what comes from a place on, and more before it if that fits."""
    if len(text) <= width:
        return text
    begin = min(begin, len(text) - width + 3)
    return f"...{text[begin:]}"[:width]
