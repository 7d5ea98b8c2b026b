"""The numbers of llm_kernel_families: against reference values, plain code, Nsight's own summary and by hand."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import oracle
from conftest import FIXTURES, REPORTS, nsight
from llm_kernel_families.analysis import FAMILIES, Settings, analyse
from llm_kernel_families.analysis import _by_name as statistics_by_name
from llm_kernel_families.summary import _verdict
from recipes.capture.capture import Capture
from recipes.events.gpu_work import Span, read_gpu_work
from recipes.kernels.families import GROUPS, load_rules
from recipes.nsight.export import export
from recipes.report.report import open_export
from recipes.steps.phases import load_phase_rules
from test_gpu_work import COPIES, GRAPHS, KERNELS, SETS, P, devices, operations


def analysed(path: Path, rules: Path | None = None) -> dict[str, pd.DataFrame]:
    tables, *_ = analyse(Capture(open_export(path), Span(), load_phase_rules()), Settings(rules))
    return {name: table.to_pandas() for name, table in tables.items()}


def whole(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the whole window."""
    return table[table["phase"] == "all"]


# fixtures/README.md says where these figures come from.
@pytest.mark.parametrize(
    ("name", "kernel_ns", "busy_ns", "gemm_share"),
    [("decode_eager", 32_976_990, 32_992_637, 0.617), ("decode_graph", 33_316_588, 33_333_901, 0.611)],
)
def test_reference_values(name, kernel_ns, busy_ns, gemm_share, exporter):
    tables = analysed(export(FIXTURES / f"{name}.nsys-rep", exporter))
    families = whole(tables["families"]).set_index("family")
    kernels = families.drop(["memcpy", "memset"])
    assert kernels["calls"].sum() == 5215
    assert families.loc[["memcpy", "memset"], "calls"].tolist() == [10, 5]
    assert kernels["time_ns"].sum() == kernel_ns
    assert families["exclusive_ns"].sum() == busy_ns
    assert families.loc["gemm", "share"] == pytest.approx(gemm_share, abs=0.001)
    assert families.loc["attention", "share"] == pytest.approx(0.111, abs=0.002)
    assert families.loc["norm", "share"] == pytest.approx(0.054, abs=0.001)


@pytest.mark.parametrize("report", REPORTS, ids=lambda path: path.stem)
def test_books_balance_on_every_report(report, sqlite_of):
    path = sqlite_of(report)
    tables = analysed(path)
    families, kernels = tables["families"], tables["kernels"]
    found = oracle.operations(path)
    assert whole(families)["calls"].sum() == len(found)
    assert whole(families)["time_ns"].sum() == sum(end - start for start, end, _, _ in found)
    parts = families[families["phase"] != "all"].groupby(["device", "family"])[["calls", "time_ns"]].sum()
    if len(parts):
        # Phases and what lies outside them are the whole window, operation by operation.
        assert parts.equals(whole(families).set_index(["device", "family"])[["calls", "time_ns"]].sort_index())
    for _, rows in families.groupby(["device", "phase"]):
        assert rows["share"].sum() == pytest.approx(1, abs=1e-12)
        assert (rows["exclusive_ns"] <= rows["time_ns"]).all()
    keys = ["device", "phase", "family"]
    by_kernel = kernels.groupby(keys)[["calls", "time_ns"]].sum()
    assert by_kernel.equals(families.set_index(keys)[["calls", "time_ns"]].sort_index())
    assert (families["group"] == families["family"].map(GROUPS)).all()
    if families["device"].nunique() == 1:
        assert whole(families)["exclusive_ns"].sum() == oracle.busy_ns([op[:2] for op in found])


@pytest.mark.parametrize("report", REPORTS, ids=lambda path: path.stem)
def test_kernels_equal_plain_code(report, sqlite_of):
    path = sqlite_of(report)
    kernels = whole(analysed(path)["kernels"])
    kernels = kernels[~kernels["family"].isin(["memcpy", "memset", "cuda_graph"])]
    expected = oracle.per_name(path)
    totals = kernels.groupby("name").agg(calls=("calls", "sum"), time_ns=("time_ns", "sum"), min_ns=("min_ns", "min"),
                                         max_ns=("max_ns", "max"))  # fmt: skip
    assert totals.to_dict("index") == {
        name: {key: row[key] for key in ("calls", "time_ns", "min_ns", "max_ns")} for name, row in expected.items()
    }
    if kernels["device"].nunique() == 1:
        assert dict(zip(kernels["name"], kernels["median_ns"], strict=True)) == {
            name: row["median_ns"] for name, row in expected.items()
        }


