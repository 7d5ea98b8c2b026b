"""Every recipe on every bundled report, run once a session: what it prints, and the tables that it leaves."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import functools
import io
import itertools
import lzma
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq

from invariants import OPTIONS
from recipes.base.errors import PackError
from recipes.nsight.installation import best_installation
from recipes.run.recipe import load_recipe
from recipes.run.run import add_options, run
from recipes.run.worker_processes import one_by_one

FIXTURES = Path(__file__).parents[1] / "fixtures"
#: The Nsight whose exports the golden files are of; newer reports bring their exports along.
NSIGHT = "2023.4.4"
PACKED = FIXTURES / "2025.3.1"
FLEET, FLOOR = "llm_fleet", "llm_decode_floor"
RECIPES = ("llm_kernel_families", FLOOR, "llm_idle_gaps", "llm_nccl_sum", "llm_capture_check", FLEET)
# A moment after all captures (2030-01-01): whether a capture is of the future must not depend on this machine's clock.
_NOW_NS = 1_893_456_000 * 10**9


@dataclass(frozen=True)
class Inputs:
    """Reports that are given together: their name here, and their files."""

    name: str
    reports: tuple[Path, ...]

    @property
    def needs_nsight(self) -> bool:
        return any(report.parent != PACKED for report in self.reports)


@dataclass(frozen=True)
class Case:
    """One recipe on some inputs; `variant` tells cases of other options apart."""

    recipe: str
    inputs: Inputs
    options: tuple[str, ...]
    variant: str = ""

    @property
    def name(self) -> str:
        return f"{self.recipe}/{self.inputs.name}{self.variant}"


@dataclass(frozen=True)
class Outcome:
    """What a run printed, warnings and an error included, without paths of this machine; its tables by name."""

    text: str
    tables: dict[str, pa.Table]

    def rows(self, name: str) -> list[dict]:
        return self.tables[name].to_pylist()


def every_inputs() -> list[Inputs]:
    """Each bundled report alone, and the reports of the ranks of each job together."""
    reports = sorted(FIXTURES.rglob("*.nsys-rep"))
    alone = [Inputs(f"{report.parent.name}/{report.stem}", (report,)) for report in reports]
    firsts = [report for report in reports if report.stem.endswith("_rank0")]
    jobs = [(first, first.with_name(first.name.replace("_rank0", "_rank1"))) for first in firsts]
    return [*alone, *(Inputs(f"{job[0].parent.name}/{job[0].stem}+1", job) for job in jobs)]


def every_case() -> list[Case]:
    """What there is a golden file of."""
    cases = [Case(recipe, some, OPTIONS.get(recipe, ())) for recipe in RECIPES for some in every_inputs()]
    modelled = [some for some in every_inputs() if some.name in ("fixtures/decode_eager", "fixtures/decode_graph")]
    return [*cases, *(Case(FLOOR, some, ("--model", "llama-3.1-8b"), "_model") for some in modelled)]


def why_not(inputs: Inputs) -> str | None:
    """Why these inputs cannot be run on this machine; None when they can."""
    if not inputs.needs_nsight:
        return None
    found = best_installation()
    if found is not None and found.version_text.startswith(f"{NSIGHT}."):
        return None
    return f"exports of Nsight {NSIGHT} are needed, not of {found.version_text if found else 'none'}"


@functools.cache
def result(recipe: str, inputs: Inputs, options: tuple[str, ...]) -> Outcome:
    """What a recipe makes of some inputs with some options; worked out once."""
    with tempfile.TemporaryDirectory() as made:
        output, dataset = Path(made) / "out", Path(made) / "dataset"
        exports = [str(_export(report)) for report in inputs.reports]
        own = ["--dataset", str(dataset)] if recipe == FLEET else []
        text = _printed(recipe, ["--input", *exports, "--output", str(output), *own, *options])
        tables = {file.stem: pq.read_table(file) for file in sorted(output.glob("*.parquet"))}
        tables |= {f"dataset {name}": rows for name, rows in _dataset(dataset)}
        for path, place in ((_folder(), "INPUTS"), (output, "OUTPUT"), (dataset, "DATASET")):
            text = text.replace(str(path), place)
    return Outcome(text, tables)


def _printed(name: str, arguments: list[str]) -> str:
    """Runs a recipe in this process; returns what it prints, warns of and ends with."""
    recipe = load_recipe(name)
    parser = argparse.ArgumentParser()
    add_options(recipe, parser.add_argument)
    args = parser.parse_args(arguments)
    printed = io.StringIO()
    warned: list[str] = []
    try:
        with contextlib.redirect_stdout(printed), mock.patch("time.time_ns", return_value=_NOW_NS):
            run(recipe, args, map_tasks=one_by_one, find_exporter=lambda: None, warn=warned.append)
    except PackError as error:
        warned.append(f"ERROR {error}")
    return "\n".join([printed.getvalue().rstrip("\n"), *(f"WARNING: {line}" for line in warned)])


def _dataset(folder: Path) -> Iterator[tuple[str, pa.Table]]:
    """The tables of a dataset, each of all its files."""
    files = sorted(folder.glob("table=*/*/*.parquet"))
    for name, own in itertools.groupby(files, key=lambda file: file.parts[len(folder.parts)].removeprefix("table=")):
        yield name, pa.concat_tables([pq.ParquetFile(file).read() for file in own])


@functools.cache
def _folder() -> Path:
    """Where the exports lie while this process lives."""
    folder = Path(tempfile.mkdtemp(prefix="golden-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def _export(report: Path) -> Path:
    """The SQLite export of a report, in a folder of the report's folder's name: unpacked, or made by Nsight."""
    path = _folder() / report.parent.name / f"{report.stem}.sqlite"
    path.parent.mkdir(exist_ok=True)
    if report.parent == PACKED:
        path.write_bytes(lzma.decompress(report.with_suffix(".sqlite.xz").read_bytes()))
        return path
    nsys = best_installation().nsys
    command = [nsys, "export", "--type", "sqlite", "--quiet", "true", "--output", path, report]
    subprocess.run(command, check=True, capture_output=True)
    return path
