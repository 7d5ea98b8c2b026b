"""A report as all recipes see it: GPU work, steps, and which work belongs to which step."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from recipes.events.gpu_work import GpuWork, Span, read_gpu_work, select
from recipes.events.launches import Launches, LaunchTable
from recipes.report.facts import Facts
from recipes.report.report import Report
from recipes.steps.attribution import WAYS, Attribution, attribute
from recipes.steps.inference import infer_steps
from recipes.steps.layers import Layers, find_layers
from recipes.steps.phases import PhaseRule
from recipes.steps.ranges import Ranges, commonest_names, ranges_by_domain, read_ranges
from recipes.steps.steps import Steps, find_steps

#: The phase that stands for the whole window, and the one for work in no step.
ALL, OUTSIDE = "all", "outside"
#: What a capture holds only for recipes that look at it.
LAUNCHES, LAYERS, RANGES = "launches", "layers", "ranges"


@dataclass(frozen=True)
class Capture:
    """A report, its GPU work, its steps (none found: no rows), the step of each operation; launches, layers and ranges
    only when asked for."""

    report: Report
    work: GpuWork
    steps: Steps
    attribution: Attribution
    launches: Launches | None
    layers: Layers | None
    ranges: Ranges | None
    #: How many ranges there are in each NVTX domain; the default domain is empty text.
    domains: dict[str, int]
    #: Its commonest range names.
    commonest: list[str]
    #: The time range looked at.
    span: Span
    #: Of each step, whether it lies in the time range looked at, in part at least; and whether it is cut by it.
    within: np.ndarray
    cut: np.ndarray
    #: What the report says of itself and the user of it, where that is known.
    facts: Facts | None = None

    @property
    def filtered(self) -> bool:
        """Whether only a part of the report is looked at."""
        return self.span != Span()

    def phases(self) -> list[tuple[str, np.ndarray | slice]]:
        """Each phase and what selects its operations: `all`, the phases that were found, `outside` the steps."""
        everything: list[tuple[str, np.ndarray | slice]] = [(ALL, slice(None))]
        if not len(self.steps):
            return everything
        step = self.attribution.step
        phase = np.where(step >= 0, self.steps.phase[np.maximum(step, 0)], -1)
        named = [(name, phase == code) for code, name in enumerate(self.steps.phases)]
        return [*everything, *named, (OUTSIDE, phase < 0)]

    def phase_rule(self) -> str | None:
        """The rule that gave the steps and its matches, of each process where they differ; None without steps."""
        if not len(self.steps):
            return None
        rules = {f"{rule} ({count:,} steps)" for rule, count in self.steps.rules.values()}
        return "; ".join(sorted(rules))

    def coverage(self) -> str:
        """How the steps were found and the share of GPU time in them, by the way it came there; empty without work."""
        ways = self.attributed_by_way
        if not len(self.work):
            return ""
        if not ways:
            return "none found: no NVTX range has the name of a step, and the work does not repeat"
        shares = [f"{share * 100:.1f} % by {way}" for way, share in ways.items() if share]
        outside = f"{(1 - sum(ways.values())) * 100:.1f} % outside"
        if self.steps.inferred:
            shares = [f"{sum(ways.values()) * 100:.1f} % in steps"]
        return f"{self.phase_rule()}; of GPU time {', '.join([*shares, outside])}"

    def attributed_share(self) -> float | None:
        """The share of GPU time that lies in steps; None without steps."""
        ways = self.attributed_by_way
        return None if ways is None else sum(ways.values())

    @cached_property
    def attributed_by_way(self) -> dict[str, float] | None:
        """The share of GPU time that came to its step each way; None without steps."""
        if not len(self.steps) or not len(self.work):
            return None
        durations_ns = self.work.end_ns - self.work.start_ns
        # Shifted by one: bincount takes no negative numbers, and -1 is no way at all.
        time_ns = np.bincount(self.attribution.way + 1, weights=durations_ns, minlength=len(WAYS) + 1)
        return {way: float(time_ns[number + 1] / max(time_ns.sum(), 1)) for number, way in enumerate(WAYS)}


def read_capture(report: Report, span: Span, rules: Sequence[PhaseRule], needs: Collection[str] = ()) -> Capture:
    """Reads what recipes need: of LAUNCHES, LAYERS and RANGES only what is in `needs`, since they take memory.

    Work that does not touch the span is left out at last, so that steps are known whole before they are cut.
    PackError when the report's export is damaged.
    """
    work = read_gpu_work(report)
    last_ns = int(work.end_ns.max()) if len(work) else 0
    ranges = read_ranges(report, last_ns)
    steps = find_steps(ranges, rules)
    # Layers are found by the launches.
    table = LaunchTable(len(work)) if {LAUNCHES, LAYERS} & set(needs) else None
    attribution = attribute(report, work, steps, table)
    if not len(steps):
        steps, attribution = infer_steps(report, work)
    within = np.ones(len(steps), dtype=bool)
    capture = Capture(
        report=report,
        work=work,
        steps=steps,
        attribution=attribution,
        launches=table.launches() if table else None,
        layers=None,
        ranges=ranges if RANGES in needs else None,
        domains=ranges_by_domain(ranges),
        commonest=commonest_names(ranges),
        span=span,
        within=within,
        cut=~within,
    )
    if LAYERS in needs:
        capture = replace(capture, layers=find_layers(report, work, capture.launches, ranges, steps))
    return capture if span == Span() else _cut(capture, span)


def _cut(capture: Capture, span: Span) -> Capture:
    """The part of a capture that touches a span, with the steps marked that it cuts or leaves out."""
    work, attribution = capture.work, capture.attribution
    keep = span.touches(work.start_ns, work.end_ns)
    in_step = attribution.step >= 0
    count = len(capture.steps)
    kept = np.bincount(attribution.step[in_step & keep], minlength=count)
    lost = np.bincount(attribution.step[in_step & ~keep], minlength=count)
    chosen = replace(attribution, step=attribution.step[keep], way=attribution.way[keep])
    launches = capture.launches
    if launches is not None:
        launches = replace(launches, of_operation=launches.of_operation[keep])
    layers = capture.layers
    if layers is not None:
        layers = replace(layers, of_operation=layers.of_operation[keep], by_capture=layers.by_capture[keep])
    return replace(
        capture,
        work=select(work, keep),
        attribution=chosen,
        launches=launches,
        layers=layers,
        within=(kept > 0) | (lost == 0),
        cut=(kept > 0) & (lost > 0),
    )
