"""What follows from the parts of a step: at most five findings, the most recoverable time first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from recipes.base.units import format_count, format_ns

MOST = 5
#: More operations a launch than this, and graphs are on; fewer than one and a half, and they are off.
_GRAPHS_ON, _GRAPHS_OFF = 20, 1.5
#: A part below this share of the step is not worth a finding.
_WORTH = 0.02
#: GEMMs within this share of what is attainable are near the floor.
_NEAR = 0.05
# What a CUDA graph takes away: the host has nothing to issue between kernels.
_HOST_IDLE = ("host", "api", "launch")
_FUSIBLE = ("elementwise", "copy", "reduction")


@dataclass(frozen=True)
class Finding:
    """One sentence with its figure and the next step, and the time that could be recovered at most, in ns."""

    text: str
    recoverable_ns: float


def findings(group: Mapping[str, Any], parts: Mapping[str, float]) -> list[Finding]:
    """The findings of a phase and batch.

    `group` has duration_ns, operations, launches (medians), attainable, and whether it decodes; `parts` the mean ns
    of each part of a step. What could be recovered is an upper bound; bounds do not add up.
    """
    makers = (_graphs, _sync, _between, _gemm, _attention, _fusible, _communication, _profiler)
    found = [finding for maker in makers for finding in maker(group, parts)]
    return sorted(found, key=lambda finding: -finding.recoverable_ns)[:MOST]


def _idle(parts: Mapping[str, float], *causes: str) -> float:
    return sum(parts.get(f"idle_{cause}", 0) for cause in causes)


def _graphs(group: Mapping[str, Any], parts: Mapping[str, float]) -> Iterator[Finding]:
    idle_ns = _idle(parts, *_HOST_IDLE)
    each = group["operations"] / max(group["launches"], 1)
    if parts.get("cuda_graph"):
        yield Finding(
            "CUDA graphs are on and were traced as a whole: capture with --cuda-graph-trace=node to see the kernels "
            "inside", 0,
        )  # fmt: skip
    elif each < _GRAPHS_ON and idle_ns > _WORTH * group["duration_ns"]:
        state = "off" if each < _GRAPHS_OFF else "partly on"
        causes = [(cause, _idle(parts, cause)) for cause in _HOST_IDLE]
        told = ", ".join(f"{cause} {format_ns(time)}" for cause, time in sorted(causes, key=lambda c: -c[1]) if time)
        yield Finding(
            f"CUDA graphs are {state}: {group['launches']:,.0f} launches for {group['operations']:,.0f} operations a "
            f"step leave the GPU idle for {format_ns(idle_ns)} ({told}); capture the step in a CUDA graph (tracing "
            "itself makes launches slower: see --step-time)",
            idle_ns,
        )
    elif each >= _GRAPHS_ON:
        yield Finding(
            f"CUDA graphs are on: {format_count(group['operations'], 'operation')} from "
            f"{format_count(group['launches'], 'launch call')} a step, {format_ns(_idle(parts, 'graph'))} idle "
            "between nodes",
            0,
        )


def _sync(group: Mapping[str, Any], parts: Mapping[str, float]) -> Iterator[Finding]:
    idle_ns = _idle(parts, "sync")
    if idle_ns > _WORTH * group["duration_ns"]:
        yield Finding(
            f"The host waits for the GPU inside the step, which then has nothing to do for {format_ns(idle_ns)}: look "
            "for .item(), .cpu() and synchronize()",
            idle_ns,
        )


def _between(group: Mapping[str, Any], parts: Mapping[str, float]) -> Iterator[Finding]:
    between_ns = parts.get("between_steps", 0)
    if between_ns > _WORTH * group["duration_ns"]:
        yield Finding(
            f"{format_ns(between_ns)} pass between the end of a step and the next one's start"
            + (" (launch of the next, sampling, scheduling, detokenising)" if group["decodes"] else "")
            + ": prepare the next step while this one runs",
            between_ns,
        )


def _gemm(group: Mapping[str, Any], parts: Mapping[str, float]) -> Iterator[Finding]:
    at_floor, above = parts.get("weights_floor", 0), parts.get("gemm_above_floor", 0)
    # No GEMM above the floor at all: the model is not the one that was captured, which is said elsewhere.
    if not at_floor or not above:
        return
    total_ns, within_ns = at_floor + above, at_floor / group["attainable"]
    recoverable_ns = max(total_ns - within_ns, 0)
    share = at_floor / total_ns
    said = f"{format_ns(total_ns)} for {format_ns(at_floor)} of weight reading, {share * 100:.0f} % of the bandwidth"
    if recoverable_ns <= _NEAR * total_ns:
        yield Finding(f"GEMMs are near the floor: {said}; leave them", recoverable_ns)
    else:
        yield Finding(
            f"GEMMs are {format_ns(recoverable_ns)} above what is attainable: {said}, "
            f"{group['attainable'] * 100:.0f} % is within reach; look at the small matrices (fuse QKV and gate/up, "
            "quantise the weights, batch more)",
            recoverable_ns,
        )


def _attention(group: Mapping[str, Any], parts: Mapping[str, float]) -> Iterator[Finding]:
    at_floor, above = parts.get("kv_floor", 0), parts.get("attention_above_floor", 0)
    recoverable_ns = at_floor + above - at_floor / group["attainable"]
    if at_floor and recoverable_ns > _WORTH * group["duration_ns"]:
        yield Finding(
            f"Attention takes {format_ns(at_floor + above)} for {format_ns(at_floor)} of KV reading; look at split-KV, "
            "the page size and the kernel in use",
            recoverable_ns,
        )


def _fusible(group: Mapping[str, Any], parts: Mapping[str, float]) -> Iterator[Finding]:
    time_ns = sum(parts.get(family, 0) for family in _FUSIBLE)
    if time_ns > _WORTH * group["duration_ns"]:
        told = ", ".join(f"{family} {format_ns(parts[family])}" for family in _FUSIBLE if parts.get(family))
        yield Finding(f"{told}: kernels that fusing would mostly remove (torch.compile, fused kernels)", time_ns)


def _communication(group: Mapping[str, Any], parts: Mapping[str, float]) -> Iterator[Finding]:
    time_ns = parts.get("communication", 0)
    if time_ns > _WORTH * group["duration_ns"]:
        yield Finding(
            f"{format_ns(time_ns)} of communication is exposed, waiting for other ranks included: "
            + ("fewer tensor parallel ranks for this batch, or overlap" if group["decodes"] else "overlap it"),
            time_ns,
        )


def _profiler(group: Mapping[str, Any], parts: Mapping[str, float]) -> Iterator[Finding]:
    idle_ns = _idle(parts, "profiler")
    if idle_ns > _WORTH * group["duration_ns"]:
        yield Finding(f"{format_ns(idle_ns)} of the idle time is the profiler's own: it is not there in life", 0)
