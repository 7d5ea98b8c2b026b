"""A report as a folder of parquet files: made once by `nsys export`, shared by all recipes.

The export lies in the pack's cache folder under a key made of the report's content and the exporter's version.
So a copied, moved or chmod-ed report finds its export again, a changed one never does, and nothing is written
beside the report. A folder is there whole or not at all: it is filled under another name and then renamed.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import lzma
import os
import re
import shutil
import sqlite3
import subprocess
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from recipes.base.cache_folder import NOWHERE, cache_root
from recipes.base.errors import PackError
from recipes.report import schema

#: The tables that every Nsight version writes; an export without them is not whole.
REQUIRED = ("META_DATA_EXPORT", "StringIds", "TARGET_INFO_SYSTEM_ENV")
#: Parts of exports that are older were left by killed runs: where files cannot be locked, another run may still be
#: filling a younger one.
_ABANDONED_S = 3600
_MANIFEST = "manifest.json"
# What nsys says of files with wrong bytes in them.
_DAMAGED = re.compile(r"magic number|delimiter|Cannot read|[Ss]ection|decompression")
# Versions of Nsight Systems as they stand in such a message.
_VERSION = re.compile(r"(?<![\w./])20[12]\d\.\d+(?:\.\d+)*")
# Part of the key: another set of tables makes another export.
_TABLES = tuple(sorted({*schema.EXPORTED, *REQUIRED}))
_HOW = "META_DATA_CAPTURE"
# Part of the key too: what is made of the same tables, when that changes.
_FORM = "2"


@dataclass(frozen=True)
class Exporter:
    """An `nsys` executable and its version as it prints it."""

    nsys: Path
    version: str


def export(report: Path, exporter: Exporter, announce: Callable[[str], None] = lambda text: None) -> Path:
    """The folder with the report's export, made now unless it is there.

    `announce` is told before work that takes time. PackError when the report cannot be exported or the cache
    folder cannot be written.
    """
    try:
        cache_root().mkdir(mode=0o700, parents=True, exist_ok=True)
        key = _key(report, exporter)
        folder = cache_root() / "exports"
        final = folder / key
        if _is_whole(final):
            return final
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / f"{key}.lock"):
            if not _is_whole(final):
                announce(f"exporting {report.name}")
                _make(report, exporter, final)
        return final
    except OSError as error:
        raise _unwritable(report, error) from None


def unpacked(packed: Path, announce: Callable[[str], None] = lambda text: None) -> Path:
    """The file in a compressed one (.xz, .gz), in the cache folder; made now unless it is there.

    `announce` is told before work that takes time. PackError when it is damaged or the cache folder cannot be written.
    """
    try:
        folder = cache_root() / "exports"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        final = folder / f"{content_digest(packed)}.sqlite"
        with _locked(folder / f"{final.name}.lock"):
            if not final.exists():
                announce(f"unpacking {packed.name}")
                _unpack(packed, final)
        return final
    except OSError as error:
        raise _unwritable(packed, error) from None


def _unpack(packed: Path, final: Path) -> None:
    opened = lzma.open if packed.suffix == ".xz" else gzip.open
    descriptor, part = tempfile.mkstemp(prefix=f"{final.name}.part-", dir=final.parent)
    try:
        with os.fdopen(descriptor, "wb") as file, opened(packed) as source:
            shutil.copyfileobj(source, file, 1 << 22)
        os.replace(part, final)
    except (lzma.LZMAError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise PackError(f"{packed}: cannot be unpacked ({error}); copy it again") from None
    finally:
        Path(part).unlink(missing_ok=True)


def _key(report: Path, exporter: Exporter) -> str:
    made_of = f"{content_digest(report)} {exporter.version} {_FORM} {' '.join((*_TABLES, *_extra(exporter.nsys)))}"
    return hashlib.blake2b(made_of.encode(), digest_size=16).hexdigest()


def content_digest(path: Path) -> str:
    """A digest of a file's content. Remembered in the cache folder until the file's stamps change."""
    stat = path.stat()
    # The change time tells about edits that keep size and modification time; a chmod moves it too, which
    # costs one more reading of the file but not a new export.
    stamps = [stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
    name = hashlib.blake2b(os.fsencode(path.absolute()), digest_size=16).hexdigest()
    note = cache_root() / "digests" / f"{name}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        known = json.loads(note.read_text())
        if known["stamps"] == stamps:
            return str(known["digest"])
    with path.open("rb") as file:
        digest = hashlib.blake2b(digest_size=20)
        while block := file.read(1 << 22):
            digest.update(block)
    note.parent.mkdir(parents=True, exist_ok=True)
    _write_atomically(note, json.dumps({"stamps": stamps, "digest": digest.hexdigest()}))
    return digest.hexdigest()


def _is_whole(folder: Path) -> bool:
    """Whether every file that the manifest lists is there in its size."""
    try:
        sizes = json.loads((folder / _MANIFEST).read_text())["sizes"]
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _make(report: Path, exporter: Exporter, final: Path) -> None:
    # What a killed run left under this key. Old only: where files cannot be locked another run may be filling one.
    for left in final.parent.glob(f"{final.name}.part-*"):
        if time.time() - left.stat().st_mtime > _ABANDONED_S:
            shutil.rmtree(left, ignore_errors=True)
    part = Path(tempfile.mkdtemp(prefix=f"{final.name}.part-", dir=final.parent))
    try:
        _run_export(report, exporter, "parquetdir", _TABLES, part)
        if not (part / f"{_HOW}.parquet").exists():
            _add_how(report, exporter, part)
        _check(report, part)
        sizes = {file.name: file.stat().st_size for file in sorted(part.iterdir())}
        manifest = {"report": report.name, "nsys": exporter.version, "sizes": sizes}
        (part / _MANIFEST).write_text(json.dumps(manifest, indent=1))
        if not _is_whole(final):
            if final.exists():
                shutil.rmtree(final)
            part.rename(final)
    finally:
        shutil.rmtree(part, ignore_errors=True)


@cache
def _extra(nsys: Path) -> tuple[str, ...]:
    """Options that only some versions know: payloads of NVTX ranges as text, where message sizes are."""
    command = [str(nsys), "export", "--help"]
    try:
        told = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False).stdout
    except OSError:
        return ()
    return ("--include-json", "true") if b"--include-json" in told else ()


def _add_how(report: Path, exporter: Exporter, folder: Path) -> None:
    """Adds the table that tells how the capture was made: some versions write it as SQLite only."""
    file = folder / "how.sqlite"
    try:
        _run_export(report, exporter, "sqlite", (_HOW,), file)
        with contextlib.closing(sqlite3.connect(file)) as database:
            rows = database.execute(f"SELECT CAST(name AS TEXT), CAST(value AS TEXT) FROM {_HOW}").fetchall()
    except (PackError, sqlite3.Error):
        # It is missed by some checks only.
        return
    finally:
        file.unlink(missing_ok=True)
    columns = {
        name: pa.array([row[place] for row in rows], pa.string()) for place, name in enumerate(("name", "value"))
    }
    pq.write_table(pa.table(columns), folder / f"{_HOW}.parquet")


def _run_export(report: Path, exporter: Exporter, kind: str, tables: Sequence[str], output: Path) -> None:
    command = [
        str(exporter.nsys), "export", "--type", kind, "--lazy", "false", "--force-overwrite", "true",
        "--quiet", "true", *_extra(exporter.nsys), "--tables", ",".join(tables), "--output", str(output),
        str(report.absolute()),
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    except OSError as error:
        raise PackError(
            f"{exporter.nsys}: cannot be run ({error.strerror or error}); see `python -m recipes check`"
        ) from None
    if done.returncode:
        said = (done.stderr + done.stdout).decode("utf-8", "replace")
        raise PackError(f"{report}: {_reason(report, said, done.returncode, exporter)}")


def _reason(report: Path, said: str, status: int, exporter: Exporter) -> str:
    """Why `nsys export` failed and what to do, from what it printed."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    found = next((line for line in lines if "error" in line.lower()), lines[-1] if lines else f"status {status}")
    found = found.removeprefix("Exportation error:").strip().rstrip(".")
    if report.stat().st_size == 0:
        return "is empty; copy it again or capture again"
    if _DAMAGED.search(found):
        return f"is damaged, cut off or not an Nsight report (nsys: {found}); copy it again or capture again"
    told = next((version for version in _VERSION.findall(said) if not exporter.version.startswith(version)), None)
    if told:
        own = exporter.version.partition("-")[0]
        return (
            f"was written by Nsight {told} and cannot be read by {own}; use that version or newer, or give its export "
            "(nsys export --type sqlite) as the input"
        )
    if "rotobuf" in found or "version" in found.lower():
        return (
            f"cannot be read by Nsight {exporter.version.partition('-')[0]}, probably since a newer one wrote it or it "
            "is damaged; use that version or newer, or give its export (nsys export --type sqlite) as the input"
        )
    return f"nsys export failed ({found}); try `nsys export` by hand"


