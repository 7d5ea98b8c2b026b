"""Which Python `nsys recipe` runs, and what it lacks. Standard library only."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from recipes.base.cache_folder import home_folder
from recipes.base.errors import PackError
from recipes.nsight.locate import Installation, run_quietly

NEEDED = ("numpy", "pandas", "pyarrow", "psutil")
OPTIONAL = {"plotly": "notebooks", "jupyterlab": "notebooks", "distributed": "--mode dask-futures"}
#: As `requires-python` in pyproject.toml.
OLDEST = (3, 10)
# From this version on Nsight brings a Python and makes an environment for it; before, it took python3 from PATH.
FIRST_BUNDLED = (2026, 3)
NAMED_BY = "NSYSPYTHONEXE"

_ASK = """
import importlib.metadata, importlib.util, json, os, platform, sys, sysconfig
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        found[name] = None
managed = sys.prefix == sys.base_prefix and os.path.exists(sysconfig.get_path("stdlib") + "/EXTERNALLY-MANAGED")
takes_pip = not managed and importlib.util.find_spec("pip") is not None
print(json.dumps([platform.python_version(), found, takes_pip]))
"""


@dataclass(frozen=True)
class RecipePython:
    """The Python of an installation's recipes: where, why that one, its version, its packages (None: missing)."""

    path: Path | None
    why: str
    version: str = ""
    packages: dict[str, str | None] = field(default_factory=dict)
    takes_pip: bool = False
    trouble: str = ""
    pending: bool = False

    @property
    def missing(self) -> list[str]:
        """The packages that the pack's recipes cannot do without and that are not there."""
        return [name for name in NEEDED if not self.packages.get(name)]

    @property
    def is_ready(self) -> bool:
        """Whether the pack's recipes run with it; Nsight's own environment is taken to become ready when needed."""
        return self.pending or (not self.trouble and not self.missing)


def recipe_python(
    installation: Installation, environ: Mapping[str, str] | None = None, home: Path | None = None
) -> RecipePython:
    """The Python that an installation's `nsys recipe` uses in this environment, and its packages."""
    environ = os.environ if environ is None else environ
    if installation.version < FIRST_BUNDLED:
        found = shutil.which("python3", path=environ.get("PATH", os.defpath))
        if not found:
            return RecipePython(None, "first python3 on PATH", trouble="no python3 on PATH")
        return ask(Path(found), "first python3 on PATH")
    if environ.get(NAMED_BY):
        return ask(Path(environ[NAMED_BY]), f"named by {NAMED_BY}")
    home = home or home_folder()
    own = home and home / ".nsightsystems/venv/bin/python"
    if own and own.exists():
        return ask(own, "Nsight's own environment")
    why = "Nsight's own environment, made at the first recipe (needs the package index)"
    trouble = f"not made yet: run any recipe once, or name a Python in {NAMED_BY}"
    return RecipePython(None, why, trouble=trouble, pending=True)


def ask(python: Path, why: str) -> RecipePython:
    """Ask a Python for its version and packages."""
    try:
        text = run_quietly([str(python), "-c", _ASK, *NEEDED, *OPTIONAL])
        version, packages, takes_pip = json.loads(text.strip().splitlines()[-1])
    except (PackError, ValueError, IndexError) as error:
        return RecipePython(python, why, trouble=f"it does not work: {error}")
    old = tuple(int(part) for part in version.split(".")[:2]) < OLDEST
    trouble = f"Python {version} is older than 3.10" if old else ""
    return RecipePython(python, why, version, packages, takes_pip, trouble)


def how_to_add(python: RecipePython, packages: list[str]) -> str:
    """How to give a Python these packages: by pip where it may install, else an environment beside it.

    Debian's and Ubuntu's own Python refuses pip, to keep its packages apart from the system's.
    """
    names = " ".join(packages)
    if python.takes_pip:
        return f"{python.path} -m pip install {names}"
    return f"make an environment (python3 -m venv DIR; DIR/bin/pip install {names}) and put DIR/bin first on PATH"
