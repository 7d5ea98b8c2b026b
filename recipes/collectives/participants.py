"""Who took part: the devices of all reports, each with the number that stands for it."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pandas as pd

from recipes.base.errors import PackError


@dataclass(frozen=True)
class Participants:
    """One row per device with communication, in order of rank: report, device, rank. `known` says that ranks are those
    of the job, not places; `sources` how they are known."""

    rows: pd.DataFrame
    known: bool
    sources: str

    def __len__(self) -> int:
        return len(self.rows)


def find_participants(communication: pd.DataFrame, files: pd.DataFrame) -> Participants:
    """The devices that communicate. PackError when two reports claim one rank."""
    rows = communication[["report", "device", "rank"]].drop_duplicates().astype({"report": str})
    rows = rows.sort_values("device").sort_values("report", key=_in_order, kind="stable").reset_index(drop=True)
    alone = rows.groupby("report")["device"].transform("size") == 1
    named = rows[alone & rows["rank"].notna()]
    twice = named[named["rank"].duplicated(keep=False)]
    if len(twice):
        names = ", ".join(twice.sort_values("rank")["report"].head(4))
        rank = int(twice["rank"].min())
        raise PackError(
            f"rank {rank} is that of several reports ({names}): two runs, or one report twice; give those of one run, "
            "or their ranks with --rank-map"
        )
    if len(rows) and len(named) == len(rows):
        rows = rows.sort_values("rank").astype({"rank": "int64"}).reset_index(drop=True)
        sources = sorted(set(files.loc[files["report"].isin(rows["report"]), "rank_source"].dropna()))
        return Participants(rows, True, ", ".join(sources))
    rows["rank"] = range(len(rows))
    return Participants(rows, False, "order of reports and devices")


def _in_order(names: pd.Series) -> pd.Series:
    """What sorts names by the numbers in them: worker-9 before worker-10."""
    parts = {name: [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
             for name in names.unique().tolist()}  # fmt: skip
    place = {name: place for place, name in enumerate(sorted(parts, key=lambda name: (parts[name], name)))}
    return names.map(place)
