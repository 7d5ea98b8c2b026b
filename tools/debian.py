"""Packages of Debian and Ubuntu without root: the machine's own mirror, keys and proxy, private lists and folders.

Nothing outside one folder is written; the system's apt and dpkg never learn of it. Standard library only.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from recipes.base.errors import PackError
from recipes.nsight.locate import run_quietly

UPDATE_TIMEOUT_S = 600
DOWNLOAD_TIMEOUT_S = 3600

# What the one-line format calls differently from the deb822 format.
LONG_NAMES = {"arch": "Architectures", "lang": "Languages", "target": "Targets"}
# Fields that are written anew; all others (keys, trust, checks) are taken over from the machine's own entry.
OWN_FIELDS = {
    "types",
    "uris",
    "suites",
    "components",
    "enabled",
    "architectures",
    "languages",
    "targets",
    "description",
}


@dataclass(frozen=True)
class Source:
    """One entry of the machine's apt sources: where, which suites and components, and its other options."""

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    options: dict[str, str] = field(default_factory=dict, hash=False)


def read_release(path: Path = Path("/etc/os-release")) -> dict[str, str]:
    """The distribution's own description of itself."""
    if not path.exists():
        return {}
    pairs = (line.partition("=") for line in path.read_text().splitlines())
    return {name: value.strip("\"'") for name, sign, value in pairs if sign}


def family(release: dict[str, str]) -> str | None:
    """debian, ubuntu, or None for other distributions; derivatives count as what they are made from."""
    names = [release.get("ID", ""), *release.get("ID_LIKE", "").split()]
    return "ubuntu" if "ubuntu" in names else "debian" if "debian" in names else None


def codename(release: dict[str, str]) -> str:
    """The suite that the machine runs, for derivatives the one they are made from."""
    for name in ("UBUNTU_CODENAME", "DEBIAN_CODENAME", "VERSION_CODENAME"):
        if release.get(name):
            return release[name]
    return ""


