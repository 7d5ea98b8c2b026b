"""Finding Nsight Systems, naming its faults, mending our own copy, and the Python that its recipes run on."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from recipes.base.errors import PackError
from recipes.nsight import faults, locate
from recipes.nsight.installation import best_installation, find_installations, problems, search, why_none
from recipes.nsight.locate import NAMED_BY, ask_wrapper, named_by_user, parse_version, read_installation
from recipes.nsight.recipe_python import recipe_python
from tools import mend

ANSWER = "NVIDIA Nsight Systems version {}-234433681190v0"
CONSTANTS = 'third_party = "third_party"\nsqlite = "libsqlite3.so.0"\n'


def make_nsys(folder: Path, version: str = "2023.4.4.54", recipes: bool = True) -> Path:
    """A stand-in for an installation: a script that knows its version, and the files that count beside it."""
    folder.mkdir(parents=True)
    nsys = folder / "nsys"
    nsys.write_text(f"#!/bin/sh\necho '{ANSWER.format(version)}'\n")
    nsys.chmod(0o755)
    if recipes:
        package = folder / "python/packages/nsys_recipe"
        for made in (package / "third_party", package / "recipes", folder / "python/lib", folder / "reports"):
            made.mkdir(parents=True)
        (package / "nsys_constants.py").write_text(CONSTANTS)
        for name in ("libsqlite3.so.0", "python/lib/nsysstats.py"):
            (folder / name).write_text("")
    return nsys


@pytest.fixture(autouse=True)
def cache_of_the_test(tmp_path, monkeypatch):
    monkeypatch.setenv("NSYS_LLM_RECIPES_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def copy_of_nsys(nsys, tmp_path):
    """The real installation in the place of our own copy, safe to damage: by links, but for what tests write."""
    source = nsys.resolve().parent
    copy = tmp_path / "cache/nsight-systems/2023.4.4.54" / source.name
    shutil.copytree(source, copy, copy_function=link_or_copy, ignore=shutil.ignore_patterns(faults.FILE_LIST))
    return read_installation(copy / "nsys")


def link_or_copy(source, copy):
    try:
        os.link(source, copy)
    except OSError:  # Another file system.
        shutil.copy2(source, copy)


def test_version_has_number_and_text():
    assert parse_version(ANSWER.format("2023.4.4.54")) == ((2023, 4, 4, 54), "2023.4.4.54-234433681190v0")


def test_other_programs_are_not_nsight():
    with pytest.raises(PackError, match="not an Nsight Systems"):
        parse_version("GNU coreutils 9.1")


def test_real_installation_can_run_recipes(nsys):
    installation = read_installation(nsys)
    assert installation.version >= (2023, 1)
    assert (installation.recipe_package / "recipes").is_dir()
    assert faults.blocking(installation) == []


def test_newest_comes_first_and_each_once(tmp_path):
    old = make_nsys(tmp_path / "opt/nvidia/nsight-systems/2023.4.4/target-linux-x64")
    new = make_nsys(tmp_path / "opt/nvidia/nsight-compute/2025.3.1/host/target-linux-x64", "2025.3.1.90")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nsys").symlink_to(old)
    found = find_installations({"PATH": str(tmp_path / "bin")}, tmp_path)
    assert [installation.nsys for installation in found] == [new, old]
    assert best_installation(environ={"PATH": ""}, root=tmp_path).release == "2025.3.1"


def test_conda_environment_is_searched(tmp_path):
    nsys = make_nsys(tmp_path / "env/nsight-compute/2024.3.2/host/target-linux-x64", "2024.4.2.133")
    found = find_installations({"CONDA_PREFIX": str(tmp_path / "env")}, tmp_path / "nothing")
    assert [installation.nsys for installation in found] == [nsys]


def test_broken_executables_are_reported(tmp_path):
    for name, text in (("a", "#!/bin/sh\necho nope >&2; exit 3\n"), ("b", "\x7fELF"), ("c", "#!/bin/sh\necho hello\n")):
        nsys = tmp_path / name / "nsys"
        nsys.parent.mkdir()
        nsys.write_text(text)
        nsys.chmod(0o755)
    path = os.pathsep.join(str(tmp_path / name) for name in "abc")
    found = search({"PATH": path}, tmp_path / "nothing")
    assert found.installations == []
    assert [broken.nsys.parent.name for broken in found.broken] == ["a", "b", "c"]
    assert found.broken[0].why.endswith("nope")
    assert "developer.nvidia.com/nsight-systems" in why_none(found)


def test_hanging_nsys_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(locate, "CALL_TIMEOUT_S", 0.2)
    nsys = make_nsys(tmp_path / "target-linux-x64")
    nsys.write_text("#!/bin/sh\nsleep 60\n")
    with pytest.raises(PackError, match="no answer in"):
        locate.run_quietly([str(nsys), "--version"], timeout_s=0.2)


def test_named_installation_is_the_only_one(tmp_path):
    make_nsys(tmp_path / "opt/nvidia/nsight-systems/2025.1.1/target-linux-x64", "2025.1.1.65")
    named = make_nsys(tmp_path / "mine/target-linux-x64")
    for name in (named, named.parent, named.parent.parent):
        found = find_installations({NAMED_BY: str(name)}, tmp_path)
        assert [installation.nsys for installation in found] == [named]


def test_wrong_name_is_one_line(tmp_path):
    with pytest.raises(PackError, match=f"no nsys at .*{NAMED_BY} names it"):
        search({NAMED_BY: str(tmp_path / "nothing")}, tmp_path)
    with pytest.raises(PackError, match="no nsys at"):
        named_by_user(str(tmp_path))


def test_named_but_unusable_is_one_line(tmp_path):
    nsys = make_nsys(tmp_path / "mine", "2022.4.2.1", recipes=False)
    with pytest.raises(PackError, match=r"2022.4.2 has no recipes"):
        best_installation(environ={NAMED_BY: str(nsys)})
    assert best_installation(need_recipes=False, environ={NAMED_BY: str(nsys)}).nsys == nsys


def test_versions_before_recipes_are_passed_over(tmp_path):
    make_nsys(tmp_path / "opt/nvidia/nsight-systems/2022.4.2/target-linux-x64", "2022.4.2.1", recipes=False)
    found = search({"PATH": ""}, tmp_path)
    assert [problem.name for problem in problems(found.installations[0])] == ["no recipes"]
    assert best_installation(environ={"PATH": ""}, root=tmp_path) is None


def test_wrapper_script_leads_to_the_real_package(nsys, tmp_path):
    real = read_installation(nsys)
    wrapper = tmp_path / "wrapper/nsys"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec "{real.nsys}" "$@"\n')
    wrapper.chmod(0o755)
    assert ask_wrapper(wrapper) == real.recipe_package.resolve()
    assert read_installation(wrapper) == real


def test_each_fault_of_a_copy_is_named_and_mended(copy_of_nsys):
    package, target = copy_of_nsys.recipe_package, copy_of_nsys.target
    host = target.parent / "host-linux-x64"
    (host / "reports").mkdir(parents=True)
    (package / "third_party").rmdir()
    (target / "libsqlite3.so.0").unlink()
    names = {problem.name for problem in problems(copy_of_nsys)}
    assert {"missing third_party", "missing libsqlite3", "missing nsysstats", "missing gpustats"} <= names
    assert {problem.remedy for problem in problems(copy_of_nsys) if problem.mendable} == {"./demo mends it"}
    done = mend.mend(copy_of_nsys)
    assert len(done) >= 4
    assert (host / "python/lib/nsysstats.py").read_bytes() == (target / "python/lib/nsysstats.py").read_bytes()
    assert {problem.name for problem in problems(copy_of_nsys)} <= {"incomplete"}


def test_lost_files_of_our_copy_are_noticed(copy_of_nsys):
    mend.write_file_list(copy_of_nsys.target)
    assert faults.blocking(copy_of_nsys) == []
    (copy_of_nsys.recipe_package / "log.py").unlink()
    assert [problem.name for problem in faults.blocking(copy_of_nsys)] == ["incomplete"]
    assert best_installation(environ={"PATH": ""}, root=Path("/nothing")) is None


def test_other_installations_are_left_alone(tmp_path):
    nsys = make_nsys(tmp_path / "opt/nvidia/nsight-systems/2023.4.4/target-linux-x64")
    (nsys.parent / "python/packages/nsys_recipe/third_party").rmdir()
    installation = read_installation(nsys)
    assert best_installation(environ={"PATH": ""}, root=tmp_path) is None
    with pytest.raises(PackError, match="only its owner"):
        mend.mend(installation)


def test_missing_package_folder_is_named(tmp_path):
    nsys = make_nsys(tmp_path / "target-linux-x64", recipes=False)
    assert [problem.name for problem in problems(read_installation(nsys))] == ["no recipe package"]


def test_python_is_the_first_on_path(tmp_path):
    installation = read_installation(make_nsys(tmp_path / "target-linux-x64"))
    python = recipe_python(installation, {"PATH": str(Path(sys.executable).parent)})
    assert python.is_ready and python.packages["numpy"]
    assert recipe_python(installation, {"PATH": str(tmp_path)}).trouble == "no python3 on PATH"


def test_python_without_packages_is_told(tmp_path):
    installation = read_installation(make_nsys(tmp_path / "target-linux-x64"))
    python = tmp_path / "bin/python3"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\necho \'["3.11.2", {"numpy": "1.24.2"}, false]\'\n')
    python.chmod(0o755)
    found = recipe_python(installation, {"PATH": f"{python.parent}{os.pathsep}/usr/bin"})
    assert not found.is_ready
    assert found.missing == ["pandas", "pyarrow", "psutil"]


def test_old_and_broken_pythons_are_told(tmp_path):
    installation = read_installation(make_nsys(tmp_path / "target-linux-x64"))
    python = tmp_path / "bin/python3"
    python.parent.mkdir()
    for text, trouble in (("echo '[\"3.9.2\", {}, true]'", "older than 3.10"), ("exit 1", "does not work")):
        python.write_text(f"#!/bin/sh\n{text}\n")
        python.chmod(0o755)
        assert trouble in recipe_python(installation, {"PATH": str(python.parent)}).trouble


def test_newer_versions_bring_their_python(tmp_path):
    installation = read_installation(make_nsys(tmp_path / "target-linux-x64", "2026.3.1.1"))
    named = recipe_python(installation, {"NSYSPYTHONEXE": sys.executable}, home=tmp_path)
    assert named.is_ready and named.why == "named by NSYSPYTHONEXE"
    pending = recipe_python(installation, {}, home=tmp_path)
    assert pending.path is None and pending.is_ready and "not made yet" in pending.trouble
    own = tmp_path / ".nsightsystems/venv/bin/python"
    own.parent.mkdir(parents=True)
    own.symlink_to(sys.executable)
    assert recipe_python(installation, {}, home=tmp_path).path == own
