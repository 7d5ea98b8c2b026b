"""What follows from the idle time of a device's steps: sentences with their figures and the next step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llm_idle_gaps.device_steps import HOST_CAUSES, WORTH, DeviceSteps
from recipes.base.text_table import shortened
from recipes.base.units import format_count, format_ns, format_share
from recipes.events.launch_state import ON, UNKNOWN, WHOLE
from recipes.findings.finding import Finding, Scope
from recipes.findings.registry import cannot_tell, make

#: A GPU that works so much of a step has nothing to gain from CUDA graphs.
_BUSY = 0.9
#: So many events are named; names are cut to so many characters.
_EVENTS, _WIDTH = 3, 60
#: Idle time elsewhere is worth a finding from this share of all idle time on: with less, the steps are what counts.
_MUCH = 0.2


def _found(of: DeviceSteps, check: str, text: str, **fields: Any) -> Finding:
    scope = Scope(report=of.report, device=of.device, phase=of.phase)
    return make(check, text, scope=scope, **fields)


def _bounded(of: DeviceSteps, idle_ns: float) -> dict[str, Any]:
    """The figures of a finding about idle time: all of it, and what could be recovered at most."""
    bound_ns = idle_ns if of.real_idle_ns is None else min(idle_ns, of.real_idle_ns)
    return {"numbers": {"idle_ns": idle_ns}, "recoverable_ns": bound_ns}


def _told(times: dict[str, float]) -> str:
    """Times with their names, the longest first: host 27.6 ms, launch 8.30 ms."""
    longest = sorted(times.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {format_ns(time_ns)}" for name, time_ns in longest if time_ns)


def _bound(of: DeviceSteps, idle_ns: float, which: str = "these ") -> str:
    """What could be recovered at most: no more than is idle without the profiler, where that is known."""
    if of.real_idle_ns is not None and of.real_idle_ns < idle_ns:
        return (
            f"at most the {format_ns(of.real_idle_ns)} {of.each} that are idle without the profiler could be recovered"
        )
    return f"at most {which}{format_ns(idle_ns)} {of.each} could be recovered"


def graphs(of: DeviceSteps) -> Iterator[Finding]:
    """Whether CUDA graphs are on, and what launching without them costs."""
    mean, idle_ns, launched = of.mean, of.idle_ns(*HOST_CAUSES), of.launched
    if mean["opaque_graphs"]:
        yield _found(
            of, "opaque_graphs",
            "CUDA graphs were traced as a whole: gaps inside them are not seen, so nothing is said of them; capture "
            "with --cuda-graph-trace=node to see them",
        )  # fmt: skip
    if launched.graphs == UNKNOWN:
        yield cannot_tell("graphs_off", "launches, or the work of graphs, were not recorded")
    if launched.graphs in (UNKNOWN, WHOLE):
        return
    if launched.graphs != ON and (of.lost_work or not of.steps):
        yield cannot_tell("graphs_off", "work of steps was not recorded" if of.lost_work else "no step is whole")
        return
    calls = f"{format_count(mean['launched'], 'operation')} from {format_count(mean['launches'], 'launch call')}"
    if launched.graphs == ON:
        yield _found(
            of, "graphs_on",
            f"{of.graph_state}: {calls} {of.each}, {mean['graph_launches']:,.0f} of them for graphs, with "
            f"{format_share(launched.in_graphs)} of the kernels; {format_ns(of.idle_ns('graph'))} idle between nodes",
            numbers={"in_graphs": launched.in_graphs, "idle_ns": of.idle_ns("graph")},
        )  # fmt: skip
    elif of.busy_share < _BUSY and not of.few_gaps and of.much(*(f"{cause}_ns" for cause in HOST_CAUSES)):
        yield _found(of, "graphs_off", _eager_text(of, calls, idle_ns), **_bounded(of, idle_ns))


def largest_gap(of: DeviceSteps) -> Iterator[Finding]:
    """What the host did in the one gap that holds most of the idle time of each step."""
    if not of.few_gaps:
        return
    largest = of.largest
    length_ns = float(largest["duration_ns"].median())
    one = largest.iloc[(largest["duration_ns"] - length_ns).abs().argmin()]
    held = isinstance(one["held_by"], str) and one["held_ns"] > one["duration_ns"] / 2
    doing = f", in {one['held_by']}" if held else ", in no CUDA call" if one["cause"] == "host" else ""
    doing += f", range {shortened(one['nvtx'], _WIDTH)}" if isinstance(one["nvtx"], str) else ""
    yield _found(
        of, "largest_gap",
        f"One gap holds {format_ns(length_ns)} of the {format_ns(of.rows['idle_ns'].median())} idle {of.each} "
        f"(medians): {one['cause']}{doing}, before {shortened(one['next'], _WIDTH)}: look at what the host "
        f"does there first; {_bound(of, length_ns)}",
        **_bounded(of, length_ns),
    )  # fmt: skip


def one_offs(of: DeviceSteps) -> Iterator[Finding]:
    """The steps that one-off events hit, which are in no mean."""
    if of.one_offs:
        told = [f"step {step} ({event}) by {format_ns(time_ns)}" for step, event, time_ns in of.one_offs[:_EVENTS]]
        more = f" and {len(of.one_offs) - _EVENTS} more" if len(of.one_offs) > _EVENTS else ""
        text = f"One-off events made longer, and are left out of everything here: {', '.join(told)}{more}"
        yield _found(of, "one_off", text, numbers={"time_ns": of.one_offs[0][2]})


def _eager_text(of: DeviceSteps, calls: str, idle_ns: float) -> str:
    mean = of.mean
    issued, pairs = max(mean["launches"] - mean["copy_launches"], 1), max(mean["between_launches"], 1)
    times = f"{format_ns(mean['launch_call_ns'] / issued)} inside each call"
    times += f", {format_ns(mean['between_launches_ns'] / pairs)} from one to the next"
    slower = "" if of.real_idle_ns is not None else " (tracing itself makes launches slower: --step-time)"
    waits = ", but a graph cannot hold a step that waits for its results half-way" if of.waits_inside else ""
    return (
        f"{of.graph_state}: {calls} {of.each} ({mean['launched'] / mean['launches']:.1f} operations a call, "
        f"{format_share(of.launched.in_graphs)} in graphs; {times}) leave the GPU idle for "
        f"{_told({cause: of.idle_ns(cause) for cause in HOST_CAUSES})}: "
        f"with graphs on, {_bound(of, idle_ns)}{slower}{waits}"
    )


def sync(of: DeviceSteps) -> Iterator[Finding]:
    """What waiting for the GPU on the host costs."""
    # Not only the time inside the call: when it returns the GPU has run dry, and what follows is host and launch.
    idle_ns = of.mean["after_sync_ns"]
    if of.waits_inside:
        calls = of.gaps.groupby("sync_call", observed=True)["duration_ns"].sum()
        named = f" in {calls.idxmax()}" if len(calls) else ""
        # Without waiting the host would be ahead for all that follows too.
        bound_ns = max(of.idle_ns(*HOST_CAUSES, "sync"), idle_ns)
        yield _found(
            of, "host_waits",
            f"{format_ns(idle_ns)} {of.each} are idle in gaps that begin while the host waits for the GPU{named}; "
            "without that it could run ahead, and of sync, host, launch and api together "
            f"{_bound(of, bound_ns, '')}: look for .item(), .cpu(), .tolist() and synchronize() in the step",
            **{**_bounded(of, bound_ns), "numbers": {"idle_ns": idle_ns}},
        )  # fmt: skip


def outside(of: DeviceSteps) -> Iterator[Finding]:
    """What passes between steps."""
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
    yield _found(
        of, "between_steps",
        f"The GPU is idle for {format_ns(of.after_ns)} {of.each} outside the steps{named}: prepare and launch the next "
        f"step while this one runs; {_bound(of, of.after_ns)}",
        **_bounded(of, of.after_ns),
    )  # fmt: skip


def queued(of: DeviceSteps) -> Iterator[Finding]:
    """Idle time behind launches that were issued."""
    idle_ns = of.idle_ns("queued")
    if of.much("queued_ns"):
        yield _found(
            of, "queued",
            f"{format_ns(idle_ns)} {of.each} pass although the next operation was issued: a dependency between "
            "streams, another process on this GPU, or the GPU's own scheduling of small kernels",
            numbers={"idle_ns": idle_ns},
        )  # fmt: skip


def profiler(of: DeviceSteps) -> Iterator[Finding]:
    """Idle time that is the profiler's."""
    idle_ns = of.idle_ns("profiler")
    if of.much("profiler_ns"):
        text = f"{format_ns(idle_ns)} {of.each} are the profiler's own: not there without it"
        yield _found(of, "profiler_idle", text, numbers={"idle_ns": idle_ns})


def unknown(of: DeviceSteps) -> Iterator[Finding]:
    """Idle time of which the launch is not known."""
    idle_ns = of.idle_ns("unknown")
    if of.much("unknown_ns"):
        yield _found(
            of, "unknown_launches",
            f"What ended {format_ns(idle_ns)} {of.each} of idle time has no launch in the report (not recorded, or the "
            "driver moved pages), so its cause is not known: capture whole processes, with -t cuda,nvtx",
            numbers={"idle_ns": idle_ns},
        )  # fmt: skip


def elsewhere(of: DeviceSteps) -> Iterator[Finding]:
    """Idle time that none of the others is about."""
    elsewhere_ns = sum(of.elsewhere_ns.values())
    if of.steps and elsewhere_ns > _MUCH * of.total_idle_ns:
        longest = dict(sorted(of.elsewhere_ns.items(), key=lambda item: -item[1])[:3])
        text = f"{format_ns(elsewhere_ns)} of the {format_ns(of.total_idle_ns)} idle in the window lie elsewhere: "
        text += f"{_told(longest)}; see the largest gaps"
        yield _found(of, "idle_elsewhere", text, numbers={"idle_ns": elsewhere_ns})
