"""The main job on a bundled report: through `nsys recipe`, or without any Nsight on the report's export."""

from __future__ import annotations

import itertools
import lzma
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from recipes.base.errors import PackError
from tools.fetch import find_or_fetch

ROOT = Path(__file__).resolve().parents[1]

RECIPE = "llm_kernel_families"
REPORT = "fixtures/decode_graph.nsys-rep"
EXPORT = "fixtures/decode_graph.sqlite.xz"


def fresh_output(root: Path = ROOT) -> str:
    """The first name of demo_output, demo_output-2, ... that is free: nothing of an earlier run is touched."""
    names = itertools.chain(["demo_output"], (f"demo_output-{number}" for number in itertools.count(2)))
    return next(name for name in names if not (root / name).exists())


def run_through_nsys(nsys: Path, output: str) -> int:
    """`nsys recipe` as a user types it, with the environment's Python first on PATH; its exit status."""
    command = ["nsys", "recipe", RECIPE, "--input", REPORT, "--output", output]
    print("$ " + " ".join(command), flush=True)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    # NSYSPYTHONEXE says the same to the versions that bring a Python of their own.
    env = {**os.environ, "PATH": path, "NSYSPYTHONEXE": sys.executable}
    return subprocess.run([str(nsys), *command[1:]], cwd=ROOT, env=env, check=False).returncode


def run_without_nsys(output: str) -> int:
    """The same job by the pack's own command, on the report's SQLite export; its exit status."""
    with tempfile.TemporaryDirectory(prefix="nsys-llm-recipes-") as folder:
        export = Path(folder, Path(EXPORT).stem)
        with lzma.open(ROOT / EXPORT) as packed, export.open("wb") as unpacked:
            shutil.copyfileobj(packed, unpacked)
        command = ["python", "-m", "recipes", "run", RECIPE, "--input", str(export), "--output", output]
        print("$ " + " ".join(command), flush=True)
        return subprocess.run([sys.executable, *command[1:]], cwd=ROOT, check=False).returncode


def next_steps(nsys: Path | None, python: Path) -> str:
    """How to run recipes on one's own reports after this: what the shell lacks for the README's commands."""
    if nsys is None:
        return f"On your own exports: {python} -m recipes run {RECIPE} --input run/"
    wanted = {"nsys": nsys, "python3": python.with_name("python3")}
    lacking = [str(path.parent) for name, path in wanted.items() if shutil.which(name) != str(path)]
    if not lacking:
        return f"On your own reports: nsys recipe {RECIPE} --input run/"
    return (
        "On your own reports, from this folder:\n"
        f"    export PATH={':'.join(lacking)}:$PATH\n    nsys recipe {RECIPE} --input run/"
    )


def main() -> int:
    """Run the job with Nsight Systems if there is any way to have one."""
    try:
        installation = find_or_fetch()
    except PackError as error:
        print(f"demo: {error}\nWithout it, the same job runs on the report's SQLite export.", file=sys.stderr)
        status = run_without_nsys(fresh_output())
        print(next_steps(None, Path(sys.executable)))
        return status
    print(f"Nsight Systems {installation.version_text} at {installation.nsys}")
    status = run_through_nsys(installation.nsys, fresh_output())
    print(next_steps(installation.nsys, Path(sys.executable)))
    return status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        sys.exit(f"demo: {error.filename}: {error.strerror}")
