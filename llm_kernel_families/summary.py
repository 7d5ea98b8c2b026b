"""What the recipe says: verdict, table of families, unclassified names; and the small tables of its notebook."""

from __future__ import annotations

import pandas as pd
import pyarrow as pa

from llm_kernel_families.analysis import Settings
from recipes.base.text_table import shortened, text_table
from recipes.base.units import format_count, format_ms, format_ns, format_share
from recipes.capture.capture import ALL, OUTSIDE
from recipes.run.recipe import Told

#: Above this share of unclassified time the largest such names are listed: less changes no family's share much.
OTHER_LIMIT = 0.02
_MEMORY = ("memcpy", "memset")
_TITLES = {"gemm": "GEMM", "moe": "MoE", "ssm": "SSM", "kv_cache": "KV cache", "cuda_graph": "CUDA graph (opaque)"}


def summarise(tables: dict[str, pa.Table], settings: Settings, told: Told) -> str:
    """The verdict line, the place of the quality line, and the table of families over all reports."""
    families = _whole_window(tables["families"])
    if families.empty:
        return "No GPU work was found, so there are no families.\n{quality}"
    parts = [_verdict(families), "{quality}", "", _family_table(families), *_by_phase(tables), *_spread(families)]
    unclassified = _unclassified(families, _whole_window(tables["kernels"]))
    return "\n".join([*parts, *unclassified])


def _whole_window(table: pa.Table) -> pd.DataFrame:
    frame = table.to_pandas()
    return frame[frame["phase"] == ALL]


def _title(family: str) -> str:
    return _TITLES.get(family, family)


def _verdict(families: pd.DataFrame) -> str:
    total_ns = max(families["time_ns"].sum(), 1)
    by_family = families.groupby("family")["time_ns"].sum().sort_values(ascending=False) / total_ns
    leaders = [f"{_title(name)} {share * 100:.0f} %" for name, share in by_family.items() if name != "other"][:3]
    kernels_ns = families.loc[~families["family"].isin(_MEMORY), "time_ns"].sum()
    copies_ns = total_ns - kernels_ns
    time = f"{format_ns(kernels_ns)} kernel time"
    # Copies that matter are said; the shares are of both.
    if copies_ns > 0.005 * total_ns:
        time = f"{format_ns(total_ns)} GPU time (kernels {format_ns(kernels_ns)}, copies {format_ns(copies_ns)})"
    devices = len(families[["report", "device"]].drop_duplicates())
    reports = families["report"].nunique()
    place = format_count(devices, "GPU") if reports == 1 else f"{devices} devices in {reports} reports"
    opaque, other = by_family.get("cuda_graph", 0.0), by_family.get("other", 0.0)
    # What is in a graph traced as a whole is of no known family.
    unknown = [f"{format_share(opaque)} unseen in CUDA graphs"] if opaque else []
    unknown += [f"{format_share(other)} unclassified"] if other or not opaque else []
    # A total: steps that stand for no other are in it.
    return f"{', '.join(leaders) or 'Nothing'} of {time} in the window on {place}; {', '.join(unknown)}"


def _family_table(families: pd.DataFrame) -> str:
    total_ns = max(families["time_ns"].sum(), 1)
    summed = families.groupby("family")[["time_ns", "exclusive_ns", "calls"]].sum()
    summed = summed.sort_values(["time_ns", "calls"], ascending=False)
    rows = [
        [_title(row.Index), format_ms(row.time_ns), format_share(row.time_ns / total_ns), format_ms(row.exclusive_ns),
         f"{row.calls:,}"]
        for row in summed.itertuples()
    ]  # fmt: skip
    sums = summed.sum()
    rows.append(["total", format_ms(sums.time_ns), "", format_ms(sums.exclusive_ns), f"{int(sums.calls):,}"])
    return text_table(["family", "time ms", "share", "exclusive ms", "calls"], rows)