def _check(report: Path, folder: Path) -> None:
    """PackError unless all tables that must be there are, and every file is readable parquet."""
    missing = [name for name in REQUIRED if not (folder / f"{name}.parquet").is_file()]
    if missing:
        raise PackError(f"{report}: nsys exported no {', '.join(missing)}; try `nsys export` by hand")
    for file in folder.iterdir():
        try:
            pq.read_metadata(file)
        except (pa.ArrowException, OSError) as error:
            free = shutil.disk_usage(folder).free
            raise PackError(
                f"{report}: its export is cut off at {file.name} ({' '.join(str(error).split())}); {free >> 20} MiB "
                f"are free in {folder.parent}; free space there or set NSYS_LLM_RECIPES_CACHE to another folder"
            ) from None


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock on a file, or none where the file system has no locks: the rename is safe alone."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with path.open("w") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write_atomically(path: Path, text: str) -> None:
    # A name of its own for each writer: threads share a process id.
    descriptor, part = tempfile.mkstemp(prefix=f"{path.name}.", suffix=".part", dir=path.parent)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    os.replace(part, path)


def _unwritable(report: Path, error: OSError) -> PackError:
    root, where = cache_root(), Path(os.fsdecode(error.filename or report))
    if root == NOWHERE:
        return PackError(
            f"{report}: its export cannot be kept, as no home folder is known; "
            "set NSYS_LLM_RECIPES_CACHE to a folder with space and write permission"
        )
    # What cannot be made may be a folder above the cache.
    if root in (where, *where.parents) or where in root.parents or error.errno in (28, 122):
        return PackError(
            f"{report}: its export cannot be kept in {root} ({error.strerror or error}); "
            "set NSYS_LLM_RECIPES_CACHE to a folder with space and write permission"
        )
    return PackError(f"{where}: {error.strerror or error}; check the path and its permissions")
