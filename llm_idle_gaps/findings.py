"""What follows from the idle time: at most five findings, the most recoverable time first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from llm_idle_gaps.picture import GRAPHS_ON, HOST_CAUSES, WORTH, Picture
from recipes.base.units import format_count, format_ns, format_share

MOST = 5
#: Idle time elsewhere is worth a finding from this share of all idle time on.
_MUCH = 0.2


@dataclass(frozen=True)
class Finding:
    """One sentence with its figure and the next step, and the time that could be recovered at most, in ns."""

    text: str
    recoverable_ns: float


def findings(of: Picture, real_idle_ns: float | None = None) -> list[Finding]:
    """The findings on a device. Bounds do not add up.

    `real_idle_ns` is what a step can be idle at most without the profiler, where that is known.
    """
    makers = (_graphs(of, real_idle_ns), _sync(of, real_idle_ns), _outside(of, real_idle_ns), _queued(of),
              _profiler(of), _unknown(of), _elsewhere(of))  # fmt: skip
    found = [finding for maker in makers for finding in maker]
    return sorted(found, key=lambda finding: -finding.recoverable_ns)[:MOST]


def _told(times: dict[str, float]) -> str:
    """Times with their names, the longest first: host 27.6 ms, launch 8.30 ms."""
    longest = sorted(times.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {format_ns(time_ns)}" for name, time_ns in longest if time_ns)


def _bound(of: Picture, idle_ns: float, real_idle_ns: float | None) -> str:
    """What could be recovered at most: no more than is idle without the profiler, where that is known."""
    if real_idle_ns is not None and real_idle_ns < idle_ns:
        return f"at most the {format_ns(real_idle_ns)} {of.each} that are idle without the profiler could be recovered"
    return f"at most these {format_ns(idle_ns)} {of.each} could be recovered"


def _graphs(of: Picture, real_idle_ns: float | None) -> Iterator[Finding]:
    mean, idle_ns, state = of.mean, of.idle_ns(*HOST_CAUSES), of.graph_state
    if mean["opaque_graphs"]:
        yield Finding(
            "CUDA graphs were traced as a whole: gaps inside them are not seen, so nothing is said of them; capture "
            "with --cuda-graph-trace=node to see them",
            0,
        )
    if not state:
        return
    launched = f"{format_count(mean['launched'], 'operation')} from {format_count(mean['launches'], 'launch call')}"
    if of.in_graphs >= GRAPHS_ON:
        yield Finding(
            f"{state}: {launched} {of.each}, {mean['graph_launches']:,.0f} of them for graphs, with "
            f"{format_share(of.in_graphs)} of the operations; {format_ns(of.idle_ns('graph'))} idle between nodes",
            0,
        )
    elif idle_ns > WORTH * mean["duration_ns"]:
        calls, pairs = max(mean["launches"] - mean["copy_launches"], 1), max(mean["between_launches"], 1)
        times = f"{format_ns(mean['launch_call_ns'] / calls)} inside each call"
        times += f", {format_ns(mean['between_launches_ns'] / pairs)} from one to the next"
        slower = "" if real_idle_ns is not None else " (tracing itself makes launches slower: --step-time)"
        waits = ", but a graph cannot hold a step that waits for its results half-way" if of.waits_inside else ""
        yield Finding(
            f"{state}: {launched} {of.each} ({mean['launched'] / mean['launches']:.1f} operations a call, "
            f"{format_share(of.in_graphs)} in graphs; {times}) leave the GPU idle for "
            f"{_told({cause: of.idle_ns(cause) for cause in HOST_CAUSES})}: "
            f"with graphs on, {_bound(of, idle_ns, real_idle_ns)}{slower}{waits}",
            idle_ns,
        )


def _sync(of: Picture, real_idle_ns: float | None) -> Iterator[Finding]:
    # Not only the time inside the call: when it returns the GPU has run dry, and what follows is host and launch.
    idle_ns = of.mean["after_sync_ns"]
    if idle_ns > WORTH * of.mean["duration_ns"]:
        calls = of.gaps.groupby("sync_call", observed=True)["duration_ns"].sum()
        named = f" in {calls.idxmax()}" if len(calls) else ""
        # Without waiting the host would be ahead for all that follows too.
        bound_ns = max(of.idle_ns(*HOST_CAUSES, "sync"), idle_ns)
        yield Finding(
            f"{format_ns(idle_ns)} {of.each} are idle in gaps that begin while the host waits for the GPU{named}; "
            "without that it could run ahead, and of sync, host, launch and api together "
            f"{_bound(of, bound_ns, real_idle_ns)}: look for .item(), .cpu(), .tolist() and synchronize() in the step",
            min(idle_ns, bound_ns),
        )


def _outside(of: Picture, real_idle_ns: float | None) -> Iterator[Finding]:
    if of.after_ns <= WORTH * of.mean["duration_ns"]:
        return
    named = ""
    by_call = of.between.groupby(["cause", "launch_api"], observed=True)["cause_ns"].sum()
    if len(by_call):
        cause, call = by_call.idxmax()
        place = {"launch": "in", "queued": "after"}.get(cause, "before")
        named = f", mostly {cause} {place} {call}"
        if cause == "launch" and "GraphLaunch" in call and of.mean["in_graphs"]:
            named += ", a call that tracing each node makes slower"
    yield Finding(
        f"The GPU is idle for {format_ns(of.after_ns)} {of.each} outside the steps{named}: prepare and launch the next "
        f"step while this one runs; {_bound(of, of.after_ns, real_idle_ns)}",
        of.after_ns,
    )


def _queued(of: Picture) -> Iterator[Finding]:
    idle_ns = of.idle_ns("queued")
    if idle_ns > WORTH * of.mean["duration_ns"]:
        yield Finding(
            f"{format_ns(idle_ns)} {of.each} pass although the next operation was issued: a dependency between "
            "streams, another process on this GPU, or the GPU's own scheduling of small kernels",
            0,
        )


def _profiler(of: Picture) -> Iterator[Finding]:
    idle_ns = of.idle_ns("profiler")
    if idle_ns > WORTH * of.mean["duration_ns"]:
        yield Finding(f"{format_ns(idle_ns)} {of.each} are the profiler's own: not there without it", 0)


def _unknown(of: Picture) -> Iterator[Finding]:
    idle_ns = of.idle_ns("unknown")
    if idle_ns > WORTH * of.mean["duration_ns"]:
        yield Finding(
            f"The launches behind {format_ns(idle_ns)} {of.each} of idle time were not recorded, so its cause is not "
            "known: capture whole processes, with -t cuda,nvtx",
            0,
        )


def _elsewhere(of: Picture) -> Iterator[Finding]:
    """Idle time that none of the others is about."""
    elsewhere_ns = sum(of.elsewhere_ns.values())
    if of.steps and elsewhere_ns > _MUCH * of.total_idle_ns:
        longest = dict(sorted(of.elsewhere_ns.items(), key=lambda item: -item[1])[:3])
        yield Finding(
            f"{format_ns(elsewhere_ns)} of the {format_ns(of.total_idle_ns)} idle in the window lie elsewhere: "
            f"{_told(longest)}; see the largest gaps",
            0,
        )
