"""An Nsight Systems for machines without one: Debian's and Ubuntu's own package, unpacked into the cache folder.

The target package alone exports reports, makes statistics and runs recipes. The host package (four times its size,
most of it the graphical interface) is needed only to turn new captures into reports, and comes when asked for.
Each part is put together in a folder of its own and renamed into place, so it is there whole or not at all.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from recipes.base.cache_folder import cache_root
from recipes.base.errors import PackError
from recipes.nsight import faults
from recipes.nsight.installation import best_of, named, search, why_none
from recipes.nsight.locate import FIRST_WITH_RECIPES, Installation, own_folder, read_installation
from tools import debian
from tools.mend import cure, mend, write_file_list

TARGET, HOST = "nsight-systems-target", "nsight-systems"
# Suites known to hold a version with recipes, tried beside the machine's own one.
SUITES = {"debian": ("trixie",), "ubuntu": ("resolute", "questing", "plucky")}
COMPONENTS = {"debian": "non-free", "ubuntu": "multiverse"}
# Packages of shared libraries, under their names before and after the 64-bit time change.
LIBRARIES = {
    "libelf.so.1": ("libelf1t64", "libelf1"),
    "libgssapi_krb5.so.2": ("libgssapi-krb5-2",),
    "libgcc_s.so.1": ("libgcc-s1",),
    "libkrb5support.so.0": ("libkrb5support0",),
    "libk5crypto.so.3": ("libk5crypto3",),
    "libsqlite3.so.0": ("libsqlite3-0",),
    "libcrypto.so.3": ("libssl3t64", "libssl3"),
    "libstdc++.so.6": ("libstdc++6",),
    "libz.so.1": ("zlib1g",),
}
LIBRARY_ROUNDS = 5  # A library may need others; none goes deeper than this.

Say = Callable[[str], None]


def say_on_terminal(text: str) -> None:
    """Progress for a person: one line on the terminal's error output."""
    print(text, file=sys.stderr, flush=True)


def find_or_fetch(importer: bool = False, say: Say = say_on_terminal) -> Installation:
    """The newest installation that runs recipes, fetched when this machine has none; PackError when it cannot be had.

    With `importer`, a copy of our own also gets the part that makes reports of new captures.
    """
    found = search()
    installation = best_of(found)
    if installation is None:
        if named(None):
            raise PackError(why_none(found))
        try:
            installation = fetch(say)
        except PackError as error:
            why = f"the distribution's package cannot be had either: {error}"
            raise PackError(f"{why_none(found)} ({why})") from error
    if importer and installation.is_ours and not can_capture(installation):
        try:
            add_importer(installation, say)
        except PackError as error:
            say(f"Without the part that makes reports of new captures: {error}")
    return installation


def fetch(say: Say = say_on_terminal) -> Installation:
    """The pack's own copy, made now unless it is there and whole. Safe against a second one at the same time."""
    with locked(own_folder()) as folder:
        return own_copy() or fetch_target(folder, say)


def add_importer(installation: Installation, say: Say = say_on_terminal) -> None:
    """Give the pack's own copy what makes reports of new captures, unless it is there and whole."""
    with locked(own_folder()) as folder:
        if not can_capture(installation):
            fetch_host(folder, installation, say)


def can_capture(installation: Installation) -> bool:
    """Whether the part that makes reports of new captures is there and whole."""
    unfit = any(problem.blocks == "captures" for problem in faults.problems(installation))
    return faults.importer(installation) is not None and not unfit


