"""Template of the recipe's notebook, see recipes/notebook.py. It uses pandas and plotly, nothing of the pack."""

# %% [markdown]
# # Communication
# What communication costs, what of it is exposed, and which rank is late. The data lies in this notebook, so that it
# opens anywhere; the complete tables are the parquet files it was written with.

# %%
import html
import io

import pandas as pd
import plotly.graph_objects as go

pd.set_option("display.max_colwidth", 90)

# %%
DATA = {}

# %%
# Names stay text, whatever they look like.
TEXTS = ("report", "path", "phase", "operation", "dtype", "algorithm", "protocol")
tables = {
    name: pd.read_csv(io.StringIO(text), keep_default_na=False, na_values=[""], dtype=dict.fromkeys(TEXTS, str))
    for name, text in DATA.items()
}
files, collectives, steps, ranks, matched = (
    tables[name] for name in ("files", "collectives", "steps", "ranks", "matched")
)
# Names come from the traced program: plotly would read tags in them.
for frame in (steps, ranks, matched):
    for column in frame.columns.intersection(TEXTS):
        frame[column] = frame[column].fillna("").astype(str).map(lambda text: html.escape(text, quote=False))

# %%
SUMMARY = ""
print(SUMMARY)

# %% [markdown]
# ## What was read

# %%
columns = ["report", "rank", "rank_source", "gpu_name", "kernels", "phase_rule", "quality", "message"]
read = files[columns].astype({"rank": "Int64", "kernels": "Int64"})
for column in ("rank_source", "gpu_name", "phase_rule", "message"):
    read[column] = read[column].astype(object).where(read[column].notna(), "")
read

# %% [markdown]
# ## Operations
# Times in ms, waiting for other ranks included; bandwidths in GB/s over that time.

# %%
kinds = ["phase", "operation", "dtype", "algorithm", "protocol"]
shown = collectives.assign(
    ms=(collectives["time_ns"] / 1e6).round(3), exposed_ms=(collectives["exposed_ns"] / 1e6).round(3),
    algbw=(collectives["algbw_bytes_per_s"] / 1e9).round(2), busbw=(collectives["busbw_bytes_per_s"] / 1e9).round(2),
)  # fmt: skip
shown[["report", "rank", "device", *kinds, "calls", "ms", "exposed_ms", "bytes", "algbw", "busbw"]].head(100)

# %% [markdown]
# ## Exposed and hidden, step by step
# Exposed communication is time in which nothing else ran on the device: at most that could be hidden.

# %%
counted = steps[steps["step"].notna() & (steps["calls"] > 0)]
places = counted["report"] + " · GPU " + counted["device"].astype("Int64").astype(str)
# One scale, so that ranks can be compared.
most = counted["time_ns"].max() / 1e6 if len(counted) else 0
for where, own in list(counted.groupby(places, sort=False))[:4]:
    x = own["step"].astype("Int64").astype(str) + " " + own["phase"]
    figure = go.Figure()
    figure.add_bar(x=x, y=own["exposed_ns"] / 1e6, name="exposed", marker_color="#e45756")
    figure.add_bar(x=x, y=(own["time_ns"] - own["exposed_ns"]) / 1e6, name="hidden", marker_color="#54a24b")
    figure.update_layout(barmode="stack", title=where, yaxis_title="communication, ms", xaxis_title="step", height=380)
    figure.update_yaxes(range=[0, 1.05 * most])
    figure.show()
if not len(counted):
    print("No communication in steps.")

# %% [markdown]
# ## Who waits for whom
# Each column a collective, in order of time; each row a rank; the colour how long it waited for the last one. A rank
# with a dark row keeps the others waiting.

# %%
if len(matched):
    grid = matched.pivot_table(index="rank", columns="collective", values="wait_ns") / 1e3
    figure = go.Figure(
        go.Heatmap(
            z=grid.to_numpy(), x=grid.columns, y=[f"rank {rank}" for rank in grid.index], colorscale="Viridis",
            zmax=float(grid.stack().quantile(0.98)), zmin=0, colorbar_title="waits, us",
        )
    )  # fmt: skip
    figure.update_layout(xaxis_title="collective", height=max(340, 140 + 26 * len(grid)))
    figure.show()
else:
    print("No matched collectives: the summary above says why.")

# %% [markdown]
# ## Arrival
# When each rank came to a collective, after the first one; clocks aligned by the ends of collectives.

# %%
arrivals = matched[matched["arrival_ns"].notna()] if len(matched) else matched
if len(arrivals):
    figure = go.Figure()
    for rank, own in arrivals.groupby("rank"):
        figure.add_scatter(
            x=own["collective"], y=own["arrival_ns"] / 1e3, mode="markers", name=f"rank {rank}", marker_size=5
        )
    figure.update_layout(xaxis_title="collective", yaxis_title="us after the first rank", height=420)
    figure.show()
else:
    print("No arrival times: clocks do not agree better than ranks wait, or nothing is matched.")

# %% [markdown]
# ## Bus bandwidth against message size
# Over the transfer alone, that is the shortest kernel of each collective, with the operation's factor.

# %%
RING = {"all_reduce": lambda n: 2 * (n - 1) / n, "all_gather": lambda n: n - 1, "reduce_scatter": lambda n: n - 1,
        "all_to_all": lambda n: n - 1, "broadcast": lambda n: 1, "reduce": lambda n: 1}  # fmt: skip
sized = matched[matched["bytes"].notna() & (matched["wait_ns"] == 0)] if len(matched) else matched
if len(sized):
    figure = go.Figure()
    for operation, own in sized.groupby("operation"):
        if operation in RING:
            factor = own["ranks"].map(RING[operation])
            width = own["bytes"] * factor / own["transfer_ns"]
            figure.add_scatter(x=own["bytes"] / 1e6, y=width, mode="markers", name=operation)
    figure.update_xaxes(type="log", title="message, MB")
    figure.update_yaxes(title="busbw, GB/s", rangemode="tozero")
    figure.update_layout(height=420)
    figure.show()
else:
    print("Nothing to draw: it takes matched collectives and their message sizes (see --bytes).")

# %% [markdown]
# ## Ranks

# %%
ranks
