"""The environments of ./demo and ./test: made once, made again only when something changed, without root."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from recipes.base.errors import PackError
from recipes.base.pack import recipe_names
from tools import demo, environment

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
REQUIREMENTS = ROOT / "tools/requirements"


@pytest.fixture
def small(tmp_path):
    """A layer of one small package, and where its requirement file lies."""
    requirements = tmp_path / "requirements"
    requirements.mkdir()
    (requirements / "small.txt").write_text("iniconfig==2.3.1\n")
    return environment.Layer(".venv", ("small.txt",)), requirements


def ensure(small, tmp_path, **options) -> Path:
    layer, requirements = small
    return environment.ensure(layer, root=tmp_path, requirements=requirements, **options)


def test_environment_is_made_and_made_again_only_when_asked(small, tmp_path, capsys):
    python = ensure(small, tmp_path)
    assert run(python, "import iniconfig, sys; print(sys.prefix)") == str(tmp_path / ".venv")
    assert "Making .venv" in capsys.readouterr().out
    ensure(small, tmp_path)
    assert capsys.readouterr().out == ""
    (small[1] / "small.txt").write_text("iniconfig==2.1.0\n")
    ensure(small, tmp_path)
    assert capsys.readouterr().out == "Installing into .venv: small\n"
    assert run(python, "from importlib.metadata import version; print(version('iniconfig'))") == "2.1.0"


def run(python: Path, code: str) -> str:
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_pip_comes_from_a_wheel_where_python_has_no_ensurepip(small, tmp_path, monkeypatch):
    ensurepip = pytest.importorskip("ensurepip")
    wheel = next((Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"), None)
    if wheel is None:
        pytest.skip("this Python keeps its pip elsewhere")
    monkeypatch.setattr(environment, "has_module", lambda python, module: False)
    monkeypatch.setattr(environment, "pip_wheel", lambda place: wheel)
    assert run(ensure(small, tmp_path), "import iniconfig, pip; print('there')") == "there"


@pytest.mark.parametrize("status", [0, 1])
def test_uv_installs_where_there_is_one_and_pip_where_it_fails(small, tmp_path, monkeypatch, status):
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "uv").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\nexit {status}\n')
    (programs / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    python = ensure(small, tmp_path)
    file = tmp_path / "requirements/small.txt"
    assert (tmp_path / "asked").read_text() == f"pip install --python {python} -r {file}\n"
    there = run(python, "from importlib.util import find_spec; print(find_spec('iniconfig') is not None)")
    assert there == str(status == 1)  # The stand-in installs nothing; pip does.


def test_pip_wheel_of_the_system_is_used(tmp_path):
    folder = tmp_path / "usr/share/python-wheels"
    folder.mkdir(parents=True)
    (folder / "pip-23.0.1-py3-none-any.whl").write_text("")
    assert environment.pip_wheel(tmp_path, system=tmp_path).name == "pip-23.0.1-py3-none-any.whl"


def test_no_pip_anywhere_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(environment.debian.shutil, "which", lambda name: None)
    with pytest.raises(PackError, match="install python3-venv"):
        environment.pip_wheel(tmp_path, system=tmp_path)


def test_damaged_environment_is_made_anew(small, tmp_path, capsys):
    layer, requirements = small
    python = ensure(small, tmp_path)
    (tmp_path / ".venv/pip.stamp").write_text("3.1")  # As if the system's Python had moved on.
    assert not environment.is_done(tmp_path / ".venv", layer, requirements)
    python.unlink()
    assert not environment.is_done(tmp_path / ".venv", layer, requirements)
    capsys.readouterr()
    ensure(small, tmp_path)
    assert "Making .venv" in capsys.readouterr().out
    assert run(python, "import iniconfig; print('there')") == "there"


def test_somebody_elses_folder_is_left_alone(small, tmp_path):
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/mine").write_text("precious")
    with pytest.raises(PackError, match="move it away"):
        ensure(small, tmp_path)
    assert (tmp_path / ".venv/mine").read_text() == "precious"


def test_package_that_cannot_be_installed_is_one_line(small, tmp_path):
    (small[1] / "small.txt").write_text("iniconfig==0.0.0.1\n")
    with pytest.raises(PackError, match=r"could not install small.txt: .*pip.log") as raised:
        ensure(small, tmp_path)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / ".venv/small.txt.stamp").exists()


def test_old_python_is_refused(small, tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "python_version", lambda python: "3.9")
    with pytest.raises(PackError, match=r"older than Python 3.10"):
        ensure(small, tmp_path, python="python3.9")


def test_unknown_layer_is_one_line(capsys):
    assert environment.main(["nothing"]) == 1
    assert "no layer 'nothing'" in capsys.readouterr().err


def test_every_requirement_is_pinned():
    for file in REQUIREMENTS.glob("*.txt"):
        lines = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
        assert lines
        assert all(re.match(r"[A-Za-z0-9._-]+==[\w.]+($|; python_version)", line) for line in lines), file


def test_layers_name_files_that_exist():
    files = {name for layer in environment.LAYERS.values() for name in layer.files}
    assert files == {file.name for file in REQUIREMENTS.glob("*.txt")}


def test_setup_needs_the_standard_library_only():
    code = "import tools.environment, tools.demo, tools.run_tests; "
    code += "import recipes.cli.machine_check"
    subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, '.'); {code}"], cwd=ROOT, check=True
    )


def test_demo_writes_beside_earlier_runs(tmp_path):
    assert demo.fresh_output(tmp_path) == "demo_output"
    (tmp_path / "demo_output").mkdir()
    (tmp_path / "demo_output-2").mkdir()
    assert demo.fresh_output(tmp_path) == "demo_output-3"


@pytest.mark.parametrize("name", ["demo", "test", ".ci/run"])
def test_root_scripts_can_be_started(name):
    script = ROOT / name
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", script], check=True)


def run_demo(checkout: Path, **variables: str) -> subprocess.CompletedProcess:
    """The demo's own program, as ./demo runs it after the set-up, in a copy of the checkout."""
    for name in ("recipes", "tools", *recipe_names()):
        shutil.copytree(ROOT / name, checkout / name)
    (checkout / "fixtures").mkdir()
    for name in (demo.REPORT, demo.EXPORT):
        shutil.copy2(ROOT / name, checkout / name)
    command = [sys.executable, "-m", "tools.demo"]
    env = {**os.environ, **variables}
    return subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True, check=False)