def own_copy() -> Installation | None:
    """The newest whole copy of ours, mended if it needs that; None when there is none."""
    for nsys in sorted(own_folder().glob("[0-9]*/target-linux-*/nsys"), reverse=True):
        with contextlib.suppress(PackError):
            installation = read_installation(nsys)
            mend(installation)
            if not faults.blocking(installation):
                return installation
    return None


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[Path]:
    """Hold the folder's lock, alone in it; what a killed run left half-made is cleared away."""
    try:
        cache_root().mkdir(mode=0o700, parents=True, exist_ok=True)  # Exports of reports lie there too.
        folder.mkdir(exist_ok=True)
        with (folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for left in folder.glob(".new-*"):
                shutil.rmtree(left, ignore_errors=True)
            yield folder
    except OSError as error:
        raise PackError(
            f"cannot write {folder}: {error.strerror}; NSYS_LLM_RECIPES_CACHE names another folder"
        ) from error


@contextlib.contextmanager
def workplace(folder: Path) -> Iterator[Path]:
    """A folder for half-made things beside the finished ones, gone afterwards."""
    place = Path(tempfile.mkdtemp(prefix=".new-", dir=folder))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def fetch_target(folder: Path, say: Say) -> Installation:
    """Fetch and put in place what exports, statistics and recipes need."""
    with workplace(folder) as place:
        apt = debian.Apt(place)
        version = choose_suite(apt)
        target = find_side(download(apt, TARGET, say), "target-linux-*")
        add_libraries(apt, target / "nsys", say)
        made = read_installation(target / "nsys")
        cure(made)
        for problem in faults.blocking(made):
            raise PackError(f"the distribution's package is of no use: {problem.what}")
        final = put_in_place(target, folder / version, place)
    say(f"Nsight Systems {made.release} is in {final.parent}")
    return read_installation(final / "nsys")


def fetch_host(folder: Path, installation: Installation, say: Say) -> None:
    """Fetch and put in place what makes reports of new captures."""
    with workplace(folder) as place:
        apt = debian.Apt(place)
        choose_suite(apt)
        host = find_side(download(apt, HOST, say), "host-linux-*")
        add_libraries(apt, host / "QdstrmImporter", say)
        put_in_place(host, installation.target.parent, place)
    mend(installation)


def find_side(unpacked: Path, pattern: str) -> Path:
    """The target or host folder in an unpacked package."""
    found = [path for path in unpacked.glob(f"usr/lib/**/{pattern}") if path.is_dir() and not path.is_symlink()]
    if not found:
        raise PackError(f"the package holds no {pattern} folder")
    return found[0]


def put_in_place(side: Path, version_folder: Path, place: Path) -> Path:
    """Rename a finished side into the copy, where a damaged one makes room; its new place."""
    write_file_list(side)
    version_folder.mkdir(exist_ok=True)
    final = version_folder / side.name
    if final.exists():
        final.rename(place / "damaged")
    return side.rename(final)


def choose_suite(apt: debian.Apt) -> str:
    """Point apt at the first suite whose Nsight Systems has recipes; that one's version, such as 2023.4.4.54."""
    debian.require_tools()
    release = debian.read_release()
    kind, own = debian.family(release), debian.codename(release)
    if kind is None:
        raise PackError("this is neither Debian nor Ubuntu")
    architecture = debian.architecture()
    if architecture not in ("amd64", "arm64"):
        raise PackError(f"no package for {architecture}")
    mirrors = debian.mirrors(debian.read_sources(), own)
    if not mirrors:
        raise PackError(f"the machine's apt sources name no mirror for {own or 'its release'}")
    suites = list(dict.fromkeys((*SUITES[kind], own) if kind == "debian" else (own, *SUITES[kind])))
    reasons = []
    for suite in suites:
        try:
            apt.update(debian.stanza(mirrors[0], suite, [COMPONENTS[kind]], architecture))
        except PackError as error:
            reasons.append(str(error))
            continue
        version = apt.show(TARGET).get("Version", "").partition("~")[0]
        if version and tuple(int(part) for part in re.findall(r"\d+", version)[:2]) >= FIRST_WITH_RECIPES:
            return version
        reasons.append(f"{TARGET} is {version} in {suite}, without recipes" if version else f"{suite} has no {TARGET}")
    raise PackError(f"{reasons[0]} (tried {', '.join(suites)})")


def download(apt: debian.Apt, package: str, say: Say) -> Path:
    """Download and unpack one package, with its size on the terminal; PackError when the disk is too small."""
    fields = apt.show(package)
    size, unpacked_size = int(fields.get("Size", 0)), 1024 * int(fields.get("Installed-Size", 0))
    free = shutil.disk_usage(apt.folder).free
    if free < size + unpacked_size:
        raise PackError(
            f"{apt.folder.parent} has {free >> 20} MB free, {package} needs {size + unpacked_size >> 20} MB"
        )
    say(f"Downloading {package} {fields.get('Version', '')} ({size / 1e6:.0f} MB)")
    with progress(apt.folder, size):
        return apt.unpack(package)


@contextlib.contextmanager
def progress(folder: Path, size: int) -> Iterator[None]:
    """While the block runs, the megabytes that have come, on a terminal only."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.5):
            come = max(
                map(faults.file_size, [*folder.glob("downloads/*/*"), *folder.glob("**/partial/*.deb")]), default=0
            )
            print(f"\r  {come / 1e6:.0f} of {size / 1e6:.0f} MB", end="", file=sys.stderr, flush=True)
        print("\r" + " " * 30 + "\r", end="", file=sys.stderr, flush=True)

    thread = threading.Thread(target=watch, daemon=True)
    if sys.stderr.isatty() and size > 10e6:
        thread.start()
    try:
        yield
    finally:
        done.set()
        if thread.ident:
            thread.join()


def add_libraries(apt: debian.Apt, program: Path, say: Say) -> None:
    """Put the shared libraries that a program misses on this machine beside it, where its loader looks first.

    They come from the machine's own release: those of a newer one may want a newer C library.
    """
    for round_number in range(LIBRARY_ROUNDS):
        missing = faults.missing_libraries(program)
        if not missing:
            return
        if round_number == 0:
            use_own_release(apt)
        for library in missing:
            place = end_of_links(program.parent / library)
            found = find_library(apt, place.name, say)
            place.unlink(missing_ok=True)  # A link into a package that is not there.
            shutil.copy2(found, place)
    raise PackError(f"{program.name} still misses {', '.join(missing)}")


def end_of_links(path: Path) -> Path:
    """Where a chain of links inside one folder ends: libssh.so -> libssh.so.4, which may itself lead outside."""
    while path.is_symlink() and os.sep not in os.readlink(path):
        path = path.with_name(os.readlink(path))
    return path


def use_own_release(apt: debian.Apt) -> None:
    """Point apt at the main component of the release that the machine runs."""
    own = debian.codename(debian.read_release())
    mirror = debian.mirrors(debian.read_sources(), own)[0]
    apt.update(debian.stanza(mirror, own, ["main"], debian.architecture()))


def find_library(apt: debian.Apt, library: str, say: Say) -> Path:
    """The file of a shared library, out of the package that has it."""
    for package in LIBRARIES.get(library, (faults.package_hint(library),)):
        if apt.show(package):
            say(f"Downloading {package} for {library}")
            found = next((path for path in apt.unpack(package).rglob(library) if path.exists()), None)
            if found:
                return Path(os.path.realpath(found))
    raise PackError(f"no package with {library}")
