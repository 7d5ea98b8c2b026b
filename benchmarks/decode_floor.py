"""llm_decode_floor beside Nsight's own nvtx_gpu_proj_sum, and how its time grows with the report.

    .venv/bin/python benchmarks/decode_floor.py

The big report is that of kernel_families.py. Beside both stands what pyarrow alone needs to read the columns that
this recipe reads. Then the report in four sizes, for growth.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq
from measure import Run, arguments, beside, big_report, measure, nsights, ours

from benchmarks.big_report import build
from recipes.base.text_table import text_table

_COLUMNS = {
    "CUPTI_ACTIVITY_KIND_KERNEL": ["start", "end", "globalPid", "deviceId", "demangledName", "shortName",
                                   "correlationId"],
    "CUPTI_ACTIVITY_KIND_RUNTIME": ["start", "end", "globalTid", "correlationId", "nameId"],
    "NVTX_EVENTS": ["start", "end", "eventType", "text", "textId", "globalTid", "domainId"],
}  # fmt: skip
_MODEL = ("--model", "llama-3.1-8b", "--context", "1027")


def reading(parquet: Path) -> float:
    """Seconds that pyarrow needs for the columns, in this process."""
    started = time.perf_counter()
    for table, columns in _COLUMNS.items():
        pq.ParquetFile(parquet / f"{table}.parquet", pre_buffer=False).read(columns=columns)
    return time.perf_counter() - started


def growth(args, nsys: Path, folder: Path) -> str:
    """Time and memory at a fifth, two fifths, all and twice the size."""
    rows = []
    for repeats in (args.repeats // 5, args.repeats * 2 // 5, args.repeats, args.repeats * 2):
        _, parquet = build(args.report, folder / f"x{repeats}", repeats, str(nsys))
        kernels = pq.read_metadata(parquet / "CUPTI_ACTIVITY_KIND_KERNEL.parquet").num_rows
        one = measure(ours("llm_decode_floor", parquet, *_MODEL), folder)
        rows.append([f"{kernels / 1e6:.1f}", f"{one.seconds:.2f}", f"{one.seconds / kernels * 1e6:.2f}",
                     f"{one.memory_bytes / 1e6:,.0f}"])  # fmt: skip
    return text_table(["million kernels", "seconds", "seconds a million", "peak MB"], rows)


def main() -> None:
    """Builds the reports, measures, and prints the tables."""
    args = arguments(__doc__)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        nsys, report, _, parquet = big_report(args, folder)
        runs: list[Run] = [
            nsights("nvtx_gpu_proj_sum", nsys, report, args.nsight_python),
            ours("llm_decode_floor", parquet, *_MODEL),
        ]
        print(beside(runs, folder, args.rounds))
        print(f"\npyarrow alone reads the same columns in {min(reading(parquet) for _ in range(3)):.2f} s\n")
        print(growth(args, nsys, folder))


if __name__ == "__main__":
    sys.exit(main())
