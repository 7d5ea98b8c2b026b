"""What the gaps of a device add up to, while they go by."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from llm_idle_gaps.gap_columns import GapColumns
from llm_idle_gaps.stretches import Stretches
from llm_idle_gaps.tables import AFTER, BEFORE, BETWEEN, IN_STEP, PLACES
from recipes.base.intervals import covered_ns
from recipes.base.memory import sums
from recipes.base.tables import coded
from recipes.events.idle import CAUSES, Gaps, sum_inside
from recipes.steps.projection import Projection

#: Edges of the histogram in ns: three bins per decade from 100 ns to 10 s. Before and behind them lies a bin each.
EDGES_NS = np.round(10 ** (2 + np.arange(25) / 3)).astype(np.int64)
_BINS = len(EDGES_NS) + 1
#: So many gaps of a device get a row, the longest, whatever the user's shortest gap is.
LARGEST = 200
_CAUSES, _PLACES = pa.array(CAUSES, pa.string()), pa.array(PLACES, pa.string())


class GapSums:
    """Sums over the gaps of one device, int64.

    `by_window` idle ns by entry of the projection whose time it is (last row: no step's), one column per cause and last
    the gaps that began in a synchronising call; `by_step` the same inside each step of `entries`, also where another
    step overlaps it; `after_ns` idle by these from the step's end to the next one's start, on all of their GPUs;
    `counts`, `time_ns` of the histogram, by phase (last row: no step), cause and bin; `rows` the gaps that
    may get a row: long enough, or among the longest.
    """

    def __init__(
        self, projection: Projection, device: int, stretches: Stretches, phase_of_entry: np.ndarray, phases: list[str]
    ) -> None:
        """`phase_of_entry` (int64) is that of each entry, and last the one of no step; `phases` are their names."""
        self.entries = np.flatnonzero(projection.device == device)
        self._start_ns, self._end_ns = projection.start_ns[self.entries], projection.end_ns[self.entries]
        # Where steps overlap, the time after one begins when all before it are over.
        self._over_ns = np.maximum.accumulate(self._end_ns) if len(self.entries) else self._end_ns
        next_ns = np.append(self._start_ns[1:], self._over_ns[-1:])
        # What passes until a step is over on all of its GPUs, or from the next one's start on any, is not after it.
        first_ns, last_ns = (times_ns[self.entries] for times_ns in projection.whole_steps())
        self._after_ns = np.maximum(self._over_ns, np.maximum.accumulate(last_ns) if len(last_ns) else last_ns)
        self._until_ns = np.maximum(np.minimum(next_ns, np.append(first_ns[1:], self._over_ns[-1:])), self._after_ns)
        self._step, self._phase_of_entry = projection.step, phase_of_entry
        self._phases, self._stretches = pa.array(phases, pa.string()), stretches
        self.by_window = np.zeros((len(projection) + 1, len(CAUSES) + 1), dtype=np.int64)
        self.by_step = np.zeros((len(self.entries), len(CAUSES) + 1), dtype=np.int64)
        self.after_ns = np.zeros(len(self.entries), dtype=np.int64)
        self.counts = np.zeros((len(phases), len(CAUSES), _BINS), dtype=np.int64)
        self.time_ns = np.zeros_like(self.counts)
        self.rows: list[dict] = []

    def add(self, gaps: Gaps, split: dict[str, np.ndarray], gap_columns: GapColumns, min_gap_ns: float) -> None:
        """Takes some gaps, split by cause (as `split_by_cause` does), into the sums, and those of at least `min_gap_ns`
        into the rows."""
        duration_ns = gaps.end_ns - gaps.start_ns
        waiting = gap_columns.waiting(gaps)
        after_sync_ns = np.where(waiting >= 0, duration_ns, 0)
        parts = np.stack([*(split[cause] for cause in CAUSES), after_sync_ns], axis=1)
        cause = parts[:, : len(CAUSES)].argmax(axis=1)
        # No operation starts or ends inside a gap, so it lies in one stretch.
        entry = self._stretches.entry_at(gaps.start_ns)
        place = np.where(entry < 0, len(self.by_window) - 1, entry)
        for number in range(len(CAUSES) + 1):
            self.by_window[:, number] += sums(place, parts[:, number], len(self.by_window))
        self.by_step += sum_inside(gaps, parts, self._start_ns, self._end_ns)
        self.after_ns += covered_ns(self._after_ns, self._until_ns, (gaps.start_ns, gaps.end_ns))
        phase = self._phase_of_entry[entry]
        code = (phase * len(CAUSES) + cause) * _BINS + np.searchsorted(EDGES_NS, duration_ns, side="right")
        self.counts += np.bincount(code, minlength=self.counts.size).reshape(self.counts.shape)
        self.time_ns += sums(code, duration_ns, self.counts.size).reshape(self.counts.shape)
        wanted = duration_ns >= min_gap_ns
        if len(gaps) > LARGEST:
            least_ns = np.partition(duration_ns, -LARGEST)[-LARGEST]
            longer, equal = np.flatnonzero(duration_ns > least_ns), np.flatnonzero(duration_ns == least_ns)
            # Of equal ones the first, as everywhere: which ones argpartition takes differs between versions of NumPy.
            wanted[longer] = wanted[equal[: LARGEST - len(longer)]] = True
        else:
            wanted[:] = True
        chosen = np.flatnonzero(wanted)
        if len(chosen):
            some = Gaps(gaps.start_ns[chosen], gaps.end_ns[chosen], gaps.before[chosen], gaps.after[chosen])
            called = (split["sync"] + split["api"])[chosen] > 0
            placed = self._placed(some.start_ns, entry[chosen], cause[chosen], parts[chosen])
            times = {"start_ns": some.start_ns, "end_ns": some.end_ns, "duration_ns": duration_ns[chosen]}
            self.rows.append({**times, **placed, **gap_columns.columns(some, called, waiting[chosen])})

    def _placed(
        self, start_ns: np.ndarray, entry: np.ndarray, cause: np.ndarray, parts: np.ndarray
    ) -> dict[str, pa.Array]:
        """The columns of cause, phase, place and step."""
        step = np.append(self._step, 0)[entry]
        place = np.full(len(entry), -1)
        if len(self.entries):
            where = [entry >= 0, start_ns < self._start_ns[0], start_ns >= self._over_ns[-1]]
            place = np.select(where, [PLACES.index(one) for one in (IN_STEP, BEFORE, AFTER)], PLACES.index(BETWEEN))
        return {
            "cause": coded(cause, _CAUSES),
            "cause_ns": pa.array(parts[np.arange(len(cause)), cause]),
            "phase": coded(self._phase_of_entry[entry], self._phases),
            "place": coded(place, _PLACES),
            "step": pa.array(step, pa.int64(), mask=entry < 0),
        }
