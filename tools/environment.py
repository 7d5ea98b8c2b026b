"""The pack's own Python environments, made without root and again in no time when they are done.

    python3 -m tools.environment run      .venv with what the recipes need
    python3 -m tools.environment test     .venv with everything: notebooks, Dask, test tools
    python3 -m tools.environment oldest   .venv-oldest with the oldest versions that are tested

Standard library only. uv installs where there is one on PATH, else pip, with the machine's own configuration.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from recipes.base.errors import PackError
from recipes.nsight.locate import run_quietly
from tools import debian

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = ROOT / "tools/requirements"
OLDEST_PYTHON = (3, 10)
MARKER = "made-by-nsys-llm-recipes"  # Only a folder that holds this file is ever emptied.
PIP_WHEELS = "usr/share/python-wheels"
PIP_TIMEOUT_S = 3600


@dataclass(frozen=True)
class Layer:
    """What one command needs: an environment's folder and the requirement files to install there."""

    folder: str
    files: tuple[str, ...]


LAYERS = {
    "run": Layer(".venv", ("run.txt",)),
    "test": Layer(".venv", ("run.txt", "notebook.txt", "dask.txt", "test.txt")),
    "oldest": Layer(".venv-oldest", ("oldest.txt",)),
}


def ensure(layer: Layer, python: str = sys.executable, root: Path = ROOT, requirements: Path = REQUIREMENTS) -> Path:
    """The Python of a layer's environment, with all its requirements installed; made as far as it is missing."""
    folder = root / layer.folder
    inside = folder / "bin/python"
    if is_done(folder, layer, requirements):
        return inside
    with locked(folder):
        if is_done(folder, layer, requirements):
            return inside
        if not works(inside):
            create(folder, python)
        install(folder, layer, requirements)
    return inside


def is_done(folder: Path, layer: Layer, requirements: Path) -> bool:
    """Whether the environment works and holds each of the layer's files as they are now."""
    stamps = [folder / f"{name}.stamp" for name in layer.files]
    if not all(stamp.is_file() for stamp in stamps):
        return False
    current = all(
        stamp.read_text() == digest(requirements / name) for stamp, name in zip(stamps, layer.files, strict=True)
    )
    return current and works(folder / "bin/python")


def digest(path: Path) -> str:
    """A requirement file's fingerprint."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def works(python: Path) -> bool:
    """Whether an environment's Python starts, is the version it was made for, and has pip."""
    home = python.parents[1]
    if not python.exists() or not (home / "pip.stamp").exists():
        return False
    with contextlib.suppress(PackError):
        return (home / "pip.stamp").read_text() == python_version(str(python))
    return False


