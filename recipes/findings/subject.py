"""What is checked: a capture with what its report says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

from recipes.capture.capture import Capture
from recipes.findings.engine import engine_of
from recipes.findings.finding import Finding, Scope
from recipes.findings.registry import NO_WORK, QUALITY, WORK, find, in_order, make, without_effects
from recipes.findings.step_times import StepTimes, step_times
from recipes.report import schema
from recipes.report.facts import Facts

# What the checks of the quality line found, by capture: the runner and llm_capture_check both ask.
_KNOWN: WeakKeyDictionary[Capture, list[Finding]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Subject:
    """A capture and the facts of its report; what several checks look at is worked out once."""

    capture: Capture
    #: What a step takes without the profiler, where the user tells.
    step_time_ns: float | None = None

    @property
    def facts(self) -> Facts:
        return self.capture.facts

    @property
    def quality_findings(self) -> list[Finding]:
        """What limits the capture, as far as it can be told from what every recipe reads anyway; looked at once."""
        if self.capture not in _KNOWN:
            _KNOWN[self.capture] = in_order(without_effects(find(QUALITY, self, holds=self.holds)))
        return _KNOWN[self.capture]

    @property
    def holds(self) -> str:
        """WORK, or NO_WORK without any operation."""
        return WORK if len(self.capture.work) else NO_WORK

    @cached_property
    def times(self) -> StepTimes:
        return step_times(self.capture)

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

    def found(self, check: str, message: str, evidence: str = "", **fields: Any) -> Finding:
        """A finding with the remedy for the engine at hand; `fields` as `make` takes them."""
        return make(check, message, evidence, engine=self.engine, **{"scope": Scope(rank=self.facts.rank), **fields})
