"""Types: mypy agrees with the annotations, under the settings in pyproject.toml."""

import subprocess
import sys

import pytest

from conftest import ROOT
from recipes.base.pack import recipe_names

pytest.importorskip("mypy")
pytestmark = pytest.mark.slow


def mypy(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mypy", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_types_are_right():
    done = mypy()
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wrong_type_is_seen(tmp_path):
    (tmp_path / "wrong.py").write_text("from recipes.base.pack import recipe_names\n\nfirst: int = recipe_names()[0]\n")
    done = mypy(tmp_path / "wrong.py")
    assert done.returncode == 1
    assert "wrong.py:3: error: Incompatible types" in done.stdout


def test_every_recipe_is_looked_at():
    settings = (ROOT / "pyproject.toml").read_text().partition("[tool.mypy]")[2].partition("]")[0]
    assert [name for name in recipe_names() if f'"{name}"' not in settings] == []
