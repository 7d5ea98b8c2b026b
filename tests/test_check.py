"""`python -m recipes check`: what works here, what does not, and what to do about it."""

import os
import subprocess
import sys
from pathlib import Path

from recipes.base.pack import ROOT
from recipes.cli import machine_check as check
from recipes.nsight.installation import Broken, Installation, Search
from recipes.nsight.recipe_python import RecipePython

PACKAGES = {"numpy": "2.4.6", "pandas": "3.1.1", "pyarrow": "26.0.1", "psutil": "7.2.2"}


def run_check(*, cwd: Path = ROOT, **variables: str) -> subprocess.CompletedProcess:
    env = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    command = [sys.executable, "-m", "recipes", "check"]
    return subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, check=False)


def text_of(rows) -> str:
    return "\n".join(" ".join(row) for row in rows)


def test_everything_is_there(nsys):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = run_check(NSYS_LLM_RECIPES_NSYS=str(nsys), PATH=path)
    assert done.returncode == 0, done.stdout
    assert f"{nsys.resolve()}, used" in done.stdout
    assert "numpy" in done.stdout and "psutil" in done.stdout
    assert not [line for line in done.stdout.splitlines() if line[17:19] == check.BAD]


def test_without_nsight_it_says_how_to_get_one(tmp_path):
    nothing = {"NSYS_LLM_RECIPES_CACHE": str(tmp_path), "NSYS_LLM_RECIPES_NSYS": str(tmp_path)}
    done = run_check(**nothing)
    assert done.returncode == 1
    assert "ERROR: no nsys at" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_installation_at_all():
    rows = list(check.rows(Search(), None, None))
    assert "developer.nvidia.com/nsight-systems" in text_of(rows)
    assert "./demo" in text_of(rows)


def test_old_and_broken_ones_are_listed_with_a_remedy(tmp_path):
    old = Installation(tmp_path / "nsys", (2022, 4, 2, 1), "2022.4.2.1", None)
    found = Search([old], [Broken(tmp_path / "broken/nsys", "error while loading shared libraries: libelf.so.1")])
    text = text_of(check.nsight_rows(found, None))
    assert "2022.4.2 has no recipes" in text
    assert "libelf.so.1" in text


def test_python_without_packages_gets_a_command(tmp_path):
    installation = Installation(tmp_path / "nsys", (2023, 4, 4, 54), "2023.4.4.54", tmp_path)
    python = RecipePython(Path("/usr/bin/python3"), "first python3 on PATH", "3.11.2", {"numpy": "1.24.2"}, True)
    text = text_of(check.python_rows(installation, python))
    assert "missing: pandas, pyarrow, psutil" in text
    assert "/usr/bin/python3 -m pip install pandas pyarrow psutil" in text


def test_system_python_is_not_sent_to_pip(tmp_path):
    installation = Installation(tmp_path / "nsys", (2023, 4, 4, 54), "2023.4.4.54", tmp_path)
    python = RecipePython(Path("/usr/bin/python3"), "first python3 on PATH", "3.11.2", {"numpy": "1.24.2"}, False)
    text = text_of(check.python_rows(installation, python))
    assert "/usr/bin/python3 -m pip" not in text
    assert "python3 -m venv" in text


def test_bundled_python_is_replaced_by_a_variable(tmp_path, monkeypatch):
    own = tmp_path / "bin"
    own.mkdir()
    monkeypatch.setattr(check, "own_environment", lambda: own)
    python = RecipePython(Path("/p"), "named by NSYSPYTHONEXE", "3.12.1", {"numpy": None}, True)
    new = Installation(tmp_path / "nsys", (2026, 3, 1, 1), "2026.3.1.1", tmp_path)
    assert f"export NSYSPYTHONEXE={own}/python3" in text_of(check.python_rows(new, python))
    old = Installation(tmp_path / "nsys", (2023, 4, 4, 54), "2023.4.4.54", tmp_path)
    assert f"export PATH={own}:$PATH" in text_of(check.python_rows(old, python))


def test_optional_packages_say_what_they_are_for(tmp_path):
    python = RecipePython(Path("/p"), "", "3.12.1", {**PACKAGES, "plotly": None, "distributed": "2026.8.0"}, True)
    text = text_of(check.package_rows(python))
    assert "distributed 2026.8.0: for --mode dask-futures" in text
    assert "plotly is not there: for the notebooks' figures" in text
    assert "/p -m pip install jupyterlab plotly" in text


def test_recipe_path_of_another_pack_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("NSYS_RECIPE_PATH", str(tmp_path))
    assert "not this pack" in text_of(check.reach_rows([]))
    monkeypatch.setenv("NSYS_RECIPE_PATH", str(ROOT))
    assert "is this pack" in text_of(check.reach_rows([]))


def test_size_of_the_cache(tmp_path):
    (tmp_path / "a").write_bytes(b"12345")
    (tmp_path / "b").mkdir()
    (tmp_path / "b/c").write_bytes(b"123")
    assert check.folder_size(tmp_path) == 8
    assert check.folder_size(tmp_path / "nothing") == 0
