"""What follows from the parts of a step: sentences with their figures and the next step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from recipes.base.units import format_count, format_ns
from recipes.events.launch_state import OFF, ON, PARTLY, UNKNOWN, WHOLE
from recipes.findings.finding import Finding, Scope
from recipes.findings.registry import cannot_tell, make

#: A part below this share of the step is not worth a finding: nobody would act on it.
_WORTH = 0.02
#: A GPU that works so much of a step has nothing to gain from CUDA graphs; a launch takes no longer, traced or not.
_BUSY, _PER_LAUNCH_NS = 0.9, 100_000
#: GEMMs within this share of what is attainable are near the floor.
_NEAR = 0.05
# What a CUDA graph takes away: the host has nothing to issue between kernels.
_HOST_IDLE = ("host", "api", "launch")
_FUSIBLE = ("elementwise", "copy", "reduction")


@dataclass(frozen=True)
class MeanStep:
    """The steps of a phase and batch.

    `group` has report, device, phase, duration_ns, operations, launches (medians), graphs (a state of `launch_state`),
    attainable, and whether it decodes; `parts` the mean ns of each part of a step.
    """

    group: Mapping[str, Any]
    parts: Mapping[str, float]

    def found(self, check: str, text: str, *, recoverable_ns: float | None = None, **numbers: float) -> Finding:
        scope = Scope(report=self.group["report"], device=self.group["device"], phase=self.group["phase"])
        return make(check, text, scope=scope, recoverable_ns=recoverable_ns, numbers=numbers)


def _idle(parts: Mapping[str, float], *causes: str) -> float:
    return sum(parts.get(f"idle_{cause}", 0) for cause in causes)


def graphs(step: MeanStep) -> Iterator[Finding]:
    """Whether CUDA graphs are on, and what launching without them costs."""
    group, parts = step.group, step.parts
    idle_ns, state = _idle(parts, *_HOST_IDLE), group["graphs"]
    if state == WHOLE:
        yield step.found(
            "opaque_graphs",
            "CUDA graphs were traced as a whole: capture with --cuda-graph-trace=node to see the kernels inside",
        )
    elif state in (OFF, PARTLY) and _launch_bound(step, idle_ns):
        causes = [(cause, _idle(parts, cause)) for cause in _HOST_IDLE]
        told = ", ".join(f"{cause} {format_ns(time)}" for cause, time in sorted(causes, key=lambda c: -c[1]) if time)
        yield step.found(
            "graphs_off",
            f"CUDA graphs are {state}: {group['launches']:,.0f} launches for {group['operations']:,.0f} operations a "
            f"step leave the GPU idle for {format_ns(idle_ns)} ({told}); capture the step in a CUDA graph (tracing "
            "itself makes launches slower: see --step-time)",
            recoverable_ns=idle_ns,
        )
    elif state == ON:
        between_ns = _idle(parts, "graph")
        yield step.found(
            "graphs_on",
            f"CUDA graphs are on: {format_count(group['operations'], 'operation')} from "
            f"{format_count(group['launches'], 'launch call')} a step, {format_ns(between_ns)} idle between nodes",
            idle_ns=between_ns,
        )
    elif state == UNKNOWN:
        yield cannot_tell("graphs_off", "launches, or the work of graphs, were not recorded")


def _launch_bound(step: MeanStep, idle_ns: float) -> bool:
    """Whether the host's launches are what the GPU waits for: not where it works nearly all the time, nor where so much
    idle time comes on a launch that few large gaps hold it (llm_idle_gaps tells which)."""
    group, total_ns = step.group, sum(time for part, time in step.parts.items() if part.startswith("idle_"))
    busy = total_ns < (1 - _BUSY) * group["duration_ns"]
    return not busy and _WORTH * group["duration_ns"] < idle_ns < _PER_LAUNCH_NS * max(group["launches"], 1)


def sync(step: MeanStep) -> Iterator[Finding]:
    """What waiting for the GPU inside the step costs."""
    group, parts = step.group, step.parts
    idle_ns = _idle(parts, "sync")
    if idle_ns > _WORTH * group["duration_ns"]:
        yield step.found(
            "host_waits",
            f"The host waits for the GPU inside the step, which then has nothing to do for {format_ns(idle_ns)}: look "
            "for .item(), .cpu() and synchronize()",
            recoverable_ns=idle_ns,
        )


def between(step: MeanStep) -> Iterator[Finding]:
    """What passes between steps."""
    group, parts = step.group, step.parts
    between_ns = parts.get("between_steps", 0)
    if between_ns > _WORTH * group["duration_ns"]:
        yield step.found(
            "between_steps",
            f"{format_ns(between_ns)} pass between the end of a step and the next one's start"
            + (" (launch of the next, sampling, scheduling, detokenising)" if group["decodes"] else "")
            + ": prepare the next step while this one runs",
            recoverable_ns=between_ns,
        )


def gemm(step: MeanStep) -> Iterator[Finding]:
    """GEMMs against the reading of the weights."""
    group, parts = step.group, step.parts
    at_floor, above = parts.get("weights_floor", 0), parts.get("gemm_above_floor", 0)
    # No GEMM above the floor at all: the model is not the one that was captured, which is said elsewhere.
    if not at_floor or not above:
        return
    total_ns, within_ns = at_floor + above, at_floor / group["attainable"]
    recoverable_ns = max(total_ns - within_ns, 0)
    share = at_floor / total_ns
    said = f"{format_ns(total_ns)} for {format_ns(at_floor)} of weight reading, {share * 100:.0f} % of the bandwidth"
    if recoverable_ns <= _NEAR * total_ns:
        yield step.found("gemm_floor", f"GEMMs are near the floor: {said}; leave them", recoverable_ns=recoverable_ns)
    else:
        yield step.found(
            "gemm_floor",
            f"GEMMs are {format_ns(recoverable_ns)} above what is attainable: {said}, "
            f"{group['attainable'] * 100:.0f} % is within reach; look at the small matrices (fuse QKV and gate/up, "
            "quantise the weights, batch more)",
            recoverable_ns=recoverable_ns,
        )


def attention(step: MeanStep) -> Iterator[Finding]:
    """Attention against the reading of the KV cache."""
    group, parts = step.group, step.parts
    at_floor, above = parts.get("kv_floor", 0), parts.get("attention_above_floor", 0)
    recoverable_ns = at_floor + above - at_floor / group["attainable"]
    if at_floor and recoverable_ns > _WORTH * group["duration_ns"]:
        yield step.found(
            "attention_floor",
            f"Attention takes {format_ns(at_floor + above)} for {format_ns(at_floor)} of KV reading; look at split-KV, "
            "the page size and the kernel in use",
            recoverable_ns=recoverable_ns,
        )


def fusible(step: MeanStep) -> Iterator[Finding]:
    """Small kernels that fusing would remove."""
    group, parts = step.group, step.parts
    time_ns = sum(parts.get(family, 0) for family in _FUSIBLE)
    if time_ns > _WORTH * group["duration_ns"]:
        told = ", ".join(f"{family} {format_ns(parts[family])}" for family in _FUSIBLE if parts.get(family))
        yield step.found(
            "fusible_kernels",
            f"{told}: kernels that fusing would mostly remove (torch.compile, fused kernels)",
            recoverable_ns=time_ns,
        )


def communication(step: MeanStep) -> Iterator[Finding]:
    """Communication that nothing hides."""
    group, parts = step.group, step.parts
    time_ns = parts.get("communication", 0)
    if time_ns > _WORTH * group["duration_ns"]:
        yield step.found(
            "exposed_communication",
            f"{format_ns(time_ns)} of communication is exposed, waiting for other ranks included: "
            + ("fewer tensor parallel ranks for this batch, or overlap" if group["decodes"] else "overlap it"),
            recoverable_ns=time_ns,
        )


def profiler(step: MeanStep) -> Iterator[Finding]:
    """Idle time that is the profiler's."""
    group, parts = step.group, step.parts
    idle_ns = _idle(parts, "profiler")
    if idle_ns > _WORTH * group["duration_ns"]:
        yield step.found(
            "profiler_idle",
            f"{format_ns(idle_ns)} of the idle time is the profiler's own: it is not there in life",
            idle_ns=idle_ns,
        )
