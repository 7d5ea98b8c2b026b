"""What CUDA API calls do: launch, wait, allocate, capture ... The kinds are data, in `cuda_calls.tsv`."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recipes.base.rule_file import packaged_rows
from recipes.report.report import Report

#: Kinds of calls, as cuda_calls.tsv has them.
LAUNCH, GRAPH_LAUNCH, SYNC = "launch", "graph_launch", "sync"
CAPTURE_BEGIN, CAPTURE_END = "capture_begin", "capture_end"
LOAD, ALLOCATION, GRAPH_CREATION, COPY = "load", "allocation", "graph_creation", "copy"

# Calls carry the version of the interface that they came through.
_VERSION = r"_v\d+(_pt(sz|ds))?$"


def call_ids(report: Report, *kinds: str) -> np.ndarray:
    """The string ids, int64 in order, of the calls that are of one of the kinds (KeyError for one that is none)."""
    return report.strings.ids[is_of_kind(report.strings.values, *kinds)]


def is_of_kind(names: pa.Array, *kinds: str) -> np.ndarray:
    """Which of some texts (string[n]) name a call of one of the kinds, bool[n]. KeyError for an unknown kind."""
    hits = np.zeros(len(names), dtype=bool)
    # Strings hold the names of everything; few are calls.
    maybe = np.flatnonzero(
        pc.match_substring_regex(names, "^cu", ignore_case=True).fill_null(False).to_numpy(zero_copy_only=False)
    )
    patterns = [_patterns()[kind] for kind in kinds]
    texts = names.take(pa.array(maybe)).to_pylist()
    hits[maybe] = [any(pattern.match(text) for pattern in patterns) for text in texts]
    return hits


def call_names(report: Report) -> tuple[np.ndarray, pa.Array]:
    """The name of the call that each of the report's strings is, without its version: an index into the names, and one
    entry more at the end, -1, for no string. And the distinct names, string."""
    encoded = pc.replace_substring_regex(report.strings.values, _VERSION, "").dictionary_encode()
    return np.append(encoded.indices.fill_null(-1).to_numpy(), -1), encoded.dictionary


@cache
def _patterns() -> dict[str, re.Pattern[str]]:
    rows = packaged_rows(Path(__file__).with_name("cuda_calls.tsv"))
    return {row["kind"]: re.compile(row["pattern"]) for row in rows}
