"""Progress on a terminal, silence elsewhere, and names that cannot steer either."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from conftest import FIXTURES, ROOT
from recipes.base.terminal import fitted, plain, progress, text_width


def test_control_characters_are_written_out():
    assert plain("a\x1b[2J\nb\u202e\0") == "a\\x1b[2J\\nb\\u202e\\x00"
    assert plain("a\nb\tc", keep_lines=True) == "a\nb\\tc"
    assert plain("µs × naïve 日本") == "µs × naïve 日本"


def test_progress_is_silent_without_a_terminal(capfd):
    progress("working")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("inside", [True, False], ids=["nsys", "pack"])
def test_progress_shows_on_a_terminal(inside, nsys, tmp_path):
    arguments = ["llm_kernel_families", "--input", FIXTURES / "decode_graph.nsys-rep", "--output", tmp_path / "out"]
    command = [nsys, "recipe"] if inside else [sys.executable, "-m", "recipes", "run"]
    master, slave = pty.openpty()
    path = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [*command, *arguments], cwd=ROOT, stdin=slave, stdout=slave, stderr=slave, timeout=120, check=False,
        env={**os.environ, "PATH": path},
    )  # fmt: skip
    os.close(slave)
    shown = os.read(master, 100_000).decode()
    os.close(master)
    assert done.returncode == 0
    assert "[1/1] analysing decode_graph" in shown
    # Cleared before the summary, which then starts at the left.
    assert "\r\x1b[KGEMM" in shown.replace("\r\x1b[K\r\x1b[K", "\r\x1b[K")


def test_long_lines_are_broken_with_hanging_indents_and_tables_are_not():
    text = "1. one two three four\nquality: warn (1 report)\nname      time  share\nshort"
    assert fitted(text, 14).split("\n") == [
        "1. one two", "   three four", "quality: warn", "  (1 report)", "name      time  share", "short",
    ]  # fmt: skip


def test_without_a_terminal_text_keeps_its_width(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    assert text_width(118) == 118
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert text_width(118) == 40
