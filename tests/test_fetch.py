"""Fetching the distribution's Nsight: real apt and dpkg against a mirror made by the test, without a network."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import pytest

from recipes.base.errors import PackError
from recipes.nsight import faults
from recipes.nsight.locate import NAMED_BY, read_installation
from tools import debian, fetch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(debian.family(debian.read_release()) is None, reason="needs the tools of Debian or Ubuntu"),
]
ROOT = Path(__file__).parents[1]
VERSION = "2023.4.4.54"


def make_package(folder: Path, name: str, version: str, files: dict[str, str]) -> Path:
    """A small package with the given files, each executable."""
    tree = folder / f"tree-{name}-{version}"
    control = f"Package: {name}\nVersion: {version}~12.4.1-2\nArchitecture: {debian.architecture()}\n"
    control += "Maintainer: nobody <nobody@example.org>\nInstalled-Size: 10\nDescription: made by a test\n"
    for path, text in {"DEBIAN/control": control, **files}.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(text)
        (tree / path).chmod(0o755)
    archive = folder / f"pool/{name}_{version}.deb"
    archive.parent.mkdir(exist_ok=True)
    subprocess.run(["dpkg-deb", "--build", "--root-owner-group", tree, archive], check=True, capture_output=True)
    return archive


def target_files(version: str) -> dict[str, str]:
    """What the target package holds, as far as it counts; Debian leaves out third_party."""
    side = "usr/lib/x86_64-linux-gnu/nsight-systems/target-linux-x64"
    package = f"{side}/python/packages/nsys_recipe"
    return {
        f"{side}/nsys": f"#!/bin/sh\necho NVIDIA Nsight Systems version {version}-1v0\n",
        f"{side}/libsqlite3.so.0": "",
        f"{side}/python/lib/nsysstats.py": "# stats\n",
        f"{side}/reports/sum.py": "",
        f"{package}/nsys_constants.py": "third_party libsqlite3.so.0\n",
    }


HOST_FILES = {
    "usr/lib/nsight-systems/host-linux-x64/QdstrmImporter": "#!/bin/sh\n",
    "usr/lib/nsight-systems/host-linux-x64/reports/sum.py": "",
}


def make_mirror(folder: Path, suite: str, component: str, packages: list[Path]) -> None:
    """The lists that apt needs, unsigned: the test's source entry is marked as trusted."""
    entries = []
    for archive in packages:
        fields = subprocess.run(["dpkg-deb", "--field", archive], check=True, capture_output=True, text=True).stdout
        data = archive.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        name = archive.relative_to(folder)
        entries.append(f"{fields.strip()}\nFilename: {name}\nSize: {len(data)}\nSHA256: {digest}\n")
    lists = folder / f"dists/{suite}/{component}/binary-{debian.architecture()}/Packages"
    lists.parent.mkdir(parents=True, exist_ok=True)
    lists.write_text("\n".join(entries))
    text = lists.read_bytes()
    line = f" {hashlib.sha256(text).hexdigest()} {len(text)} {lists.relative_to(folder / 'dists' / suite)}\n"
    (folder / f"dists/{suite}/Release").write_text(f"Codename: {suite}\nSuite: {suite}\nSHA256:\n{line}")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine without Nsight, running a made-up release, whose mirror has Nsight in trixie."""
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    packages = [
        make_package(mirror, "nsight-systems-target", VERSION, target_files(VERSION)),
        make_package(mirror, "nsight-systems", VERSION, HOST_FILES),
    ]
    make_mirror(mirror, "trixie", "non-free", packages)
    source = debian.Source(f"file:{mirror}", ("bookworm",), ("main",), {"Trusted": "yes"})
    monkeypatch.setattr(debian, "read_release", lambda: {"ID": "debian", "VERSION_CODENAME": "bookworm"})
    monkeypatch.setattr(debian, "read_sources", lambda: [source])
    monkeypatch.setenv("NSYS_LLM_RECIPES_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(NAMED_BY, raising=False)
    monkeypatch.setattr(fetch, "search", lambda: fetch_search(tmp_path))
    return mirror


def fetch_search(tmp_path: Path):
    """A search that sees nothing of this machine but the cache folder."""
    from recipes.nsight.installation import search

    return search({"PATH": ""}, tmp_path / "nothing")


def quiet(text: str) -> None:
    """Progress that nobody looks at."""


def test_package_becomes_a_mended_installation(machine, tmp_path):
    said = []
    installation = fetch.find_or_fetch(say=said.append)
    assert installation.nsys == tmp_path / f"cache/nsight-systems/{VERSION}/target-linux-x64/nsys"
    assert installation.is_ours and faults.problems(installation) == []
    assert (installation.recipe_package / "third_party").is_dir()
    assert said[0].startswith("Downloading nsight-systems-target")
    assert leftovers(tmp_path) == []


def leftovers(tmp_path: Path) -> list[str]:
    return [path.name for path in (tmp_path / "cache/nsight-systems").iterdir() if path.name.startswith(".new-")]


def test_second_time_nothing_is_fetched(machine):
    fetch.find_or_fetch(say=quiet)
    said = []
    fetch.find_or_fetch(say=said.append)
    assert said == []


def test_importer_comes_when_asked_for(machine):
    installation = fetch.find_or_fetch(say=quiet)
    assert faults.importer(installation) is None
    assert fetch.find_or_fetch(importer=True, say=quiet) == installation
    host = installation.target.parent / "host-linux-x64"
    assert faults.importer(installation) == host / "QdstrmImporter"
    assert (host / "python/lib/nsysstats.py").read_text() == "# stats\n"


def test_without_the_importer_the_rest_still_works(machine):
    make_mirror(machine, "trixie", "non-free", [machine / f"pool/nsight-systems-target_{VERSION}.deb"])
    said = []
    installation = fetch.find_or_fetch(importer=True, say=said.append)
    assert faults.blocking(installation) == []
    assert said[-1].startswith("Without the part that makes reports of new captures")


def test_damaged_copy_is_fetched_again(machine):
    installation = fetch.find_or_fetch(say=quiet)
    (installation.recipe_package / "nsys_constants.py").unlink()
    assert faults.blocking(fetch.find_or_fetch(say=quiet)) == []
    installation.nsys.write_text("#!/bin/sh\nexit 1\n")
    assert read_installation(fetch.find_or_fetch(say=quiet).nsys).version_text.startswith(VERSION)


def test_own_release_is_tried_where_it_may_be_newer(machine, monkeypatch):
    old = make_package(machine, "nsight-systems-target", "2022.4.2.1", target_files("2022.4.2.1"))
    new = machine / f"pool/nsight-systems-target_{VERSION}.deb"
    make_mirror(machine, "noble", "multiverse", [old])
    make_mirror(machine, "questing", "multiverse", [new])
    source = debian.Source(f"file:{machine}", ("noble",), ("main",), {"Trusted": "yes"})
    monkeypatch.setattr(debian, "read_release", lambda: {"ID": "ubuntu", "VERSION_CODENAME": "noble"})
    monkeypatch.setattr(debian, "read_sources", lambda: [source])
    assert fetch.find_or_fetch(say=quiet).version_text.startswith(VERSION)


def test_versions_without_recipes_are_refused(machine):
    old = make_package(machine, "nsight-systems-target", "2022.4.2.1", target_files("2022.4.2.1"))
    make_mirror(machine, "trixie", "non-free", [old])
    with pytest.raises(PackError, match=r"2022.4.2.1 in trixie, without recipes"):
        fetch.find_or_fetch(say=quiet)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("read_release", lambda: {"ID": "fedora"}, "neither Debian nor Ubuntu"),
        ("read_sources", list, "no mirror for bookworm"),
        ("architecture", lambda: "riscv64", "no package for riscv64"),
    ],
)
def test_other_machines_get_one_line(machine, monkeypatch, name, value, message):
    monkeypatch.setattr(debian, name, value)
    with pytest.raises(PackError, match=message) as raised:
        fetch.find_or_fetch(say=quiet)
    assert "developer.nvidia.com/nsight-systems" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_machine_without_apt_gets_one_line(machine, monkeypatch):
    monkeypatch.setattr(debian.shutil, "which", lambda name: None)
    with pytest.raises(PackError, match="no apt-get on this machine"):
        fetch.find_or_fetch(say=quiet)


def test_unreachable_mirror_gets_one_line(machine, monkeypatch, tmp_path):
    source = debian.Source(f"file:{tmp_path}/gone", ("bookworm",), ("main",), {"Trusted": "yes"})
    monkeypatch.setattr(debian, "read_sources", lambda: [source])
    with pytest.raises(PackError, match="apt-get"):
        fetch.find_or_fetch(say=quiet)
    assert leftovers(tmp_path) == []


def test_full_disk_is_told_before_the_download(machine, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(fetch.shutil, "disk_usage", lambda path: usage(10, 9, 1))
    with pytest.raises(PackError, match="MB free"):
        fetch.find_or_fetch(say=quiet)


def test_unwritable_cache_names_the_variable(machine, tmp_path):
    (tmp_path / "cache").write_text("in the way")
    with pytest.raises(PackError, match="NSYS_LLM_RECIPES_CACHE"):
        fetch.find_or_fetch(say=quiet)


def test_named_installation_is_never_replaced(machine, monkeypatch, tmp_path):
    monkeypatch.setenv(NAMED_BY, str(tmp_path / "nothing"))
    with pytest.raises(PackError):
        fetch.find_or_fetch(say=quiet)
    assert not (tmp_path / "cache").exists()


# In a process of its own: a machine as above, and a dpkg that first tells where it is and then takes its time.
CHILD = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tools import debian, fetch
from recipes.nsight.installation import search
source = debian.Source("file:" + {mirror!r}, ("bookworm",), ("main",), {{"Trusted": "yes"}})
debian.read_release = lambda: {{"ID": "debian", "VERSION_CODENAME": "bookworm"}}
debian.read_sources = lambda: [source]
fetch.search = lambda: search({{"PATH": ""}}, Path("/nothing"))
print(fetch.find_or_fetch(say=lambda text: None).nsys)
"""


