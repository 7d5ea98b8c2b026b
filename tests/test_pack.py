"""The pack as a whole: layers, metadata, documentation in step with the code."""

from __future__ import annotations

import argparse
import ast
import json
import re
from pathlib import Path

import pytest

from conftest import ROOT, pack
from recipes.base.pack import describe, recipe_names
from recipes.base.tables import FILES
from recipes.run.recipe import load_recipe
from recipes.run.run import add_options

SOURCES = sorted([*ROOT.glob("recipes/**/*.py"), *ROOT.glob("llm_*/*.py")])

# From the bottom up: a module imports from its own package or from those before it.
PACKAGES = (
    "base", "report", "nsight", "engines", "events", "steps", "kernels", "models", "capture", "collectives", "findings",
    "run", "cli",
)  # fmt: skip


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parent = module_name(path).split(".")[: -node.level]
                base = ".".join([*parent, *([base] if base else [])])
            found.add(base)
            if base == "recipes":
                found |= {f"recipes.{alias.name}" for alias in node.names if not alias.name.startswith("__")}
    return found


def upward(module: str, imported: set[str]) -> set[str]:
    """Of the modules that a module imports, those of packages above its own."""

    def level(name: str) -> int:
        package = name.split(".")[1]
        return PACKAGES.index(package) if name.startswith("recipes.") and package != "__main__" else len(PACKAGES)

    used = {name for name in imported if name.startswith("recipes.")}
    return {name for name in used if level(name) > level(module)}


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_imports_go_downwards(path):
    module = module_name(path)
    # `recipes` alone is the version, which anything may import.
    assert module == "recipes.__init__" or upward(module, imports(path)) == set()
    others = {name for name in imports(path) if name.startswith("llm_")}
    assert {name.split(".")[0] for name in others} <= {module.split(".")[0]}


def test_packages_are_those_of_the_list():
    assert {path.parent.name for path in ROOT.glob("recipes/*/__init__.py")} == set(PACKAGES)
    assert {path.name for path in ROOT.glob("recipes/*.py")} == {"__init__.py", "__main__.py"}


def test_contributing_names_the_packages_in_their_order():
    assert f"    {' · '.join(PACKAGES)}\n" in (ROOT / "CONTRIBUTING.md").read_text()


def test_an_import_upwards_is_seen():
    assert upward("recipes.base.units", {"recipes.run.run", "recipes.base.errors", "json"}) == {"recipes.run.run"}
    assert upward("recipes.report.facts", {"recipes.nsight.export"}) == {"recipes.nsight.export"}
    assert upward("recipes.cli.install", {"recipes.run.run"}) == set()


def test_only_the_framework_module_imports_nsys_recipe():
    users = {module_name(path) for path in SOURCES if any(name.startswith("nsys_recipe") for name in imports(path))}
    assert users == {"recipes.run.framework"}


def test_run_time_needs_four_packages_only():
    allowed = {"numpy", "pandas", "pyarrow", "psutil", "distributed", "duckdb", "fsspec", "nsys_recipe", "recipes"}
    import sys

    # The notebook template runs in the user's Jupyter.
    for path in (path for path in SOURCES if path.name != "notebook.py" or path.parent.name == "recipes"):
        used = {name.split(".")[0] for name in imports(path)} - set(sys.stdlib_module_names) - {""}
        assert {name for name in used if not name.startswith("llm_")} <= allowed, path


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_files_and_functions_stay_small(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 400
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.end_lineno - node.lineno < 60, node.name


@pytest.mark.parametrize("name", recipe_names())
def test_metadata_is_what_nsight_needs(name):
    metadata = json.loads((ROOT / name / "metadata.json").read_text())
    assert set(metadata) == {"module_name", "class_name", "display_name", "description"}
    source = (ROOT / name / f"{metadata['module_name']}.py").read_text()
    assert f"class {metadata['class_name']}(" in source
    assert len(describe(name).splitlines()) == 1


def options_of(name: str) -> set[str]:
    found: list[str] = []
    add_options(load_recipe(name), lambda *flags, **_: found.extend(flags))
    return set(found)


@pytest.mark.parametrize("name", recipe_names())
def test_documentation_names_every_option_table_and_column(name):
    page = (ROOT / "docs" / f"{name}.md").read_text()
    readme = (ROOT / "README.md").read_text()
    assert name in readme
    assert f"docs/{name}.md" in readme
    for option in options_of(name):
        assert f"`{option}" in page, option
    for table in (*load_recipe(name).TABLES, FILES):
        assert f"{table.name}.parquet" in page
        for column in table.names:
            assert f"`{column}`" in page, f"{table.name}.{column}"


def test_every_option_has_a_help_text():
    for name in recipe_names():
        parser = argparse.ArgumentParser()
        add_options(load_recipe(name), parser.add_argument)
        assert [action.dest for action in parser._actions if not action.help] == []


def test_list_names_every_recipe_with_a_line():
    done = pack()
    assert done.returncode == 0
    for name in recipe_names():
        assert re.search(rf"^{name} +\S", done.stdout, re.MULTILINE)


def test_unknown_recipe_is_one_usage_error():
    done = pack("run", "no_such_recipe")
    assert done.returncode == 2
    assert "invalid choice: 'no_such_recipe'" in done.stderr
    assert "Traceback" not in done.stderr


def test_closed_pipe_is_quiet():
    import subprocess
    import sys

    done = subprocess.run(
        f"{sys.executable} -m recipes check | true", shell=True, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr


def test_repository_names_no_machine():
    """No path of the machine it was made on, and no package registry's host."""
    import subprocess

    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False).stdout
    files = [ROOT / name for name in listed.decode().split("\0") if name]
    if not files:
        pytest.skip("not a git checkout")
    words = re.compile("|".join(["/wo" + "rk/", "/ro" + "ot/", "py" + r"pi\.org", r"deb\.deb" + "ian"]))
    for file in files:
        if file.suffix in (".py", ".md", ".toml", ".txt", ".sh", ".tsv", "") and file.is_file():
            match = words.search(file.read_text(errors="replace"))
            assert match is None, f"{file}: {match.group()}"
