"""llm_kernel_families beside Nsight's own cuda_gpu_kern_sum, on one big report, in one run.

    .venv/bin/python benchmarks/kernel_families.py

The big report is a bundled one repeated along the time axis (5.2 million kernels, 11 million API calls). Both start
from its export, whole processes are timed, and memory is the peak of the summed resident memory of the process
tree. Nsight 2023.4's recipes want numpy 1.26, so they get the environment of the oldest versions.
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
        nsys, report, sqlite, parquet = big_report(args, folder)
        runs = [nsights("cuda_gpu_kern_sum", nsys, report, args.nsight_python)]
        runs += [ours("llm_kernel_families", export) for export in (parquet, sqlite)]
        print(beside(runs, folder, args.rounds))


if __name__ == "__main__":
    main()
