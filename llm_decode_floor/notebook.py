"""Template of the recipe's notebook, see recipes/notebook.py. It uses pandas and plotly, nothing of the pack."""

# %% [markdown]
# # Decode floor
# How long each step really took on the GPU, against the memory-bandwidth floor, and what makes up the difference.
# The data is inside this notebook, so it opens anywhere; the complete tables are the parquet files beside it.

# %%
import html
import io

import pandas as pd
import plotly.express as px
import plotly.graph_objects as go

pd.set_option("display.max_colwidth", 90)

# %%
DATA = {}

# %%
# Names stay text, whatever they look like.
TEXTS = dict.fromkeys(("report", "path", "phase", "text", "family", "group", "name", "short_name", "part"), str)
tables = {
    name: pd.read_csv(io.StringIO(text), keep_default_na=False, na_values=[""], dtype=TEXTS)
    for name, text in DATA.items()
}
files, steps, parts, phases, floor = (tables[name] for name in ("files", "steps", "parts", "phases", "floor"))
# Names come from the traced program: plotly would read tags in them.
for frame in (steps, parts, phases, floor):
    for column in ("report", "phase", "text"):
        if column in frame:
            frame[column] = frame[column].fillna("").astype(str).map(lambda text: html.escape(text, quote=False))
    batch = frame["batch"].map(lambda value: "" if pd.isna(value) else f" bs={int(value)}")
    frame["what"] = frame["phase"] + batch
    frame["where"] = frame["report"] + " · GPU " + frame["device"].astype("Int64").astype(str)

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
# ## Phases and floors
# Times in ms. All quantiles are in phases.parquet, everything about the floors in floor.parquet.

# %%
keys = ["report", "rank", "device", "phase", "batch"]
shown = phases.merge(floor[[*keys, "floor_ns", "ratio", "mbu", "mfu"]], on=keys, how="left")
shown = shown.assign(total=shown["steps"] * shown["duration_p50_ns"]).sort_values("total", ascending=False)
pd.DataFrame(
    {
        "where": shown["where"], "what": shown["what"], "steps": shown["steps"],
        **{name: (shown[column] / 1e6).round(3) for name, column in (
            ("p50", "duration_p50_ns"), ("p90", "duration_p90_ns"), ("period", "period_p50_ns"),
            ("floor", "floor_ns"))},
        "ratio": shown["ratio"].round(2), "MBU": shown["mbu"].round(3), "MFU": shown["mfu"].round(3),
    }
)  # fmt: skip

# %% [markdown]
# ## What a step consists of
# The mean step of each phase and batch. The parts add up to its projected duration; `between steps`
# comes on top, up to the period.

# %%
COLOURS = {"floor": "#54a24b", "above the floor": "#eeca3b", "kernels": "#4c78a8", "idle": "#e45756",
           "between steps": "#b0b0b0", "mean step": "#333333"}  # fmt: skip


def kind_of(part):
    """What a part is, for its colour."""
    if part in ("between_steps", "mean_step"):
        return part.replace("_", " ")
    if part.startswith("idle_"):
        return "idle"
    return (
        "floor"
        if part.endswith("s_floor") or part == "kv_floor"
        else "above the floor"
        if "above" in part
        else "kernels"
    )


def waterfall(frame, title):
    """Parts one on top of the other, idle time behind the work, then the step and what follows it."""
    frame = frame.assign(kind=frame["part"].map(kind_of), ms=frame["time_ns"] / 1e6)
    within = frame[frame["part"] != "between_steps"]
    within = within.assign(last=within["kind"] == "idle").sort_values(["last", "ms"], ascending=[True, False])
    base = within["ms"].cumsum() - within["ms"]
    total = within["ms"].sum()
    bars = pd.concat([
        within.assign(base=base),
        pd.DataFrame({"part": ["mean_step"], "kind": ["mean step"], "ms": [total], "base": [0.0]}),
        frame[frame["part"] == "between_steps"].assign(base=total),
    ])  # fmt: skip
    figure = go.Figure()
    for kind, some in bars.groupby("kind", sort=False):
        figure.add_bar(
            x=some["part"].str.replace("_", " "), y=some["ms"], base=some["base"], name=kind,
            marker_color=COLOURS[kind],
            text=some["ms"].map("{:.3f}".format), textposition="outside", cliponaxis=False,
        )  # fmt: skip
    order = bars["part"].str.replace("_", " ").tolist()
    figure.update_xaxes(categoryorder="array", categoryarray=order)
    figure.update_layout(title=title, yaxis_title="ms", height=480, barmode="overlay", uniformtext_minsize=9)
    figure.update_yaxes(range=[0, 1.12 * (bars["base"] + bars["ms"]).max()])
    return figure


