"""Which step each GPU operation belongs to, by the API call that launched it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from recipes.base.interval_lookup import Lookup
from recipes.events.api_calls import ApiCalls
from recipes.events.devices import pid_of
from recipes.events.graph_captures import while_capturing
from recipes.events.launch_ids import NONE, LaunchIds
from recipes.steps.steps import Steps

#: An operation in no step; one whose launch is not in the report.
OUTSIDE, NO_LAUNCH = -1, -2
#: How an operation came to its step: launched by the step's own thread, by another thread of the process that has
#: no steps (PyTorch launches the backward pass so), or while a start/end range was open: one of the launching thread's
#: own; else, if that thread starts no steps and has no ranges of its own, as a data loader has, any of the process.
WAYS = ("same thread", "other thread", "time")


@dataclass(frozen=True)
class Attribution:
    """For each operation its step (int32; OUTSIDE, NO_LAUNCH) and way (int8, an index into WAYS; -1 in no step).

    For each step (int64) `launches`, the calls whose operations are in it, and `lost`, launch calls inside it of which
    the report has no operation.
    """

    step: np.ndarray
    way: np.ndarray
    launches: np.ndarray
    lost: np.ndarray

    @cached_property
    def working(self) -> np.ndarray:
        """Which steps have operations, bool per step."""
        return np.bincount(self.step[self.step >= 0], minlength=len(self.launches)) > 0


class Attributor:
    """Attributes launches to steps while all API calls go by."""

    def __init__(self, ids: LaunchIds, steps: Steps) -> None:
        self._ids, self._steps, self._resolver = ids, steps, _Resolver(steps)
        self._of_launch = np.full(len(ids), NO_LAUNCH * len(WAYS), dtype=np.int32)
        self._silent = [(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))]

    def take(self, calls: ApiCalls) -> None:
        """Attributes the launches among some calls, and notes those that left no work."""
        working = calls.launch != NONE
        launch = calls.launch[working]
        self._of_launch[launch] = self._resolver.resolve(calls.thread[working], calls.start_ns[working])
        silent = np.flatnonzero(calls.launching & ~working)
        silent = silent[np.isin(calls.pid[silent], self._ids.processes)]
        self._silent.append((calls.thread[silent], calls.start_ns[silent]))

    def attribution(self, captures: tuple[np.ndarray, np.ndarray, np.ndarray]) -> Attribution:
        """The step of each operation. Launches in `captures` of graphs, as graph_captures.captures gives them (int64
        each), lack no work.

        PackError when host times lie farther apart than any capture lasts.
        """
        thread, start_ns = (np.concatenate(column) for column in zip(*self._silent, strict=True))
        kept = ~while_capturing(pid_of(thread), start_ns, captures)
        lost = _per_step(self._resolver.resolve(thread[kept], start_ns[kept]), len(self._steps))
        launches = _per_step(self._of_launch, len(self._steps))
        code = self._of_launch[self._ids.of_operation]
        way = (code % len(WAYS)).astype(np.int8)
        way[code < 0] = -1
        code //= len(WAYS)
        return Attribution(code, way, launches, lost)


def _per_step(code: np.ndarray, count: int) -> np.ndarray:
    """How many of the codes name each step."""
    return np.bincount(code[code >= 0] // len(WAYS), minlength=count)


class _Resolver:
    """Finds the step of a call by its thread and start."""

    def __init__(self, steps: Steps) -> None:
        own, timed = np.flatnonzero(steps.by_thread), np.flatnonzero(~steps.by_thread)
        self._threads, self._busy_threads = np.unique(steps.global_tid[own]), steps.busy_threads
        self._by_thread = Lookup(steps.global_tid[own], steps.start_ns[own], steps.end_ns[own], own)
        self._by_process = Lookup(steps.pid[own], steps.start_ns[own], steps.end_ns[own], own)
        self._timed_threads = np.unique(steps.global_tid[timed])
        self._by_own_time = Lookup(steps.global_tid[timed], steps.start_ns[timed], steps.end_ns[timed], timed)
        self._by_time = Lookup(steps.pid[timed], steps.start_ns[timed], steps.end_ns[timed], timed)

    def resolve(self, thread: np.ndarray, start_ns: np.ndarray) -> np.ndarray:
        """The code of each call: its step times ways plus the way; negative for none."""
        code = np.full(len(thread), OUTSIDE * len(WAYS), dtype=np.int32)
        pid = pid_of(thread)
        every, timing = np.ones(len(thread), dtype=bool), np.isin(thread, self._timed_threads)
        searches = (
            (0, self._by_thread, thread, every),
            (2, self._by_own_time, thread, every),
            (1, self._by_process, pid, ~timing & ~np.isin(thread, self._threads)),
            (2, self._by_time, pid, ~timing & ~np.isin(thread, self._busy_threads)),
        )
        # Each search decides what those before it could not.
        for way, lookup, group, allowed in searches:
            open_rows = np.flatnonzero(allowed & (code < 0))
            step = lookup.find(group[open_rows], start_ns[open_rows])
            hit = step >= 0
            code[open_rows[hit]] = step[hit] * len(WAYS) + way
        return code
