"""Whole processes beside each other: wall time and peak memory."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.big_report import build  # noqa: E402
from recipes.base.text_table import text_table  # noqa: E402
from recipes.nsight.installation import best_installation  # noqa: E402


@dataclass(frozen=True)
class Run:
    """A command to measure, without its --output, and its environment beside the present one."""

    label: str
    command: Sequence[object]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Measured:
    """Wall time in seconds and peak of the summed resident memory of the process tree in bytes."""

    seconds: float
    memory_bytes: int


def measure(run: Run, folder: Path) -> Measured:
    """Runs a command once. RuntimeError with its output when it fails."""
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    command = [str(part) for part in (*run.command, "--output", out)]
    started, peak = time.perf_counter(), 0
    with tempfile.TemporaryFile() as output:
        process = psutil.Popen(command, stdout=output, stderr=output, env={**os.environ, **run.environment}, cwd=ROOT)
        tree, looked = [process], started
        while process.poll() is None:
            # Looking for children goes through all processes of the machine: often, it would slow what is measured.
            if time.perf_counter() - looked > 0.2:
                tree, looked = _tree(process), time.perf_counter()
            peak = max(peak, sum(map(_resident_bytes, tree)))
            time.sleep(0.01)
        seconds = time.perf_counter() - started
        if process.returncode or not list(out.glob("*.parquet")):
            output.seek(0)
            raise RuntimeError(f"{' '.join(command)} failed:\n{output.read().decode(errors='replace')}")
    return Measured(seconds, peak)


def _tree(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return [process]


def _resident_bytes(process: psutil.Process) -> int:
    try:
        return process.memory_info().rss
    except psutil.Error:
        return 0


def beside(runs: Sequence[Run], folder: Path, rounds: int) -> str:
    """A table of the best of several rounds of each run, the first run being what the others are compared with."""
    results = [[measure(run, folder) for run in runs] for _ in range(rounds)]
    best = [
        Measured(min(one.seconds for one in column), min(one.memory_bytes for one in column))
        for column in zip(*results, strict=True)
    ]
    rows = [
        [run.label, f"{one.seconds:.2f}", f"{one.seconds / best[0].seconds:.2f}", f"{one.memory_bytes / 1e6:,.0f}",
         f"{one.memory_bytes / best[0].memory_bytes:.2f}"]
        for run, one in zip(runs, best, strict=True)
    ]  # fmt: skip
    return text_table(["run", "seconds", "of the first", "peak MB", "of the first"], rows)


def ours(recipe: str, export: Path, *options: object, named: bool = False) -> Run:
    """One of the pack's recipes on an export; its options are told in the table when `named`."""
    command = [sys.executable, "-m", "recipes", "run", recipe, "--mode", "none", "--input", export, *options]
    label = f"{recipe} ({export.suffix.lstrip('.') or 'parquet'})"
    return Run(" ".join(map(str, [label, *(options if named else ())])), command)


def nsights(recipe: str, nsys: Path, report: Path, python: Path, *options: object) -> Run:
    """One of Nsight's own recipes, with the Python that it needs first on the path."""
    path = f"{python}{os.pathsep}{os.environ['PATH']}"
    command = [nsys, "recipe", recipe, "--mode", "none", "--input", report, *options]
    return Run(" ".join(map(str, ["Nsight", recipe, *options])), command, {"PATH": path})


def arguments(description: str) -> argparse.Namespace:
    """The options of a benchmark."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", type=Path, default=ROOT / "fixtures" / "decode_eager.nsys-rep")
    parser.add_argument("--repeats", type=int, default=1000, help="how often the report is repeated in time")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each; the best counts")
    parser.add_argument("--nsight-python", type=Path, default=ROOT / ".venv-oldest" / "bin")
    parser.add_argument("--folder", type=Path, help="where to build (2 GB); a temporary folder by default")
    return parser.parse_args()


def big_report(args: argparse.Namespace, folder: Path) -> tuple[Path, Path, Path, Path]:
    """nsys, and the big report as what Nsight takes for a report, as SQLite file and as parquet folder."""
    installation = best_installation()
    if installation is None:
        sys.exit("no Nsight Systems with recipes found: run ./test first, which fetches one")
    sqlite, parquet = build(args.report, folder, args.repeats, str(installation.nsys))
    # Nsight's recipes take a report, and use the exports beside it when they changed later.
    report = Path(shutil.copy(args.report, sqlite.with_suffix(".nsys-rep")))
    time.sleep(0.1)  # file times are coarser than these steps
    for file in (sqlite, *parquet.iterdir()):
        subprocess.run(["touch", file], check=True)
    return installation.nsys, report, sqlite, parquet
