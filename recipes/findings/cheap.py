"""The checks that cost next to nothing: every recipe runs them for its quality line."""

from __future__ import annotations

from recipes.findings.coverage import little_in_steps, lost_launches, silent_steps
from recipes.findings.diagnostics import diagnostics
from recipes.findings.finding import Finding
from recipes.findings.nvtx import no_ranges, no_steps
from recipes.findings.processes import idle_contexts, missing_processes
from recipes.findings.remedies import in_order
from recipes.findings.subject import Subject
from recipes.findings.work import (
    device_identity,
    dropped_records,
    no_api_calls,
    no_gpu_work,
    opaque_graphs,
    partial_export,
)  # fmt: skip

_CHECKS = (
    idle_contexts, opaque_graphs, no_ranges, no_steps, no_api_calls, silent_steps, little_in_steps, lost_launches,
    device_identity, dropped_records, partial_export, diagnostics,
)  # fmt: skip
#: What follows from a cause that is told: cause to effects.
_EFFECTS = {
    "no_api_calls": {"steps_silent", "steps_share"},
    "records_stop": {"steps_silent", "steps_share", "lost_records"},
}


def cheap_checks(subject: Subject) -> list[Finding]:
    """What limits a capture, as far as it can be told from what every recipe reads anyway."""
    processes = subject.capture.processes
    if not len(subject.capture.work):
        beside = () if subject.capture.filtered else missing_processes(subject, processes)
        return in_order([no_gpu_work(subject, processes), *beside, *diagnostics(subject)])
    findings = [finding for check in _CHECKS for finding in check(subject)]
    return in_order(without_effects([*missing_processes(subject, processes), *findings]))


def without_effects(findings: list[Finding]) -> list[Finding]:
    """The findings without those that another one explains."""
    explained = {effect for finding in findings for effect in _EFFECTS.get(finding.check, ())}
    return [finding for finding in findings if finding.check not in explained]
