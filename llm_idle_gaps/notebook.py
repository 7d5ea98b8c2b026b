"""Template of the recipe's notebook, see recipes/notebook.py. It uses pandas and plotly, nothing of the pack."""

# %% [markdown]
# # Idle gaps
# When the GPU ran nothing, and why. A gap is time in which no stream and no process ran anything on a device; copies
# and graph executions count as work. The data is inside this notebook, so it opens anywhere; the complete tables are
# the parquet files beside it.

# %%
import html
import io
import re

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

pd.set_option("display.max_colwidth", 90)

# %%
DATA = {}

# %%
# Names stay text, whatever they look like.
TEXTS = (
    "report",
    "path",
    "phase",
    "place",
    "cause",
    "previous",
    "next",
    "launch_api",
    "thread",
    "held_by",
    "sync_call",
    "nvtx",
    "lane",
    "name",
)
tables = {
    name: pd.read_csv(io.StringIO(text), keep_default_na=False, na_values=[""], dtype=dict.fromkeys(TEXTS, str))
    for name, text in DATA.items()
}
files, histogram, idle, steps, timeline, gaps = (
    tables[name] for name in ("files", "histogram", "idle", "steps", "timeline", "gaps")
)
# Names come from the traced program, with whatever tags in them.
for frame in (histogram, idle, steps, timeline, gaps):
    for column in frame.columns.intersection(TEXTS):
        frame[column] = frame[column].fillna("").astype(str)
        # A table is escaped by pandas, a figure by nobody.
        if frame is not gaps:
            frame[column] = frame[column].map(lambda text: html.escape(text, quote=False))
    frame["where"] = frame["report"] + " · GPU " + frame["device"].astype("Int64").astype(str)
CAUSES = {
    "profiler": "#b0b0b0", "graph": "#72b7b2", "sync": "#e45756", "api": "#f58518", "host": "#eeca3b",
    "launch": "#b279a2", "queued": "#4c78a8", "unknown": "#9d755d",
}  # fmt: skip

# %%
SUMMARY = ""
print(SUMMARY)

# %% [markdown]
# ## What was read

# %%
read = files.assign(window_ms=files["window_ns"] / 1e6)
columns = ["report", "rank", "gpu_name", "kernels", "window_ms", "phase_rule", "attributed_share", "quality", "message"]
read = read[columns].astype({"rank": "Int64", "kernels": "Int64"})
for column in ("gpu_name", "phase_rule", "message"):
    read[column] = read[column].astype(object).where(read[column].notna(), "")
read

# %% [markdown]
# ## Idle time by phase and cause
# In ms, over all devices. The causes of a phase add up to its idle time, and busy and idle to its window.

# %%
numbers = ["window_ns", "busy_ns", "copy_only_ns", "idle_ns", *(f"{cause}_ns" for cause in CAUSES)]
by_phase = idle.groupby("phase")[numbers].sum().sort_values("window_ns", ascending=False)
shown = (by_phase / 1e6).round(3).rename(columns=lambda name: name.removesuffix("_ns").replace("_", " "))
shown.insert(4, "share", (by_phase["idle_ns"] / by_phase["window_ns"].clip(lower=1)).round(4))
shown.loc[:, (shown != 0).any()]

# %% [markdown]
# ## Gaps by length
# All gaps of the whole window, whatever their length: how many, and how much time they take. The colour is the cause of
# a gap's largest part. Click on a cause to leave it out.


# %%
def length(ns):
    """A length with its unit, as the axis shows it."""
    for scale, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if ns >= 0.9995 * scale:
            return f"{ns / scale:.3g} {unit}"
    return f"{ns:.0f} ns"


bins = histogram[histogram["phase"] == "all"].groupby(["low_ns", "cause"], as_index=False)[["gaps", "time_ns"]].sum()
edges = [0, *(round(10 ** (2 + k / 3)) for k in range(25))]
if len(bins):
    edges = [edge for edge in edges if bins["low_ns"].min() <= edge <= bins["low_ns"].max()]
if len(bins):
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, subplot_titles=("number of gaps", "time, ms"),
                           vertical_spacing=0.22)  # fmt: skip
    for cause, colour in CAUSES.items():
        own = bins[bins["cause"] == cause]
        if len(own):
            names = own["low_ns"].map(lambda low: f"from {length(low)}")
            for row, values in ((1, own["gaps"]), (2, own["time_ns"] / 1e6)):
                figure.add_bar(x=names, y=values, name=cause, marker_color=colour, legendgroup=cause,
                               showlegend=row == 1, row=row, col=1)  # fmt: skip
    figure.update_xaxes(categoryorder="array", categoryarray=[f"from {length(low)}" for low in edges],
                        showticklabels=True, tickangle=-40)  # fmt: skip
    figure.update_layout(barmode="stack", height=700, legend_title="cause")
    figure.show()
