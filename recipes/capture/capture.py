"""A report as all recipes see it: what is known of it is worked out here, once, when it is first used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np

from recipes.capture.edges import REASONS, WHOLE, incomplete_steps, skip, with_one_offs
from recipes.capture.one_offs import OneOff, Seen, find_one_offs
from recipes.capture.passes import Called, attribute, read_calls
from recipes.capture.processes import Process, processes_of
from recipes.events.api_calls import count_graph_launches
from recipes.events.api_survey import ApiSurvey
from recipes.events.gpu_work import GpuWork, Span, read_gpu_work, select
from recipes.events.host_activity import HostActivity
from recipes.events.launch_state import graph_launches
from recipes.events.launches import Launches
from recipes.kernels.context import families_in_context
from recipes.kernels.families import load_rules
from recipes.kernels.work_families import NameFamilies
from recipes.report.facts import Facts, read_facts
from recipes.report.report import Report
from recipes.steps.attribution import WAYS, Attribution
from recipes.steps.inference import infer_steps
from recipes.steps.layers import Layers, find_layers
from recipes.steps.phases import PhaseRule
from recipes.steps.projection import Projection, project
from recipes.steps.ranges import Ranges, commonest_names, ranges_by_domain, read_ranges
from recipes.steps.steps import Steps, find_steps

#: The phase that stands for the whole window, and the one for work in no step.
ALL, OUTSIDE = "all", "outside"


class Capture:
    """One report, or the part of it that touches a time range.

    What it offers is worked out on first use, by one pass over the report's long tables where possible: a recipe that
    wants `launches` or `survey` asks for one of them first, since `attribution` then comes with them. Reading raises
    PackError when the report's export is damaged.
    """

    def __init__(
        self,
        report: Report,
        span: Span,
        rules: Sequence[PhaseRule],
        facts: Facts | None = None,
        *,
        skip_steps: int = 0,
    ) -> None:
        self.report, self.span, self._rules, self._skip_steps = report, span, rules, skip_steps
        #: What the report says of itself and the user of it.
        self.facts = facts or read_facts(report, "")
        self._families: dict[Path | None, NameFamilies] = {}

    @property
    def filtered(self) -> bool:
        """Whether only a part of the report is looked at."""
        return self.span != Span()

    # The whole report. Steps are known whole before they are cut.

    @cached_property
    def _whole_work(self) -> GpuWork:
        return read_gpu_work(self.report)

    @cached_property
    def ranges(self) -> Ranges:
        """Its NVTX ranges, whatever the time range."""
        work = self._whole_work
        return read_ranges(self.report, int(work.end_ns.max()) if len(work) else 0)

    @cached_property
    def domains(self) -> dict[str, int]:
        """How many ranges there are in each NVTX domain; the default domain is empty text."""
        return ranges_by_domain(self.ranges)

    @cached_property
    def commonest(self) -> list[str]:
        """Its commonest range names."""
        return commonest_names(self.ranges)

    @cached_property
    def _named_steps(self) -> Steps:
        return find_steps(self.ranges, self._rules)

    @cached_property
    def _called(self) -> Called:
        return read_calls(self.report, self._whole_work, self._named_steps, self.span)

    @cached_property
    def _steps(self) -> tuple[Steps, Attribution]:
        """The steps and whose work is whose, of the whole report: by NVTX ranges, else by repetition."""
        if not len(self._named_steps):
            return infer_steps(self.report, self._whole_work)
        if "_called" in self.__dict__:
            return self._named_steps, self._called.attribution
        return self._named_steps, attribute(self.report, self._whole_work, self._named_steps)

    @property
    def steps(self) -> Steps:
        """Its steps, whole; none found: no rows."""
        return self._steps[0]

    @cached_property
    def survey(self) -> ApiSurvey:
        """What its API calls tell as a whole."""
        return self._called.survey

    @cached_property
    def graph_launches(self) -> int:
        """How many API calls launched a CUDA graph."""
        return self.survey.graph_launches if "_called" in self.__dict__ else count_graph_launches(self.report)

    @cached_property
    def lost_graph_launches(self) -> int:
        """How many of them left no operation in the report."""
        return max(self.graph_launches - int(graph_launches(self.report, self._called.launches).sum()), 0)

    @cached_property
    def processes(self) -> list[Process]:
        """The processes that have to do with CUDA or with this capture, in order of id."""
        return processes_of(self.report, self._whole_work.devices.pids)

    # The part that is looked at.

    @cached_property
    def _kept(self) -> np.ndarray:
        return self.span.touches(self._whole_work.start_ns, self._whole_work.end_ns)

    @cached_property
    def work(self) -> GpuWork:
        """The GPU's work."""
        return select(self._whole_work, self._kept) if self.filtered else self._whole_work

    @cached_property
    def attribution(self) -> Attribution:
        """The step of each operation."""
        whole = self._steps[1]
        return replace(whole, step=whole.step[self._kept], way=whole.way[self._kept]) if self.filtered else whole

    @cached_property
    def launches(self) -> Launches:
        """The launch of each operation."""
        whole = self._called.launches
        return replace(whole, of_operation=whole.of_operation[self._kept]) if self.filtered else whole

    @cached_property
    def layers(self) -> Layers:
        """The range inside its step that each operation belongs to."""
        layers = find_layers(self.report, self._whole_work, self._called.launches, self.ranges, self.steps)
        if not self.filtered:
            return layers
        kept = self._kept
        return replace(layers, of_operation=layers.of_operation[kept], by_capture=layers.by_capture[kept])

    @cached_property
    def _kept_and_lost(self) -> tuple[np.ndarray, np.ndarray]:
        """Of each step, how many of its operations are looked at, and how many are not."""
        step, count = self._steps[1].step, len(self.steps)
        kept = self._kept if self.filtered else np.ones(len(step), dtype=bool)
        of, others = (np.bincount(step[(step >= 0) & chosen], minlength=count) for chosen in (kept, ~kept))
        return of, others

    @cached_property
    def within(self) -> np.ndarray:
        """Of each step, whether it lies in the time range looked at, in part at least; without work, its range does."""
        kept, lost = self._kept_and_lost
        return (kept > 0) | (lost == 0) & self.span.touches(self.steps.start_ns, self.steps.end_ns)

    @cached_property
    def cut(self) -> np.ndarray:
        """Of each step, whether the time range cuts it, bool per step."""
        kept, lost = self._kept_and_lost
        return (kept > 0) & (lost > 0)

    @cached_property
    def projection(self) -> Projection:
        """The steps as the GPU ran them."""
        whole = self._steps[1]
        return project(self.work, self.attribution.step, self.steps, ~whole.working & (whole.lost > 0))

    @cached_property
    def _incomplete(self) -> np.ndarray:
        """Why steps do not count that are incomplete or skipped, int8 per step."""
        if len(self._named_steps):
            _ = self._called  # one pass for all that one-off events are looked for in
        reason = incomplete_steps(self.report, self.work, self.steps, self.attribution, self.cut)
        return skip(reason, self.steps, self.within, self._skip_steps)

    @cached_property
    def one_offs(self) -> list[OneOff]:
        """The one-off events in steps that are whole else."""
        counted = self._incomplete[self.projection.step] == WHOLE
        if not counted.any():
            return []
        communicates = self.families().communicating(self.work.name)
        return find_one_offs(Seen(self.work, self.steps, self.projection, counted, communicates, self.survey))

    @cached_property
    def _edge_code(self) -> np.ndarray:
        return with_one_offs(self._incomplete, self.one_offs)

    @cached_property
    def edge(self) -> np.ndarray:
        """Which steps do not stand for the others (incomplete, hit by a one-off event, skipped), bool per step."""
        return self._edge_code != WHOLE

    @cached_property
    def edge_reason(self) -> np.ndarray:
        """Why they do not, one of REASONS, object per step; None for steps that count."""
        return np.array([*REASONS, None], dtype=object)[self._edge_code]

    def families(self, rules: Path | None = None) -> NameFamilies:
        """The family of each kernel name, a user's rules in front. PackError when their file is none."""
        if rules not in self._families:
            self._families[rules] = families_in_context(self.work, load_rules(rules), self.attribution.step)
        return self._families[rules]

    @cached_property
    def host(self) -> HostActivity:
        """What the launching threads did, with the names of their calls."""
        return HostActivity(self.report, self.launches.thread, named=True)

    @property
    def host_times(self) -> HostActivity:
        """The same without names, which takes less memory; not kept."""
        return self.host if "host" in self.__dict__ else HostActivity(self.report, self.launches.thread)

    def share_passes(self) -> None:
        """Does each pass over the API calls for all that can be known by it: where several analyses share a capture."""
        if len(self._whole_work):
            _ = self._called, self.host

    # What is told of it.

    def phases(self) -> list[tuple[str, np.ndarray | slice]]:
        """Each phase and what selects its operations: `all`, the phases that were found, `outside` the steps.

        The selection is a mask, bool per operation; for `all` a full slice.

        Work in skipped steps counts as outside.
        """
        everything: list[tuple[str, np.ndarray | slice]] = [(ALL, slice(None))]
        if not len(self.steps):
            return everything
        step = self.attribution.step
        phase_of_step = self.steps.phase
        if self._skip_steps:
            skipped = skip(np.full(len(self.steps), WHOLE, dtype=np.int8), self.steps, self.within, self._skip_steps)
            phase_of_step = np.where(skipped == WHOLE, phase_of_step, -1)
        phase = np.where(step >= 0, phase_of_step[np.maximum(step, 0)], -1)
        named = [(name, phase == code) for code, name in enumerate(self.steps.phases)]
        return [*everything, *named, (OUTSIDE, phase < 0)]

    def phase_rule(self) -> str | None:
        """The rules that gave the steps, each with its steps looked at, of all processes; None without steps."""
        if not len(self.steps):
            return None
        counts: Counter[str] = Counter()
        for pid, rule in self.steps.rules.items():
            counts[rule] += int(np.count_nonzero(self.within & (self.steps.pid == pid)))
        return "; ".join(f"{rule} ({count:,} steps)" for rule, count in sorted(counts.items()))

    def coverage(self) -> str:
        """How the steps were found and the share of GPU time in them, by the way it came there; empty without work."""
        ways = self.attributed_by_way
        if not len(self.work):
            return ""
        if not ways:
            return "none found: no NVTX range has the name of a step, and no repetition was recognised"
        shares = [f"{share * 100:.1f} % by {way}" for way, share in ways.items() if share]
        outside = f"{(1 - sum(ways.values())) * 100:.1f} % outside"
        if self.steps.inferred:
            shares = [f"{sum(ways.values()) * 100:.1f} % in steps"]
        return f"{self.phase_rule()}; of GPU time {', '.join([*shares, outside])}"

    def attributed_share(self) -> float | None:
        """The share of GPU time that lies in steps; None without steps."""
        ways = self.attributed_by_way
        return None if ways is None else sum(ways.values())

    @cached_property
    def attributed_by_way(self) -> dict[str, float] | None:
        """The share of GPU time that came to its step each way; None without steps."""
        if not len(self.steps) or not len(self.work):
            return None
        durations_ns = self.work.end_ns - self.work.start_ns
        # Shifted by one: bincount takes no negative numbers, and -1 is no way at all.
        time_ns = np.bincount(self.attribution.way + 1, weights=durations_ns, minlength=len(WAYS) + 1)
        return {way: float(time_ns[number + 1] / max(time_ns.sum(), 1)) for number, way in enumerate(WAYS)}