def read_sources(folder: Path = Path("/etc/apt")) -> list[Source]:
    """All enabled binary sources of the machine, of both formats."""
    files = [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*"))]
    found = []
    for file in files:
        parse = {".list": parse_one_line, ".sources": parse_deb822}.get(file.suffix)
        if parse and file.is_file() and os.access(file, os.R_OK):
            found += parse(file.read_text(errors="replace"))
    return found


def parse_one_line(text: str) -> list[Source]:
    """Sources written as `deb [option=value] URI suite component...`."""
    found = []
    for line in text.splitlines():
        match = re.match(r"\s*deb\s+(?:\[([^]]*)\]\s*)?(\S+)\s+(\S+)\s*([^#]*)", line)
        if match:
            options = dict(re.findall(r"(\S+?)[+-]?=(\S+)", match[1] or ""))
            named = {LONG_NAMES.get(name, name.title()): value.replace(",", " ") for name, value in options.items()}
            found.append(Source(match[2], (match[3],), tuple(match[4].split()), named))
    return found


def parse_deb822(text: str) -> list[Source]:
    """Sources written as paragraphs of `Field: value`."""
    found = []
    for fields in paragraphs(text):
        lower = {name.lower(): value for name, value in fields.items()}
        if lower.get("enabled", "yes").strip().lower() in ("no", "false", "0", "off", "without", "disable"):
            continue
        if "deb" not in lower.get("types", "").split():
            continue
        suites, components = tuple(lower.get("suites", "").split()), tuple(lower.get("components", "").split())
        found += [Source(uri, suites, components, fields) for uri in lower.get("uris", "").split()]
    return found


def paragraphs(text: str) -> Iterator[dict[str, str]]:
    """The paragraphs of a deb822 text; continuation lines (an embedded key) keep their form."""
    fields: dict[str, str] = {}
    name = ""
    for line in [*text.splitlines(), ""]:
        if line.startswith("#"):
            continue
        if not line.strip():
            if fields:
                yield fields
            fields, name = {}, ""
        elif line[0] in " \t" and name:
            fields[name] += "\n" + line
        elif ":" in line:
            name, _, value = line.partition(":")
            fields[name] = value.strip()


def mirrors(sources: Iterable[Source], suite: str) -> list[Source]:
    """The sources that serve the distribution itself, likeliest first: a vendor's repository may look the same."""
    own = [source for source in sources if suite in source.suites and "main" in source.components]
    own = [source for source in own if not source.uri.startswith("cdrom:")]
    return sorted(own, key=lambda source: not re.search(r"(debian|ubuntu|ubuntu-ports)/?$|^mirror", source.uri))


def stanza(mirror: Source, suite: str, components: Iterable[str], architecture: str) -> str:
    """A deb822 entry for another suite of the same mirror, under the same keys."""
    lines = ["Types: deb", f"URIs: {mirror.uri}", f"Suites: {suite}", "Components: " + " ".join(components)]
    lines += [f"Architectures: {architecture}", "Languages: none", "Targets: Packages"]
    lines += [f"{name}: {value}" for name, value in mirror.options.items() if name.lower() not in OWN_FIELDS]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Apt:
    """apt-get with lists and caches of its own in one folder; the machine's other settings stay in force."""

    folder: Path

    def update(self, text: str) -> None:
        """Read the lists of these deb822 sources, and of no others."""
        for name in ("sources", "lists/partial", "cache/archives/partial"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "sources/fetch.sources").write_text(text)
        # No package counts as installed: only versions that the lists have can be downloaded.
        (self.folder / "status").write_text("")
        (self.folder / "apt.conf").write_text(self.settings())
        self.call(["apt-get", "update"], UPDATE_TIMEOUT_S)

    def settings(self) -> str:
        """The settings that keep apt inside the folder; -c reads them after the machine's own."""
        root = 'APT::Sandbox::User "root";\n' if os.geteuid() == 0 else ""
        return (
            f'Dir::Etc::SourceList "/dev/null";\nDir::Etc::SourceParts "{self.folder}/sources";\n'
            f'Dir::State::Lists "{self.folder}/lists";\nDir::State::Status "{self.folder}/status";\n'
            f'Dir::Cache "{self.folder}/cache";\n'
            'Dir::Cache::pkgcache "";\nDir::Cache::srcpkgcache "";\n'
            'Dir::Etc::Preferences "/dev/null";\nDir::Etc::PreferencesParts "/dev/null";\n'
            'Acquire::Languages "none";\nAcquire::Retries "2";\n'
            'APT::Update::Error-Mode "any";\n'  # Without it, an unreachable mirror is only a warning.
            'Acquire::http::Timeout "30";\nAcquire::https::Timeout "30";\n' + root + "#clear APT::Default-Release;\n"
            # Hooks of the system (package kits, command databases) are none of our business.
            "#clear APT::Update::Pre-Invoke;\n#clear APT::Update::Post-Invoke;\n"
            "#clear APT::Update::Post-Invoke-Success;\n"
        )

    def show(self, package: str) -> dict[str, str]:
        """The fields of a package's newest version, empty when no list has it."""
        try:
            text = self.call(["apt-cache", "show", "--no-all-versions", package], UPDATE_TIMEOUT_S)
        except PackError:
            return {}
        return next(paragraphs(text), {})

    def unpack(self, package: str) -> Path:
        """Download a package and unpack it; the folder with its files. No script of the package runs."""
        into = self.folder / "unpacked" / package
        downloads = self.folder / "downloads" / package
        for folder in (downloads, into):
            folder.mkdir(parents=True, exist_ok=True)
        self.call(["apt-get", "download", package], DOWNLOAD_TIMEOUT_S, downloads)
        archive = next(downloads.glob("*.deb"), None)
        if archive is None:
            raise PackError(f"apt-get download {package}: no package came")
        run_quietly(["dpkg", "-x", str(archive), str(into)], timeout_s=DOWNLOAD_TIMEOUT_S)
        archive.unlink()
        return into

    def call(self, command: list[str], timeout_s: float, cwd: Path | None = None) -> str:
        """Run an apt tool inside the folder; PackError with apt's own reason when it fails."""
        full = [command[0], "-c", str(self.folder / "apt.conf"), *command[1:]]
        env = {**os.environ, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
        return run_quietly(full, env=env, timeout_s=timeout_s, cwd=cwd)


def architecture() -> str:
    """The machine's package architecture: amd64, arm64."""
    return run_quietly(["dpkg", "--print-architecture"]).strip()


def require_tools() -> None:
    """PackError when this is no machine with Debian's package tools."""
    missing = [name for name in ("apt-get", "apt-cache", "dpkg", "dpkg-deb") if not shutil.which(name)]
    if missing:
        raise PackError(f"no {missing[0]} on this machine")
