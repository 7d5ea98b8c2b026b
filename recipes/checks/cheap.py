"""The checks that cost next to nothing: every recipe runs them for its quality line."""

from __future__ import annotations

from recipes.checks.diagnostics import diagnostics
from recipes.checks.finding import Finding
from recipes.checks.processes import idle_contexts, missing_processes
from recipes.checks.ranges import no_ranges
from recipes.checks.remedies import in_order
from recipes.checks.steps import little_in_steps, lost_launches, silent_steps
from recipes.checks.subject import Subject
from recipes.checks.work import device_identity, dropped_records, no_gpu_work, opaque_graphs, partial_export

_CHECKS = (
    missing_processes, idle_contexts, opaque_graphs, no_ranges, silent_steps, little_in_steps, lost_launches,
    device_identity, dropped_records, partial_export, diagnostics,
)  # fmt: skip


def cheap_checks(subject: Subject) -> list[Finding]:
    """What limits a capture, as far as it can be told from what every recipe reads anyway."""
    if len(subject.capture.work):
        return in_order(finding for check in _CHECKS for finding in check(subject))
    beside = () if subject.capture.filtered else missing_processes(subject)
    return in_order([no_gpu_work(subject), *beside, *diagnostics(subject)])
