"""A finding: what a check found, how bad it is, the figure it rests on, what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

#: `info`: worth knowing, the numbers hold. `warn`: some numbers are wrong or missing. `error`: nothing can be said.
INFO, WARN, ERROR = SEVERITIES = ("info", "warn", "error")


@dataclass(frozen=True)
class Finding:
    """What one check found. `message` is the conclusion, `evidence` the figure, `remedy` the command or code."""

    check: str
    severity: str
    message: str
    evidence: str
    remedy: str = ""

    @property
    def line(self) -> str:
        """All of it in one line."""
        told = f"{self.message} ({self.evidence})" if self.evidence else self.message
        return f"{told}; {self.remedy}" if self.remedy else told


def worst(severities: Iterable[str]) -> str:
    """The worst of some severities; empty for none."""
    return max(severities, key=SEVERITIES.index, default="")
