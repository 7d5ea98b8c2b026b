"""The answers to the fleet's questions, out of the dataset with pandas: for the notebook and for those without DuckDB.

What each means is told in the SQL file of its name, which gives the same; a test holds them together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from llm_fleet import questions
from llm_fleet.dataset import Dataset, once, run_version
from llm_fleet.tables import dataset_tables
from recipes.base.tables import Table
from recipes.events.idle import CAUSES

#: So many are compared at least, or a robust z says nothing.
FEWEST = 4
_TO_SIGMA = 0.6745
_MEAN_TO_SIGMA = 1.2533
_DAY_NS = 86400 * 10**9
# A side of regressions has an interval from so many runs on, if the square of its standard error is not this small.
_FEWEST_RUNS = 3
_NO_SPREAD = 1e-18
_REPORT = ["run_name", "report_key"]
_DEVICE = [*_REPORT, "device"]
# What may be compared: of_run is the run where no model is known, tokens those that all steps have where it is by them.
_GROUP = ["model", "of_run", "phase", "batch", "gpu_name"]
_ALIKE = ["model", "of_run", "phase", "batch", "tokens", "gpu_name"]
#: Phases that take as long as their prompts are.
_VARYING = ("prefill", "mixed")
# 97.5 % quantiles of Student's t, by degrees of freedom.
_FREEDOM = np.array([*range(1, 31), 40, 60, 120])
_T = np.array([
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042, 2.021, 2.000,
    1.980,
])  # fmt: skip


class Fleet:
    """The rows of a dataset that count, as data frames, read when they are needed."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._tables = {table.name: table for table in dataset_tables()}
        self._every = dataset.every_report()
        self._reports = once(self._every)

    @cached_property
    def every_report(self) -> pd.DataFrame:
        """The reports with all copies, and the tables that files of them are missing of (`lost`)."""
        return _frame(self._every).assign(lost=self._dataset.lost(self._every))

    @cached_property
    def reports(self) -> pd.DataFrame:
        return _frame(self._reports)

    @cached_property
    def _runs(self) -> pa.Table:
        """The runs whose reports are those that were looked at together."""
        versions: dict[str, list[str]] = {}
        told = (self._reports[name].to_pylist() for name in ("run_name", "version"))
        for run, version in zip(*told, strict=True):
            versions.setdefault(run, []).append(version)
        now = {run: run_version(of_run) for run, of_run in versions.items()}
        runs = self._dataset.runs()
        counts = zip(runs["run_name"].to_pylist(), runs["version"].to_pylist(), strict=True)
        whole = zip(counts, self._dataset.lost(runs), strict=True)
        return runs.filter(
            pa.array([now.get(run) == version and not lost for (run, version), lost in whole], pa.bool_())
        )

    @cached_property
    def runs(self) -> pd.DataFrame:
        return _frame(self._runs)

    @cached_property
    def models(self) -> pd.DataFrame:
        told = self.reports[[*_REPORT, "model"]]
        return told.assign(of_run=told["run_name"].where(told["model"].isna()))

    def rows(self, name: str, columns: Sequence[str], where: pc.Expression | None = None) -> pd.DataFrame:
        """Columns of a table of the recipes, beside run_name and report_key."""
        return _frame(self._dataset.read(self._tables[name], self._reports, [*_REPORT, *columns], where))

    def rows_of_runs(self, name: str, columns: Sequence[str]) -> pd.DataFrame:
        """Columns of a table over all reports of each run, beside run_name and report_key."""
        return _frame(self._dataset.read(self._tables[name], self._runs, ["run_name", "report_key", *columns]))

    @cached_property
    def steps(self) -> pd.DataFrame:
        """The steps that count: with work, and no edges."""
        columns = [
            "device",
            "gpu_name",
            "gpu_uuid",
            "step",
            "phase",
            "batch",
            "tokens",
            "duration_ns",
            "period_ns",
            "busy_ns",
        ]
        rows = self.rows("steps", columns, ~pc.field("edge") & pc.field("device").is_valid())
        return rows.merge(self.models, on=_REPORT)

    @cached_property
    def steps_alike(self) -> pd.DataFrame:
        """Those of them that may be compared, see steps_alike in views.sql."""
        steps = self.steps
        tokens = steps.groupby([*_DEVICE, "phase", "batch"], dropna=False)["tokens"]
        known, least = tokens.transform("count"), tokens.transform("min")
        equal = (least == tokens.transform("max")).fillna(False) & (known == tokens.transform("size"))
        varying = steps["phase"].isin(_VARYING)
        kept = (~varying & (steps["batch"].notna() | (known == 0))) | equal
        alike = steps.assign(tokens=steps["tokens"].where(varying | steps["batch"].isna()))
        return alike[kept.astype(bool)]

    @cached_property
    def devices(self) -> pd.DataFrame:
        """Each device's own time by phase and batch, beside that of all like it."""
        keys = [*_DEVICE, "step"]
        table, only = self._tables["step_parts"], pc.field("part") == "communication"
        parts = self._dataset.read(table, self._reports, [*keys, "time_ns"], only)
        waited = _frame(parts.group_by(keys).aggregate([("time_ns", "sum")]).select([*keys, "time_ns_sum"]))
        own = self.steps_alike[[*keys, "gpu_uuid", *_ALIKE, "busy_ns"]]
        steps = own.merge(waited, on=keys, how="left")
        steps["own_ns"] = (steps["busy_ns"] - steps["time_ns_sum"].fillna(0)).astype("float64")
        keys = [*_DEVICE, "gpu_uuid", *_ALIKE]
        own = steps.groupby(keys, dropna=False, as_index=False).agg(steps=("step", "size"), own_ns=("own_ns", "median"))
        own = own.merge(self.reports[[*_REPORT, "report", "host", "rank"]])
        alike = own.groupby(_ALIKE, dropna=False)
        own["fleet_ns"], own["compared"] = alike["own_ns"].transform("median"), alike["own_ns"].transform("size")
        own["of_hosts"] = alike["host"].transform("nunique") > 1
        own["above"] = own["own_ns"] / own["fleet_ns"].where(own["fleet_ns"] != 0) - 1
        return own


