"""Template of the recipe's notebook, see recipes/notebook.py. It uses pandas and plotly, nothing of the pack."""

# %% [markdown]
# # Decode floor
# How long each step really took on the GPU, against the memory-bandwidth floor, and what the difference consists of.
# The data lies in this notebook, so that it opens anywhere; the complete tables are the parquet files it was written
# with.

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
tables = {name: pd.read_csv(io.StringIO(text), keep_default_na=False, na_values=[""]) for name, text in DATA.items()}
files, steps, parts, phases, floor = (tables[name] for name in ("files", "steps", "parts", "phases", "floor"))
# Names come from the traced program: plotly would read tags in them.
for frame in (steps, parts, phases, floor):
    for column in ("report", "phase", "text"):
        if column in frame:
            frame[column] = frame[column].fillna("").astype(str).map(lambda text: html.escape(text, quote=False))
    batch = frame["batch"].map(lambda value: "" if pd.isna(value) else f" bs={int(value)}")
    frame["what"] = frame["phase"] + batch
    frame["where"] = frame["report"] + " · GPU " + frame["device"].astype("Int64").astype(str)

# %% [markdown]
# ## Phases and floors

# %%
shown = phases.merge(floor.drop(columns=["duration_p50_ns", "period_p50_ns", "where", "what"]),
                     on=["report", "rank", "device", "phase", "batch"], how="left")  # fmt: skip
times = {name: name.removesuffix("_ns") + " ms" for name in shown if name.endswith("_ns")}
shown.assign(**{name: shown[name] / 1e6 for name in times}).rename(columns=times).round(3)

# %% [markdown]
# ## What a step consists of
# The mean step of each phase and batch. The parts add up to its projected duration; between steps comes on top.


# %%
def waterfall(frame, title):
    """Parts one on top of the other, idle time last."""
    frame = frame.assign(last=frame["part"].str.startswith("idle_") * 1 + (frame["part"] == "between_steps") * 2)
    frame = frame.sort_values(["last", "time_ns"], ascending=[True, False])
    figure = go.Figure(
        go.Waterfall(
            x=frame["part"].str.replace("_", " "),
            y=frame["time_ns"] / 1e6,
            text=(frame["time_ns"] / 1e6).map("{:.3f}".format),
            increasing_marker_color="#4c78a8",
        )
    )
    figure.update_layout(title=title, yaxis_title="ms", height=460)
    return figure


largest = parts.groupby(["where", "what"])["time_ns"].sum().sort_values(ascending=False).index[:6]
for where, what in largest:
    waterfall(parts[(parts["where"] == where) & (parts["what"] == what)], f"{what}, {where}").show()

# %% [markdown]
# ## Durations and periods over time
# A dot a step, its projected duration; a cross its period, from start to start. Steps at the edges of the capture are
# left out.

# %%
counted = steps[~steps["edge"].astype(bool) & steps["duration_ns"].notna()]
if len(counted):
    figure = go.Figure()
    for number, (what, frame) in enumerate(counted.groupby("what", sort=False)):
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
        figure.add_scatter(x=frame["batch"], y=frame["attainable_ns"] / 1e6, mode="lines", name=f"attainable, {where}",
                           line_dash="dash")  # fmt: skip
    figure.update_layout(xaxis_title="batch", yaxis_title="ms", yaxis_rangemode="tozero", height=420)
    figure.show()
else:
    print("No floor: give --model, and --batch where the ranges do not tell it.")

# %% [markdown]
# ## Roofline
# What the GPU could do at an arithmetic intensity, and what the steps did. Left of the ridge the memory is the limit.

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
    figure.add_vline(x=ridge, line_dash="dot", annotation_text=f"ridge {ridge:.0f} FLOP/B")
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
