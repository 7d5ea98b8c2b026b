"""Which ranks are judged, which of them are late, and whether their GPU or their host is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa

from llm_nccl_sum.analysis import Settings
from recipes.collectives.lateness import Late
from recipes.collectives.matching import Collectives
from recipes.collectives.participants import Participants
from recipes.collectives.verdicts import Verdict, is_enough, judge

#: Of what a rank comes later, this share is one thing's doing where that alone is named; with less it is both.
_MOST = 0.75
#: Communication that other work overlaps to more than this does not wait behind that work.
_EXPOSED = 0.5


@dataclass(frozen=True)
class LateRank:
    """A late rank as a participant: ns per step that it costs, and by which its GPU works and idles longer before its
    collectives than those of other ranks; `reason` gpu, host, both, or None where that cannot be told; the places in
    the step, from 1 on, of the collectives it is late at, None for throughout."""

    participant: int
    cost_ns: float
    work_ns: float
    idle_ns: float
    reason: str | None
    places: tuple[int, ...] | None


def verdicts_of(
    sets: list[Collectives], participants: Participants, files: pa.Table, world_size: int, settings: Settings
) -> list[Verdict]:
    """The verdict of each set; the launcher told of so many ranks, 0 where it did not."""
    missing = _missing(participants, files, world_size, settings)
    judged, ranks = sum(map(is_enough, sets)), participants.rows["rank"].to_numpy(dtype=np.int64)
    return [judge(found, missing or _short(found, settings), judged, ranks) for found in sets]


def _missing(participants: Participants, files: pa.Table, world_size: int, settings: Settings) -> int:
    """How many ranks are known not to be here: by what the launcher told, by a gap in the ranks, or by a report without
    communication."""
    if not participants.known:
        return 0
    here = set(participants.rows["rank"].tolist())
    given = {rank for rank in files["rank"].to_pylist() if rank is not None}
    # The user's number of ranks tells how large a set is, and so which are missing from it.
    expected = here | given if settings.ranks else here | given | set(range(max(max(here) + 1, world_size)))
    return len(expected - here)


def _short(found: Collectives, settings: Settings) -> int:
    """How many ranks a set lacks by the user's number, where its communicator is not known."""
    return 0 if found.communicator or not settings.ranks else max(settings.ranks - len(found.members), 0)


def late_ranks_of(kernels: pd.DataFrame, sets: list[Collectives], verdicts: list[Verdict]) -> list[LateRank]:
    """The late ranks of all sets, the costliest first; `kernels` is the table that the sets are matched of."""
    found = [_late(kernels, one, late) for one, verdict in zip(sets, verdicts, strict=True) for late in verdict.late]
    return sorted(found, key=lambda one: -one.cost_ns)


def _late(kernels: pd.DataFrame, found: Collectives, late: Late) -> LateRank:
    size = len(found.members)
    place = found.place[::size]
    here = place >= 0 if late.places is None else np.isin(place, late.places)
    steps = max(len(np.unique(found.vote[::size][place >= 0])), 1)
    mine = kernels.iloc[found.rows]
    more: list[float] = []
    for name in ("work_before_ns", "idle_before_ns"):
        before_ns = mine[name].to_numpy(dtype=float).reshape(-1, size)[here]
        others_ns = (before_ns.sum(axis=1) - before_ns[:, late.member]) / (size - 1)
        # The first kernel of a report has nothing before it.
        more.append(float(np.nansum(before_ns[:, late.member] - others_ns)) / steps)
    work_ns, idle_ns = more
    exposed = mine["exposed_ns"].sum() >= _EXPOSED * mine["duration_ns"].sum()
    reason = _reason(work_ns, idle_ns) if exposed else None
    places = None if late.places is None else tuple(one // found.phases + 1 for one in late.places)
    return LateRank(int(found.members[late.member]), late.cost_ns, work_ns, idle_ns, reason, places)


def _reason(work_ns: float, idle_ns: float) -> str | None:
    total_ns = work_ns + idle_ns
    if total_ns <= 0:
        return None
    if work_ns >= _MOST * total_ns:
        return "gpu"
    return "host" if idle_ns >= _MOST * total_ns else "both"
