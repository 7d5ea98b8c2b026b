"""Template of the recipe's notebook, see recipes/notebook.py. It uses pandas and plotly, nothing of the pack."""

# %% [markdown]
# # Kernel families
# Which kinds of kernels the GPU time goes to. The data is inside this notebook, so it opens anywhere; the complete
# tables are the parquet files beside it.

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
files, families, kernels = tables["files"], tables["families"], tables["kernels"]
families["ms"] = families["time_ns"] / 1e6
kernels["ms"] = kernels["time_ns"] / 1e6
# Names come from the traced program: plotly would read tags in them.
for frame in (families, kernels):
    for column in ("report", "family", "phase", "name", "short_name"):
        if column in frame:
            frame[column] = frame[column].fillna("").astype(str).map(lambda text: html.escape(text, quote=False))
families["where"] = families["report"] + " · GPU " + families["device"].astype(str)
order = families.groupby("family")["ms"].sum().sort_values(ascending=False).index.tolist()
palette = [*px.colors.qualitative.D3, *px.colors.qualitative.Set3, *px.colors.qualitative.Dark2]
colours = {family: palette[i % len(palette)] for i, family in enumerate(order)}

# %%
SUMMARY = ""
print(SUMMARY)

# %% [markdown]
# ## What was read

# %%
read = files.assign(window_ms=files["window_ns"] / 1e6)
read = read[["report", "rank", "gpu_name", "kernels", "window_ms", "quality", "message"]]
for column in ("gpu_name", "message"):
    read[column] = read[column].astype(object).where(read[column].notna(), "")
read.astype({"rank": "Int64", "kernels": "Int64"})

# %% [markdown]
# ## Families per report and phase
# Summed kernel durations. Concurrent kernels each count in full, so a bar can be longer than the window.


# %%
def stacked(frame, title):
    figure = px.bar(
        frame,
        x="ms",
        y="where",
        color="family",
        orientation="h",
        color_discrete_map=colours,
        title=title,
        category_orders={"family": order, "where": sorted(frame["where"].unique())},
        hover_data={"share": ":.1%", "calls": ":,", "exclusive_ns": ":,", "where": False},
    )
    figure.update_layout(xaxis_title="time, ms", yaxis_title="", height=300 + 26 * frame["where"].nunique())
    figure.update_layout(legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "title": ""}, title_y=0.98)
    return figure


for phase, frame in families.groupby("phase", sort=False):
    stacked(frame, f"phase: {phase}" if phase != "all" else "whole window").show()

# %% [markdown]
# ## Families and their kernels
# Click a family to look inside.


# %%
HOVER = "%{customdata[0]}<br>%{value:.3f} ms, %{percentRoot:.1%}, %{customdata[1]:,} calls<extra></extra>"


def treemap(frame):
    """Two levels, the family and its kernel names, with areas by time."""
    leaves = frame.groupby(["family", "name", "short_name"], as_index=False)[["ms", "calls"]].sum()
    inner = leaves.groupby("family", as_index=False)[["ms", "calls"]].sum()
    label = leaves["short_name"].where(leaves["short_name"].str.len() <= 60, leaves["short_name"].str[:57] + "...")
    hover = leaves["name"].str.wrap(100).str.replace("\n", "<br>")
    figure = go.Figure(
        go.Treemap(
            ids=[*inner["family"], *(leaves["family"] + "/" + leaves["name"])],
            labels=[*inner["family"], *label],
            parents=[*[""] * len(inner), *leaves["family"]],
            values=[*inner["ms"], *leaves["ms"]],
            branchvalues="total",
            marker_colors=[*inner["family"].map(colours), *leaves["family"].map(colours)],
            customdata=list(zip([*inner["family"], *hover], [*inner["calls"], *leaves["calls"]], strict=True)),
            hovertemplate=HOVER,
            texttemplate="%{label}<br>%{value:.2f} ms, %{percentRoot:.1%}",
        )
    )
    figure.update_layout(height=600, margin={"t": 20, "l": 0, "r": 0, "b": 0})
    return figure


if len(kernels):
    treemap(kernels[kernels["phase"] == "all"]).show()

# %% [markdown]
# ## Spread over ranks
# One dot per report and device. Where a family's dots are far apart, ranks do different work, or wait.

# %%
whole = families[families["phase"] == "all"]
if whole["where"].nunique() > 1:
    figure = px.strip(whole, x="ms", y="family", color="family", color_discrete_map=colours, hover_name="where")
    figure.update_yaxes(categoryorder="array", categoryarray=order[::-1], title="")
    figure.update_layout(xaxis_title="time, ms", showlegend=False, height=160 + 30 * len(order))
    figure.show()
else:
    print("One device in one report: no spread to show.")

# %% [markdown]
# ## Top kernels

# %%
top = kernels[kernels["phase"] == "all"].sort_values("ms", ascending=False).head(40)
total_ms = max(whole["ms"].sum(), 1e-9)
pd.DataFrame(
    {
        "family": top["family"].to_numpy(),
        "name": top["name"].map(html.unescape).to_numpy(),
        "calls": [f"{calls:,}" for calls in top["calls"]],
        "ms": [f"{ms:,.3f}" for ms in top["ms"]],
        "share": [f"{ms / total_ms:.1%}" for ms in top["ms"]],
        "min us": [f"{ns / 1e3:,.2f}" for ns in top["min_ns"]],
        "mean us": [f"{ns / calls / 1e3:,.2f}" for ns, calls in zip(top["time_ns"], top["calls"], strict=True)],
        "max us": [f"{ns / 1e3:,.2f}" for ns in top["max_ns"]],
    }
)

# %% [markdown]
# ## Unclassified names
# Classify them with your own rules: `--families FILE`, and `python -m recipes classify` to test them.

# %%
other = kernels[(kernels["phase"] == "all") & (kernels["family"] == "other")].sort_values("ms", ascending=False)
other = other.assign(name=other["name"].map(html.unescape))
other[["name", "calls", "ms"]].head(40) if len(other) else print("None: every kernel has a family.")
