"""The wheel: installed somewhere else it works like the checkout, and puts one name into site-packages."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from recipes import __version__
from recipes.base.pack import ROOT, recipe_names

pytestmark = pytest.mark.slow

pytest.importorskip("hatchling")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel of a copy of the checkout, with a recipe more: new ones must come along by themselves."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in ("recipes", "packaging", *recipe_names()):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "llm_new").mkdir()
    (copy / "llm_new/metadata.json").write_text("{}")
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        shutil.copy2(ROOT / name, copy / name)
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", out, copy]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """An environment with the wheel in it, beside the packages of the one that runs the tests."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = next(folder.glob("lib/python3*/site-packages"))
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin/python"]
    done = subprocess.run([*pip, "install", "--quiet", "--no-deps", wheel], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    own = subprocess.run(
        [sys.executable, "-c", "import numpy; print(numpy.__path__[0])"], capture_output=True, text=True
    )
    (site / "of-the-tests.pth").write_text(str(Path(own.stdout.strip()).parent))
    return folder


def command(installed: Path, *arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    words = [str(installed / arguments[0]), *arguments[1:]]
    return subprocess.run(words, env={**env, **variables}, cwd=cwd, capture_output=True, text=True, check=False)


def test_wheel_has_one_folder_with_everything(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names} == {
        "nsys_llm_recipes",
        f"nsys_llm_recipes-{__version__}.dist-info",
    }
    for name in ("__main__.py", "recipes/kernels/families.tsv", "recipes/py.typed", "llm_new/metadata.json"):
        assert f"nsys_llm_recipes/{name}" in names
    for recipe in recipe_names():
        tracked = [path for path in (ROOT / recipe).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        assert all(f"nsys_llm_recipes/{path.relative_to(ROOT)}" in names for path in tracked)
    assert not [name for name in names if "__pycache__" in name]


def test_both_commands_list_the_recipes_under_their_names(installed, tmp_path):
    script = command(installed, "bin/nsys-llm-recipes", "--help", cwd=tmp_path)
    assert script.stdout.startswith("usage: nsys-llm-recipes "), script.stderr
    module = command(installed, "bin/python", "-m", "nsys_llm_recipes", "--help", cwd=tmp_path)
    assert module.stdout.startswith("usage: python -m nsys_llm_recipes "), module.stderr
    version = command(installed, "bin/nsys-llm-recipes", "--version", cwd=tmp_path)
    assert version.stdout.strip() == f"nsys-llm-recipes {__version__}"


def test_installed_pack_runs_without_nsight(installed, graph_sqlite, tmp_path):
    words = ["run", "llm_kernel_families", "--input", str(graph_sqlite), "--output", "out"]
    done = command(installed, "bin/nsys-llm-recipes", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "out/families.parquet").exists()


def test_nsys_finds_the_installed_pack(installed, nsys, fixtures_dir, tmp_path):
    pack = next(installed.glob("lib/python3*/site-packages/nsys_llm_recipes"))
    env = {**os.environ, "PATH": f"{installed / 'bin'}{os.pathsep}{os.environ['PATH']}", "NSYS_RECIPE_PATH": str(pack)}
    report = fixtures_dir / "decode_graph.nsys-rep"
    words = [nsys, "recipe", "llm_kernel_families", "--input", report, "--output", "out"]
    done = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "out/families.parquet").exists()


def test_installed_check_names_the_installed_pack(installed, nsys, tmp_path):
    path = f"{installed / 'bin'}{os.pathsep}{os.environ['PATH']}"
    words = ["bin/python", "-m", "nsys_llm_recipes", "check"]
    done = command(installed, *words, cwd=tmp_path, PATH=path, NSYS_LLM_RECIPES_NSYS=str(nsys))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "site-packages/nsys_llm_recipes" in done.stdout
