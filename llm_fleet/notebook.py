"""Template of the recipe's notebook, see recipes/notebook.py. It uses pandas and plotly, nothing of the pack."""

# %% [markdown]
# # Fleet
# Questions over all runs in a dataset of `llm_fleet`. The answers are inside this notebook, so it opens anywhere; the
# SQL behind each is shown, and the last section runs it on the dataset itself where DuckDB is installed.

# %%
import html
import io
from pathlib import Path

import pandas as pd
import plotly.express as px
import plotly.graph_objects as go

pd.set_option("display.max_colwidth", 90)

# %%
DATA = {}

# %%
# Names stay text, whatever they look like.
TEXTS = dict.fromkeys(
    ("run_name", "report", "report_key", "host", "model", "layout", "phase", "family", "gpu_name", "gpu_uuid", "day",
     "cause", "tags", "message", "same_as", "question", "sql", "dataset", "captured", "first_captured", "last_captured",
     "version", "severity", "check", "remedy", "lost"),
    str,
)  # fmt: skip
tables = {
    name: pd.read_csv(io.StringIO(text), keep_default_na=False, na_values=[""], dtype=TEXTS)
    for name, text in DATA.items()
}
SQL = dict(zip(tables["sql"]["question"], tables["sql"]["sql"], strict=True))


def escaped(frame):
    """Names come from the traced program and its users: plotly would read tags in them."""
    frame = frame.copy()
    for column in frame.columns.intersection(list(TEXTS)):
        frame[column] = frame[column].fillna("").astype(str).map(lambda text: html.escape(text, quote=False))
    return frame


def group_of(frame):
    """Model, layout, phase, batch, tokens and GPU in one text."""
    counts = frame["phase"].astype(str)
    for name in frame.columns.intersection(["batch", "tokens"]):
        counts += frame[name].map(lambda count, name=name: "" if pd.isna(count) else f" {name} {count:.0f}")
    # Where no model is known, runs are not compared.
    model = frame["model"].where(frame["model"] != "", frame.get("run_name", ""))
    return (model + " " + counts + " · " + frame["layout"] + " · " + frame["gpu_name"]).str.strip()


def rounded(frame):
    """A table for people: ms instead of ns, shares in per cent, whole numbers whole."""
    shown = frame.copy()
    for name in frame.columns:
        if name.endswith("_ns"):
            shown[name.removesuffix("_ns") + " ms"] = (shown.pop(name) / 1e6).round(3)
        elif name in ("share", "above", "change", "low", "high"):
            shown[name] = shown[name].map(lambda share: "" if pd.isna(share) else f"{share:.1%}")
        elif frame[name].dtype == "float64" and name in ("rank", "batch", "device", "tokens"):
            shown[name] = shown[name].astype("Int64")
    return shown


def show(*questions):
    """The answers' tables, and the SQL behind them."""
    for question in questions:
        display(rounded(tables[question].head(40)))
    for question in questions:
        print(SQL[question])


# %%
SUMMARY = ""
print(SUMMARY)

# %% [markdown]
# ## What the dataset holds

# %%
show("overview")

# %% [markdown]
# ## Kernel families by run and phase

# %%
families = escaped(tables["family_shares"])
for phase, frame in families.groupby("phase", sort=False):
    figure = px.bar(frame, x="share", y="run_name", color="family", orientation="h",
                    color_discrete_sequence=px.colors.qualitative.Dark24, title=f"phase: {phase}",
                    hover_data={"time_ns": ":,", "calls": ":,", "reports": True})  # fmt: skip
    figure.update_layout(xaxis_tickformat=".0%", yaxis_title="", height=220 + 24 * frame["run_name"].nunique())
    figure.update_yaxes(type="category")
    figure.show()
print(SQL["family_shares"])

# %% [markdown]
# ## Slowest ranks and hosts
# Own time is busy time minus exposed communication, relative to the median of the run. z is a robust z-score over the
# whole fleet: if it is above 3.5 and the excess more than a few per cent, look at the rank, its GPU and its host. Where
# all others are nearly equal, a small excess already gives a large z.

# %%
ranks = escaped(tables["slow_ranks"].dropna(subset="above"))
if len(ranks):
    ranks["what"] = group_of(ranks)
    figure = px.strip(
        ranks, x="above", y="what", color="host", hover_data=["run_name", "report", "rank", "gpu_uuid", "z"]
    )
    figure.update_layout(xaxis_tickformat=".1%", xaxis_title="own time above the run's median", yaxis_title="",
                         height=220 + 40 * ranks["what"].nunique())  # fmt: skip
    figure.show()
show("slow_ranks", "slow_hosts")

# %% [markdown]
# ## Step times, and how far they are from the floor
# Percentiles of the steps themselves. The floor needs `--model` when the reports are added.

# %%
steps = escaped(tables["step_percentiles"])
if len(steps):
    # Points: bars would have no foot on a scale that fits prefill and decode.
    points = [
        go.Scatter(name=name, x=group_of(steps), y=steps[f"period_{name}_ns"] / 1e6, mode="markers")
        for name in ("p50", "p99")
    ]
    go.Figure(points, {"yaxis": {"title": "period (step start to start), ms", "type": "log"}}).show()
show("step_percentiles")

# %% [markdown]
# ## What the GPUs waited for, over time

# %%
idle = escaped(tables["idle_causes"])
if len(idle):
    figure = px.bar(
        idle, x="day", y="share", color="cause", hover_data={"idle_ns": ":,", "runs": True, "reports": True}
    )
    figure.update_layout(yaxis_tickformat=".0%", yaxis_title="idle, share of the window", xaxis_title="")
    figure.update_xaxes(type="category")
    figure.show()
show("idle_causes")

# %% [markdown]
# ## Captures with limited or doubtful numbers

# %%
show("doubtful_captures", "capture_findings")

# %% [markdown]
# ## This week against last
# The run is the unit: steps and ranks of one run are not independent. The bars are 95 % confidence
# intervals; one true value in 20 is expected outside its interval by chance alone.

# %%
changes = escaped(tables["regressions"])
if len(changes):
    error = {
        "type": "data", "symmetric": False, "array": changes["high"] - changes["change"],
        "arrayminus": changes["change"] - changes["low"],
    }  # fmt: skip
    figure = go.Figure(go.Scatter(x=changes["change"], y=group_of(changes), mode="markers", error_x=error))
    figure.update_layout(xaxis_tickformat="+.1%", xaxis_title="change of the period", height=220 + 30 * len(changes))
    figure.show()
show("regressions")

# %% [markdown]
# ## Ask the dataset itself
# With DuckDB (`pip install duckdb`) the same questions, and your own, run on the dataset as it is now.
# `of_reports('steps')` gives the rows of a table that count, `of_runs('ranks')` those of a table over all reports of a
# run.

# %%
given = tables["published"]["dataset"].dropna()
# By default beside the output folder of this notebook. Put another path or URL here.
DATASET = given.iloc[0] if len(given) else str(Path.cwd().with_name(Path.cwd().name + "-dataset"))
QUESTION = SQL["overview"]

try:
    import duckdb
except ModuleNotFoundError:
    print("DuckDB is not installed; pip install duckdb")
else:
    database = duckdb.connect()
    quoted = DATASET.replace("'", "''")
    try:
        database.execute(f"SET VARIABLE dataset = '{quoted}'")
        database.execute(SQL["dataset"] + SQL["views"])
        answer = database.execute(QUESTION).df()
    except duckdb.Error as error:
        print(f"{DATASET} cannot be read: {error}")
    else:
        print(answer.to_string())