@pytest.mark.parametrize("report", REPORTS, ids=lambda path: path.stem)
def test_kernel_totals_equal_nsights_own_summary(report, sqlite_of, nsys):
    path = sqlite_of(report)
    done = nsight(nsys, "stats", "--quiet", "--report", "cuda_gpu_kern_sum", "--format", "csv", path)
    kernels = whole(analysed(path)["kernels"])
    kernels = kernels[~kernels["family"].isin(["memcpy", "memset", "cuda_graph"])]
    lines = done.stdout.splitlines()
    heads = [number for number, line in enumerate(lines) if line.startswith("Time (%)")]
    if not heads:
        assert kernels.empty, done.stdout
        return
    theirs = {
        row["Name"]: (int(row["Total Time (ns)"]), int(row["Instances"]), int(row["Min (ns)"]), int(row["Max (ns)"]))
        for row in csv.DictReader(io.StringIO("\n".join(lines[heads[0] :])))
        if row["Name"]
    }
    ours = kernels.groupby("name").agg(
        t=("time_ns", "sum"), n=("calls", "sum"), low=("min_ns", "min"), high=("max_ns", "max")
    )
    assert {name: tuple(map(int, row)) for name, row in zip(ours.index, ours.to_numpy(), strict=True)} == theirs


NAMES = {
    "id": [1, 2, 3],
    "value": ["cublas_gemm_kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "rms_norm_kernel"],
}
GEMM, NCCL, NORM = 1, 2, 3


def kernels(*rows):
    """Rows of (start, end, name id) on device 0."""
    columns = operations(*[(start, end, 0, P) for start, end, _ in rows])
    return {**columns, "demangledName": [name for *_, name in rows], "shortName": [name for *_, name in rows]}


def families_of(path):
    return whole(analysed(path)["families"]).set_index("family")


def test_compute_claims_time_before_copies_before_communication(make_export):
    # gemm 0-10 and norm 8-14 overlap by 2; the copy 12-20 has 14-20 for itself; NCCL 5-30 is left with 20-30.
    path = make_export(
        StringIds=NAMES,
        **{
            KERNELS: kernels((0, 10, GEMM), (8, 14, NORM), (5, 30, NCCL)),
            COPIES: operations((12, 20, 0, P), copyKind=1),
        },
    )
    families = families_of(path)
    assert families["exclusive_ns"].to_dict() == {"gemm": 10, "norm": 4, "memcpy": 6, "communication": 10}
    assert families["time_ns"].to_dict() == {"gemm": 10, "norm": 6, "memcpy": 8, "communication": 25}
    assert families.loc["gemm", "share"] == 10 / 49


def test_opaque_graphs_are_compute_of_their_own_family(make_export):
    path = make_export(StringIds=NAMES, **{KERNELS: kernels((0, 10, NCCL)), GRAPHS: operations((5, 40, 0, P)),
                                           SETS: operations((38, 42, 0, P))})  # fmt: skip
    assert families_of(path)["exclusive_ns"].to_dict() == {"cuda_graph": 35, "memset": 2, "communication": 5}


def test_what_opaque_graphs_hold_is_not_called_classified():
    # 35 of 100 ns are in graphs; none of the rest is unclassified, then 5 ns are.
    seen = {"report": "a", "device": 0, "family": ["gemm", "cuda_graph", "other"]}
    told = _verdict(pd.DataFrame({**seen, "time_ns": [65, 35, 0]}))
    assert told.endswith("on 1 GPU; 35.0 % unseen in CUDA graphs")
    told = _verdict(pd.DataFrame({**seen, "time_ns": [60, 35, 5]}))
    assert told.endswith("on 1 GPU; 35.0 % unseen in CUDA graphs, 5.0 % unclassified")
    assert _verdict(pd.DataFrame({**seen, "time_ns": [100, 0, 0]})).endswith("on 1 GPU; 0.0 % unclassified")


def test_devices_are_counted_apart(make_export):
    rows = operations((0, 10, 0, P), (5, 12, 1, P), demangledName=GEMM, shortName=GEMM)
    families = analysed(make_export(StringIds=NAMES, **{KERNELS: rows}))["families"]
    assert families[["device", "time_ns", "exclusive_ns", "share"]].to_numpy().tolist() == [
        [0, 10, 10, 1],
        [1, 7, 7, 1],
    ]


def test_two_processes_on_one_gpu_are_one_device(make_export):
    rows = operations((0, 10, 0, P), (5, 12, 0, 200 << 24), demangledName=GEMM, shortName=GEMM)
    table = devices((3, 0, 100, "a"), (3, 0, 200, "a"))
    families = analysed(make_export(StringIds=NAMES, TARGET_INFO_CUDA_DEVICE=table, **{KERNELS: rows}))["families"]
    assert families[["device", "time_ns", "exclusive_ns"]].to_numpy().tolist() == [[3, 17, 12]]


@pytest.mark.parametrize("seed", range(10))
def test_exclusive_time_equals_plain_code_on_random_work(make_export, seed):
    import numpy as np

    random = np.random.default_rng(seed)
    starts, durations = random.integers(1, 500, 100).tolist(), random.integers(0, 30, 100).tolist()
    spans = [(start, start + duration) for start, duration in zip(starts, durations, strict=True)]
    copies = spans[80:]
    rows = [(*span, name) for span, name in zip(spans[:80], random.integers(1, 4, 80).tolist(), strict=True)]
    memory_rows = operations(*[(start, end, 0, P) for start, end in copies], copyKind=1)
    path = make_export(StringIds=NAMES, **{KERNELS: kernels(*rows), COPIES: memory_rows})
    name = {GEMM: "gemm", NORM: "norm", NCCL: "communication"}
    compute = sorted(((s, e, name[n]) for s, e, n in rows if n != NCCL), key=lambda op: op[0])
    memory = sorted(((s, e, "memcpy") for s, e in copies), key=lambda op: op[0])
    communication = sorted(((s, e, name[n]) for s, e, n in rows if n == NCCL), key=lambda op: op[0])
    assert families_of(path)["exclusive_ns"].to_dict() == oracle.exclusive_ns([*compute, *memory, *communication])


def test_median_is_the_middle_and_halves_round_down(make_export):
    path = make_export(StringIds=NAMES, **{KERNELS: kernels((0, 1, GEMM), (10, 14, GEMM), (20, 30, NORM))})
    kernel_rows = analysed(path)["kernels"].set_index("family")
    assert kernel_rows.loc["gemm", ["min_ns", "median_ns", "max_ns"]].tolist() == [1, 2, 4]
    assert kernel_rows.loc["norm", ["min_ns", "median_ns", "max_ns"]].tolist() == [10, 10, 10]


def test_durations_too_long_for_one_sort_key():
    rows = statistics_by_name(np.array([4, 9, 4], dtype=np.int32), np.array([2**60, 2, 3]))
    assert rows["name"].tolist() == [4, 9]
    assert rows["calls"].tolist() == [2, 1]
    assert (rows["min_ns"].tolist(), rows["max_ns"].tolist()) == ([3, 2], [2**60, 2])


def test_users_rules_come_first(make_export, tmp_path):
    rules = tmp_path / "mine.tsv"
    rules.write_text("pattern\tfamily\nrms_norm\tmy_norm\n")
    path = make_export(StringIds=NAMES, **{KERNELS: kernels((0, 10, GEMM), (10, 14, NORM))})
    families = analysed(path, rules)["families"].set_index("family")
    assert families.loc["my_norm", "group"] == "other"
    assert families.loc["gemm", "group"] == "gemm"


def test_report_without_work_gives_empty_tables(make_export):
    tables, *_ = analyse(Capture(open_export(make_export()), Span(), []), Settings())
    assert [len(table) for table in tables.values()] == [0, 0]
    assert tables["families"].schema.field("time_ns").type == pa.int64()
    assert tables["families"].column_names == [name for name in FAMILIES.names if name not in ("report", "rank")]


def test_every_name_of_the_fixtures_is_classified(exporter):
    rules = load_rules()
    for report in ("decode_eager", "decode_graph"):
        work = read_gpu_work(open_export(export(FIXTURES / f"{report}.nsys-rep", exporter)))
        names = {work.names[code] for code in set(work.name[work.kind == 0].tolist())}
        assert [name for name in names if rules.classify(name).family == "other"] == []
