"""llm_decode_floor on a report with ten million NVTX ranges of 16,000 names.

    .venv/bin/python benchmarks/many_ranges.py

The ranges are pairs, one inside the other, spread over a bundled report whose kernels stay as they are. Once they are
layers beside the report's own steps, and once every pair is a step, and the only ones.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from measure import arguments, big_report, measure, ours

from recipes.base.text_table import text_table

_RANGES, _NAMES = 10_000_000, 16_000
_GROUP = 10_000


def add_ranges(parquet: Path, text: str, *, alone: bool) -> None:
    """Adds ranges to an export, or puts them in place of its own, with names that are `text` with a number in it."""
    strings = pq.read_table(parquet / "StringIds.parquet")
    ids = np.arange(_NAMES) + 1 + int(np.max(strings["id"].to_numpy()))
    names = pa.table({"id": ids, "value": [text.format(number) for number in range(_NAMES)]})
    pq.write_table(pa.concat_tables([strings, names.cast(strings.schema)]), parquet / "StringIds.parquet")
    events = pq.read_table(parquet / "NVTX_EVENTS.parquet")
    ranges = events.filter(pa.array(events["eventType"].to_numpy() == 59))
    first_ns, last_ns = int(np.min(ranges["start"].to_numpy())), int(np.max(ranges["end"].to_numpy()))
    start_ns = np.linspace(first_ns, last_ns, _RANGES // 2, dtype=np.int64)
    short_ns = max((last_ns - first_ns) // _RANGES, 2)
    added = {
        "start": np.repeat(start_ns, 2) + np.tile([0, 1], _RANGES // 2),
        "end": np.repeat(start_ns, 2) + np.tile([short_ns, short_ns - 1], _RANGES // 2),
        "eventType": np.full(_RANGES, 59),
        "globalTid": np.full(_RANGES, ranges["globalTid"][0].as_py()),
        "textId": np.resize(ids, _RANGES),
    }
    fields = [field for field in events.schema if field.name in added]
    table = pa.table({name: pa.array(values) for name, values in added.items()})
    table = table.select([field.name for field in fields]).cast(pa.schema(fields))
    parts = [events.slice(0, 0) if alone else events, table]
    whole = pa.concat_tables(parts, promote_options="default")
    pq.write_table(whole, parquet / "NVTX_EVENTS.parquet", _GROUP)


def main() -> None:
    """Builds the reports, measures, and prints the table."""
    args = arguments(__doc__)
    args.repeats = 1
    rows = []
    for kind, text in (("layers", "module {}"), ("steps", "decode step {}")):
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            parquet = big_report(args, Path(folder))[3]
            add_ranges(parquet, text, alone=kind == "steps")
            one = measure(ours("llm_decode_floor", parquet), Path(folder))
        rows.append([kind, f"{one.seconds:.2f}", f"{one.memory_bytes / 1e6:,.0f}"])
    print(text_table([f"{_RANGES:,} ranges as", "seconds", "peak MB"], rows))


if __name__ == "__main__":
    main()
