"""The quality line: what in a report limits the numbers drawn from it. Cheap checks only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recipes.capture.capture import Capture
from recipes.events.gpu_work import KERNEL, GpuWork
from recipes.findings.finding import ERROR, INFO, WARN, worst
from recipes.findings.subject import Subject

_LEVELS = {ERROR: "bad", WARN: "warn", INFO: "ok", "": "ok"}


@dataclass(frozen=True)
class Quality:
    """`quality` ok, warn or bad; `status` ok or empty; `message` one sentence a finding, empty when ok."""

    quality: str
    status: str
    message: str


def judge(capture: Capture) -> Quality:
    """How far a report's numbers can be trusted."""
    findings = Subject(capture).quality_findings
    told = [finding.line for finding in findings if finding.severity != INFO]
    level = _LEVELS[worst(finding.severity for finding in findings)]
    return Quality(level, "ok" if len(capture.work) else "empty", "; ".join(told))


def kernel_count(work: GpuWork) -> int:
    """How many operations are kernels."""
    return int(np.count_nonzero(work.kind == KERNEL))


def window_ns(work: GpuWork) -> int | None:
    """First start to last end of all GPU work, in ns; None without any."""
    return int(work.end_ns.max() - work.start_ns.min()) if len(work) else None
