"""Are there NVTX ranges that can tell steps and phases?"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from recipes.base.text_table import shortened
from recipes.base.units import format_count
from recipes.findings.finding import Finding
from recipes.findings.subject import Subject

_NAME_WIDTH = 40

#: Domains of libraries, whose ranges name functions and no steps.
LIBRARIES = frozenset(
    {"NCCL", "CCCL", "cuBLAS", "cuBLASLt", "cuDNN", "cuSPARSE", "cuSOLVER", "cuFFT", "libcudf", "NVSHMEM"}
)

# Operators of PyTorch, as emit_nvtx and nsys --pytorch name their ranges.
_OPERATOR = re.compile(r"(?:aten|autograd|c10d?|prims|torch|torchvision)::|torch\.nn\.|\w+Backward\d*$")
#: More than so many of them, and for each launch, are felt: each costs the host time, as a launch does.
_MANY, _PER_LAUNCH = 100, 0.5


def operator_ranges(subject: Subject) -> Iterator[Finding]:
    """A range around each operator, which costs the host as much as the operator itself."""
    ranges, launches = subject.capture.ranges, len(subject.capture.survey.recorded)
    operators = np.array([_OPERATOR.match(text) is not None for text in ranges.texts], dtype=bool)
    count = int(np.count_nonzero(operators[ranges.text]))
    if count > max(_MANY, _PER_LAUNCH * launches):
        message = "NVTX ranges around each operator slow the host: idle and step times are longer than without them"
        evidence = f"{format_count(count, 'range')} of PyTorch operators for {format_count(launches, 'launch call')}"
        yield subject.found("operator_ranges", message, evidence, numbers={"ranges": count, "launches": launches})


def no_ranges(subject: Subject) -> Iterator[Finding]:
    """No range at all, or only those of libraries."""
    capture = subject.capture
    domains = capture.domains
    if domains.keys() - LIBRARIES:
        return
    if len(capture.steps):
        so = "steps are inferred from repetition and have no names"
    else:
        so = "everything is one phase, `all`"
    if domains:
        told = ", ".join(f"{name} {count:,}" for name, count in sorted(domains.items()))
        yield subject.found("library_ranges", f"only NVTX ranges of libraries, so {so}", f"ranges: {told}")
    else:
        off = subject.option("COLLECT_NVTX_TRACE") == "false"
        evidence = "NVTX was not traced" if off else "NVTX was traced, 0 ranges" if subject.options else "0 ranges"
        yield subject.found("no_nvtx", f"no NVTX ranges, so {so}", evidence)


def no_steps(subject: Subject) -> Iterator[Finding]:
    """Ranges of the program, of which none is a step, and work that does not repeat."""
    capture = subject.capture
    if len(capture.steps) or not capture.domains.keys() - LIBRARIES:
        return
    names = ", ".join(f"`{shortened(name, _NAME_WIDTH)}`" for name in capture.commonest)
    message = "no NVTX range has the name of a step, so everything is one phase, `all`"
    count = sum(capture.domains.values())
    yield subject.found("no_steps", message, f"{count:,} ranges, most often {names}", numbers={"ranges": count})
