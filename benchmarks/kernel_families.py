"""llm_kernel_families beside Nsight's own cuda_gpu_kern_sum, on one big report, in one run.

    .venv/bin/python benchmarks/kernel_families.py

The big report is a bundled one repeated along the time axis (5.2 million kernels, 11 million API calls). Both
start from its export, whole processes are timed, and memory is the peak of the summed resident memory of the process
tree. Nsight 2023.4's recipes want numpy 1.26, so they get the environment of the oldest versions.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.big_report import build  # noqa: E402
from recipes.nsight.installation import best_installation  # noqa: E402
from recipes.text_table import text_table  # noqa: E402


@dataclass(frozen=True)
class Measured:
    """Wall time in seconds and peak memory in bytes of one run."""

    seconds: float
    memory_bytes: int


def measure(command: list[str], **environment: str) -> Measured:
    """Runs a command and watches its process tree. RuntimeError with its output when it fails."""
    started, peak = time.perf_counter(), 0
    with tempfile.TemporaryFile() as output:
        process = psutil.Popen(command, stdout=output, stderr=output, env={**os.environ, **environment}, cwd=ROOT)
        while process.poll() is None:
            peak = max(peak, _resident_bytes(process))
            time.sleep(0.01)
        seconds = time.perf_counter() - started
        if process.returncode:
            output.seek(0)
            raise RuntimeError(f"{' '.join(map(str, command))} failed:\n{output.read().decode(errors='replace')}")
    return Measured(seconds, peak)


def _resident_bytes(process: psutil.Process) -> int:
    total = 0
    try:
        for one in (process, *process.children(recursive=True)):
            total += one.memory_info().rss
    except psutil.Error:
        pass
    return total


def main() -> None:
    """Builds the report, measures both several times, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", type=Path, default=ROOT / "fixtures" / "decode_eager.nsys-rep")
    parser.add_argument("--repeats", type=int, default=1000, help="how often the report is repeated in time")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each; the best counts")
    parser.add_argument("--nsight-python", type=Path, default=ROOT / ".venv-oldest" / "bin")
    parser.add_argument("--folder", type=Path, help="where to build (2 GB); a temporary folder by default")
    args = parser.parse_args()
    installation = best_installation()
    if installation is None:
        sys.exit("no Nsight Systems with recipes found: run ./test first, which fetches one")
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        sqlite, parquet = build(args.report, folder, args.repeats, str(installation.nsys))
        rows = compare(sqlite, parquet, installation.nsys, args)
    print(text_table(["run", "seconds", "of theirs", "peak MB", "of theirs"], rows))


def compare(sqlite: Path, parquet: Path, nsys: Path, args: argparse.Namespace) -> list[list[str]]:
    """One row a run: Nsight's, ours on the parquet export, ours on the SQLite export."""
    # Nsight's recipe takes a report, and uses the SQLite export beside it when that changed later.
    report = Path(shutil.copy(args.report, sqlite.with_suffix(".nsys-rep")))
    time.sleep(0.1)  # file times are coarser than these two steps
    sqlite.touch()
    out = sqlite.parent / "out"
    theirs = [str(nsys), "recipe", "cuda_gpu_kern_sum", "--mode", "none", "--input", str(report)]
    ours = [sys.executable, "-m", "recipes", "run", "llm_kernel_families", "--mode", "none", "--input"]
    path = f"{args.nsight_python}{os.pathsep}{os.environ['PATH']}"
    runs = {
        "Nsight cuda_gpu_kern_sum (SQLite)": (theirs, {"PATH": path}),
        "llm_kernel_families (parquet)": ([*ours, str(parquet)], {}),
        "llm_kernel_families (SQLite)": ([*ours, str(sqlite)], {}),
    }
    rows, base = [], None
    for label, (command, environment) in runs.items():
        best = []
        for _ in range(args.rounds):
            shutil.rmtree(out, ignore_errors=True)
            best.append(measure([*command, "--output", str(out)], **environment))
        fastest, least = min(run.seconds for run in best), min(run.memory_bytes for run in best)
        base = base or Measured(fastest, least)
        rows.append(
            [label, f"{fastest:.2f}", f"{fastest / base.seconds:.2f}", f"{least / 1e6:,.0f}",
             f"{least / base.memory_bytes:.2f}"]
        )  # fmt: skip
    return rows


if __name__ == "__main__":
    main()
