"""All tests: with the newest versions, and with the oldest where this machine has a Python for them.

`--quick` runs what takes a minute and needs no Nsight, with the newest versions only. Other arguments go to pytest.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from recipes.base.errors import PackError
from tools.environment import LAYERS, ROOT, ensure, python_for_oldest
from tools.fetch import find_or_fetch

VERSIONS = """
import platform, importlib.metadata as m
packages = ("numpy", "pandas", "pyarrow")
print("Python " + platform.python_version(), *(f"{name} {m.version(name)}" for name in packages), sep=", ")
"""


def describe(python: Path) -> str:
    """A combination in words: Python 3.11.7, numpy 2.4.6, pandas 3.1.1, pyarrow 26.0.1."""
    return subprocess.run([python, "-c", VERSIONS], capture_output=True, text=True, check=True).stdout.strip()


def prepare(only_main: bool) -> list[Path]:
    """The Pythons to test with, after the set-up of Nsight and of the oldest combination; says what is left out.

    PackError when Nsight cannot be had: the tests that need it would all be skipped.
    """
    installation = find_or_fetch(importer=True)
    print(f"Nsight Systems {installation.version_text} at {installation.nsys}")
    pythons = [Path(sys.executable)]
    if only_main:
        return pythons
    oldest = python_for_oldest()
    if oldest is None:
        print("The oldest combination is left out: it needs a Python 3.10, 3.11 or 3.12")
        return pythons
    return [*pythons, ensure(LAYERS["oldest"], oldest)]


def run_pytest(python: Path, *arguments: str) -> int:
    """The exit status of pytest."""
    return subprocess.run([python, "-m", "pytest", *arguments], cwd=ROOT, check=False).returncode


def main(arguments: list[str]) -> int:
    """Run pytest in each combination, stopping at the first that fails; its exit status."""
    if "--quick" in arguments:
        quick = [argument for argument in arguments if argument != "--quick"]
        return run_pytest(Path(sys.executable), "-m", "not nsight and not slow", *quick)
    try:
        pythons = prepare(only_main=bool(arguments))
    except PackError as error:
        sys.exit(f"test: {error}; without it, ./test --quick runs what needs no Nsight")
    combinations = [describe(python) for python in pythons]
    for number, (python, words) in enumerate(zip(pythons, combinations, strict=True), start=1):
        print(f"Combination {number} of {len(pythons)}: {words}", flush=True)
        status = run_pytest(python, "--require-nsight", *arguments)
        if status:
            return status
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
