"""Files of a dataset wherever it lies: a folder, or any file system that pyarrow or fsspec knows by its URL.

A file is there whole or not at all, for whoever reads at the same time too.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs

from recipes.base.errors import PackError

# What is written here appears when it is complete; elsewhere a file gets its name at the end.
_OBJECT_STORES = ("s3", "gcs", "abfs")
_OBJECT_PROTOCOLS = {"memory", "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl"}
_PART = ".part"


@dataclass(frozen=True)
class Storage:
    """A folder of files. Paths are relative to it, with slashes. PackError when it cannot be reached.

    `url` is what people are told; `whole` says that a file appears only when it is complete.
    """

    url: str
    files: pafs.FileSystem
    root: str
    whole: bool

    @property
    def is_local(self) -> bool:
        """Whether it is a folder of this machine."""
        return isinstance(self.files, pafs.LocalFileSystem)

    def place(self, path: str) -> str:
        """The path as the file system takes it."""
        return f"{self.root}/{path}" if path else self.root

    def read(self, path: str) -> bytes | None:
        """What a file holds; None when there is none."""
        with self._reached("read"):
            try:
                with self.files.open_input_stream(self.place(path)) as stream:
                    return stream.read()
            except FileNotFoundError:
                return None

    def write(self, path: str, content: bytes | pa.Buffer) -> None:
        """Puts a file there, in place of one that may be there."""
        with self._reached("written"):
            target = self.place(path)
            if self.whole:
                self._put(target, content)
                return
            folder, _, name = target.rpartition("/")
            self.files.create_dir(folder, recursive=True)
            part = f"{folder}/.{name}.{os.getpid()}-{secrets.token_hex(4)}{_PART}"
            try:
                self._put(part, content)
                self.files.move(part, target)
            except BaseException:
                with contextlib.suppress(Exception):
                    self.files.delete_file(part)
                raise

    def _put(self, target: str, content: bytes | pa.Buffer) -> None:
        with self.files.open_output_stream(target) as stream:
            stream.write(content)

    def delete(self, path: str) -> None:
        """Removes a file, if it is there."""
        with self._reached("changed"), contextlib.suppress(FileNotFoundError):
            self.files.delete_file(self.place(path))

    def names(self, folder: str) -> list[str]:
        """The paths of all files below a folder, unfinished ones too; none when there is no such folder."""
        return sorted(self.written(folder))

    def written(self, folder: str) -> dict[str, float | None]:
        """The same with the time at which each was written, in s since 1970; None where the store does not tell."""
        with self._reached("read"):
            found = self.files.get_file_info(
                pafs.FileSelector(self.place(folder), allow_not_found=True, recursive=True)
            )
            # Some give paths with a slash in front, some without.
            skip = len(self.root.lstrip("/")) + 1
            files = (info for info in found if info.type == pafs.FileType.File)
            return {info.path.lstrip("/")[skip:]: info.mtime and info.mtime.timestamp() for info in files}

    def folders(self) -> list[str]:
        """The names of the folders right here."""
        with self._reached("read"):
            found = self.files.get_file_info(pafs.FileSelector(self.root, allow_not_found=True))
            return sorted(info.base_name for info in found if info.type == pafs.FileType.Directory)

    def existing(self, paths: Sequence[str]) -> list[str]:
        """Those of the paths that are files."""
        if not paths:
            return []
        with self._reached("read"):
            found = self.files.get_file_info([self.place(path) for path in paths])
            return [path for path, info in zip(paths, found, strict=True) if info.type == pafs.FileType.File]

    @contextlib.contextmanager
    def _reached(self, verb: str) -> Iterator[None]:
        try:
            if isinstance(self.files, pafs.PyFileSystem):
                # What others have written since the last listing is there too.
                self.files.handler.fs.invalidate_cache()
            yield
        except Exception as error:  # noqa: BLE001: each file system raises classes of its own
            raise PackError(f"{self.url}: cannot be {verb} ({reason(error)}); check --dataset") from None


def is_unfinished(path: str) -> bool:
    """Whether a path is that of a file whose writer ended before it was complete."""
    name = path.rpartition("/")[2]
    return name.startswith(".") and name.endswith(_PART)


def without_secrets(url: str) -> str:
    """A URL as it may be shown: without user and password, and without its parameters and what is behind a #."""
    kind, mark, rest = url.partition("://")
    if not mark:
        return url
    # A password may hold any sign, a question mark too: then nothing of it is shown.
    place, _, parameters = rest.partition("?")
    if "@" not in place and "@" in parameters and ":" in place:
        place = ""
    return f"{kind}://{place.rpartition('@')[2].partition('#')[0]}"


@lru_cache(maxsize=8)
def open_storage(url: str) -> Storage:
    """The storage behind a local path or a URL. PackError when no file system knows it."""
    if "://" not in url:
        return Storage(url, pafs.LocalFileSystem(), str(Path(url).absolute()), whole=False)
    shown = without_secrets(url)
    try:
        files, root = pafs.FileSystem.from_uri(url)
    except OSError as error:
        raise PackError(f"{shown}: cannot be reached ({reason(error, url)}); check --dataset") from None
    except (pa.ArrowException, NotImplementedError, ValueError):
        files, root = _with_fsspec(url)
    return Storage(shown, files, root.rstrip("/"), _is_whole(files))


def _with_fsspec(url: str) -> tuple[pafs.FileSystem, str]:
    """The file system of fsspec for what pyarrow does not know itself."""
    shown = without_secrets(url)
    try:
        import fsspec
    except ImportError:
        raise PackError(
            f"{shown}: pyarrow does not know {url.partition('://')[0]}://; pip install fsspec, and its package for "
            "this kind of URL, into the Python that runs the recipe"
        ) from None
    try:
        files, root = fsspec.core.url_to_fs(url)
    except ImportError as error:
        missing = reason(error, url)
        raise PackError(f"{shown}: {missing}; pip install that into the Python that runs the recipe") from None
    except Exception as error:  # noqa: BLE001: each file system raises classes of its own
        raise PackError(f"{shown}: cannot be opened ({reason(error, url)}); check --dataset") from None
    return pafs.PyFileSystem(pafs.FSSpecHandler(files)), root


def _is_whole(files: pafs.FileSystem) -> bool:
    if isinstance(files, pafs.PyFileSystem):
        protocol = files.handler.fs.protocol
        return not _OBJECT_PROTOCOLS.isdisjoint([protocol] if isinstance(protocol, str) else protocol)
    return files.type_name in _OBJECT_STORES


def reason(error: BaseException, url: str = "") -> str:
    """What went wrong, in one line without the secrets of URLs in it."""
    text = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
    text = text.replace(url, without_secrets(url)) if url else text
    return re.sub(r"[\w+.-]+://\S+", lambda found: without_secrets(found[0]), text)[:300]
