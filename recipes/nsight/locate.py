"""Looking for Nsight Systems on this machine: where it is, which version, with recipes or not.

Standard library only: this runs before the pack's environment exists.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from recipes.base.cache_folder import cache_root
from recipes.base.errors import PackError

NAMED_BY = "NSYS_LLM_RECIPES_NSYS"
#: The release with which `nsys recipe` came.
FIRST_WITH_RECIPES = (2023, 1)
RECIPE_PACKAGE = Path("python/packages/nsys_recipe")
HOW_TO_GET = "get it from developer.nvidia.com/nsight-systems and put nsys on PATH, or name it in " + NAMED_BY
#: A command of an installation that takes longer hangs.
CALL_TIMEOUT_S = 30

# Below the file system's root. The copy inside Nsight Compute is a whole Nsight Systems.
USUAL_PLACES = (
    "opt/nvidia/nsight-systems*/*/target-linux-*/nsys",
    "opt/nvidia/nsight-systems*/*/bin/nsys",
    "opt/nvidia/nsight-systems*/target-linux-*/nsys",
    "opt/nvidia/nsight-systems*/bin/nsys",
    "usr/local/cuda*/bin/nsys",
    "usr/local/cuda*/nsight-systems*/target-linux-*/nsys",
    "usr/local/bin/nsys",
    "usr/bin/nsys",
    "usr/lib/nsight-systems/target-linux-*/nsys",
    "opt/nvidia/nsight-compute/*/host/target-linux-*/nsys",
    "usr/local/cuda*/nsight-compute*/host/target-linux-*/nsys",
)
CONDA_PLACES = (
    "bin/nsys",
    "nsight-systems*/target-linux-*/nsys",
    "nsight-systems*/*/target-linux-*/nsys",
    "nsight-compute*/host/target-linux-*/nsys",
    "nsight-compute*/*/host/target-linux-*/nsys",
)
IN_A_FOLDER = ("nsys", "bin/nsys", "target-linux-*/nsys", "*/target-linux-*/nsys", "*/bin/nsys")


@dataclass(frozen=True)
class Installation:
    """One Nsight Systems that answers: its executable, its version, its recipe framework if it has one."""

    nsys: Path
    version: tuple[int, ...]
    version_text: str
    recipe_package: Path | None

    @property
    def target(self) -> Path:
        """The folder of the executable, target-linux-x64 or the like."""
        return self.nsys.parent

    @property
    def is_ours(self) -> bool:
        """Whether this is the copy that the pack unpacked itself and may mend."""
        return own_folder().resolve() in self.nsys.resolve().parents

    @property
    def release(self) -> str:
        """The version without its build number: 2023.4.4."""
        return ".".join(str(part) for part in self.version[:3])


@dataclass(frozen=True)
class Broken:
    """An nsys that was found and cannot be used, and why."""

    nsys: Path
    why: str


@dataclass
class Search:
    """What a search found: usable installations, newest first, and what could not be used."""

    installations: list[Installation] = field(default_factory=list)
    broken: list[Broken] = field(default_factory=list)


def own_folder() -> Path:
    """Where the pack unpacks its own copies, one folder a version."""
    return cache_root() / "nsight-systems"


def run_quietly(
    command: list[str],
    env: Mapping[str, str] | None = None,
    timeout_s: float = CALL_TIMEOUT_S,
    cwd: Path | None = None,
) -> str:
    """What a command prints; PackError with the reason when it fails, hangs or cannot start."""
    name = shlex.join(command[:1] + [word for word in command[1:] if not word.startswith(("/", "-"))])
    try:
        # A session of its own, so that a wrapper script's children end with it.
        process = subprocess.Popen(
            command, env=env, cwd=cwd, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
    except OSError as error:
        raise PackError(f"{name}: does not start ({error.strerror})") from error
    try:
        output, errors = (text.decode(errors="replace") for text in process.communicate(timeout=timeout_s))
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            raise PackError(f"{name}: no answer in {timeout_s:g} s") from error
        raise
    if process.returncode:
        raise PackError(f"{name}: {reason(errors) or reason(output) or f'exit status {process.returncode}'}")
    return output


def reason(text: str) -> str:
    """The line of a failed command's output that says why: a full disk, apt's first error, else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if "No space left" in line] or [line for line in lines if line.startswith("E: ")]
    return (telling or lines[-1:] or [""])[0]