def test_demo_runs_through_nsys(nsys, tmp_path):
    done = run_demo(tmp_path / "checkout", NSYS_LLM_RECIPES_NSYS=str(nsys))
    assert done.returncode == 0, done.stderr
    assert "$ nsys recipe llm_kernel_families" in done.stdout
    assert "kernel time" in done.stdout
    assert (tmp_path / "checkout/demo_output/families.parquet").exists()


def test_demo_runs_without_any_nsight(tmp_path):
    done = run_demo(tmp_path / "checkout", NSYS_LLM_RECIPES_NSYS="/nothing/here")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("demo: no nsys at /nothing/here")
    assert "$ python -m recipes run llm_kernel_families" in done.stdout
    assert (tmp_path / "checkout/demo_output/families.parquet").exists()


def test_demo_tells_what_the_shell_lacks_for_the_next_command(tmp_path, monkeypatch):
    nsys, python = tmp_path / "nsight" / "nsys", tmp_path / "venv" / "python"
    for program in (nsys, python, python.with_name("python3")):
        program.parent.mkdir(exist_ok=True)
        program.touch(mode=0o755)
    monkeypatch.setenv("PATH", "/nowhere")
    lines = demo.next_steps(nsys, python).splitlines()
    assert lines[1] == f"    export PATH={nsys.parent}:{python.parent}:$PATH"
    assert lines[2] == "    nsys recipe llm_kernel_families --input run/"
    monkeypatch.setenv("PATH", str(nsys.parent))
    assert f"export PATH={python.parent}:$PATH" in demo.next_steps(nsys, python)
    monkeypatch.setenv("PATH", f"{nsys.parent}:{python.parent}")
    assert "export" not in demo.next_steps(nsys, python)
    assert f"{python} -m recipes run" in demo.next_steps(None, python)
