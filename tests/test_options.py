"""Options that behave as in Nsight's own recipes."""

from __future__ import annotations

import argparse
import os
import socket
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from conftest import pack
from recipes.events.gpu_work import Span
from recipes.run.local import unknown_option
from recipes.run.options import add_common_options, expand_output_name, span_of
from test_gpu_work import KERNELS, P, kernels


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


def kept(folder: Path, *arguments: object) -> dict[str, tuple]:
    """Status, kernels and message of each report."""
    pack("run", "llm_kernel_families", "--input", *arguments, "--output", folder)
    rows = pq.read_table(folder / "files.parquet").to_pylist()
    return {row["report"]: (row["status"], row["kernels"], row["message"]) for row in rows}


def test_a_time_range_of_several_reports_is_on_the_clock_of_the_first(make_export, tmp_path):
    """Ten kernels, one each 1,000 ns; the session of the second report starts 3,000 ns later."""
    tables = {KERNELS: kernels(*((1_000 * n, 1_000 * n + 10, 0, P) for n in range(10)))}
    session = "TARGET_INFO_SESSION_START_TIME"
    paths = [make_export(f"{name}.sqlite", **tables, **({session: {"utcEpochNs": [start]}} if start else {}))
             for name, start in (("first", 5_000), ("second", 8_000), ("third", None))]  # fmt: skip
    found = kept(tmp_path / "out", *paths[:2], "--filter-time", "4500/8500")
    # 5,000 to 8,000 of the first are 2,000 to 5,000 of the second: four kernels each.
    assert [found[name][:2] for name in ("first", "second")] == [("ok", 4), ("ok", 4)]
    rows = pq.read_table(tmp_path / "out" / "kernels.parquet").to_pylist()
    assert {row["calls"] for row in rows} == {4}
    late = kept(tmp_path / "late", *paths[:2], "--start", "9500")
    assert (late["first"][0], late["second"][:2]) == ("empty", ("ok", 3))

    found = kept(tmp_path / "third", paths[0], paths[2], "--filter-time", "4500/8500")
    assert (found["first"][:2], found["third"][0]) == (("ok", 4), "unreadable")
    assert "analyse it separately" in found["third"][2]
    done = pack(
        "run", "llm_kernel_families", "--input", paths[2], paths[0], "--start", "5", "--output", tmp_path / "no"
    )
    assert done.returncode == 1
    assert done.stderr.strip().endswith("analyse them one by one, or give --skip-steps N instead")
    # One report, or no range, needs no clock.
    assert kept(tmp_path / "one", paths[2], "--start", "4500")["third"][:2] == ("ok", 5)


@pytest.mark.parametrize("text", ["-1", "two", "1.5", "", "\u0663"])
def test_skipped_steps_are_a_number(text):
    assert parse("--skip-steps", "3").skip_steps == 3
    with pytest.raises(argparse.ArgumentError):
        parse("--skip-steps", text)
