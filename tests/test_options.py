"""Options that behave as in Nsight's own recipes."""

from __future__ import annotations

import argparse
import os
import socket

import pytest

from recipes.events.gpu_work import Span
from recipes.run.local import unknown_option
from recipes.run.options import add_common_options, expand_output_name, span_of


def parse(*arguments):
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_common_options(parser.add_argument)
    return parser.parse_args(["--input", "x", *arguments])


def test_output_name_patterns(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JOB", "7")
    assert expand_output_name("plain") == "plain"
    assert expand_output_name("o-%q{JOB}-%h-%p-100%%") == f"o-7-{socket.gethostname()}-{os.getpid()}-100%"
    os.mkdir("run-1")
    assert expand_output_name("run-%n") == "run-2"


@pytest.mark.parametrize("name", ["%x", "%q", "%q{NO_SUCH_VARIABLE}", "%q{OPEN", "end%"])
def test_unknown_pattern_is_refused(name):
    with pytest.raises(argparse.ArgumentTypeError):
        expand_output_name(name)


@pytest.mark.parametrize(
    ("arguments", "span"),
    [
        ([], Span()),
        (["--start", "5"], Span(5, None)),
        (["--start", "5", "--end", "9"], Span(5, 9)),
        (["--filter-time", "5/9"], Span(5, 9)),
        (["--filter-time", "/9"], Span(None, 9)),
        (["--filter-time", "5/"], Span(5, None)),
    ],
)
def test_time_ranges(arguments, span):
    assert span_of(parse(*arguments)) == span


@pytest.mark.parametrize("text", ["5", "9/5", "a/b", "1.5/2", ""])
def test_bad_time_filter_is_refused(text):
    with pytest.raises(argparse.ArgumentError):
        parse("--filter-time", text)


def test_start_after_end_is_refused():
    with pytest.raises(argparse.ArgumentTypeError):
        span_of(parse("--start", "9", "--end", "5"))


def test_unknown_option_is_named_with_the_one_that_may_be_meant():
    known = ["--input", "--output", "--filter-time", "-h"]
    assert unknown_option(["--inpt", "a"], known) == "unknown option --inpt; did you mean --input?"
    assert unknown_option(["--input", "a", "--outptu=b"], known) == "unknown option --outptu; did you mean --output?"
    assert unknown_option(["--zzz"], known) == "unknown option --zzz; see --help"
    # Options can be cut short, and what is behind -- is none.
    assert unknown_option(["--inp", "a", "--", "--b"], known) == ""