def _by_phase(tables: dict[str, pa.Table]) -> list[str]:
    """The share of the leading families in each phase; nothing when there is only one phase."""
    frame = tables["families"].to_pandas()
    frame = frame[~frame["phase"].isin([ALL])]
    phases = frame.groupby("phase")["time_ns"].sum().sort_values(ascending=False).index.tolist()
    if len([phase for phase in phases if phase != OUTSIDE]) < 2:
        return []
    times = frame.pivot_table(index="family", columns="phase", values="time_ns", aggfunc="sum", fill_value=0)[phases]
    leading = times.loc[times.sum(axis=1).sort_values(ascending=False).index[:8]]
    rows = [
        [_title(family), *(format_share(leading.loc[family, phase] / max(times[phase].sum(), 1)) for phase in phases)]
        for family in leading.index
    ]
    rows.append(["total ms", *(format_ms(times[phase].sum()) for phase in phases)])
    return ["", text_table(["share within phase", *phases], rows)]


def _spread(families: pd.DataFrame) -> list[str]:
    """How far the reports lie apart, family by family; nothing for a single report."""
    if families["report"].nunique() < 2:
        return []
    by_report = families.pivot_table(index="family", columns="report", values="time_ns", aggfunc="sum", fill_value=0)
    by_report = by_report.loc[by_report.sum(axis=1).sort_values(ascending=False).index[:8]]
    names = _report_names(families)
    rows = [
        [_title(family), format_ms(times.min()), format_ms(times.median()), format_ms(times.max()),
         names[times.idxmax()], format_share((times.max() - times.min()) / max(times.max(), 1))]
        for family, times in by_report.iterrows()
    ]  # fmt: skip
    head = ["spread over reports", "min ms", "median ms", "max ms", "most in", "(max-min)/max"]
    return ["", text_table(head, rows)]


def _report_names(families: pd.DataFrame) -> dict[str, str]:
    """How each report is called: by its rank when each has its own, else by its name."""
    ranks = families.groupby("report")["rank"].first()
    if ranks.notna().all() and ranks.is_unique:
        return {report: f"rank {int(rank)}" for report, rank in ranks.items()}
    return {report: shortened(report, 40) for report in ranks.index}


def _unclassified(families: pd.DataFrame, kernels: pd.DataFrame) -> list[str]:
    """The largest unclassified names, when more than OTHER_LIMIT of the time is unclassified."""
    total_ns = families["time_ns"].sum()
    other = kernels[kernels["family"] == "other"]
    if other["time_ns"].sum() <= OTHER_LIMIT * total_ns:
        return []
    by_name = other.groupby("name")[["time_ns", "calls"]].sum().nlargest(10, "time_ns")
    rows = [
        [shortened(row.Index, 90), format_ms(row.time_ns), format_share(row.time_ns / total_ns), f"{row.calls:,}"]
        for row in by_name.itertuples()
    ]
    hint = "Sort them with rules of your own (--families FILE); test rules with: python -m recipes classify"
    return ["", text_table(["largest unclassified names", "time ms", "share", "calls"], rows), hint]


def notebook_tables(tables: dict[str, pa.Table]) -> dict[str, pa.Table]:
    """What the notebook shows: all families, and the kernels that matter, the rest of each family folded."""
    kernels = tables["kernels"].to_pandas()
    keys = ["phase", "family", "name", "short_name"]
    summed = kernels.groupby(keys, as_index=False).agg(
        calls=("calls", "sum"), time_ns=("time_ns", "sum"), min_ns=("min_ns", "min"), max_ns=("max_ns", "max")
    )
    summed = summed.sort_values("time_ns", ascending=False)
    top = summed.head(_NOTEBOOK_KERNELS)
    rest = summed.iloc[_NOTEBOOK_KERNELS:].groupby(["phase", "family"], as_index=False).agg(
        calls=("calls", "sum"), time_ns=("time_ns", "sum"), min_ns=("min_ns", "min"), max_ns=("max_ns", "max"),
        names=("name", "size"),
    )  # fmt: skip
    rest["name"] = rest["short_name"] = rest.pop("names").map("({} more names)".format)
    shown = pd.concat([top, rest], ignore_index=True)
    return {
        "files": tables["files"],
        "families": tables["families"],
        "kernels": pa.Table.from_pandas(shown, preserve_index=False),
    }


#: So many kernels are in the notebook; more would make its picture slow.
_NOTEBOOK_KERNELS = 300