else:
    print("No gaps.")

# %% [markdown]
# ## Idle time of each step
# One bar per step, in order of time: idle time inside the step by cause, and from its end to the next step. Pale bars
# are steps that may be incomplete.

# %%
# The places with most steps; the parquet files have them all.
leading = steps["where"].value_counts().index[:4]
for where in leading:
    own = steps[steps["where"] == where].sort_values("start_ns")
    figure = go.Figure()
    x = own["step"].astype(str) + " " + own["phase"]
    opacity = [0.35 if edge else 1.0 for edge in own["edge"].astype(bool)]
    for cause, colour in CAUSES.items():
        values = own[f"{cause}_ns"] / 1e6
        if values.any():
            figure.add_bar(x=x, y=values, name=cause, marker={"color": colour, "opacity": opacity})
    after = own["idle_after_ns"].fillna(0) / 1e6
    figure.add_bar(x=x, y=after, name="until the next step", marker={"color": "#dddddd", "opacity": opacity})
    figure.update_layout(
        barmode="stack", bargap=0.1, title=where, yaxis_title="idle, ms", xaxis_title="step", height=420
    )
    figure.show()
if not len(steps):
    print("No steps were found.")

# %% [markdown]
# ## One step in detail
# The median step of the leading phase: what the GPU ran, where it was idle, and what the launching threads did.
# Drag to zoom in, double-click to zoom out, hover for names. Of a step with more than 2,000 operations, only the
# beginning is shown.


# %%
def depths(some):
    """How many events of a lane, in order, each lies in."""
    ends, found = [], []
    for start, duration in zip(some["start_ns"], some["duration_ns"], strict=True):
        while ends and ends[-1] <= start:
            ends.pop()
        found.append(len(ends))
        ends.append(start + duration)
    return pd.Series(found, index=some.index)


def picture(own, title):
    """Lanes of bars, the GPU above the host; what lies in something else is drawn lower."""
    order = {"GPU": 0, "idle": 1, "calls": 2, "ranges": 3}
    lanes = sorted(own["lane"].unique(), key=lambda lane: (order.get(lane.split(" ")[0], 9), lane))
    colours = {"GPU": "#54a24b", "calls": "#b279a2", "ranges": "#9ecae9"}
    figure = go.Figure()
    for lane in lanes:
        some = own[own["lane"] == lane].sort_values(["start_ns", "duration_ns"], ascending=[True, False])
        kind = lane.split(" ")[0]
        colour = [CAUSES.get(name, "#333333") for name in some["name"]] if kind == "idle" else colours.get(kind)
        figure.add_bar(
            y=[lane] * len(some), x=some["duration_ns"] / 1e3, base=some["start_ns"] / 1e3, orientation="h", name=lane,
            marker={"color": colour, "line": {"width": 0}}, opacity=0.6 if kind == "ranges" else 1.0,
            width=0.8 * 0.7 ** depths(some), showlegend=False,
            customdata=some["name"], hovertemplate="%{customdata}<br>from %{base:.3f} us, %{x:.3f} us<extra></extra>",
        )  # fmt: skip
    figure.update_layout(title=title, barmode="overlay", height=140 + 60 * len(lanes), bargap=0.2, dragmode="zoom")
    figure.update_xaxes(title="us from the step's first operation", rangeslider={"visible": True, "thickness": 0.08})
    figure.update_yaxes(categoryorder="array", categoryarray=lanes[::-1], fixedrange=True)
    return figure


for where, own in list(timeline.groupby("where", sort=False))[:4]:
    picture(own, f"step {own['step'].iloc[0]}, {where}").show()
if not len(timeline):
    print("No step that counts.")

# %% [markdown]
# ## Largest gaps

# %%
columns = ["where", "phase", "step", "start_ms", "ms", "cause", "of it", "previous", "next", "launch_api", "held_by",
           "held ms", "sync_call", "nvtx", "thread"]  # fmt: skip


def brief(name):
    """A kernel's name without its parameters and namespaces."""
    head = re.split(r"[<(]", re.sub(r"^void |<unnamed>::|\(anonymous namespace\)::", "", name), maxsplit=1)[0]
    return (head or name).rsplit("::", 1)[-1][:40]


largest = gaps.assign(
    previous=gaps["previous"].map(brief),
    next=gaps["next"].map(brief),
    start_ms=(gaps["start_ns"] / 1e6).round(3),
    ms=(gaps["duration_ns"] / 1e6).round(4),
    step=gaps["step"].astype("Int64"),
    **{"of it": (gaps["cause_ns"] / gaps["duration_ns"]).round(2), "held ms": (gaps["held_ns"] / 1e6).round(4)},
)
largest[columns].head(50)