def parse_version(text: str) -> tuple[tuple[int, ...], str]:
    """(2023, 4, 4, 54) and '2023.4.4.54-234433681190v0' from what `nsys --version` prints."""
    found = re.search(r"version\s+((\d{4}(?:\.\d+)+)\S*)", text)
    if not found:
        raise PackError(f"not an Nsight Systems: it answers {text.strip()[:60]!r} to --version")
    return tuple(int(part) for part in found[2].split(".")), found[1]


def read_installation(executable: Path) -> Installation:
    """The installation that an executable, link or wrapper script belongs to; PackError when it does not work."""
    version, text = parse_version(run_quietly([str(executable), "--version"]))
    real = executable.resolve()
    package = real.parent / RECIPE_PACKAGE
    if version < FIRST_WITH_RECIPES:
        return Installation(real, version, text, None)
    if not package.is_dir() and is_script(real):
        package = ask_wrapper(real) or package
        behind = package.parents[2] / "nsys"
        real = behind if package.is_dir() and behind.exists() else real
    return Installation(real, version, text, package if package.is_dir() else None)


def is_script(path: Path) -> bool:
    """Whether a file starts with #!, so that the real nsys is somewhere else."""
    try:
        with path.open("rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False


def ask_wrapper(script: Path) -> Path | None:
    """The recipe package behind a wrapper script.

    nsys hands its recipes' Python the package folder in PYTHONPATH: a stand-in for python3 writes that down.
    """
    with tempfile.TemporaryDirectory(prefix="nsys-llm-recipes-") as folder:
        answer, python = Path(folder, "answer"), Path(folder, "python3")
        python.write_text(f'#!/bin/sh\nprintf "%s" "$PYTHONPATH" > "{answer}"\n')
        python.chmod(0o755)
        path = folder + os.pathsep + os.environ.get("PATH", os.defpath)
        env = {**os.environ, "PATH": path, "NSYSPYTHONEXE": str(python)}
        with contextlib.suppress(PackError):  # It may dislike the stand-in's silence; only the answer counts.
            run_quietly([str(script), "recipe", "llm_nothing"], env=env)
        folders = answer.read_text().split(os.pathsep) if answer.exists() else []
    packages = (Path(folder, "nsys_recipe") for folder in folders if folder)
    return next((package.resolve() for package in packages if package.is_dir()), None)


def candidates(environ: Mapping[str, str], root: Path = Path("/")) -> list[Path]:
    """Every executable file that may be an nsys: on PATH, in the usual places, in conda, our own copy."""
    found = [Path(folder, "nsys") for folder in environ.get("PATH", "").split(os.pathsep) if folder]
    found += glob_all(root, USUAL_PLACES)
    for name in ("CONDA_PREFIX", "CUDA_HOME"):
        if environ.get(name):
            found += glob_all(Path(environ[name]), CONDA_PLACES)
    found += glob_all(own_folder(), ("[0-9]*/target-linux-*/nsys",))
    return [path for path in found if path.is_file() and os.access(path, os.X_OK)]


def glob_all(root: Path, patterns: Iterable[str]) -> list[Path]:
    """Files below a folder that match any of the patterns, in the patterns' order."""
    return [path for pattern in patterns for path in sorted(root.glob(pattern))]


def named_by_user(name: str) -> Path:
    """The nsys executable that the user means by a path: the file itself or the folder of an installation."""
    path = Path(os.path.expanduser(name))
    if path.is_dir():
        inside = [file for file in glob_all(path, IN_A_FOLDER) if file.is_file()]
        if inside:
            return inside[-1]
    elif path.is_file():
        return path
    raise PackError(f"no nsys at {path}: name the executable, or the folder of an installation")


def search(environ: Mapping[str, str] | None = None, root: Path = Path("/")) -> Search:
    """All installations, newest first: only the one that the user names, if any, else everything found."""
    environ = os.environ if environ is None else environ
    named = environ.get(NAMED_BY)
    if named:
        try:
            return Search([read_installation(named_by_user(named))])
        except PackError as error:
            raise PackError(f"{error} ({NAMED_BY} names it)") from error
    found, seen = Search(), set()
    for path in candidates(environ, root):
        if path.resolve() in seen:
            continue
        seen.add(path.resolve())
        try:
            installation = read_installation(path)
        except PackError as error:
            found.broken.append(Broken(path, str(error)))
            continue
        if installation.nsys not in {other.nsys for other in found.installations}:
            found.installations.append(installation)
        seen.add(installation.nsys.resolve())
    # The sort keeps the order of the search among equals: PATH before the rest.
    found.installations.sort(key=lambda installation: installation.version, reverse=True)
    return found
