"""`python -m recipes install` and `uninstall`, on copies of the real installation."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from recipes.base.errors import PackError
from recipes.base.pack import ROOT, recipe_names
from recipes.cli import install

RECIPE = "llm_kernel_families"


@pytest.fixture
def folder(tmp_path):
    """A recipes folder with somebody else's recipe in it."""
    folder = tmp_path / "nsys_recipe/recipes"
    (folder / "gpu_gaps").mkdir(parents=True)
    return folder


@pytest.fixture
def copy_of_nsys(nsys, tmp_path):
    """The real installation, copied: by links where nothing is written."""
    source = nsys.resolve().parent
    copy = tmp_path / "nsight" / source.name
    (copy / "python").mkdir(parents=True)
    shutil.copytree(source / "python", copy / "python", dirs_exist_ok=True, symlinks=True)
    for path in source.iterdir():
        if path.name == "nsys":
            link_or_copy(path, copy / path.name)  # A symbolic link would lead back to the original.
        elif path.name != "python":
            (copy / path.name).symlink_to(path)
    return copy / "nsys"


def link_or_copy(source: Path, copy: Path) -> None:
    try:
        os.link(source, copy)
    except OSError:  # Another file system.
        shutil.copy2(source, copy)


def test_every_recipe_is_linked_and_told(folder):
    lines = install.install(folder)
    assert [path.name for path in sorted(folder.glob("llm_*"))] == recipe_names()
    assert (folder / RECIPE).resolve() == ROOT / RECIPE
    assert f"linked  {folder / RECIPE} -> {ROOT / RECIPE}" in lines


def test_second_time_nothing_changes(folder):
    install.install(folder)
    assert all(line.startswith("already there") for line in install.install(folder))


def test_uninstall_takes_back_just_that(folder):
    install.install(folder)
    lines = install.uninstall(folder)
    assert f"removed  {folder / RECIPE} -> {ROOT / RECIPE}" in lines
    assert [path.name for path in folder.iterdir()] == ["gpu_gaps"]
    assert install.uninstall(folder) == []


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_what_is_not_ours_is_never_touched(folder, tmp_path, kind):
    place, other = folder / RECIPE, tmp_path / "other"
    other.mkdir()
    if kind == "folder":
        place.mkdir()
    elif kind == "file":
        place.write_text("mine")
    else:
        place.symlink_to(other)
    with pytest.raises(PackError, match="not the pack's"):
        install.install(folder)
    assert install.uninstall(folder) == []
    assert os.path.lexists(place)
    assert sorted(path.name for path in folder.iterdir()) == ["gpu_gaps", RECIPE]


def test_links_of_a_copy_that_is_gone_are_replaced(folder, tmp_path):
    (folder / RECIPE).symlink_to(tmp_path / "old" / RECIPE)
    lines = install.install(folder)
    assert any(f"(was {tmp_path / 'old' / RECIPE})" in line for line in lines)
    assert (folder / RECIPE).resolve() == ROOT / RECIPE


def test_links_of_another_copy_are_ours(folder, tmp_path):
    other = tmp_path / "other-checkout"
    (other / RECIPE).mkdir(parents=True)
    (other / "recipes").mkdir()
    (other / "recipes/__main__.py").write_text("")
    (folder / RECIPE).symlink_to(other / RECIPE)
    assert any(line.startswith("removed") for line in install.uninstall(folder))


def test_unwritable_installation_is_one_line_with_the_ways_out(folder, monkeypatch):
    def refuse(*arguments):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(install.os, "replace", refuse)
    with pytest.raises(PackError) as raised:
        install.install(folder)
    text = str(raised.value)
    assert text.startswith(f"cannot write {folder}: Permission denied")
    assert "sudo" in text and f"NSYS_RECIPE_PATH={ROOT}" in text and "\n" not in text
    assert [path.name for path in folder.iterdir()] == ["gpu_gaps"]


def recipes(*arguments: str, **variables: str) -> subprocess.CompletedProcess:
    env = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    command = [sys.executable, "-m", "recipes", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_real_nsys_finds_the_recipes_from_anywhere(copy_of_nsys, fixtures_dir, tmp_path):
    done = recipes("install", "--nsys", str(copy_of_nsys))
    assert done.returncode == 0, done.stderr
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    env.pop("NSYS_RECIPE_PATH", None)
    listed = subprocess.run([copy_of_nsys, "recipe", "--help"], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert all(name in listed.stdout for name in recipe_names())
    command = [copy_of_nsys, "recipe", RECIPE, "--input", fixtures_dir / "decode_graph.nsys-rep", "--output", "out"]
    ran = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (tmp_path / "out/families.parquet").exists()
    done = recipes("uninstall", "--nsys", str(copy_of_nsys))
    assert done.returncode == 0 and done.stdout.startswith("removed")
    ran = subprocess.run([*command[:-1], "out2"], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert "Unknown recipe" in ran.stdout + ran.stderr


def test_wrong_path_is_one_line(tmp_path):
    done = recipes("install", "--nsys", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith("ERROR: no nsys at") and done.stderr.count("\n") == 1