DECODE = ("decode", "step", "generation")
totals = phases.assign(other=~phases["phase"].isin(DECODE), total=phases["steps"] * phases["duration_p50_ns"])
for _, row in totals.sort_values(["other", "total"], ascending=[True, False]).head(6).iterrows():
    mine = parts[(parts["where"] == row["where"]) & (parts["what"] == row["what"])]
    waterfall(mine, f"{row['what']}, {row['where']}").show()

# %% [markdown]
# ## Durations and periods over time
# Dots are projected durations, crosses are periods (start to start). Edge steps are
# left out.

# %%
counted = steps[~steps["edge"].astype(bool) & steps["duration_ns"].notna()]
if len(counted):
    figure = go.Figure()
    several = counted["where"].nunique() > 1
    groups = counted.groupby(counted["what"] + (", " + counted["where"] if several else ""), sort=False)
    for number, (what, frame) in enumerate(groups):
        colour = px.colors.qualitative.D3[number % 10]
        hover = frame["text"].fillna("") + "<br>" + frame["where"]
        for name, symbol in (("duration", "circle"), ("period", "x-thin-open")):
            figure.add_scatter(
                x=frame["start_ns"] / 1e6, y=frame[f"{name}_ns"] / 1e6, mode="markers", name=f"{what}, {name}",
                marker={"symbol": symbol, "color": colour}, text=hover,
            )  # fmt: skip
    figure.update_layout(xaxis_title="start, ms", yaxis_title="ms", yaxis_rangemode="tozero", height=460)
    figure.show()
else:
    print("No steps that count.")

# %% [markdown]
# ## Floor by batch
# Dots are measured medians; the lines are the floor and what is attainable. Needs `--model`.

# %%
rated = floor[floor["floor_ns"].notna() & floor["batch"].notna()].sort_values("batch")
if len(rated):
    figure = go.Figure()
    for where, frame in rated.groupby("where", sort=False):
        figure.add_scatter(
            x=frame["batch"], y=frame["duration_p50_ns"] / 1e6, mode="markers", name=f"measured, {where}"
        )
        figure.add_scatter(x=frame["batch"], y=frame["floor_ns"] / 1e6, mode="lines+markers", name=f"floor, {where}")
        figure.add_scatter(x=frame["batch"], y=frame["attainable_ns"] / 1e6, mode="lines+markers",
                           name=f"attainable, {where}",                           line_dash="dash")  # fmt: skip
    figure.update_layout(xaxis_title="batch", yaxis_title="ms", yaxis_rangemode="tozero", height=420)
    figure.show()
else:
    print("No floor: give --model, and --batch where the ranges do not tell it.")

# %% [markdown]
# ## Roofline
# Attainable throughput at each arithmetic intensity, and what the steps reached. Left of the ridge point, steps are
# memory-bound.

# %%
if len(rated) and rated["ridge_flop_per_byte"].notna().any():
    one = rated[rated["ridge_flop_per_byte"].notna()].iloc[0]
    width, ridge = one["bandwidth_bytes_per_s"], one["ridge_flop_per_byte"]
    lowest = min(rated["flop_per_byte"].min(), 1)
    moved = rated["weight_bytes"] + rated["kv_bytes"].fillna(0)
    reached = moved * rated["flop_per_byte"] / rated["duration_p50_ns"] / 1e3
    figure = go.Figure()
    roof = [intensity * width / 1e12 for intensity in (lowest, ridge, ridge)]
    figure.add_scatter(x=[lowest, ridge, 10 * ridge], y=roof,
                       mode="lines", name="roof")  # fmt: skip
    # A line of its own: an annotated vline goes astray on a logarithmic axis.
    figure.add_scatter(x=[ridge, ridge], y=[reached.min() / 3, ridge * width / 1e12], mode="lines", line_dash="dot",
                       name=f"ridge {ridge:.0f} FLOP/B")  # fmt: skip
    figure.add_scatter(x=rated["flop_per_byte"], y=reached, mode="markers+text", text=rated["what"],
                       textposition="bottom center", name="measured")  # fmt: skip
    figure.update_xaxes(type="log", title="FLOP per byte")
    figure.update_yaxes(type="log", title="TFLOP/s")
    figure.update_layout(height=460)
    figure.show()
else:
    print("No roofline: it needs a model and a GPU whose peak is known.")

# %% [markdown]
# ## Steps

# %%
columns = [
    "report",
    "device",
    "step",
    "phase",
    "text",
    "duration_ns",
    "period_ns",
    "idle_ns",
    "operations",
    "launches",
    "edge",
]
steps[columns].head(200)
