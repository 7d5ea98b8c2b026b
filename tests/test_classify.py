"""The command `classify`."""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from recipes.base.errors import PackError
from recipes.cli import classify


def run(*arguments):
    parser = argparse.ArgumentParser()
    classify.add_arguments(parser)
    return classify.main(parser.parse_args([str(argument) for argument in arguments]))


def rows(text):
    return [tuple(line.split("\t")[:3]) for line in text.splitlines()]


ROTARY = ("rotary_kernel", "rope", "norm/activation")
UNKNOWN = ("zzz", "other", "other")


def test_names_as_arguments(capsys):
    assert run("rotary_kernel", "zzz") == 0
    out = capsys.readouterr().out
    assert rows(out) == [ROTARY, UNKNOWN]
    first, second = out.splitlines()
    assert first.split("\t")[3].startswith("families.tsv:") and second.split("\t")[3] == ""


def test_names_from_a_file(tmp_path, capsys):
    names = tmp_path / "names.txt"
    names.write_bytes(b"rotary_kernel\r\n\n  \nzzz")
    assert run("--file", names) == 0
    assert rows(capsys.readouterr().out) == [ROTARY, UNKNOWN]


@pytest.mark.parametrize("arguments", [(), ("--file", "-")])
def test_names_from_standard_input(arguments):
    code = (
        "import argparse, sys; from recipes.cli import classify; parser = argparse.ArgumentParser();"
        "classify.add_arguments(parser); sys.exit(classify.main(parser.parse_args()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        input=b"rotary_kernel\nzzz\n",
        capture_output=True,
        check=True,
        cwd=Path(__file__).parent.parent,
    )
    assert rows(done.stdout.decode()) == [ROTARY, UNKNOWN]
    assert done.stderr == b""


def test_bytes_that_are_not_utf8_survive(tmp_path, capsysbinary):
    names = tmp_path / "names.txt"
    names.write_bytes(b"caf\xe9_rotary\n")
    assert run("--file", names, os.fsdecode(b"caf\xe9_rotary")) == 0
    assert capsysbinary.readouterr().out.startswith(b"caf\xe9_rotary\trope\t")
    assert run("--file", names) == 0
    assert capsysbinary.readouterr().out.startswith(b"caf\xe9_rotary\trope\t")


def test_a_tab_in_a_name_does_not_make_a_column(capsys):
    assert run("rotary\tkernel\n") == 0
    assert rows(capsys.readouterr().out) == [("rotary kernel ", "rope", "norm/activation")]


def test_rules_of_the_user(tmp_path, capsys):
    mine = tmp_path / "mine.tsv"
    mine.write_text("rotary\tmy_rope\n")
    assert run("--families", mine, "rotary_kernel") == 0
    assert capsys.readouterr().out == "rotary_kernel\tmy_rope\tother\tmine.tsv:1 rotary\n"


def test_missing_files(tmp_path):
    with pytest.raises(PackError, match="none: cannot read the names: No such file"):
        run("--file", tmp_path / "none")
    with pytest.raises(PackError, match="none: cannot read the rule file"):
        run("--families", tmp_path / "none", "zzz")


def test_a_reader_that_has_gone_is_told_to_the_caller(monkeypatch):
    class Gone(io.RawIOBase):
        def writable(self):
            return True

        def write(self, _):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(Gone())))
    with pytest.raises(BrokenPipeError):
        run("zzz")
    monkeypatch.undo()


def test_names_in_quotes_as_csv_writes_them(tmp_path, capsys):
    path = tmp_path / "names.csv"
    path.write_text('"void at::native::index_elementwise_kernel<128, 4>(long, ""T"")"\nplain\n')
    parser = argparse.ArgumentParser()
    classify.add_arguments(parser)
    assert classify.main(parser.parse_args(["--file", str(path)])) == 0
    names = [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()]
    assert names == ['void at::native::index_elementwise_kernel<128, 4>(long, "T")', "plain"]
