"""Two hundred spoilt reports and exports: each is analysed or told in a line, and none of them is touched."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import sqlite3
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from conftest import FIXTURES, pack
from generated import COLUMNS
from invariants import check_line, run_recipe
from mutations import spoil_bytes, spoil_parquet, spoil_sqlite
from recipes.base.pack import recipe_names
from recipes.nsight.export import export

pytestmark = pytest.mark.slow

REPORT = FIXTURES / "2023.4.4" / "tp_slow_rank0.nsys-rep"
REPORTS, SQLITES, PARQUETS = 40, 80, 80
# A table's first rows: all its pages then have something to lose, and a run takes no time.
_ROWS = 200


def digest(folder: Path) -> str:
    """Names, contents and times of all that is in a folder."""
    told = hashlib.sha256()
    for path in sorted([folder, *folder.rglob("*")]):
        told.update(f"{path} {path.stat().st_mtime_ns}\n".encode())
        if path.is_file():
            told.update(path.read_bytes())
    return told.hexdigest()


@pytest.fixture(scope="module")
def real_sqlite(graph_sqlite, tmp_path_factory):
    """A real export with the first rows of its long tables."""
    path = tmp_path_factory.mktemp("real") / "good.sqlite"
    shutil.copy(graph_sqlite, path)
    db = sqlite3.connect(path)
    for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        if table not in COLUMNS:
            db.execute(f'DROP TABLE "{table}"')
        elif table != "StringIds" and db.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0] > _ROWS:
            db.execute(f'DELETE FROM "{table}" WHERE rowid > {_ROWS}')
    db.commit()
    db.execute("VACUUM")
    db.close()
    return path


@pytest.fixture(scope="module")
def real_parquet(exporter):
    """What the pack itself exports of a real report."""
    return export(REPORT, exporter)


def spoilt_exports(folder: Path, sqlite: Path, parquet: Path, rng: random.Random, each: int) -> None:
    """Spoilt SQLite and parquet exports side by side, and one of either that is good."""
    for number in range(each):
        spoil_sqlite(Path(shutil.copy(sqlite, folder / f"s{number}.sqlite")), rng)
        made = folder / f"p{number}_pqtdir"
        shutil.copytree(parquet, made)
        spoil_parquet(made, rng)
    shutil.copy(sqlite, folder / "good.sqlite")
    shutil.copytree(parquet, folder / "fine_pqtdir")


@pytest.mark.parametrize("name", recipe_names())
def test_spoilt_exports_stop_no_good_one(name, real_sqlite, real_parquet, tmp_path, monkeypatch):
    monkeypatch.setenv("NSYS_LLM_RECIPES_DEBUG", "1")
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    each = -(-(SQLITES + PARQUETS) // 2 // len(recipe_names()))
    spoilt_exports(inputs, real_sqlite, real_parquet, random.Random(name), each)
    ranks = ",".join(f"{path.name.rpartition('.sqlite')[0] or path.name.rpartition('_pqtdir')[0]}={number}"
                     for number, path in enumerate(sorted(inputs.iterdir())))  # fmt: skip
    before, begun = digest(inputs), time.monotonic()
    result = run_recipe(name, [inputs], tmp_path / "out", "--rank-map", ranks)
    assert digest(inputs) == before
    assert time.monotonic() - begun < 60
    assert result.error is None
    status = {row["report"]: row["status"] for row in result.tables["files"]}
    assert len(status) == 2 * each + 2
    assert (status["good"], status["fine"]) == ("ok", "ok")
    # Some are hurt where nobody looks, most are not.
    assert each // 4 < list(status.values()).count("unreadable") < 2 * each


@pytest.fixture(scope="module")
def spoilt_reports(tmp_path_factory):
    """Reports with spoilt bytes, and a good one."""
    folder = tmp_path_factory.mktemp("reports")
    rng = random.Random(7)
    for number in range(REPORTS):
        spoil_bytes(Path(shutil.copy(REPORT, folder / f"r{number}.nsys-rep")), rng)
    shutil.copy(REPORT, folder / "good.nsys-rep")
    return folder


def test_spoilt_reports_stop_no_good_one(spoilt_reports, installation, tmp_path):
    """All recipes in turn: what nsys makes of a spoilt report is made once, and then read by each."""
    before = digest(spoilt_reports)
    names = recipe_names()
    for number, name in enumerate(names):
        inputs = [spoilt_reports / "good.nsys-rep", *sorted(spoilt_reports.glob("r*.nsys-rep"))[number :: len(names)]]
        out = tmp_path / name
        # One after the other: the ranks are those of one and the same report.
        ranks = ",".join(f"{path.name.removesuffix('.nsys-rep')}={rank}" for rank, path in enumerate(inputs))
        done = pack("run", name, "--input", *inputs, "--output", out, "--rank-map", ranks)
        assert done.returncode == 0, done.stderr
        for line in done.stderr.splitlines():
            assert line.startswith("WARNING: ")
            check_line(line)
        status = {row["report"]: row["status"] for row in pq.read_table(out / "files.parquet").to_pylist()}
        assert len(status) == len(inputs)
        assert status["good"] == "ok"
    assert digest(spoilt_reports) == before
    assert not [entry for entry in os.listdir(tmp_path) if entry.startswith(".")]
