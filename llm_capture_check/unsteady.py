"""Do like steps take like times? Drift, two modes, slower first steps, and whether the GPU's clock is behind it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from llm_capture_check.step_times import StepTimes
from recipes.checks.finding import INFO, Finding
from recipes.checks.subject import Subject
from recipes.units import format_ns

#: So many steps are needed to tell a trend from chance; and to compare the first with the others.
_ENOUGH, _SOME = 8, 4
#: Steps differ worth telling from this share of their median on.
_WORTH = 0.05
#: Rank correlation with time from which on a change is a drift: by chance below 1 % from 8 steps on.
_TREND = 0.85
#: Two modes: the split explains this share of the variance (0.75 would be even spread), each has this share of steps,
#: and they are this share of the median apart.
_SPLIT, _SMALLER, _APART = 0.9, 0.2, 0.1
#: A first step that takes this many times the median of the others.
_SLOW_FIRST = 1.5


def unsteady_steps(subject: Subject, times: StepTimes) -> Iterator[Finding]:
    """Findings of each group of like steps; the same on several devices is told of the first."""
    told: set[tuple[str, str]] = set()
    for name, device, entries in times.groups():
        for finding in (*_first(subject, times, name, entries), *_changes(subject, times, name, entries)):
            if (finding.check, name) not in told:
                told.add((finding.check, name))
                where = f"GPU {device}: {finding.evidence}" if len(set(times.device.tolist())) > 1 else finding.evidence
                yield Finding(finding.check, finding.severity, finding.message, where, finding.remedy)


def _first(subject: Subject, times: StepTimes, name: str, entries: np.ndarray) -> Iterator[Finding]:
    if len(entries) < _SOME:
        return
    first, *others = times.duration_ns[entries].tolist()
    median_ns, longest_ns = float(np.median(others)), max(others)
    if first > _SLOW_FIRST * median_ns and first > longest_ns:
        evidence = f"{format_ns(first)} against {format_ns(median_ns)}, the median of {len(others)} later ones"
        yield subject.found("first_steps", INFO, f"the first {name} step is slower than the others", evidence)


def _changes(subject: Subject, times: StepTimes, name: str, entries: np.ndarray) -> Iterator[Finding]:
    if len(entries) < _ENOUGH:
        return
    duration_ns = times.duration_ns[entries]
    kind, change, evidence = _change(duration_ns)
    if not kind:
        return
    # GEMMs of like steps do the same work whatever the context: if they change alike, the clock did.
    gemm_ns, gemms = times.gemm_ns[entries], times.gemms[entries]
    clock_kind, clock_change, clock_evidence = _change(gemm_ns)
    if clock_kind and (gemms == gemms[0]).all() and clock_change * change > 0:
        message = f"the GPU's clock changed: GEMMs of {name} steps {clock_kind}, with the same calls"
        yield subject.found("clock", INFO, message, f"{clock_evidence}; the steps themselves: {evidence}")
        return
    yield subject.found("unsteady", INFO, f"{name} steps are not alike: {kind}", evidence)


def _change(values_ns: np.ndarray) -> tuple[str, float, str]:
    """How values change: `drift` or `two modes` (empty for neither), by what share, and the figures."""
    median_ns = float(np.median(values_ns))
    if not median_ns:
        return "", 0.0, ""
    third = max(len(values_ns) // 3, 1)
    early_ns, late_ns = float(np.median(values_ns[:third])), float(np.median(values_ns[-third:]))
    change = (late_ns - early_ns) / median_ns
    low_ns, high_ns, explained, smaller = _best_split(values_ns)
    apart = (high_ns - low_ns) / median_ns
    if explained > _SPLIT and smaller >= _SMALLER and apart > _APART:
        figures = f"around {format_ns(low_ns)} and {format_ns(high_ns)}, {smaller:.0%} in the smaller group"
        return "two modes", change or apart, f"{figures}, {len(values_ns)} steps"
    if abs(change) > _WORTH and abs(_rank_correlation(values_ns)) > _TREND:
        figures = f"{format_ns(early_ns)} at the beginning, {format_ns(late_ns)} at the end ({change:+.0%})"
        return "drift", change, f"{figures}, {len(values_ns)} steps"
    return "", 0.0, ""


def _best_split(values: np.ndarray) -> tuple[float, float, float, float]:
    """The means of the two groups that explain most of the variance, the share explained, that of the smaller group."""
    ordered = np.sort(values).astype(np.float64)
    count, total = len(ordered), ordered.sum()
    below = np.cumsum(ordered)[:-1]
    size = np.arange(1, count)
    between = (below / size - (total - below) / (count - size)) ** 2 * size * (count - size) / count
    best = int(between.argmax())
    spread = ((ordered - total / count) ** 2).sum()
    low, high = below[best] / size[best], (total - below[best]) / (count - size[best])
    explained = between[best] / spread if spread else 0.0
    return float(low), float(high), float(explained), float(min(size[best], count - size[best]) / count)


def _rank_correlation(values: np.ndarray) -> float:
    """Spearman's correlation of values with their order."""
    rank = np.argsort(np.argsort(values, kind="stable"), kind="stable").astype(np.float64)
    if len(rank) < 2:
        return 0.0
    return float(np.corrcoef(rank, np.arange(len(rank)))[0, 1])
