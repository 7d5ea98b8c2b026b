"""Ranges that were seen only while a CUDA graph was captured, not when it ran."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from recipes.base.interval_lookup import Lookup
from recipes.base.units import format_count
from recipes.findings.finding import Finding
from recipes.findings.nvtx import LIBRARIES
from recipes.findings.subject import Subject

#: So many names are told.
_SHOWN = 3


def capture_ranges(subject: Subject) -> Iterator[Finding]:
    """Range names that occur inside the capture of a graph and nowhere else."""
    ranges, survey = subject.capture.ranges, subject.capture.survey
    if not len(ranges) or not len(survey.capture_ns):
        return
    lookup = Lookup(survey.capture_thread, survey.capture_ns, survey.capture_end_ns, np.arange(len(survey.capture_ns)))
    inside = lookup.find(ranges.global_tid, ranges.start_ns) >= 0
    own = ~np.isin(ranges.domain, [place for place, name in enumerate(ranges.domains) if name in LIBRARIES])
    only = np.setdiff1d(ranges.text[inside & own], ranges.text[~inside & own])
    if len(only):
        names = ", ".join(f"`{ranges.texts[code][:40]}`" for code in only[:_SHOWN].tolist())
        message = (
            f"{format_count(len(only), 'range name')} seen only while CUDA graphs were captured, not when they ran"
        )
        evidence = names + (", ..." if len(only) > _SHOWN else "")
        yield subject.found("capture_ranges", message, evidence, numbers={"names": len(only)})
