"""Template of the recipe's notebook, see recipes/notebook.py. It uses pandas and plotly, nothing of the pack."""

# %% [markdown]
# # Capture check
# Whether the captures can be trusted, what was found, and what to do about it. The data is inside this
# notebook, so it opens anywhere; the complete tables are the parquet files beside it.

# %%
import html
import io

import pandas as pd
import plotly.graph_objects as go

pd.set_option("display.max_colwidth", None)

# %%
DATA = {}

# %%
# Names stay text, whatever they look like.
TEXTS = ("report", "path", "check", "severity", "message", "evidence", "remedy", "phase", "name", "session", "engine")
tables = {
    name: pd.read_csv(io.StringIO(text), keep_default_na=False, na_values=[""], dtype=dict.fromkeys(TEXTS, str))
    for name, text in DATA.items()
}
findings, captures, processes, records, steps = (
    tables[name] for name in ("findings", "captures", "processes", "records", "steps")
)
# Names come from the traced program: plotly would read tags in them.
for frame in (records, steps):
    for column in frame.columns.intersection(TEXTS):
        frame[column] = frame[column].fillna("").astype(str).map(lambda text: html.escape(text, quote=False))

# %%
SUMMARY = ""
print(SUMMARY)

# %% [markdown]
# ## Findings

# %%
COLOURS = {"error": "#f8d7da", "warn": "#fff3cd", "info": "#e2eafc"}
shown = findings[findings["observed"].astype(bool)].fillna("")
shown.loc[shown["report"] == "", "report"] = "all reports together"
shown = shown.sort_values("severity", key=lambda level: level.map({"error": 0, "warn": 1, "info": 2}), kind="stable")
# The same said of many reports is one row.
alike = ["severity", "check", "message", "evidence", "remedy"]
shown = shown.groupby(alike, sort=False, as_index=False).agg(
    reports=("report", lambda names: ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")),
)
shown.head(200).style.apply(
    lambda row: [f"background-color: {COLOURS[row['severity']]}; color: #222"] * len(row), axis=1
).hide(axis="index").format(escape="html").set_properties(**{"text-align": "left", "white-space": "normal"})

# %% [markdown]
# ## Captures
# What each report holds. Whole steps are complete ones; launches without a record are lost GPU work.

# %%
shown = captures.drop(columns=["session", "begin_utc_ns", "end_utc_ns"]).astype({"rank": "Int64"})
shown.insert(3, "window_ms", (shown.pop("window_ns") / 1e6).round(3))
shown["engine"] = shown["engine"].astype(object).where(shown["engine"].notna(), "")
shown.head(200)

# %% [markdown]
# ## When the captures were taken
# Windows on one clock: reports of one job overlap.

# %%
placed = captures[captures["begin_utc_ns"].notna()].head(100) if len(captures) else captures
if len(placed) > 1:
    begin = pd.to_datetime(placed["begin_utc_ns"].astype("int64"), utc=True)
    seconds = (begin - begin.min()).dt.total_seconds()
    names = [html.escape(text, quote=False) for text in placed["report"]]
    figure = go.Figure(go.Bar(y=names, x=placed["window_ns"] / 1e9, base=seconds, orientation="h"))
    figure.update_layout(xaxis_title=f"s after {begin.min()}", height=140 + 26 * len(placed))
    figure.update_yaxes(autorange="reversed")
    figure.show()
else:
    print("One capture, or no clock to place them by.")

# %% [markdown]
# ## Launches and their records over time
# The window in twenty parts. Launches without a record mean lost GPU work; if only at the end, records stop there.

# %%
for report, own in list(records.groupby("report", sort=False))[:4]:
    middle = (own["start_ns"] + own["end_ns"]) / 2e6
    lost = own["launches"] - own["recorded_launches"]
    figure = go.Figure()
    width = (own["end_ns"] - own["start_ns"]) / 1e6
    figure.add_bar(x=middle, y=own["recorded_launches"], width=width, name="with a record", marker_color="#54a24b")
    figure.add_bar(x=middle, y=lost, width=width, name="without", marker_color="#e45756")
    figure.update_layout(barmode="stack", title=report, xaxis_title="ms", yaxis_title="launches", height=320)
    figure.show()

# %% [markdown]
# ## Step by step
# GPU time of each step; open markers are steps that may be incomplete, which are excluded from medians.

# %%
for (report, device), own in list(steps.groupby(["report", "device"], sort=False))[:4]:
    figure = go.Figure()
    for phase, of_phase in own.groupby(
        own["phase"] + own["batch"].map(lambda b: f" at batch {b:.0f}" if b == b else "")
    ):
        symbols = ["circle-open" if edge else "circle" for edge in of_phase["edge"]]
        figure.add_scatter(
            x=of_phase["start_ns"] / 1e6, y=of_phase["duration_ns"] / 1e6, mode="markers", name=phase,
            marker_symbol=symbols, marker_size=8,
        )  # fmt: skip
    figure.update_layout(title=f"{report} · GPU {device}", xaxis_title="ms", yaxis_title="step, ms", height=340)
    # A step that takes many times as long as the others is cut off, so that the others can be told apart.
    most = own["duration_ns"].max() / 1e6
    usual = own["duration_ns"].quantile(0.9) / 1e6
    figure.update_yaxes(range=[0, 1.1 * (most if most < 3 * usual else 1.5 * usual)])
    figure.show()
if not len(steps):
    print("No steps were found.")

# %% [markdown]
# ## Processes

# %%
processes.astype({"rank": "Int64"}).head(200)
