"""Do like steps take like times? Drift, two modes, slower first steps, and whether the GPU's clock is behind it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from recipes.base.units import format_ns
from recipes.events.gpu_work import KERNEL
from recipes.findings.finding import Finding
from recipes.findings.registry import cannot_tell
from recipes.findings.step_times import StepTimes
from recipes.findings.subject import Subject
from recipes.steps.phases import DECODE_PHASES

#: So many steps are needed to tell a change from chance; and to compare the first with the others.
_ENOUGH, _SOME = 12, 4
#: Steps differ worth telling from this share of their median on: below lies ordinary variance.
_WORTH = 0.05
#: A drift: rank correlation with time so many standard errors from none (by chance below 0.1 %), or this at most.
_ERRORS, _TREND = 3.3, 0.85
#: Two modes: the split explains this share of the variance, each has this share of steps, they are this share of the
#: median apart, and half of that is empty between them.
_SPLIT, _SMALLER, _APART, _EMPTY = 0.9, 0.1, 0.1, 0.5
#: Families of kernels whose time does not follow the GPU's clock alone.
_OTHER_CLOCKS = ("attention", "communication")
#: A first step that takes this many times the median of the others is slower than these; below, it may be chance.
_SLOW_FIRST = 1.5


def unsteady_steps(subject: Subject) -> Iterator[Finding]:
    """Findings of each group of like steps; the same on several devices is told of the first."""
    times, told, most = subject.times, set(), 0
    for name, device, entries in times.groups():
        most = max(most, len(entries))
        for finding in (*_first(subject, times, name, entries), *_changes(subject, times, name, entries)):
            if (finding.id, name) not in told:
                told.add((finding.id, name))
                where = f"GPU {device}: {finding.evidence}" if len(set(times.device.tolist())) > 1 else finding.evidence
                scope = replace(finding.scope, device=device, phase=times.phase[entries[0]])
                yield replace(finding, evidence=where, scope=scope)
    if most < _ENOUGH:
        yield cannot_tell("unsteady", f"it takes {_ENOUGH} whole steps of one kind")


def _first(subject: Subject, times: StepTimes, name: str, entries: np.ndarray) -> Iterator[Finding]:
    if len(entries) < _SOME:
        return
    first, *others = times.duration_ns[entries].tolist()
    median_ns, longest_ns = float(np.median(others)), max(others)
    if first > _SLOW_FIRST * median_ns and first > longest_ns:
        evidence = f"{format_ns(first)} against {format_ns(median_ns)}, the median of {len(others)} later ones"
        message = f"the first {name} step is slower than the others"
        figures = {"first_ns": first, "median_ns": median_ns}
        yield subject.found("first_steps", message, evidence, numbers=figures)


def _changes(subject: Subject, times: StepTimes, name: str, entries: np.ndarray) -> Iterator[Finding]:
    if len(entries) < _ENOUGH:
        return
    duration_ns = times.duration_ns[entries]
    kind, change, evidence = _change(duration_ns)
    if not kind:
        return
    # GEMMs of as many tokens do the same work whatever the context: if all else changes with them, it is the clock.
    gemm_ns, gemms = times.gemm_ns[entries], times.gemms[entries]
    clock_kind, clock_change, clock_evidence = _change(gemm_ns)
    same_work = times.phase[entries[0]] in DECODE_PHASES or times.tokens[entries[0]] is not None
    alike = clock_kind and same_work and (gemms == gemms[0]).all() and clock_change * change > 0
    if alike and all(_change(time_ns)[1] * change > 0 for time_ns in _by_family(subject, times, entries)):
        message = (
            f"the GPU's clock changed: GEMMs of {name} steps {clock_kind}, with the same calls, and all else alike"
        )
        told, figures = f"{clock_evidence}; the steps themselves: {evidence}", {"change": clock_change}
        yield subject.found("clock", message, told, numbers=figures)
        return
    yield subject.found("unsteady", f"{name} steps are not alike: {kind}", evidence, numbers={"change": change})


def _by_family(subject: Subject, times: StepTimes, entries: np.ndarray) -> list[np.ndarray]:
    """The time of each kind of kernel in some steps, int64 per step, of kinds that are worth telling.

    Copies, communication and attention are left out: they go by other clocks, other ranks, and the context.
    """
    work, families = subject.capture.work, subject.capture.families()
    entry = times.projection.of_operation
    place = np.full(len(times.projection) + 1, -1)
    place[entries] = np.arange(len(entries))
    rows = np.flatnonzero((work.kind == KERNEL) & (place[entry] >= 0))
    code, count = families.of_name[work.name[rows]].astype(np.int64), len(entries)
    times_ns = np.bincount(
        code * count + place[entry[rows]],
        weights=work.end_ns[rows] - work.start_ns[rows],
        minlength=len(families.families) * count,
    )
    sums_ns = times_ns.reshape(-1, count).astype(np.int64)
    counted = [name not in _OTHER_CLOCKS for name in families.families]
    return [time_ns for time_ns in sums_ns[counted] if time_ns.sum() > _WORTH * sums_ns[counted].sum()]


def _change(values_ns: np.ndarray) -> tuple[str, float, str]:
    """How values change: `drift` or `two modes` (empty for neither), by what share, and the figures."""
    median_ns = float(np.median(values_ns))
    if not median_ns:
        return "", 0.0, ""
    third = max(len(values_ns) // 3, 1)
    early_ns, late_ns = float(np.median(values_ns[:third])), float(np.median(values_ns[-third:]))
    change = (late_ns - early_ns) / median_ns
    # A step in twenty may be odd without hiding what the others do.
    kept_ns = np.sort(values_ns)[: len(values_ns) - len(values_ns) // 20]
    low_ns, high_ns, explained, smaller, empty = _best_split(kept_ns)
    apart = (high_ns - low_ns) / median_ns
    if explained > _SPLIT and smaller >= _SMALLER and apart > _APART and empty > _EMPTY:
        figures = f"around {format_ns(low_ns)} and {format_ns(high_ns)}, {smaller:.0%} in the smaller group"
        return "two modes", change or apart, f"{figures}, {len(values_ns)} steps"
    enough = min(_TREND, _ERRORS / np.sqrt(len(values_ns) - 1))
    if abs(change) > _WORTH and abs(_rank_correlation(values_ns)) > enough:
        figures = f"{format_ns(early_ns)} at the beginning, {format_ns(late_ns)} at the end ({change:+.0%})"
        return "drift", change, f"{figures}, {len(values_ns)} steps"
    return "", 0.0, ""


def _best_split(ordered: np.ndarray) -> tuple[float, float, float, float, float]:
    """Of values in order the two groups that explain most of the variance: their means, the share explained, the share
    of values in the smaller group, and how much of the distance of the means lies between the groups."""
    ordered = ordered.astype(np.float64)
    count, total = len(ordered), ordered.sum()
    below = np.cumsum(ordered)[:-1]
    size = np.arange(1, count)
    between = (below / size - (total - below) / (count - size)) ** 2 * size * (count - size) / count
    best = int(between.argmax())
    spread = ((ordered - total / count) ** 2).sum()
    low, high = below[best] / size[best], (total - below[best]) / (count - size[best])
    explained = between[best] / spread if spread else 0.0
    empty = (ordered[best + 1] - ordered[best]) / (high - low) if high > low else 0.0
    return float(low), float(high), float(explained), float(min(size[best], count - size[best]) / count), float(empty)


def _rank_correlation(values: np.ndarray) -> float:
    """Spearman's correlation of values with their order; equal values share their rank."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    rank = (np.cumsum(counts) - (counts - 1) / 2)[place.ravel()]
    if len(counts) < 2:
        return 0.0
    return float(np.corrcoef(rank, np.arange(len(rank)))[0, 1])
