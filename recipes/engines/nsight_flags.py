"""Which flags of `nsys profile` there are: asked from the nsys at hand, or from a table for releases that are not.

Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from recipes.base.errors import PackError
from recipes.engines.engines import table_lines

#: What the table was last compared with: NVIDIA's user guide of that year.
NEWEST = "2026"
# A declaration stands at the start of a line, perhaps after a short form; the text below it is set further in.
_DECLARATION = re.compile(r"^[ \t]{0,4}(?:\(\w+\) )?(?:-\w,? )?--(?P<name>[a-z][\w-]*)", re.MULTILINE)
# The sentence that lists a flag's values; what follows tells of them in words that may be values too.
_VALUES = re.compile(r"Possible values[^.]*")


@dataclass(frozen=True)
class Flag:
    """One flag of `nsys profile` with the value that we use, what it does, and what is lost without it."""

    name: str
    value: str
    since: tuple[int, ...]
    used: str  # always | window | engine
    does: str
    lost: str

    @property
    def word(self) -> str:
        """The flag as it is typed."""
        return f"{self.name}={self.value}"


@dataclass(frozen=True)
class Nsight:
    """An Nsight Systems as far as captures go: how to start it, its release, and its help if it could be asked."""

    executable: str
    release: str
    help: Mapping[str, str] | None = None

    def has(self, flag: Flag) -> bool:
        """Whether it knows the flag, and the value where its help lists values."""
        if self.help is None:
            return version_of(self.release) >= flag.since
        if flag.name not in self.help:
            return False
        text = self.help[flag.name]
        values = " ".join(_VALUES.findall(text)) or text
        return flag.value == "NAME" or all(_names(word, text, values) for word in flag.value.split(","))


def _names(word: str, text: str, values: str) -> bool:
    """Whether a help's text names a value: in quotes, or among its values without them."""
    return f"'{word}'" in text or bool(re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", values))


@cache
def flags() -> tuple[Flag, ...]:
    """All flags that are used, in the order in which they are printed."""
    rows = (line.split("\t") for line in table_lines("flags.tsv"))
    return tuple(
        Flag(name, value, version_of(since), used, does, lost) for name, value, since, used, _, does, lost in rows
    )


def version_of(text: str) -> tuple[int, ...]:
    """(2023, 4) of 2023.4 or 2023.4.4.54-x. PackError when it is no release of Nsight Systems."""
    found = re.match(r"(20\d\d)(?:\.(\d{1,3}))?(?=\.|-|$)", text.strip())
    if not found:
        raise PackError(f"{text!r} is no release of Nsight Systems; write one as 2023.4")
    return tuple(int(part) for part in found.groups() if part is not None)


def parse_help(text: str) -> dict[str, str]:
    """The text of each flag in what `nsys profile --help` prints."""
    starts = list(_DECLARATION.finditer(text))
    ends = [found.start() for found in starts[1:]] + [len(text)]
    return {f"--{found['name']}": text[found.start() : end] for found, end in zip(starts, ends, strict=True)}


def nsight_of_release(release: str) -> Nsight:
    """An Nsight of a release that is not at hand, by the table. PackError when it is older than the table reaches."""
    oldest = min(flag.since for flag in flags())
    if version_of(release) < oldest:
        known = ".".join(map(str, oldest))
        raise PackError(f"nothing is known of the flags of Nsight Systems {release}; the oldest known is {known}")
    return Nsight("nsys", release)


def newest_nsight() -> Nsight:
    """The newest that the table knows."""
    return nsight_of_release(NEWEST)
