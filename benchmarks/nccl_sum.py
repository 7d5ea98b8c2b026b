"""llm_nccl_sum on two large ranks, beside Nsight's own nccl_sum on the same reports; and matching alone.

    .venv/bin/python benchmarks/nccl_sum.py

Whole processes, exports excluded. nccl_sum sums NVTX ranges of NCCL; it matches nothing and looks at no kernel.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
from measure import ROOT, Run, arguments, beside, big_report, nsights, ours

from recipes.collectives.matching import match_sets, rank_sets

_RANKS = [ROOT / "fixtures" / "2023.4.4" / f"tp_eager_rank{rank}.nsys-rep" for rank in (0, 1)]


def matching(collectives: int) -> float:
    """Seconds to match so many collectives of two ranks."""
    random = np.random.default_rng(1)
    one = pd.DataFrame(
        {
            "nth_step": np.arange(collectives) // 100, "start_ns": np.arange(collectives) * 1_000,
            "duration_ns": random.integers(100, 900, collectives), "phase": "decode", "name": "k",
            "operation": "all_reduce", "communicator": "a", "stream": 7, "clock_ns": 0, "clock_known": True,
            "edge": False,
        }
    )  # fmt: skip
    both = pd.concat([one.assign(report=0), one.assign(report=1)], ignore_index=True)
    participant = np.repeat([0, 1], collectives)
    begin = time.perf_counter()
    match_sets(both, participant, rank_sets(both, participant, np.arange(2), None))
    return time.perf_counter() - begin


def main() -> None:
    """Builds the reports, measures both several times, and prints the table."""
    args = arguments(__doc__)
    with tempfile.TemporaryDirectory() as temporary:
        exports = []
        for number, args.report in enumerate(_RANKS):
            nsys, report, _, parquet = big_report(args, (args.folder or Path(temporary)) / f"rank{number}")
            exports.append((report, parquet))
        theirs = nsights("nccl_sum", nsys, exports[0][0], args.nsight_python)
        own = ours("llm_nccl_sum", exports[0][1])
        given = [parquet for _, parquet in exports]
        place = list(own.command).index(given[0])
        both = Run("llm_nccl_sum (2 ranks)", [*own.command[:place], *given, *own.command[place + 1 :]])
        print(beside([theirs, own, both], args.folder or Path(temporary), args.rounds))
        print(f"\nmatching 2 x 1,000,000 collectives takes {matching(1_000_000):.2f} s")


if __name__ == "__main__":
    main()
