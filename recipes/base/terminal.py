"""Text for terminals: safe to show, and progress where somebody is looking."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sys
import textwrap
import threading
import time
import unicodedata
from collections.abc import Iterator
from pathlib import Path

_CLEAR_LINE = "\r\x1b[K"
# Passed on to worker processes.
_TERMINAL = "NSYS_LLM_RECIPES_TERMINAL"


def plain(text: str, *, keep_lines: bool = False) -> str:
    """The text with control characters written out, so that no name can steer the terminal."""
    return "".join(
        c if (c == "\n" and keep_lines) or not unicodedata.category(c).startswith("C") else _escaped(c) for c in text
    )


def text_width(default: int) -> int:
    """How many columns text may take: those of the terminal that standard output is, `default` for files and pipes."""
    # A terminal without a size says 0, which Python 3.10 passes on.
    return (shutil.get_terminal_size((default, 0)).columns or default) if sys.stdout.isatty() else default


def fitted(text: str, width: int) -> str:
    """A text whose long lines are broken to a width, with hanging indents; the rows of tables stay whole."""
    return "\n".join(part for line in text.split("\n") for part in _broken(line, width))


def _broken(line: str, width: int) -> list[str]:
    # An item's number or dash.
    mark = re.findall(r"^ *(?:\d+\. |- )?", line)[0]
    # Columns of a table stand two spaces apart.
    if len(line) <= width or "  " in line[len(mark) :]:
        return [line]
    indent = " " * (len(mark) or 2)
    return textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def use_terminal_of(pid: int) -> None:
    """Sends progress to the terminal behind a process's standard error, if there is one.

    nsys reads what a recipe prints through a pipe, so a recipe itself never sees a terminal.
    """
    with contextlib.suppress(OSError):
        path = os.readlink(f"/proc/{pid}/fd/2")
        if path.startswith("/dev/") and _is_terminal(path):
            os.environ[_TERMINAL] = path


def _is_terminal(path: str) -> bool:
    descriptor = os.open(path, os.O_WRONLY | os.O_NOCTTY)
    try:
        return os.isatty(descriptor)
    finally:
        os.close(descriptor)


def progress(text: str) -> None:
    """Shows one line of progress in place of the last, on a terminal only; an empty text clears it."""
    line = _CLEAR_LINE + plain(text)[:100]
    if sys.stderr.isatty():
        sys.stderr.write(line)
        sys.stderr.flush()
    elif _TERMINAL in os.environ:
        with contextlib.suppress(OSError), Path(os.environ[_TERMINAL]).open("w") as terminal:
            terminal.write(line)


@contextlib.contextmanager
def cleared() -> Iterator[None]:
    """Clears what progress was shown when the block ends, well or not."""
    try:
        yield
    finally:
        progress("")


class Progress:
    """How far a run of many reports is."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._started = time.monotonic()

    def show(self, done: int, failed: int) -> None:
        """Shows the reports done and failed, and the time left, as `progress` does."""
        progress(progress_text(done, failed, self._count, time.monotonic() - self._started))


def progress_text(done: int, failed: int, count: int, seconds: float) -> str:
    """`12 of 200 reports done, 1 failed, about 3 min left`, so many seconds after the start."""
    text = f"{done} of {count} reports done" + (f", {failed} failed" if failed else "")
    if not 0 < done < count:
        return text
    left = seconds / done * (count - done)
    for unit, length in (("h", 3600), ("min", 60)):
        if left >= 1.5 * length:
            return f"{text}, about {left / length:.0f} {unit} left"
    return f"{text}, about {left:.0f} s left"


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Makes SIGTERM, which schedulers send, end the block like an error, so that nothing is left behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
