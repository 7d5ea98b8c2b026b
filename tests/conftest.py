"""What all tests share: the real Nsight, the real reports, a cache of the tests' own, small exports made by hand."""

from __future__ import annotations

import lzma
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from recipes.base.cache_folder import cache_root
from recipes.nsight.export import Exporter
from recipes.nsight.installation import best_installation
from recipes.nsight.locate import NAMED_BY, Installation

ROOT = Path(__file__).parents[1]
FIXTURES = ROOT / "fixtures"

# Found before the tests get a cache folder of their own: our unpacked copy lies in the user's.
_FOUND = best_installation()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-nsight", action="store_true", help="fail, not skip, what needs Nsight Systems where there is none"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what needs an Nsight Systems, by the fixtures it asks for; other tests that do have the mark written."""
    for item in items:
        if "installation" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.nsight)


@pytest.fixture(scope="session")
def installation(request: pytest.FixtureRequest) -> Installation:
    """The Nsight Systems of this machine; ./test fetches one where it can."""
    if _FOUND is None:
        give_up = pytest.fail if request.config.getoption("--require-nsight") else pytest.skip
        give_up("no Nsight Systems with recipes: run ./test, which fetches one, or see `python -m recipes check`")
    return _FOUND


@pytest.fixture(autouse=True)
def nsight_where_it_is_needed(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("nsight"):
        request.getfixturevalue("installation")


@pytest.fixture(scope="session")
def nsys(installation: Installation) -> Path:
    return installation.nsys


@pytest.fixture(scope="session")
def exporter(installation: Installation) -> Exporter:
    return Exporter(installation.nsys, installation.version_text)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Exports of the tests go to a folder of theirs."""
    before = cache_root()
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NSYS_LLM_RECIPES_CACHE", str(folder))
        if _FOUND is not None and before in _FOUND.nsys.parents:
            patch.setenv(NAMED_BY, str(_FOUND.nsys))
        yield folder


@pytest.fixture
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder for one test."""
    folder = tmp_path / "fresh-cache"
    monkeypatch.setenv("NSYS_LLM_RECIPES_CACHE", str(folder))
    return folder


@pytest.fixture(scope="session")
def fixtures_dir() -> Path:
    return FIXTURES


@pytest.fixture(scope="session")
def graph_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled SQLite export of decode_graph."""
    path = tmp_path_factory.mktemp("bundled") / "decode_graph.sqlite"
    path.write_bytes(lzma.decompress((FIXTURES / "decode_graph.sqlite.xz").read_bytes()))
    return path


@pytest.fixture(scope="session")
def sqlite_of(tmp_path_factory, nsys):
    """The SQLite export of a report, for the plain code."""
    folder = tmp_path_factory.mktemp("sqlite")

    def make(report: Path) -> Path:
        path = folder / f"{report.parent.name}-{report.stem}.sqlite"
        bundled = report.with_suffix(".sqlite.xz")
        if bundled.exists() and not path.exists():
            # Of versions newer than the Nsight at hand: made where they were captured.
            path.write_bytes(lzma.decompress(bundled.read_bytes()))
        if not path.exists():
            done = nsight(nsys, "export", "--type", "sqlite", "--quiet", "true", "--output", path, report)
            if done.returncode:
                pytest.skip(f"this Nsight cannot open it: {done.stderr.strip()}")
        return path

    return make


REPORTS = sorted(FIXTURES.glob("**/*.nsys-rep"))

Columns = dict[str, Sequence]


@pytest.fixture
def make_export(tmp_path: Path) -> Callable[..., Path]:
    """Makes a SQLite export of tables written down in the test: make_export(TABLE={"column": [values]})."""

    def make(name: str = "made.sqlite", *, bare: bool = False, **tables: Columns) -> Path:
        path = tmp_path / name
        path.unlink(missing_ok=True)
        if not bare:
            tables.setdefault("META_DATA_EXPORT", {"name": ["EXPORT_SCHEMA_VERSION"], "value": ["3.7.2"]})
            tables.setdefault("TARGET_INFO_SYSTEM_ENV", {"name": ["Hostname"], "value": ["node1"]})
            tables.setdefault("StringIds", {"id": [1], "value": ["gemm"]})
        with sqlite3.connect(path) as db:
            for table, columns in tables.items():
                names = ", ".join(f'"{column}"' for column in columns)
                db.execute(f'CREATE TABLE "{table}" ({names})')
                marks = ", ".join("?" * len(columns))
                db.executemany(f'INSERT INTO "{table}" VALUES ({marks})', zip(*columns.values(), strict=True))
        db.close()
        return path

    return make


def pack(*arguments: object, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs `python -m recipes` with arguments, as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "recipes", *map(str, arguments)],
        cwd=ROOT if cwd is None else cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def nsight(nsys: Path, *arguments: object, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs `nsys` with arguments, with this Python first on the path as in an active environment."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [str(nsys), *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PATH": path, "PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
