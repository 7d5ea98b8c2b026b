"""llm_idle_gaps beside Nsight's own gpu_gaps, on the same big report.

    .venv/bin/python benchmarks/idle_gaps.py

Both run as whole processes, the export excluded. gpu_gaps is asked for every gap, as llm_idle_gaps counts them all.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from measure import arguments, beside, big_report, nsights, ours


def main() -> None:
    """Builds the report, measures both several times, and prints the table."""
    args = arguments(__doc__)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        nsys, report, _, parquet = big_report(args, folder)
        runs = [
            nsights("gpu_gaps", nsys, report, args.nsight_python, "--gap", "0"),
            ours("llm_idle_gaps", parquet),
            ours("llm_idle_gaps", parquet, "--min-gap", "0ns", named=True),
        ]
        print(beside(runs, folder, args.rounds))


if __name__ == "__main__":
    main()