def start_child(machine: Path, slow: Path | None = None) -> subprocess.Popen:
    path = f"{slow}{os.pathsep}{os.environ['PATH']}" if slow else os.environ["PATH"]
    code = CHILD.format(root=str(ROOT), mirror=str(machine))
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_killed_half_way_leaves_nothing_that_looks_whole(machine, tmp_path):
    slow = tmp_path / "slow"
    slow.mkdir()
    (slow / "dpkg").write_text(
        '#!/bin/sh\n[ "$1" = -x ] && touch "$HOME/unpacking" && sleep 20\nexec /usr/bin/dpkg "$@"\n'
    )
    (slow / "dpkg").chmod(0o755)
    child = start_child(machine, slow)
    deadline = time.monotonic() + 30
    while not (tmp_path / "unpacking").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert leftovers(tmp_path) != []
    assert fetch_search(tmp_path).installations == []
    assert faults.blocking(fetch.find_or_fetch(say=quiet)) == []
    assert leftovers(tmp_path) == []


def test_two_at_once_get_one_copy(machine, tmp_path):
    children = [start_child(machine) for _ in range(2)]
    answers = [child.communicate(timeout=60)[0].strip() for child in children]
    assert answers == [str(tmp_path / f"cache/nsight-systems/{VERSION}/target-linux-x64/nsys")] * 2
    assert leftovers(tmp_path) == []


