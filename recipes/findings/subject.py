"""What is checked: a capture with what its report says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from recipes.base.terminal import plain
from recipes.capture.capture import Capture
from recipes.findings.engine import engine_of
from recipes.findings.finding import Finding
from recipes.findings.remedies import remedy
from recipes.report import schema
from recipes.report.facts import Facts


@dataclass(frozen=True)
class Subject:
    """A capture and the facts of its report."""

    capture: Capture
    facts: Facts

    @cached_property
    def engine(self) -> str:
        return engine_of(self.capture)

    @cached_property
    def options(self) -> dict[str, str]:
        """How the capture was made, as the report tells; of several processes those of the first."""
        return dict(reversed(self.capture.report.pairs(schema.CAPTURE_INFO)))

    def option(self, name: str) -> str:
        """An option that nsys notes with the process that it launched; empty when the report does not tell."""
        return self.options.get(f"PROCESS_0:{name}", "")

    @cached_property
    def events(self) -> set[str]:
        """The kinds of events that were traced, as Nsight names them."""
        pairs = self.capture.report.pairs(schema.CAPTURE_INFO)
        return {value for name, value in pairs if name == "CAPTURE_EVENT_TYPE"}

    def found(self, check: str, severity: str, message: str, evidence: str = "") -> Finding:
        """A finding with the remedy for the engine at hand, as plain lines whatever names are in it."""
        return Finding(check, severity, plain(message), plain(evidence), remedy(check, self.engine))
