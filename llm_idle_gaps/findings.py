"""What follows from the idle time: at most five findings, the most recoverable time first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from recipes.capture import ALL
from recipes.phases import DECODE_PHASES
from recipes.units import format_count, format_ns, format_share

MOST = 5
#: Above this share of operations in graphs they are on; a little always stays outside.
_GRAPHS_ON = 0.9
#: Idle time below this share of the time looked at is not worth a finding.
_WORTH = 0.02
#: So many launches a step, each made slower by tracing, overstate the idle time.
_LAUNCH_HEAVY = 50
# What a CUDA graph takes away: the host has nothing to issue between kernels.
HOST_CAUSES = ("host", "launch", "api")


@dataclass(frozen=True)
class Finding:
    """One sentence with its figure and the next step, and the time that could be recovered at most, in ns."""

    text: str
    recoverable_ns: float


@dataclass(frozen=True)
class Picture:
    """What the findings are about: the steps that count of one phase on one device, the decoding one if there is any,
    else the most idle one.

    `mean` holds the mean step's columns of STEP_IDLE; without steps it is the whole window, and `steps` is 0.
    `period_ns` is the median from start to start, None for fewer than two steps. `after_ns` is the mean idle time
    around such a step that lies in no step. `gaps` are the rows of GAPS in these steps, `between` those in no step,
    start-up and end left out.
    """

    report: str
    device: int
    name: str
    steps: int
    mean: pd.Series
    period_ns: float | None
    after_ns: float
    gaps: pd.DataFrame
    between: pd.DataFrame

    @property
    def each(self) -> str:
        return f"per {self.name}" if self.steps else "in all"

    @property
    def busy_ns(self) -> float:
        return self.mean["duration_ns"] - self.mean["idle_ns"]

    def idle_ns(self, *causes: str) -> float:
        return sum(self.mean[f"{cause}_ns"] for cause in causes)

    @property
    def in_graphs(self) -> float:
        """The share of operations, opaque graph executions left out, that a graph launch started."""
        return self.mean["in_graphs"] / max(self.mean["operations"] - self.mean["opaque_graphs"], 1)

    @property
    def launch_heavy(self) -> bool:
        """Whether tracing itself, which makes each launch slower, is much of the idle time."""
        return (
            self.mean["launches"] > _LAUNCH_HEAVY
            and self.in_graphs < _GRAPHS_ON
            and self.idle_ns(*HOST_CAUSES) > _WORTH * self.mean["duration_ns"]
        )


def pictures(step_idle: pd.DataFrame, idle: pd.DataFrame, gaps: pd.DataFrame) -> list[Picture]:
    """One for each device in the tables of a run."""
    steps, rows = (dict(list(frame.groupby(["report", "device"], observed=True))) for frame in (step_idle, gaps))
    return [
        _picture(key, steps.get(key, step_idle.head(0)), whole, rows.get(key, gaps.head(0)))
        for key, whole in idle.groupby(["report", "device"])
    ]


def _picture(key: tuple[str, int], step_idle: pd.DataFrame, idle: pd.DataFrame, gaps: pd.DataFrame) -> Picture:
    counted = step_idle[~step_idle["edge"].astype(bool)]
    if counted.empty:
        whole = idle[idle["phase"] == ALL].iloc[0]
        mean = pd.concat([whole, pd.Series({"duration_ns": whole["window_ns"]})])
        return Picture(*key, "the window", 0, mean, None, 0, gaps, gaps.head(0))
    decoding = counted[counted["phase"].isin(DECODE_PHASES)]
    among = counted if decoding.empty else decoding
    phase = among.groupby("phase")["idle_ns"].sum().idxmax()
    chosen = among[among["phase"] == phase]
    periods_ns = chosen["start_ns"].sort_values().diff().dropna()
    outside = gaps[gaps["step"].isna()]
    within = (outside["start_ns"] >= counted["start_ns"].min()) & (outside["end_ns"] <= counted["start_ns"].max())
    return Picture(
        *key,
        name=f"{phase} step" if "step" not in phase else phase,
        steps=len(chosen),
        mean=chosen.drop(columns=["report", "rank", "device", "step", "phase", "edge"]).mean(),
        period_ns=periods_ns.median() if len(periods_ns) else None,
        # One phase of several in turn, as in training: what lies around all of them belongs to it.
        after_ns=among["idle_after_ns"].sum() / len(chosen),
        gaps=gaps[(gaps["phase"] == phase) & gaps["step"].notna()],
        between=outside[within],
    )


def graph_state(of: Picture) -> str:
    """In three words whether CUDA graphs are in use; empty for graphs traced as a whole, of which nothing is known."""
    if of.mean["opaque_graphs"] and of.in_graphs < _GRAPHS_ON:
        return ""
    if of.in_graphs >= _GRAPHS_ON:
        return "CUDA graphs are on"
    return "CUDA graphs are partly on" if of.mean["graph_launches"] else "CUDA graphs are off"


def findings(of: Picture) -> list[Finding]:
    """The findings on a device. Bounds do not add up."""
    makers = (_graphs(of), _sync(of), _between(of), _queued(of), _profiler(of), _unknown(of))
    found = [finding for maker in makers for finding in maker]
    return sorted(found, key=lambda finding: -finding.recoverable_ns)[:MOST]


def _told(times: dict[str, float]) -> str:
    """Times with their names, the longest first: host 27.6 ms, launch 8.30 ms."""
    longest = sorted(times.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {format_ns(time_ns)}" for name, time_ns in longest if time_ns)


def _graphs(of: Picture) -> Iterator[Finding]:
    mean, idle_ns = of.mean, of.idle_ns(*HOST_CAUSES)
    if mean["opaque_graphs"]:
        yield Finding(
            "CUDA graphs were traced as a whole: gaps inside them are not seen, so nothing is said of them; capture "
            "with --cuda-graph-trace=node to see them",
            0,
        )
    state = graph_state(of)
    if not state or not mean["launches"]:
        return
    launched = f"{format_count(mean['operations'], 'operation')} from {format_count(mean['launches'], 'launch call')}"
    if state.endswith("are on"):
        yield Finding(
            f"{state}: {launched} {of.each}, {mean['graph_launches']:,.0f} of them for graphs, with "
            f"{format_share(of.in_graphs)} of the operations; {format_ns(of.idle_ns('graph'))} idle between nodes",
            0,
        )
    elif idle_ns > _WORTH * mean["duration_ns"]:
        inside = f"{format_ns(mean['launch_call_ns'] / mean['launches'])} inside each call"
        apart = f"{format_ns(mean['between_launches_ns'] / max(mean['launches'] - 1, 1))} from one to the next"
        yield Finding(
            f"{state}: {launched} {of.each} ({mean['operations'] / mean['launches']:.1f} operations a call, "
            f"{format_share(of.in_graphs)} in graphs; {inside}, {apart}) leave the GPU idle for "
            f"{_told({cause: of.idle_ns(cause) for cause in HOST_CAUSES})}: with graphs on, at most "
            f"{format_ns(idle_ns)} {of.each} could be recovered (tracing itself makes launches slower: --step-time)",
            idle_ns,
        )


def _sync(of: Picture) -> Iterator[Finding]:
    idle_ns = of.idle_ns("sync")
    if idle_ns > _WORTH * of.mean["duration_ns"]:
        calls = of.gaps[of.gaps["cause"] == "sync"].groupby("held_by", observed=True)["cause_ns"].sum()
        named = f" ({calls.idxmax()})" if len(calls) else ""
        yield Finding(
            f"The host waits for the GPU{named}, which then has nothing to do: at most {format_ns(idle_ns)} {of.each} "
            "could be recovered; look for .item(), .cpu(), .tolist() and synchronize() inside the step",
            idle_ns,
        )


def _between(of: Picture) -> Iterator[Finding]:
    if of.after_ns <= _WORTH * of.mean["duration_ns"]:
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
        f"The GPU is idle for {format_ns(of.after_ns)} {of.each} outside the steps{named}: at most that could be "
        "recovered; prepare and launch the next step while this one runs",
        of.after_ns,
    )


def _queued(of: Picture) -> Iterator[Finding]:
    idle_ns = of.idle_ns("queued")
    if idle_ns > _WORTH * of.mean["duration_ns"]:
        yield Finding(
            f"{format_ns(idle_ns)} {of.each} pass although the next operation was issued: a dependency between "
            "streams, or the GPU's own scheduling of small kernels",
            0,
        )


def _profiler(of: Picture) -> Iterator[Finding]:
    idle_ns = of.idle_ns("profiler")
    if idle_ns > _WORTH * of.mean["duration_ns"]:
        yield Finding(f"{format_ns(idle_ns)} {of.each} of the idle time is the profiler's own: not there in life", 0)


def _unknown(of: Picture) -> Iterator[Finding]:
    idle_ns = of.idle_ns("unknown")
    if idle_ns > _WORTH * of.mean["duration_ns"]:
        yield Finding(
            f"The launches behind {format_ns(idle_ns)} {of.each} of idle time were not recorded, so its cause is not "
            "known: capture a whole process, with -t cuda,nvtx",
            0,
        )