def python_version(python: str) -> str:
    """The version of a Python, such as 3.11; PackError when it does not start."""
    return run_quietly([python, "-I", "-S", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]).strip()


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the environment's lock; PackError when the folder is somebody else's or cannot be written."""
    try:
        if folder.exists() and not (folder / MARKER).exists() and any(folder.iterdir()):
            raise PackError(f"{folder} was not made by this set-up: move it away, then try again")
        folder.mkdir(exist_ok=True)
        with (folder / MARKER).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise PackError(f"cannot write {error.filename or folder}: {error.strerror}") from error


def create(folder: Path, python: str) -> None:
    """Make the environment anew in its folder, with a pip."""
    if tuple(int(part) for part in python_version(python).split(".")) < OLDEST_PYTHON:
        raise PackError(f"{python} is older than Python 3.10: run this with a newer one")
    for path in folder.iterdir():
        if path.name != MARKER:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    print(f"Making {folder.name} with Python {python_version(python)}", flush=True)
    run_quietly([python, "-m", "venv", "--without-pip", str(folder)], timeout_s=300)
    inside = folder / "bin/python"
    if has_module(inside, "ensurepip"):
        run_quietly([str(inside), "-m", "ensurepip", "--upgrade"], timeout_s=300)
    else:
        with tempfile.TemporaryDirectory(prefix="nsys-llm-recipes-") as place:
            wheel = pip_wheel(Path(place))
            run_quietly([str(inside), f"{wheel}/pip", "install", "--no-index", str(wheel)], timeout_s=300)
    (folder / "pip.stamp").write_text(python_version(str(inside)))


def has_module(python: Path, module: str) -> bool:
    """Whether a Python can import a module. Debian splits ensurepip off into python3-venv."""
    with contextlib.suppress(PackError):
        run_quietly([str(python), "-I", "-c", f"import {module}"])
        return True
    return False


def pip_wheel(place: Path, system: Path = Path("/")) -> Path:
    """pip as one file: the system's, else out of the distribution's package, unpacked into `place`."""
    found = sorted((system / PIP_WHEELS).glob("pip-*.whl"))
    if found:
        return found[-1]
    try:
        debian.require_tools()
        release = debian.read_release()
        mirrors = debian.mirrors(debian.read_sources(), debian.codename(release))
        if not mirrors:
            raise PackError("the machine's apt sources name no mirror")
        component = ["main", "universe"] if debian.family(release) == "ubuntu" else ["main"]
        apt = debian.Apt(place)
        print("Fetching pip from the distribution's package python3-pip-whl", flush=True)
        apt.update(debian.stanza(mirrors[0], debian.codename(release), component, debian.architecture()))
        return next((apt.unpack("python3-pip-whl") / PIP_WHEELS).glob("pip-*.whl"))
    except PackError as error:
        why = f"this Python has no ensurepip, and pip cannot be had otherwise ({error})"
        raise PackError(f"{why}: install python3-venv, or use another python3") from error


def install(folder: Path, layer: Layer, requirements: Path) -> None:
    """Install a layer's requirement files and stamp each."""
    names = [name.removesuffix(".txt") for name in layer.files]
    print(f"Installing into {folder.name}: {', '.join(names)}", flush=True)
    log = folder / "pip.log"
    inside = str(folder / "bin/python")
    uv = shutil.which("uv")
    # uv is faster, but does not read pip's settings: where it finds no packages, pip may.
    installers = [[uv, "pip", "install", "--python", inside]] if uv else []
    installers.append([inside, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"])
    wanted = [word for name in layer.files for word in ("-r", str(requirements / name))]
    # A user's own pip settings may send packages elsewhere; these have to land in the environment.
    env = {name: value for name, value in os.environ.items() if name not in ("PIP_TARGET", "PIP_PREFIX", "PYTHONPATH")}
    for installer in installers:
        with log.open("w") as output:
            status = subprocess.run(
                [*installer, *wanted], env={**env, "PIP_USER": "0"}, stdin=subprocess.DEVNULL, stdout=output,
                stderr=output, timeout=PIP_TIMEOUT_S, check=False,
            ).returncode  # fmt: skip
        if not status:
            break
    else:
        raise PackError(f"pip could not install {', '.join(layer.files)}: {last_error(log)} (all of it: {log})")
    for name in layer.files:
        (folder / f"{name}.stamp").write_text(digest(requirements / name))


def last_error(log: Path) -> str:
    """The line of pip's output that says what went wrong."""
    lines = log.read_text(errors="replace").strip().splitlines() or ["no output"]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines)[-1].removeprefix("ERROR:").strip()


def python_for_oldest() -> str | None:
    """A Python that the oldest combination has wheels for, 3.10 before the others; None when there is none."""
    versions = ("3.10", "3.11", "3.12")
    places = [Path(folder) for folder in os.environ.get("PATH", os.defpath).split(os.pathsep)]
    for version in versions:
        pyenv = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin"))
        for place in [*pyenv, *places]:
            python = place / f"python{version}"
            with contextlib.suppress(PackError):
                if python.exists() and python_version(str(python)) == version and has_module(python, "venv"):
                    return str(python)
    return sys.executable if python_version(sys.executable) in versions else None


def main(arguments: list[str]) -> int:
    """Make the layers named; 0 when they are there, 1 with one line when one cannot be made."""
    try:
        for name in arguments or ["run"]:
            if name not in LAYERS:
                raise PackError(f"no layer {name!r}: there are {', '.join(LAYERS)}")
            python = python_for_oldest() if name == "oldest" else sys.executable
            if python is None:
                raise PackError("the oldest combination needs a Python 3.10, 3.11 or 3.12")
            ensure(LAYERS[name], python)
    except (PackError, subprocess.TimeoutExpired) as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