def _frame(table: pa.Table) -> pd.DataFrame:
    """A table as a data frame in which null whole numbers do not become floats."""
    return table.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)


def answers(dataset: Dataset) -> dict[str, pa.Table]:
    """The tables of all questions, by name. PackError when the dataset cannot be read."""
    fleet = Fleet(dataset)
    return {table.name: _built(table, answer(fleet)) for table, answer in _ANSWERS.items()}


def _built(table: Table, frame: pd.DataFrame) -> pa.Table:
    schema = table.schema()
    return table.build({n: pa.array(frame[n], schema.field(n).type, from_pandas=True) for n in table.names})


def _sorted(frame: pd.DataFrame, by: Sequence[str], falling: Sequence[str] = ()) -> pd.DataFrame:
    return frame.sort_values(list(by), ascending=[name not in falling for name in by], na_position="last")


def _counted(frame: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """How many runs and reports are in each group."""
    reports = frame[[*by, "run_name", "report_key"]].drop_duplicates()
    return reports.groupby(list(by), dropna=False).agg(runs=("run_name", "nunique"), reports=("report_key", "size"))


def overview(fleet: Fleet) -> pd.DataFrame:
    """The runs, the newest first."""
    rows = fleet.reports.assign(limited=fleet.reports["quality"] != "ok")
    found = rows.groupby("run_name").agg(
        reports=("report_key", "size"), hosts=("host", "nunique"), ranks=("rank", "nunique"),
        first_captured=("captured", _first), last_captured=("captured", _last), tags=("tags", _only),
        doubtful=("limited", "sum"),
    )  # fmt: skip
    found = found.reset_index().merge(fleet.runs[["run_name", "message"]], on="run_name", how="left")
    return _sorted(found, ["last_captured", "run_name"], ["last_captured"])


def _first(texts: pd.Series) -> str | None:
    return min(texts.dropna(), default=None)


def _last(texts: pd.Series) -> str | None:
    return max(texts.dropna(), default=None)


def _only(texts: pd.Series) -> str | None:
    return "various" if texts.nunique() > 1 else _first(texts)


def family_shares(fleet: Fleet) -> pd.DataFrame:
    """Kernel time of each run by phase and family."""
    rows = fleet.rows("families", ["phase", "family", "calls", "time_ns", "exclusive_ns"])
    keys = ["run_name", "phase", "family"]
    sums = rows.groupby(keys, as_index=False).agg(
        reports=("report_key", "nunique"), calls=("calls", "sum"), time_ns=("time_ns", "sum"),
        exclusive_ns=("exclusive_ns", "sum"),
    )  # fmt: skip
    whole = sums.groupby(keys[:2])["time_ns"].transform("sum").astype("float64")
    sums["share"] = sums["time_ns"].astype("float64") / whole
    return _sorted(sums, ["run_name", "phase", "time_ns", "family"], ["time_ns"])


def _robust_z(value: pd.Series, groups: Sequence[pd.Series]) -> pd.Series:
    """How far each value is from the median of its group in robust standard deviations; NaN where few are compared, or
    all are equal. Where more than half are equal the mean deviation stands for the median one."""
    frame = pd.DataFrame({"value": value, **dict(enumerate(groups))})
    keys = list(range(len(groups))) if groups else (lambda _: 0)
    distance = frame["value"] - frame.groupby(keys, dropna=False)["value"].transform("median")
    frame["away"] = distance.abs()
    by_group = frame.groupby(keys, dropna=False)["away"]
    mad, mean, count = (by_group.transform(what) for what in ("median", "mean", "size"))
    by_mean = distance / (_MEAN_TO_SIGMA * mean.where(mean > 0))
    return (_TO_SIGMA * distance / mad.where(mad > 0)).where(mad > 0, by_mean).where(count >= FEWEST)


def slow_ranks(fleet: Fleet) -> pd.DataFrame:
    """Each device's own step time, compared with all of the fleet that do the same."""
    own = fleet.devices.copy()
    own["z"] = _robust_z(own["own_ns"], [own[name] for name in _ALIKE])
    order = ["z", "above", "run_name", "report", "device", "phase", "batch", "tokens"]
    return _sorted(own, order, ["z", "above"])


def slow_hosts(fleet: Fleet) -> pd.DataFrame:
    """Each host's devices over the fleet, compared host by host."""
    own = fleet.devices
    own = own[own["host"].notna() & (own["compared"] >= FEWEST) & own["of_hosts"]]
    devices = own.groupby(["host", *_DEVICE], as_index=False)["above"].median()
    by_host = devices.groupby("host").agg(above=("above", "median"), devices=("above", "size"))
    by_host["reports"] = devices[["host", *_REPORT]].drop_duplicates().groupby("host").size()
    hosts = by_host.reset_index().assign(compared=len(by_host))
    hosts["z"] = _robust_z(hosts["above"], [])
    return _sorted(hosts, ["z", "above", "host"], ["z", "above"])


def step_percentiles(fleet: Fleet) -> pd.DataFrame:
    """Percentiles over steps, and how far from the floor they are."""
    floors = fleet.rows("floor", ["device", "phase", "batch", "floor_ns"])
    steps = fleet.steps.merge(floors[floors["floor_ns"] > 0], on=[*_DEVICE, "phase", "batch"], how="left")
    steps["ratio"] = steps["duration_ns"].astype("float64") / steps["floor_ns"].astype("float64")
    steps = steps.astype({"duration_ns": "float64", "period_ns": "float64"})
    groups = steps.groupby(_GROUP, dropna=False)
    found = groups.agg(
        steps=("step", "size"), floor_ratio_p50=("ratio", "median"), steps_with_floor=("ratio", "count"),
        periods=("period_ns", "count"), period_p50_ns=("period_ns", "median"),
        duration_p50_ns=("duration_ns", "median"),
    )  # fmt: skip
    for what in ("period", "duration"):
        found[f"{what}_p99_ns"] = groups[f"{what}_ns"].quantile(0.99)
    found = found.join(_counted(steps, _GROUP)).reset_index().rename(columns={"of_run": "run_name"})
    return _sorted(found, ["model", "run_name", *_GROUP[2:]])


def idle_causes(fleet: Fleet) -> pd.DataFrame:
    """Idle time of each day by cause."""
    rows = fleet.rows("idle", ["captured", "phase", "window_ns", *(f"{cause}_ns" for cause in CAUSES)])
    rows = rows[rows["phase"] == "all"].rename(columns={f"{cause}_ns": cause for cause in CAUSES})
    rows["day"] = rows["captured"].str[:10]
    keys = ["run_name", "report_key", "day", "window_ns"]
    # What a report does not tell is not 0.
    long = rows.melt(keys, list(CAUSES), var_name="cause", value_name="idle_ns").dropna(subset="idle_ns")
    groups = long.groupby(["day", "cause"], dropna=False)
    sums = groups[["idle_ns", "window_ns"]].sum().join(_counted(long, ["day", "cause"])).reset_index()
    whole = sums["window_ns"].astype("float64")
    sums["share"] = sums["idle_ns"].astype("float64") / whole.where(whole > 0)
    return _sorted(sums, ["day", "idle_ns", "cause"], ["idle_ns"])


def doubtful_captures(fleet: Fleet) -> pd.DataFrame:
    """The reports with a limit, those that are there twice, that lack files, or whose date cannot be."""
    rows = fleet.every_report.assign(future=_is_future(fleet.every_report))
    same = rows.groupby(["run_name", "version"])["report"]
    first, last, copies = same.transform("min"), same.transform("max"), same.transform("size")
    rows["same_as"] = first.where(rows["report"] != first, last).where(copies > 1)
    chosen = rows[(rows["quality"] != "ok") | (copies > 1) | rows["lost"].notna() | rows["future"]]
    return _sorted(chosen, ["quality", "run_name", "report", "host", "rank"])


def _is_future(reports: pd.DataFrame) -> pd.Series:
    """Whether a capture is dated more than a day after now: its clock was wrong."""
    return (reports["captured_ns"] > time.time_ns() + _DAY_NS).fillna(False).astype(bool)


def capture_findings(fleet: Fleet) -> pd.DataFrame:
    """What is wrong with the captures of each run."""
    keys, told = ["run_name", "severity", "check"], ["message", "remedy"]
    both = [fleet.rows("findings", [*keys[1:], *told]), fleet.rows_of_runs("findings", [*keys[1:], *told])]
    rows = pd.concat([one.astype(object) for one in both], ignore_index=True)
    rows = rows[rows["severity"].isin(["error", "warn"])].sort_values(told, na_position="last")
    # Both of one finding, so that the remedy is that of the message.
    found = rows.drop_duplicates(keys)[[*keys, *told]].merge(
        rows.groupby(keys, as_index=False).agg(reports=("report_key", "nunique")), on=keys
    )
    return _sorted(found, ["run_name", "severity", "reports", "check"], ["reports"])


def regressions(fleet: Fleet) -> pd.DataFrame:
    """Periods of the last seven days against those of the seven before; the run is the unit."""
    by_run = _periods_of_runs(fleet)
    groups = by_run.assign(
        before=by_run["log_ns"].where(by_run["weeks_ago"] == 1), now=by_run["log_ns"].where(by_run["weeks_ago"] == 0)
    ).groupby(_ALIKE, dropna=False)
    found = pd.DataFrame({
        "runs_before": groups["before"].count(), "runs_now": groups["now"].count(),
        "before": groups["before"].mean(), "now": groups["now"].mean(),
        "error_before": groups["before"].var() / groups["before"].count(),
        "error_now": groups["now"].var() / groups["now"].count(),
    }).reset_index()  # fmt: skip
    found = found[(found["runs_before"] > 0) & (found["runs_now"] > 0)].reset_index(drop=True)
    half = _half_width(found)
    difference = found["now"] - found["before"]
    for name, value in (("change", difference), ("low", difference - half), ("high", difference + half)):
        found[name] = np.exp(value) - 1
    found["before_ns"], found["now_ns"] = np.exp(found["before"]), np.exp(found["now"])
    cases = [half.isna(), difference - half > 0, difference + half < 0]
    found["verdict"] = np.select(cases, ["too few runs", "slower", "faster"], "no difference shown")
    return _sorted(found, ["change", "model", "phase", "batch", "tokens", "gpu_name"], ["change"])


def _half_width(found: pd.DataFrame) -> pd.Series:
    """Half of the 95 % interval of now less before, by Welch's t; NaN for few runs on a side, or equal ones."""
    before, now = found["error_before"], found["error_now"]
    fewest = found[["runs_before", "runs_now"]].min(axis=1)
    told = (fewest >= _FEWEST_RUNS) & (np.minimum(before, now) > _NO_SPREAD)
    with np.errstate(all="ignore"):
        freedom = (before + now) ** 2 / (before**2 / (found["runs_before"] - 1) + now**2 / (found["runs_now"] - 1))
    # Rounded down, as a table of quantiles is read.
    known = np.maximum(np.floor(freedom.where(told, 1).to_numpy(dtype=float) + 1e-9), 1)
    t = pd.Series(_T[np.searchsorted(_FREEDOM, known, side="right") - 1])
    return (t * np.sqrt(before + now)).where(told)


def _periods_of_runs(fleet: Fleet) -> pd.DataFrame:
    """Of each run of the last two weeks the logarithm of its period, by group."""
    # The same content in several runs is the first one's.
    dated = fleet.reports[~_is_future(fleet.reports)].drop_duplicates("version")
    taken = dated[dated["captured_ns"].notna()].groupby("run_name")["captured_ns"].max()
    weeks_ago = ((taken.max() - taken) // (7 * _DAY_NS) if len(taken) else taken).rename("weeks_ago")
    steps = fleet.steps_alike
    steps = steps[(steps["period_ns"] > 0).fillna(False).astype(bool) & steps["model"].notna()]
    steps = steps.merge(dated[_REPORT], on=_REPORT).astype({"period_ns": "float64"})
    devices = steps.groupby([*_DEVICE, *_ALIKE], dropna=False, as_index=False)["period_ns"].median()
    devices["log_ns"] = np.log(devices["period_ns"])
    by_run = devices.groupby([*_ALIKE, "run_name"], dropna=False, as_index=False)["log_ns"].median()
    by_run = by_run.merge(weeks_ago, left_on="run_name", right_index=True)
    return by_run[by_run["weeks_ago"] < 2]


_ANSWERS: dict[Table, Callable[[Fleet], pd.DataFrame]] = {
    questions.OVERVIEW: overview,
    questions.FAMILY_SHARES: family_shares,
    questions.SLOW_RANKS: slow_ranks,
    questions.SLOW_HOSTS: slow_hosts,
    questions.STEP_PERCENTILES: step_percentiles,
    questions.IDLE_CAUSES: idle_causes,
    questions.DOUBTFUL_CAPTURES: doubtful_captures,
    questions.CAPTURE_FINDINGS: capture_findings,
    questions.REGRESSIONS: regressions,
}
