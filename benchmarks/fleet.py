"""llm_fleet on many reports, beside the other recipes one by one and three of Nsight's own on the same reports.

    .venv/bin/python benchmarks/fleet.py

A bundled report is repeated along the time axis to a real size (20 times: 104,000 kernels), and lies there under as
many names as there are reports. All start from its exports, in as many processes as there are cores; whole processes
are timed, writing included, and memory is the peak of the process tree. Then llm_fleet with one worker and with two;
and how many exports it makes of reports that have none, counted by what it starts.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from measure import ROOT, Measured, Run, big_report, measure

from recipes.base.pack import recipe_names
from recipes.base.text_table import text_table

# By default gpu_gaps leaves out all gaps below 0.5 ms: there are none left.
NSIGHTS = {"cuda_gpu_kern_sum": (), "nvtx_gpu_proj_sum": (), "gpu_gaps": ("--gap", "0")}
WORKERS = "NSYS_CONCURRENT_MAX_WORKERS"


def main() -> None:
    """Builds the reports, measures, and prints the tables."""
    args = _arguments()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        nsys, report, sqlite, parquet = big_report(args, folder)
        ours, theirs = folder / "ours", folder / "theirs"
        for number in range(args.reports):
            _link(parquet, ours / f"r{number:04}_pqtdir")
            for file in (report, sqlite):
                _link(file, theirs / f"r{number:04}{file.suffix}")
            _link(parquet, theirs / f"r{number:04}_pqtdir")
        print(f"{args.reports} reports\n")
        print(_beside(args, folder, ours, theirs, nsys))
        print(f"\n{_scaling(args, folder, ours)}")
        print(f"\n{_exports(folder, nsys)}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reports", type=int, default=200, help="how many reports")
    parser.add_argument("--report", type=Path, default=ROOT / "fixtures" / "decode_eager.nsys-rep")
    parser.add_argument("--repeats", type=int, default=20, help="how often the report is repeated in time")
    parser.add_argument(
        "--rounds", type=int, default=1, help="measurements of each; the least time counts, and the most memory"
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="numbers of workers to compare")
    parser.add_argument("--nsight-python", type=Path, default=ROOT / ".venv-oldest" / "bin")
    parser.add_argument("--folder", type=Path, help="where to build; a temporary folder by default")
    return parser.parse_args()


def _link(source: Path, target: Path) -> None:
    """The same file or folder of files under another name, without the room of a copy."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        for file in source.iterdir():
            _link(file, target / file.name)
    elif not target.exists():
        os.link(source, target)


def _own(recipe: str, folder: Path, **environment: str) -> Run:
    command = [sys.executable, "-m", "recipes", "run", recipe, "--input", folder]
    return Run(recipe, command, environment)


def _nsights(recipe: str, nsys: Path, folder: Path, python: Path) -> Run:
    path = f"{python}{os.pathsep}{os.environ['PATH']}"
    return Run(f"Nsight {recipe}", [nsys, "recipe", recipe, *NSIGHTS[recipe], "--input", folder], {"PATH": path})


def _best(run: Run, folder: Path, rounds: int) -> Measured:
    results = []
    for _ in range(rounds):
        # What is in the dataset already would not be written again.
        shutil.rmtree(folder / "out-dataset", ignore_errors=True)
        results.append(measure(run, folder))
    return Measured(min(one.seconds for one in results), max(one.memory_bytes for one in results))


def _beside(args: argparse.Namespace, folder: Path, ours: Path, theirs: Path, nsys: Path) -> str:
    fleet = _best(_own("llm_fleet", ours), folder, args.rounds)
    others = [_own(name, ours) for name in recipe_names() if name != "llm_fleet"]
    nsights = [_nsights(name, nsys, theirs, args.nsight_python) for name in NSIGHTS]
    rows = [_row("llm_fleet", fleet, fleet)]
    for label, runs in (("the pack's others, one by one", others), ("Nsight's three, one by one", nsights)):
        single = [_best(run, folder, args.rounds) for run in runs]
        together = Measured(sum(one.seconds for one in single), max(one.memory_bytes for one in single))
        rows += [_row(label, together, fleet)]
        rows += [_row(f"  {run.label}", one, fleet) for run, one in zip(runs, single, strict=True)]
    return text_table(["run", "seconds", "of llm_fleet", "peak MB"], rows)


def _row(label: str, one: Measured, first: Measured) -> list[str]:
    return [label, f"{one.seconds:.1f}", f"{one.seconds / first.seconds:.2f}", f"{one.memory_bytes / 1e6:,.0f}"]


def _scaling(args: argparse.Namespace, folder: Path, ours: Path) -> str:
    """Reports a second and core by number of workers; efficiency is that over the first one's."""
    rows, first = [], 0.0
    for workers in args.workers:
        one = _best(_own("llm_fleet", ours, **{WORKERS: str(workers)}), folder, args.rounds)
        rate = args.reports / one.seconds / workers
        first = first or rate
        rows.append([str(workers), f"{one.seconds:.1f}", f"{rate:.2f}", f"{rate / first:.0%}",
                     f"{one.memory_bytes / 1e6:,.0f}"])  # fmt: skip
    return text_table(["workers", "seconds", "reports a second and worker", "efficiency", "peak MB"], rows)


def _exports(folder: Path, nsys: Path) -> str:
    """How many exports llm_fleet makes of bundled reports that have none, by a program in front of nsys that counts."""
    log, counting = folder / "exports.log", folder / "counting" / "nsys"
    counting.parent.mkdir(exist_ok=True)
    # Without `recipe` it is not seen through as a wrapper of the real one.
    counting.write_text(
        f'#!/bin/sh\ncase "$*" in recipe*) exit 1;; *--output*) echo "$3" >> "{log}";; esac\nexec "{nsys}" "$@"\n'
    )
    counting.chmod(0o755)
    log.unlink(missing_ok=True)
    reports = sorted((ROOT / "fixtures" / "2023.4.4").glob("*.nsys-rep"))
    with tempfile.TemporaryDirectory(dir=folder) as cache:
        environment = {"NSYS_LLM_RECIPES_CACHE": cache, "NSYS_LLM_RECIPES_NSYS": str(counting)}
        run = _own("llm_fleet", reports[0].parent)
        measure(dataclasses.replace(run, environment=environment), folder)
    kinds = Counter(log.read_text().split() if log.exists() else [])
    # Nsight 2023.4 does not put one small table into parquet: it is exported by itself.
    more = f", and {kinds['sqlite']} of one small table" if kinds["sqlite"] else ""
    others = len(recipe_names()) - 1
    return (
        f"{kinds['parquetdir']} exports of {len(reports)} reports that had none{more}, for {others} recipes' analyses"
    )


if __name__ == "__main__":
    subprocess.run(["sync"], check=False)
    main()
