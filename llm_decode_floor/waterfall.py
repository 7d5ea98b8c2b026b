"""What the time of each step consists of: parts that add up to its projected duration exactly."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from recipes.base import intervals
from recipes.base.memory import sums
from recipes.capture.capture import Capture
from recipes.events.gpu_work import GpuWork
from recipes.events.host_activity import HostActivity
from recipes.events.idle import CAUSES, find_gaps, split_by_cause, sum_inside
from recipes.events.launches import Launches
from recipes.kernels.work_families import NameFamilies, exposed_ns, passes
from recipes.steps.projection import Projection

#: Work of others on the device while the step runs: of another step, another process, or outside any step.
OTHER_WORK = "other_work"


def step_parts(
    capture: Capture, projection: Projection, family: np.ndarray, names: NameFamilies
) -> dict[str, np.ndarray]:
    """The ns of each part per entry of the projection, int64, zeros included.

    Each family's exclusive time among the step's own work (compute first, then copies, then communication, of which
    only what no other work on the device covers counts, whoever's that is), the work of others, and idle by cause, as
    `idle_<cause>`. `family` is an index into `names.families` per operation. PackError when the report is damaged.
    """
    communicates = names.communicating(capture.work.name)
    own = _exclusive_by_step(
        capture.work, projection, family, passes(capture.work.kind, communicates), len(names.families)
    )
    if communicates.any():
        own[:, names.families.index("communication")] = _exposed_by_step(capture.work, projection, communicates)
    parts = {name: own[:, code] for code, name in enumerate(names.families)}
    idle = np.zeros((len(projection), len(CAUSES)), dtype=np.int64)
    host = capture.host_times
    for device in range(len(capture.work.devices.numbers)):
        entries = np.flatnonzero(projection.device == device)
        rows = slice(None) if len(capture.work.devices.numbers) == 1 else np.flatnonzero(capture.work.device == device)
        span = (projection.start_ns[entries], projection.end_ns[entries])
        idle[entries] = _idle_by_cause(capture.work, rows, capture.launches, host, *span)
    # The causes of a gap add up to it, so what is not idle is busy.
    parts[OTHER_WORK] = projection.duration_ns - idle.sum(axis=1) - own.sum(axis=1)
    return {**parts, **{f"idle_{cause}": idle[:, number] for number, cause in enumerate(CAUSES)}}


def _exposed_by_step(work: GpuWork, projection: Projection, communicates: np.ndarray) -> np.ndarray:
    rows = np.flatnonzero(communicates & (projection.of_operation >= 0))
    return sums(projection.of_operation[rows], exposed_ns(work, communicates)[rows], len(projection))


def _exclusive_by_step(
    work: GpuWork, projection: Projection, family: np.ndarray, passes: Iterable[np.ndarray], count: int
) -> np.ndarray:
    """ns by entry and family: what each family adds to the union of the entry's own operations."""
    # All entries on one line, one behind the other, so that none meets another.
    duration_ns = projection.duration_ns
    line_ns = np.cumsum(duration_ns) - duration_ns - projection.start_ns
    total = np.zeros(len(projection) * count, dtype=np.int64)
    inside = projection.of_operation >= 0

    def times_ns(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        moved_ns = line_ns[projection.of_operation[rows]]
        return work.start_ns[rows] + moved_ns, work.end_ns[rows] + moved_ns

    in_passes = (np.flatnonzero(chosen & inside) for chosen in passes)
    for rows, order, added_ns in intervals.exclusive((rows for rows in in_passes if len(rows)), times_ns):
        code = (projection.of_operation[rows].astype(np.int64) * count + family[rows])[order]
        total += sums(code, added_ns, len(total))
    return total.reshape(len(projection), count)


def _idle_by_cause(
    work: GpuWork,
    rows: np.ndarray | slice,
    launches: Launches,
    host: HostActivity,
    start_ns: np.ndarray,
    end_ns: np.ndarray,
) -> np.ndarray:
    """ns by entry and cause, over the gaps of some operations that lie inside each entry."""
    total = np.zeros((len(start_ns), len(CAUSES)), dtype=np.int64)
    for gaps in find_gaps(work, rows):
        split = split_by_cause(work, gaps, launches, host)
        total += sum_inside(gaps, np.stack([split[cause] for cause in CAUSES], axis=1), start_ns, end_ns)
    return total
