"""What the findings are about: the steps of one phase and batch on one device, and the gaps in and around them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from recipes.capture.capture import ALL
from recipes.capture.edges import NOT_RECORDED
from recipes.capture.one_offs import ONE_OFFS
from recipes.events.launch_state import ON, UNKNOWN, WHOLE, LaunchState, launch_state
from recipes.steps.engine_time import engine_step_ns
from recipes.steps.phases import DECODE_PHASES

#: Idle time below this share of the time looked at is not worth a finding: nobody would act on it.
WORTH = 0.02
#: One gap per step that holds more of its idle time than this leads: it is most of it.
_MOST = 0.5
# What a CUDA graph takes away: the host has nothing to issue between kernels.
HOST_CAUSES = ("host", "launch", "api")
#: More than so many launches per step, each made slower by tracing, overstate the idle time.
_LAUNCH_HEAVY = 50


@dataclass(frozen=True)
class DeviceSteps:
    """The steps that count of one phase and batch on one device: decoding ones if there are any, else the most idle.

    `rows` holds their columns of STEP_IDLE, `mean` the mean of these, whose parts add up; without steps they are the
    whole window, and `steps` is 0. `one_offs` are the steps that one-off events hit: step, event, ns beyond the median.
    `period_ns` is the median from start to start, None for fewer than two steps of a phase that makes up a whole
    iteration. `after_ns` is the idle time from such a step to the next one that lies in no step. `gaps` are the rows of
    GAPS in these steps, `between` those that `after_ns` counts. `elsewhere_ns` is the idle time in neither, by place,
    `total_idle_ns` all of the window,
    which lasts `window_ns`;
    `phase_idle_ns` that of the steps of this phase. `lost_graphs`: most graph launches left no work in the report.
    """

    report: str
    device: int
    name: str
    steps: int
    rows: pd.DataFrame
    mean: pd.Series
    period_ns: float | None
    after_ns: float
    gaps: pd.DataFrame
    between: pd.DataFrame
    elsewhere_ns: dict[str, float]
    total_idle_ns: float
    window_ns: float
    phase_idle_ns: float
    lost_graphs: bool
    one_offs: tuple[tuple[int, str, float], ...] = ()
    #: Whether launches amid the steps left no work in the report.
    lost_work: bool = False
    #: The phase, None for the whole window.
    phase: str | None = None
    #: What the step can be idle at most without the profiler, in ns; None where that is not known.
    real_idle_ns: float | None = None

    @property
    def each(self) -> str:
        return f"per {self.name}" if self.steps else "in all"

    @property
    def busy_ns(self) -> float:
        return self.mean["duration_ns"] - self.mean["idle_ns"]

    def idle_ns(self, *causes: str) -> float:
        return sum(self.mean[f"{cause}_ns"] for cause in causes)

    def much(self, *columns: str) -> bool:
        """Whether the time in some columns is worth a finding in the median step."""
        return bool(self.rows[list(columns)].sum(axis=1).median() > WORTH * self.rows["duration_ns"].median())

    @property
    def busy_share(self) -> float:
        """The share of the median step in which the GPU works."""
        return float((1 - self.rows["idle_ns"] / self.rows["duration_ns"].clip(lower=1)).median())

    @property
    def largest(self) -> pd.DataFrame:
        """The longest gap of each step, rows of GAPS."""
        return self.gaps.sort_values("duration_ns", ascending=False, kind="stable").drop_duplicates("step")

    @property
    def few_gaps(self) -> bool:
        """Whether one gap per step holds most of its idle time, so that launches do not."""
        if not self.steps or not self.much("idle_ns"):
            return False
        longest_ns = self.rows["step"].map(self.largest.set_index("step")["duration_ns"]).fillna(0)
        return bool((longest_ns / self.rows["idle_ns"].clip(lower=1)).median() > _MOST)

    @property
    def launched(self) -> LaunchState:
        """How the mean step was launched."""
        return launch_state(self.mean, lost=self.lost_graphs)

    @property
    def waits_inside(self) -> bool:
        return self.much("after_sync_ns")

    @property
    def graph_state(self) -> str:
        """Whether CUDA graphs are in use; empty where it is not known: traced as a whole, launches not recorded."""
        state = self.launched.graphs
        if state in (WHOLE, UNKNOWN):
            return ""
        return f"CUDA graphs are {state} {f'in {self.name}s' if self.steps else 'in the window'}"

    @property
    def launch_heavy(self) -> bool:
        """Whether tracing itself, which makes each launch slower, is much of the idle time."""
        return (
            self.mean["launches"] > _LAUNCH_HEAVY
            and self.launched.graphs != ON
            and self.much(*(f"{cause}_ns" for cause in HOST_CAUSES))
        )


def steps_of_devices(step_idle: pd.DataFrame, idle: pd.DataFrame, gaps: pd.DataFrame) -> list[DeviceSteps]:
    """One for each device in the tables of a run."""
    steps, rows = (dict(list(frame.groupby(["report", "device"], observed=True))) for frame in (step_idle, gaps))
    rest = "before the first and after the last step"
    if step_idle.duplicated(["report", "step"]).any():
        rest += ", or while another GPU ran the step"
    return [
        _steps_of(key, steps.get(key, step_idle.head(0)), whole, rows.get(key, gaps.head(0)), rest)
        for key, whole in idle.groupby(["report", "device"])
    ]


def _steps_of(
    key: tuple[str, int], step_idle: pd.DataFrame, idle: pd.DataFrame, gaps: pd.DataFrame, rest: str
) -> DeviceSteps:
    by_phase = idle.set_index("phase")
    total_ns, window_ns = by_phase.loc[ALL, "idle_ns"], by_phase.loc[ALL, "window_ns"]
    counted = step_idle[~step_idle["edge"].astype(bool)]
    if counted.empty:
        mean = pd.concat([by_phase.loc[ALL], pd.Series({"duration_ns": window_ns})])
        lost = _lost(by_phase)
        rows = mean.to_frame().T.drop(columns=["report", "rank", "device"], errors="ignore")
        return DeviceSteps(
            *key, "the window", 0, rows, mean, None, 0, gaps, gaps.head(0), {}, total_ns, window_ns, 0.0, lost,
            one_offs=_one_offs(step_idle), lost_work=_lost_work(step_idle),
        )  # fmt: skip
    decoding = counted[counted["phase"].isin(DECODE_PHASES)]
    among = counted if decoding.empty else decoding
    idle_ns = among.groupby(["phase", "batch"], dropna=False)["idle_ns"].sum().reset_index()
    phase, batch, _ = idle_ns.loc[idle_ns["idle_ns"].idxmax()]
    same = among["batch"].isna() if pd.isna(batch) else among["batch"] == batch
    chosen = among[(among["phase"] == phase) & same]
    # Phases that take turns, as in training: what follows any of them belongs to the iteration.
    turns = counted.groupby("phase").size()
    around = counted if decoding.empty and turns.max() <= turns.min() + 1 else chosen
    after_ns = sum(some["idle_after_ns"].mean() * len(some) for _, some in around.groupby("phase")
                   if some["idle_after_ns"].notna().any())  # fmt: skip
    alone = len(decoding) > 0 or counted["phase"].nunique() == 1
    what = phase if pd.isna(batch) else f"{phase} bs={batch:.0f}"
    return DeviceSteps(
        *key,
        name=what if what.endswith("step") else f"{what} step",
        steps=len(chosen),
        rows=chosen,
        mean=chosen.drop(columns=["report", "rank", "device", "step", "phase", "edge", "edge_reason"]).mean(),
        period_ns=engine_step_ns(phase, {phase}, *_starts_and_periods(chosen)) if alone else None,
        after_ns=after_ns / len(chosen),
        gaps=gaps[gaps["step"].isin(chosen["step"])],
        between=_following(gaps[gaps["step"].isna()], step_idle, around),
        elsewhere_ns=_elsewhere(step_idle, chosen, around, total_ns, rest),
        total_idle_ns=total_ns,
        window_ns=window_ns,
        phase_idle_ns=float(by_phase.loc[phase, "idle_ns"]) if phase in by_phase.index else 0.0,
        lost_graphs=_lost(by_phase),
        one_offs=_one_offs(step_idle),
        lost_work=_lost_work(step_idle),
        phase=phase,
    )


def _one_offs(steps: pd.DataFrame) -> tuple[tuple[int, str, float], ...]:
    """The steps that one-off events hit: what they, or the time behind them, take beyond the median of their phase."""
    hit = steps[steps["edge_reason"].isin(ONE_OFFS)]
    times = ["duration_ns", "idle_after_ns"]
    median = steps[~steps["edge"].astype(bool)].groupby("phase")[times].median()
    beyond_ns = (hit[times] - median.reindex(hit["phase"]).to_numpy()).max(axis=1)
    told = zip(hit["step"].tolist(), hit["edge_reason"].tolist(), beyond_ns.tolist(), strict=True)
    return tuple(sorted(told, key=lambda one: -one[2]))


def _lost_work(steps: pd.DataFrame) -> bool:
    """Whether a step that is neither the first nor the last has launches without work."""
    inner = steps.sort_values("start_ns")["edge_reason"].iloc[1:-1]
    return bool((inner == NOT_RECORDED).any())


def _starts_and_periods(steps: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    return steps["start_ns"].to_numpy(), steps["period_ns"].to_numpy(dtype=float)


def _lost(by_phase: pd.DataFrame) -> bool:
    whole = by_phase.loc[ALL]
    return bool(whole["lost_graph_launches"] > whole["graph_launches"])


def _following(outside: pd.DataFrame, steps: pd.DataFrame, around: pd.DataFrame) -> pd.DataFrame:
    """Of the gaps in no step, those that follow one of some steps and come before another one."""
    ordered = steps.sort_values("start_ns")
    before = np.searchsorted(ordered["start_ns"].to_numpy(), outside["start_ns"].to_numpy()) - 1
    last = len(ordered) - 1
    follows = np.append(ordered["step"].isin(around["step"]).to_numpy(), False)
    return outside[(before >= 0) & (before < last) & follows[before]]


def _elsewhere(
    steps: pd.DataFrame, chosen: pd.DataFrame, around: pd.DataFrame, total_ns: float, rest: str
) -> dict[str, float]:
    """Idle ns in other phases' steps, after them, and what lies in no place of these, called `rest`."""
    others = steps[~steps["step"].isin(chosen["step"])]
    places = {f"in {phase} steps": some["idle_ns"].sum() for phase, some in others.groupby("phase")}
    places["after other steps"] = steps.loc[~steps["step"].isin(around["step"]), "idle_after_ns"].sum()
    inside_ns = steps["idle_ns"].sum() + steps["idle_after_ns"].sum()
    # Steps that overlap count idle time more than once.
    places[rest] = max(total_ns - inside_ns, 0)
    return places