def test_library_of_the_own_release_comes_beside_the_program(machine, tmp_path):
    files = {"usr/lib/x86_64-linux-gnu/libelf.so.1": "library"}
    make_mirror(machine, "bookworm", "main", [make_package(machine, "libelf1", "0.188", files)])
    apt = debian.Apt(tmp_path / "apt")
    fetch.use_own_release(apt)
    assert fetch.find_library(apt, "libelf.so.1", quiet).read_text() == "library"
    with pytest.raises(PackError, match=r"no package with libnone.so.7"):
        fetch.find_library(apt, "libnone.so.7", quiet)


def test_links_to_other_packages_end_where_the_file_belongs(tmp_path):
    (tmp_path / "libssh.so").symlink_to("libssh.so.4")
    (tmp_path / "libssh.so.4").symlink_to("../../x86_64-linux-gnu/libssh.so.4")
    assert fetch.end_of_links(tmp_path / "libssh.so") == tmp_path / "libssh.so.4"
    assert fetch.end_of_links(tmp_path / "libz.so.1") == tmp_path / "libz.so.1"


ONE_LINE = """
# deb http://commented.example/debian bookworm main
deb [arch=amd64,arm64 signed-by=/usr/share/keyrings/a.gpg] http://one.example/debian bookworm main contrib # note
deb-src http://one.example/debian bookworm main
deb http://vendor.example/apt bookworm main
deb cdrom:[Debian]/ bookworm main
"""
DEB822 = """
Types: deb deb-src
URIs: http://two.example/ubuntu/
Suites: noble noble-updates
Components: main universe
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mDMEY

# A paragraph that is switched off
Enabled: no
Types: deb
URIs: http://off.example/ubuntu
Suites: noble
Components: main
"""


def test_both_formats_of_sources_are_read(tmp_path):
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(ONE_LINE)
    (tmp_path / "sources.list.d/ubuntu.sources").write_text(DEB822)
    (tmp_path / "sources.list.d/old.list.disabled").write_text("deb http://gone.example/debian bookworm main\n")
    sources = debian.read_sources(tmp_path)
    assert [source.uri for source in debian.mirrors(sources, "bookworm")] == [
        "http://one.example/debian",
        "http://vendor.example/apt",
    ]
    noble = debian.mirrors(sources, "noble")
    assert [source.uri for source in noble] == ["http://two.example/ubuntu/"]
    text = debian.stanza(noble[0], "questing", ["multiverse"], "amd64")
    assert "Suites: questing\nComponents: multiverse\nArchitectures: amd64\n" in text
    assert "Signed-By: \n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mDMEY\n" in text
    one = debian.stanza(debian.mirrors(sources, "bookworm")[0], "trixie", ["non-free"], "arm64")
    assert "Signed-By: /usr/share/keyrings/a.gpg\n" in one
    assert one.count("Architectures:") == 1


@pytest.mark.parametrize(
    ("release", "family", "codename"),
    [
        ({"ID": "debian", "VERSION_CODENAME": "bookworm"}, "debian", "bookworm"),
        ({"ID": "ubuntu", "ID_LIKE": "debian", "VERSION_CODENAME": "noble"}, "ubuntu", "noble"),
        (
            {
                "ID": "linuxmint",
                "ID_LIKE": "ubuntu debian",
                "VERSION_CODENAME": "wilma",
                "UBUNTU_CODENAME": "noble",
            },
            "ubuntu",
            "noble",
        ),
        ({"ID": "fedora"}, None, ""),
        ({}, None, ""),
    ],
)
def test_derivatives_count_as_what_they_are_made_from(release, family, codename):
    assert debian.family(release) == family
    assert debian.codename(release) == codename
