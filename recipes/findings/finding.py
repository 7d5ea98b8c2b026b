"""A finding: what a check found, how bad it is, the figures it rests on, what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

#: `info`: worth knowing, the numbers hold. `warn`: some numbers are wrong or missing. `error`: nothing can be said.
INFO, WARN, ERROR = SEVERITIES = ("info", "warn", "error")
#: So many numbered findings are told.
MOST = 5


@dataclass(frozen=True)
class Scope:
    """What a finding is about; None for what does not narrow it down."""

    report: str | None = None
    rank: int | None = None
    device: int | None = None
    phase: str | None = None
    step: int | None = None


@dataclass(frozen=True)
class Finding:
    """What one check found, or that it could not look.

    `id` is a row of findings.tsv; `message` the conclusion; `evidence` its figure as text, and `numbers` the same by
    name (times in ns); `remedy` the command or code that helps. `recoverable_ns` per step is an upper bound on what
    following the remedy could save, None where it saves no time; bounds do not add up. `observed` is False where the
    capture cannot tell, and `message` says why: that is not the same as nothing found.
    """

    id: str
    severity: str
    message: str
    evidence: str = ""
    remedy: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)
    recoverable_ns: float | None = None
    scope: Scope = field(default_factory=Scope)
    observed: bool = True

    @property
    def line(self) -> str:
        """All of it in one line."""
        told = f"{self.message} ({self.evidence})" if self.evidence else self.message
        return f"{told}; {self.remedy}" if self.remedy else told


def worst(severities: Iterable[str]) -> str:
    """The worst of some severities; empty for none."""
    return max(severities, key=SEVERITIES.index, default="")


def most_recoverable(findings: Iterable[Finding]) -> list[Finding]:
    """The numbered findings: those observed, the most recoverable time first, MOST of them.

    Equal bounds, as where a known step time limits them all, go by the idle time that they are about.
    """

    def key(finding: Finding) -> tuple[float, float]:
        bound_ns = finding.recoverable_ns
        return (0, 0) if bound_ns is None else (-bound_ns, -finding.numbers.get("idle_ns", 0))

    return sorted((finding for finding in findings if finding.observed), key=key)[:MOST]
