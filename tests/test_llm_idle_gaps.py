"""llm_idle_gaps: reference values, books that balance on every report, and evidence by hand."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import oracle
from conftest import FIXTURES, REPORTS, nsight, pack
from llm_idle_gaps.analysis import Settings, analyse
from llm_idle_gaps.gap_sums import EDGES_NS
from llm_idle_gaps.tables import AFTER, BEFORE, BETWEEN, GAPS, IN_STEP, TABLES
from recipes.capture.capture import OUTSIDE, Capture
from recipes.events.gpu_work import Span
from recipes.events.idle import CAUSES
from recipes.events.launch_statistics import launch_statistics
from recipes.nsight.export import export
from recipes.report.report import open_export
from recipes.steps.phases import load_phase_rules
from test_gpu_work import COPIES, GRAPHS, KERNELS, P, operations
from test_steps import CALLS, MAIN, newest, ranges

RULES = load_phase_rules()
SUMMED = [f"{cause}_ns" for cause in CAUSES]
ADDITIVE = ["window_ns", "busy_ns", "copy_only_ns", "idle_ns", *SUMMED, "gaps", "operations", "launches",
            "graph_launches", "copy_launches", "in_graphs", "opaque_graphs", "launch_call_ns",
            "launched", "after_sync_ns", "between_launches", "between_launches_ns", "kernels",
            "kernels_in_graphs"]  # fmt: skip


def analysed(path: Path, *, min_gap_ns: float = 0, span: Span = Span()) -> dict[str, pd.DataFrame]:
    tables, remarks, _ = analyse(Capture(open_export(path), span, RULES), Settings(min_gap_ns))
    assert not remarks
    return {name: table.to_pandas() for name, table in tables.items()}


# fixtures/README.md says where these figures come from; `launch` and `graph` hold the profiler's overhead there, which
# lies inside launch calls (eager) and between graph nodes (graph).
@pytest.mark.parametrize(
    ("name", "sums", "longest", "expected_ms", "with_profiler"),
    [
        ("decode_eager", [32_992_637, 188_630_105, 5229], 219_391,
         {"sync": 0.043, "api": 1.781, "host": 138.841, "launch": 41.822, "queued": 6.144, "graph": 0}, "launch"),
        ("decode_graph", [33_333_901, 4_593_976, 5229], 1_104_953,
         {"sync": 0.026, "api": 0.029, "host": 0.178, "launch": 3.786, "queued": 0.027, "graph": 0.549}, "graph"),
    ],
)  # fmt: skip
def test_reference_captures(name, sums, longest, expected_ms, with_profiler, exporter):
    tables = analysed(export(FIXTURES / f"{name}.nsys-rep", exporter))
    whole = tables["idle"].set_index("phase").loc["all"]
    assert whole[["busy_ns", "idle_ns", "gaps"]].tolist() == sums
    assert (len(tables["gaps"]), tables["gaps"]["duration_ns"].max()) == (sums[2], longest)
    told = {cause: whole[f"{cause}_ns"] / 1e6 for cause in expected_ms}
    told[with_profiler] += whole["profiler_ns"] / 1e6
    assert told == {cause: pytest.approx(value, abs=0.0011) for cause, value in expected_ms.items()}


@pytest.mark.parametrize("report", REPORTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_books_balance(report, sqlite_of):
    path = sqlite_of(report)
    tables = analysed(path)
    idle, gaps, histogram, steps = (tables[name] for name in ("idle", "gaps", "gap_histogram", "step_idle"))
    assert (idle["busy_ns"] + idle["idle_ns"] == idle["window_ns"]).all()
    assert (idle[SUMMED].sum(axis=1) == idle["idle_ns"]).all()
    assert ((idle["copy_only_ns"] >= 0) & (idle["copy_only_ns"] <= idle["busy_ns"])).all()
    assert (idle[SUMMED] >= 0).all().all()
    whole = idle[idle["phase"] == "all"].set_index("device")
    parts = idle[idle["phase"] != "all"].groupby("device")[ADDITIVE].sum()
    for device in parts.index:
        assert parts.loc[device].to_dict() == whole.loc[device, ADDITIVE].to_dict()
    # The histogram, the rows and the sums say the same.
    keys = ["device", "phase"]
    by_bin, by_phase = histogram.groupby(keys)[["gaps", "time_ns"]].sum(), idle.set_index(keys)
    assert by_bin["gaps"].to_dict() == by_phase.loc[by_bin.index, "gaps"].to_dict()
    assert by_bin["time_ns"].to_dict() == by_phase.loc[by_bin.index, "idle_ns"].to_dict()
    assert histogram["gaps"].sum() == 0 or len(gaps) == whole["gaps"].sum()
    assert gaps["duration_ns"].sum() == whole["idle_ns"].sum()
    assert (gaps["end_ns"] - gaps["start_ns"] == gaps["duration_ns"]).all()
    assert (gaps["cause_ns"] <= gaps["duration_ns"]).all()
    assert (gaps["held_by"].isna() == gaps["held_ns"].isna()).all()
    outside = "all" if idle["phase"].eq("all").all() else OUTSIDE
    assert (gaps["phase"].eq(outside) == gaps["step"].isna()).all()
    assert parts.empty or steps["idle_after_ns"].sum() <= idle.loc[idle["phase"] == OUTSIDE, "idle_ns"].sum()
    assert (steps[SUMMED].sum(axis=1) == steps["idle_ns"]).all()
    assert (steps["in_graphs"] <= steps["operations"]).all() and (steps["graph_launches"] <= steps["launches"]).all()
    if len(whole) == 1:
        found = [op[:2] for op in oracle.operations(path)]
        assert whole["busy_ns"].iloc[0] == oracle.busy_ns(found)


@pytest.mark.parametrize("name", ["decode_batches_graph", "serving_vllm", "training_foreach", "decode_graph_whole"])
def test_launches_as_plain_code_counts_them(name, sqlite_of):
    path = sqlite_of(newest(name))
    strings, calls, works = {}, {}, []
    with sqlite3.connect(path) as db:
        strings = dict(db.execute("SELECT id, value FROM StringIds"))
        for start, end, tid, correlation, call in db.execute(
            f"SELECT start, end, globalTid, correlationId, nameId FROM {CALLS}"
        ):
            calls[tid >> 24 & 0xFFFFFF, correlation] = (end - start, "GraphLaunch" in strings[call])
        for table in oracle.OPERATIONS:
            if db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone():
                works += [(pid >> 24 & 0xFFFFFF, correlation, table) for pid, correlation in
                          db.execute(f"SELECT globalPid, correlationId FROM {table}")]  # fmt: skip
    launching = {(pid, correlation) for pid, correlation, _ in works} & calls.keys()
    copying = {(pid, correlation) for pid, correlation, table in works if table == COPIES} & calls.keys()
    expected = {
        "operations": len(works),
        "launches": len(launching),
        "graph_launches": sum(calls[key][1] for key in launching),
        "in_graphs": sum(calls[pid, correlation][1] for pid, correlation, table in works
                         if (pid, correlation) in calls and table != GRAPHS),
        "opaque_graphs": sum(table == GRAPHS for *_, table in works),
        "launched": sum((pid, correlation) in calls for pid, correlation, _ in works),
        "copy_launches": len(copying),
        "launch_call_ns": sum(calls[key][0] for key in launching - copying),
    }  # fmt: skip
    whole = analysed(path)["idle"].set_index("phase").loc["all"]
    assert {name: whole[name] for name in expected} == expected


def test_time_between_launches_is_that_inside_a_step(sqlite_of):
    """One call a step is followed by none; a training step's calls come from two threads, each by itself."""
    graph = analysed(sqlite_of(newest("decode_batches_graph")))["step_idle"]
    assert (graph.loc[graph["launches"] == 1, "between_launches_ns"] == 0).all()
    for name in ("training_foreach", "ddp"):
        steps = analysed(sqlite_of(newest(name)))["step_idle"]
        assert (steps["between_launches_ns"] > 0).all()
        assert (steps["between_launches_ns"] / steps["launches"] < 1e6).all()


def test_graphs_traced_as_a_whole_are_work(sqlite_of, nsys, tmp_path):
    path = sqlite_of(newest("decode_graph_whole"))
    whole = analysed(path)["idle"].set_index("phase").loc["all"]
    assert whole["busy_ns"] > 0.95 * whole["window_ns"]
    # Where Nsight's own says that nothing ran.
    copy = shutil.copy(path, tmp_path / "copy.sqlite")
    done = nsight(nsys, "analyze", "--quiet", "--rule", "gpu_gaps:gap=1", "--format", "csv", copy)
    rows = [line.split(",") for line in done.stdout.splitlines() if line[:1].isdigit()]
    assert sum(int(row[1]) for row in rows) > 0.9 * whole["window_ns"]
    done = pack("run", "llm_idle_gaps", "--input", path, "--output", tmp_path / "out")
    verdict = done.stdout.splitlines()[0]
    assert "CUDA graphs were traced as a whole, so what is inside them is not seen" in verdict
    assert "capture with --cuda-graph-trace=node to see them" in done.stdout
    assert "graphs are o" not in done.stdout


NAMES = {
    "id": [1, 2, 3, 4, 5, 6],
    "value": ["gemm", "cudaLaunchKernel_v7000", "cudaStreamSynchronize_v3020", "cudaMalloc_v3020", "python",
              "cudaGraphLaunch_v10000"],
}  # fmt: skip
LAUNCH, SYNC, MALLOC, GRAPH_LAUNCH = 2, 3, 4, 6


def kernels(*rows, pid=P):
    """Kernels of (start, end, correlation id)."""
    columns = operations(*[(start, end, 0, pid) for start, end, _ in rows], demangledName=1, shortName=1)
    return {**columns, "correlationId": [launch for *_, launch in rows]}


def calls(*rows, tid=MAIN):
    """API calls of (start, end, correlation id, name id)."""
    columns = dict(zip(("start", "end", "correlationId", "nameId"), map(list, zip(*rows, strict=True)), strict=True))
    return {**columns, "globalTid": [tid] * len(rows)}


def nvtx(*rows, tid=MAIN):
    """Push and pop ranges of (start, end, text)."""
    return ranges(*((start, end, tid, text, 59) for start, end, text in rows))


@pytest.fixture
def gaps_of(make_export):
    def make(kernel_rows, call_rows, *range_rows, **more):
        tables = {KERNELS: kernels(*kernel_rows), CALLS: calls(*call_rows), **more}
        if range_rows:
            tables["NVTX_EVENTS"] = nvtx(*range_rows)
        return analysed(make_export(StringIds=NAMES, **tables))

    return make


def test_row_tells_what_the_launching_thread_did(gaps_of):
    rows = [(40, 45, 1, LAUNCH), (90, 130, 0, SYNC), (130, 145, 0, MALLOC), (150, 160, 2, LAUNCH)]
    threads = {"ThreadNames": {"globalTid": [MAIN], "nameId": [5]}}
    tables = gaps_of([(50, 100, 1), (200, 250, 2)], rows, (30, 300, "outer"), (110, 140, "inner"), **threads)
    (row,) = tables["gaps"].to_dict("records")
    # 100 to 200: 30 in the synchronising call, 15 in cudaMalloc, 5 in neither, 10 in the launch, 40 queued.
    assert (row["start_ns"], row["end_ns"], row["cause"], row["cause_ns"]) == (100, 200, "queued", 40)
    assert (row["held_by"], row["held_ns"]) == ("cudaStreamSynchronize", 30)
    assert (row["launch_api"], row["thread"], row["previous"], row["next"]) == (
        "cudaLaunchKernel", f"python ({MAIN & 0xFFFFFF})", "gemm", "gemm")  # fmt: skip
    assert row["sync_call"] == "cudaStreamSynchronize"
    # Half-way from 100 to the launch at 150.
    assert row["nvtx"] == "inner"


def test_calls_of_one_name_count_together(gaps_of):
    rows = [
        (40, 45, 1, LAUNCH),
        (102, 108, 0, MALLOC),
        (110, 120, 0, MALLOC),
        (125, 140, 0, SYNC),
        (150, 160, 2, LAUNCH),
    ]
    row = gaps_of([(50, 100, 1), (200, 250, 2)], rows)["gaps"].iloc[0]
    assert (row["held_by"], row["held_ns"]) == ("cudaMalloc", 16)
    assert pd.isna(row["sync_call"])


def test_gap_without_a_launch_row_has_no_evidence(gaps_of):
    row = gaps_of([(50, 100, 1), (200, 250, 2)], [(40, 45, 1, LAUNCH)])["gaps"].iloc[0]
    assert (row["cause"], row["cause_ns"]) == ("unknown", 100)
    assert row[["launch_api", "thread", "held_by", "nvtx"]].isna().all()


STEPS = [(0, 100, "step 0"), (100, 200, "step 1")]


def test_idle_time_in_steps_and_between_them(gaps_of):
    # Step 0 runs 20 to 70 with a gap of 20, step 1 from 110 to 160 with one of 10. Before, and between the steps, the
    # GPU runs a kernel of no step: the window is 10 to 160.
    kernel_rows = [(10, 15, 9), (20, 30, 1), (50, 70, 2), (80, 85, 8), (110, 120, 3), (130, 160, 4)]
    call_rows = [(1, 2, 1, LAUNCH), (3, 4, 2, LAUNCH), (101, 102, 3, LAUNCH), (103, 104, 4, LAUNCH)]
    tables = gaps_of(kernel_rows, call_rows, *STEPS)
    idle = tables["idle"].set_index("phase")[["window_ns", "busy_ns", "idle_ns", "gaps"]]
    assert idle.loc["all"].tolist() == [150, 80, 70, 5]
    assert idle.loc["step"].tolist() == [100, 70, 30, 2]
    assert idle.loc[OUTSIDE].tolist() == [50, 10, 40, 3]
    steps = tables["step_idle"]
    assert steps[["start_ns", "duration_ns", "idle_ns"]].to_numpy().tolist() == [[20, 50, 20], [110, 50, 10]]
    # 70 to 110 less the 5 ns of the kernel between.
    assert steps["idle_after_ns"].tolist()[0] == 35 and pd.isna(steps["idle_after_ns"].iloc[1])
    assert tables["gaps"]["step"].fillna(-1).tolist() == [-1, 0, -1, -1, 1]
    assert tables["gaps"]["place"].tolist() == [BEFORE, IN_STEP, BETWEEN, BETWEEN, IN_STEP]


def test_gap_after_the_last_step_and_without_steps_has_its_place(gaps_of):
    kernel_rows = [(20, 30, 1), (110, 120, 2), (130, 140, 3), (200, 205, 8)]
    call_rows = [(1, 2, 1, LAUNCH), (101, 102, 2, LAUNCH), (103, 104, 3, LAUNCH)]
    assert gaps_of(kernel_rows, call_rows, *STEPS)["gaps"]["place"].tolist() == [BETWEEN, IN_STEP, AFTER]
    assert gaps_of(kernel_rows, call_rows)["gaps"]["place"].isna().all()


def test_overlapping_steps_share_their_time_once(make_export):
    """Steps of two processes on one GPU: time in both is the later one's, and nothing is counted twice."""
    other = P + (1 << 24)
    both = [kernels((10, 20, 1), (60, 100, 2)), kernels((40, 50, 1), (120, 140, 2), pid=other)]
    launches = [calls((1, 2, 1, LAUNCH), (3, 4, 2, LAUNCH)), calls((1, 2, 1, LAUNCH), (3, 4, 2, LAUNCH), tid=other + 1)]
    texts = (0, 9, "step 1"), (150, 160, "step 2")
    own, theirs = nvtx(*texts), nvtx(*texts, tid=other + 1)
    joined = [{name: [*one[name], *two[name]] for name in one} for one, two in (both, launches, (own, theirs))]
    devices = {"gpuId": [0, 0], "cudaId": [0, 0], "pid": [P >> 24, other >> 24], "uuid": ["a", "a"]}
    path = make_export(StringIds=NAMES, TARGET_INFO_CUDA_DEVICE=devices,
                       **dict(zip((KERNELS, CALLS, "NVTX_EVENTS"), joined, strict=True)))  # fmt: skip
    tables = analysed(path)
    # Idle: 20 to 40, 50 to 60, 100 to 120. The first step lasts 10 to 100, the other one 40 to 140.
    assert tables["idle"].set_index("phase")[["window_ns", "idle_ns"]].to_dict("index") == {
        "all": {"window_ns": 130, "idle_ns": 50}, "step": {"window_ns": 130, "idle_ns": 50}}  # fmt: skip
    assert tables["step_idle"]["idle_ns"].tolist() == [30, 30]


def test_copies_are_not_idle(make_export):
    copies = operations((10, 30, 0, P), (40, 50, 0, P), copyKind=1)
    path = make_export(**{KERNELS: kernels((0, 10, 1), (30, 40, 2)), COPIES: copies})
    whole = analysed(path)["idle"].iloc[0]
    assert whole[["window_ns", "busy_ns", "copy_only_ns", "idle_ns", "gaps"]].tolist() == [50, 50, 30, 0, 0]


def test_bins_are_three_a_decade_and_hold_their_lower_edge(make_export):
    assert (EDGES_NS[0], EDGES_NS[-1], len(EDGES_NS)) == (100, 10**10, 25)
    assert [10**power in EDGES_NS for power in range(2, 11)] == [True] * 9
    lengths = [99, 100, 9_999, 10_000, 10**10 - 1, 10**10]
    starts = [0]
    for length in lengths:
        starts.append(starts[-1] + 1 + length)
    path = make_export(**{KERNELS: kernels(*((start, start + 1, 7) for start in starts))})
    bins = analysed(path)["gap_histogram"]
    found = bins[["low_ns", "high_ns", "gaps", "time_ns"]].to_numpy().tolist()
    nothing = pytest.approx(float("nan"), nan_ok=True)
    assert found == [
        [0, 100, 1, 99], [100, 215, 1, 100], [4642, 10_000, 1, 9_999], [10_000, 21_544, 1, 10_000],
        [4_641_588_834, 10**10, 1, 10**10 - 1], [10**10, nothing, 1, 10**10],
    ]  # fmt: skip


def test_shortest_gap_limits_rows_and_nothing_else(exporter):
    path = export(FIXTURES / "decode_graph.nsys-rep", exporter)
    every, some = analysed(path), analysed(path, min_gap_ns=10_000)
    assert len(some["gaps"]) == (every["gaps"]["duration_ns"] >= 10_000).sum() == 4
    for name in ("idle", "gap_histogram", "step_idle", "timeline"):
        pd.testing.assert_frame_equal(every[name], some[name])


def test_median_step_is_drawn_as_it_was(exporter):
    """The middle one of five steps by its duration: all its operations and gaps, and its own launches."""
    tables = analysed(export(FIXTURES / "decode_eager.nsys-rep", exporter))
    timeline, steps = tables["timeline"], tables["step_idle"].set_index("step")
    number = timeline["step"].iloc[0]
    assert steps["duration_ns"].sort_values().index[2] == number
    on_gpu, idle = timeline[timeline["lane"].str.startswith("GPU")], timeline[timeline["lane"] == "idle"]
    assert len(on_gpu) == steps.loc[number, "operations"]
    assert idle["duration_ns"].sum() == steps.loc[number, "idle_ns"]
    assert on_gpu["start_ns"].min() == 0
    assert (on_gpu["start_ns"] + on_gpu["duration_ns"]).max() == steps.loc[number, "duration_ns"]
    host = timeline[timeline["lane"].str.startswith("calls of ")]
    assert host["name"].str.startswith("cu").all() and not host["name"].str.contains("_v").any()
    assert (host["name"].isin(["cudaLaunchKernel", "cuLaunchKernelEx", "cudaMemcpyAsync", "cudaMemsetAsync",
                               "cudaLaunchKernelExC"])).sum() >= 1042  # fmt: skip
    assert set(timeline.loc[timeline["lane"].str.startswith("ranges of "), "name"]) >= {"lm_head + sample"}


def test_time_range_cuts_the_window(exporter):
    path = export(FIXTURES / "decode_eager.nsys-rep", exporter)
    tables = analysed(path, span=Span(60_000_000, 90_000_000))
    whole = tables["idle"].set_index("phase").loc["all"]
    assert 29_000_000 < whole["window_ns"] < 31_000_000
    assert whole["busy_ns"] + whole["idle_ns"] == whole["window_ns"]
    assert tables["step_idle"]["edge"].all()


def run(tmp_path, *arguments) -> str:
    done = pack("run", "llm_idle_gaps", "--input", *arguments, "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_eager_decode_says_that_graphs_are_off(tmp_path, exporter):
    said = run(tmp_path, export(FIXTURES / "decode_eager.nsys-rep", exporter))
    verdict = said.splitlines()[0]
    assert verdict.startswith("1 GPU idle 85.1 % of 222 ms (host 139 ms, launch 41.7 ms, queued 6.14 ms)")
    assert "CUDA graphs are off" in verdict
    assert "tracing slows every launch, so this overstates it: give --step-time" in verdict
    assert (
        "1. CUDA graphs are off in decode bs=16 steps: 1,042 operations from 1,042 launch calls per decode bs=16 step"
        in said
    )
    assert (
        "with graphs on, at most these 36.3 ms per decode bs=16 step could be recovered (tracing itself makes launches"
        in said
    )
    assert "10 to 100 us   4,468  165.201   87.6 %" in said


def test_step_time_is_shown_beside_and_rescales_nothing(tmp_path, exporter):
    path = export(FIXTURES / "decode_eager.nsys-rep", exporter)
    said = run(tmp_path, path, "--step-time", "15.2ms")
    assert "give --step-time" not in said
    assert "15.2 ms without the profiler, 44.6 ms start to start in the capture (2.93 times that)" in said
    assert "at most 8.61 ms of it are idle without the profiler, beside 6.59 ms of work" in said
    # The bound is no more than that.
    assert "with graphs on, at most the 8.61 ms per decode bs=16 step that are idle without the profiler" in said
    assert "36.3" not in said
    assert "tracing slows every launch: steps take 2.93 times --step-time" in said.splitlines()[0]
    assert "less than the 6.59 ms of GPU work in it: check --step-time" in run(
        tmp_path / "a", path, "--step-time", "5ms"
    )
    assert "tracing makes nothing faster: check --step-time" in run(tmp_path / "b", path, "--step-time", "60ms")


def test_graph_decode_says_that_graphs_are_on(tmp_path, exporter):
    said = run(tmp_path, export(FIXTURES / "decode_graph.nsys-rep", exporter))
    assert "CUDA graphs are on in decode bs=16 steps: 1,042 operations from 1 launch call per decode bs=16 step" in said
    # The mean of the four intervals between five steps.
    assert "idle for 1.01 ms per decode bs=16 step outside the steps" in said
    assert "mostly launch in cudaGraphLaunch, a call that tracing each node makes slower" in said


def step_rows(durations_of_sync: int):
    """Two steps of two kernels, the second launched after a synchronising call of so many ns."""
    kernel_rows, call_rows = [], []
    for step in range(3):
        at, first = step * 10_000, 2 * step + 1
        kernel_rows += [(at + 100, at + 1000, first), (at + 4000, at + 5000, first + 1)]
        call_rows += [(at + 10, at + 20, first, LAUNCH), (at + 900, at + 1000 + durations_of_sync, 0, SYNC),
                      (at + 3900, at + 3950, first + 1, LAUNCH)]  # fmt: skip
    return kernel_rows, call_rows, [(step * 10_000, step * 10_000 + 9_000, f"decode bs={step}") for step in range(3)]


def test_synchronising_call_is_named_in_the_finding(make_export, tmp_path):
    kernel_rows, call_rows, range_rows = step_rows(2000)
    path = make_export(StringIds=NAMES, **{KERNELS: kernels(*kernel_rows), CALLS: calls(*call_rows),
                                           "NVTX_EVENTS": nvtx(*range_rows)})  # fmt: skip
    # Of each gap of 3,000 ns the first 2,000 lie in the call, but all of it follows from waiting.
    steps, gaps = (analysed(path)[name] for name in ("step_idle", "gaps"))
    assert steps[["sync_ns", "after_sync_ns", "idle_ns"]].to_numpy().tolist() == [[2000, 3000, 3000]] * 3
    assert gaps.loc[gaps["step"].notna(), "sync_call"].tolist() == ["cudaStreamSynchronize"] * 3
    said = run(tmp_path, path)
    assert "3.00 us per decode" in said
    assert "while the host waits for the GPU in cudaStreamSynchronize; without that it could run ahead" in said
    assert "of sync, host, launch and api together at most 3.00 us per decode" in said


def test_host_that_is_ahead_waits_for_nothing(gaps_of):
    """The launch came before the gap: waiting since then delayed nothing."""
    rows = [(40, 45, 1, LAUNCH), (46, 50, 2, LAUNCH), (90, 300, 0, SYNC)]
    row = gaps_of([(50, 100, 1), (200, 250, 2)], rows)["gaps"].iloc[0]
    assert row["cause"] == "queued"
    assert pd.isna(row["sync_call"])


def test_copy_that_waits_in_its_call_is_named(make_export):
    """A copy to unpinned memory returns when it is done: the GPU has run dry by then."""
    names = {"id": [*NAMES["id"], 7], "value": [*NAMES["value"], "cudaMemcpyAsync_v3020"]}
    copy = {**operations((50, 100, 0, P), copyKind=2), "correlationId": [1]}
    path = make_export(StringIds=names, **{COPIES: copy, KERNELS: kernels((200, 250, 2)),
                                           CALLS: calls((40, 110, 1, 7), (150, 160, 2, LAUNCH))})  # fmt: skip
    row = analysed(path)["gaps"].iloc[0]
    assert (row["cause"], row["sync_call"]) == ("host", "cudaMemcpyAsync")


def test_overhead_of_other_threads_holds_nobody_up(gaps_of):
    rows = [(40, 45, 1, LAUNCH), (150, 160, 2, LAUNCH)]
    for tid, expected in ((MAIN, 30), (MAIN + 1, 0), (0, 30)):
        overhead = {"PROFILER_OVERHEAD": {"start": [110], "end": [140], "globalTid": [tid], "nameId": [1]}}
        idle = gaps_of([(50, 100, 1), (200, 250, 2)], rows, **overhead)["idle"]
        assert idle["profiler_ns"].tolist() == [expected]


def test_time_range_without_work_is_no_error(exporter, tmp_path):
    path = export(FIXTURES / "decode_eager.nsys-rep", exporter)
    said = run(tmp_path, path, "--filter-time", "900000000/")
    assert "no GPU work in the time range" in said


def test_calls_without_a_usable_end_take_no_time(make_export):
    calls_made = calls((40, 45, 1, LAUNCH), (150, 130, 2, LAUNCH), (152, None, 3, LAUNCH))
    path = make_export(
        StringIds=NAMES, **{KERNELS: kernels((50, 100, 1), (200, 250, 2), (260, 270, 3)), CALLS: calls_made}
    )
    whole = analysed(path)["idle"].iloc[0]
    assert whole[["launches", "launch_call_ns", "between_launches", "between_launches_ns"]].tolist() == [3, 5, 2, 107]


def test_without_launch_records_nothing_is_said_of_graphs(make_export, tmp_path):
    path = make_export(**{KERNELS: kernels((50, 100, 1), (200, 250, 2))})
    said = run(tmp_path, path)
    assert "most of the work has no launch in the report, so nothing is said of CUDA graphs" in said.splitlines()[0]
    assert "graphs are o" not in said and "launches: none recorded" in said


def test_idle_time_outside_steps_is_that_after_the_steps_it_is_said_of(sqlite_of, tmp_path):
    """In serving, steps of other phases come between: what follows them is told apart."""
    path = sqlite_of(newest("serving_vllm"))
    steps = analysed(path)["step_idle"]
    mean_ns = steps.loc[steps["phase"] == "decode", "idle_after_ns"].mean()
    said = run(tmp_path, path)
    assert (
        f"idle for {mean_ns / 1e3:.0f} us per decode bs=16 step outside the steps, mostly launch in cudaGraph" in said
    )
    assert "lie elsewhere: after other steps 10.4 ms, in mixed steps 7.87 ms, in prefill steps 2.50 ms" in said


def test_step_time_of_one_phase_of_several_is_not_made_up(sqlite_of, tmp_path):
    said = run(tmp_path, sqlite_of(newest("training_foreach")), "--step-time", "56ms")
    assert "--step-time is not shown" in said


def test_some_graphs_are_partly_on(make_export, tmp_path):
    kernel_rows, call_rows, range_rows = step_rows(0)
    call_rows = [(*row[:3], GRAPH_LAUNCH if row[2] % 2 else row[3]) if row[2] else row for row in call_rows]
    path = make_export(StringIds=NAMES, **{KERNELS: kernels(*kernel_rows), CALLS: calls(*call_rows),
                                           "NVTX_EVENTS": nvtx(*range_rows)})  # fmt: skip
    steps = analysed(path)["step_idle"]
    assert steps[["operations", "launches", "graph_launches", "in_graphs"]].to_numpy().tolist() == [[2, 2, 1, 1]] * 3
    # In each step 10 and 50 ns in calls, and 3,880 ns from the first one's end to the second one's start.
    assert steps[["launch_call_ns", "between_launches_ns"]].to_numpy().tolist() == [[60, 3880]] * 3
    assert "CUDA graphs are partly on" in run(tmp_path, path)


def test_unlike_reports_are_not_averaged(tmp_path, nsys):
    said = run(tmp_path, *(FIXTURES / f"{name}.nsys-rep" for name in ("decode_eager", "decode_graph")))
    states = {f"CUDA graphs are {state} in decode bs=16 steps (1 GPU)" for state in ("off", "on")}
    assert states <= set(said.splitlines()[0].split("; "))
    assert "On decode_eager GPU 0, which of 2 devices has most idle time in its steps:\n1. CUDA graphs are off" in said
    assert "decode_eager GPU 0    221.623  188.630  85.1 %" in said


def test_report_without_work_says_so(sqlite_of, tmp_path):
    said = run(tmp_path, sqlite_of(newest("broken_no_cuda")))
    assert said.startswith("No GPU work was found, so there are no gaps.\nquality: bad")
    for table in TABLES:
        assert pq.read_metadata(tmp_path / "out" / f"{table.name}.parquet").num_rows == 0


def test_report_without_steps_has_the_whole_window(make_export, tmp_path):
    path = make_export(
        StringIds=NAMES, **{KERNELS: kernels((50, 100, 1), (5000, 9000, 2)), CALLS: calls((1, 2, 1, LAUNCH))}
    )
    tables = analysed(path)
    assert tables["idle"]["phase"].tolist() == ["all"] == tables["gap_histogram"]["phase"].unique().tolist()
    assert "What ended 4.90 us in all of idle time has no launch in the report" in run(tmp_path, path)


def test_same_report_twice_gives_the_same_rows(exporter, tmp_path):
    path = export(FIXTURES / "decode_eager.nsys-rep", exporter)
    run(tmp_path / "one", path)
    run(tmp_path / "two", path)
    for table in TABLES:
        name = f"{table.name}.parquet"
        assert (tmp_path / "one" / "out" / name).read_bytes() == (tmp_path / "two" / "out" / name).read_bytes()


def test_files_hold_plain_types_whatever_is_coded_in_memory(exporter, tmp_path):
    run(tmp_path, export(FIXTURES / "decode_graph.nsys-rep", exporter))
    for table in TABLES:
        found = pq.read_schema(tmp_path / "out" / f"{table.name}.parquet")
        assert found.names == table.names
        assert {str(field.type) for field in found} <= {"int64", "double", "string", "bool"}
        assert all(field.metadata[b"meaning"] for field in found)
    gaps = pq.read_table(tmp_path / "out" / "gaps.parquet")
    starts = gaps["start_ns"].to_pylist()
    assert starts == sorted(starts)


@pytest.mark.slow
@pytest.mark.parametrize("option", [["--min-gap", "5"], ["--min-gap", "soon"], ["--step-time", "0ms"]])
def test_bad_times_are_usage_errors(option, make_export):
    done = pack("run", "llm_idle_gaps", "--input", make_export(), *option)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_tables_of_several_reports_are_sorted_whatever_order_they_come_in():
    """Coded columns of reports have dictionaries of their own."""
    columns = {name: pa.array([None, None], pa.int64()) for name in GAPS.names}
    texts = {name: pa.array(["b", "a"]).dictionary_encode() for name in ("cause", "previous")}
    one = GAPS.build({**columns, **texts, "report": ["z", "z"], "device": [0, 0], "start_ns": [5, 7]})
    other = GAPS.build({**columns, **texts, "report": ["a", "a"], "device": [1, 0], "start_ns": [5, 7]})
    rows = GAPS.sorted(pa.concat_tables([one, other]))
    assert list(zip(*(rows[name].to_pylist() for name in ("report", "device", "cause")), strict=True)) == [
        ("a", 0, "a"), ("a", 1, "b"), ("z", 0, "b"), ("z", 0, "a")]  # fmt: skip


def test_words_do_not_depend_on_the_shortest_gap(sqlite_of, tmp_path):
    path = sqlite_of(newest("decode_experts_loop"))
    said = run(tmp_path / "a", path).replace(str(tmp_path / "a"), "")
    longer = run(tmp_path / "b", path, "--min-gap", "1s").replace(str(tmp_path / "b"), "")
    assert said == longer
    assert "in cudaMemcpyAsync; without that" in longer
    assert pq.read_metadata(tmp_path / "b" / "out" / "gaps.parquet").num_rows == 0
    longest = pq.read_table(tmp_path / "b" / "out" / "largest_gaps.parquet").to_pandas()
    every = pq.read_table(tmp_path / "a" / "out" / "gaps.parquet").to_pandas()
    assert len(longest) == 200
    assert longest["duration_ns"].min() >= every["duration_ns"].nlargest(200).min()


def test_graph_launches_without_recorded_work_keep_from_a_verdict(make_export, tmp_path):
    kernel_rows, call_rows, range_rows = step_rows(0)
    lost = [(step * 10_000 + 30, step * 10_000 + 60, 100 + step, GRAPH_LAUNCH) for step in range(3)]
    path = make_export(StringIds=NAMES, **{KERNELS: kernels(*kernel_rows), CALLS: calls(*call_rows, *lost),
                                           "NVTX_EVENTS": nvtx(*range_rows)})  # fmt: skip
    assert analysed(path)["idle"]["lost_graph_launches"].unique().tolist() == [3]
    said = run(tmp_path, path)
    assert "CUDA graphs were launched whose work was not recorded, so nothing is said of them" in said.splitlines()[0]
    assert "graphs are o" not in said


def test_one_launch_over_several_steps_is_charged_once(make_export):
    """Steps inside one replay of a graph: the first has the launch."""
    path = make_export(StringIds=NAMES, **{
        KERNELS: kernels(*((start, start + 5, 1) for start in range(100, 180, 10))),
        CALLS: calls((40, 90, 1, GRAPH_LAUNCH)),
    })  # fmt: skip
    capture = Capture(open_export(path), Span(), RULES)
    group = np.repeat([0, 1], 4)
    found = launch_statistics(capture.report, capture.work, capture.launches, group, np.array([0, 1]), np.array([0, 0]))
    assert found["launches"].tolist() == [1, 0]
    assert found["launch_call_ns"].tolist() == [50, 0]
    assert found["in_graphs"].tolist() == [4, 4]


def test_time_between_launches_of_two_threads_by_hand(make_export):
    """Each thread by itself, also where their calls alternate; and one thread that feeds two devices."""
    both = (
        calls((10, 12, 1, LAUNCH), (30, 32, 3, LAUNCH)),
        calls((20, 23, 2, LAUNCH), (40, 43, 4, LAUNCH), tid=MAIN + 1),
    )
    joined = {name: [*both[0][name], *both[1][name]] for name in both[0]}
    path = make_export(
        StringIds=NAMES, **{KERNELS: kernels(*((100 * n, 100 * n + 5, n) for n in range(1, 5))), CALLS: joined}
    )
    whole = analysed(path)["idle"].iloc[0]
    assert whole[["between_launches", "between_launches_ns"]].tolist() == [2, 18 + 17]
    columns = kernels(*((100 * n, 100 * n + 5, n) for n in range(1, 5)))
    path = make_export(StringIds=NAMES, **{KERNELS: {**columns, "deviceId": [0, 1, 0, 1]}, CALLS: calls(
        *((10 * n, 10 * n + 2, n, LAUNCH) for n in range(1, 5)))})  # fmt: skip
    assert analysed(path)["idle"]["between_launches_ns"].sum() == 3 * 8


def test_step_inside_another_one_ends_nothing(make_export):
    """Step B of another process lies inside step A: idle time after B is A's, and after A is after both."""
    other = P + (1 << 24)
    mine = kernels((10, 20, 1), (90, 100, 2), (150, 160, 3))
    theirs = kernels((30, 35, 1), (40, 45, 2), pid=other)
    launches = [calls((1, 2, 1, LAUNCH), (3, 4, 2, LAUNCH), (111, 112, 3, LAUNCH)),
                calls((1, 2, 1, LAUNCH), (3, 4, 2, LAUNCH), tid=other + 1)]  # fmt: skip
    texts = [nvtx((0, 9, "step 1"), (110, 120, "step 2")),
             nvtx((0, 9, "step 1"), (500, 510, "step 2"), tid=other + 1)]  # fmt: skip
    joined = [{name: [*one[name], *two[name]] for name in one} for one, two in ((mine, theirs), launches, texts)]
    devices = {"gpuId": [0, 0], "cudaId": [0, 0], "pid": [P >> 24, other >> 24], "uuid": ["a", "a"]}
    path = make_export(StringIds=NAMES, TARGET_INFO_CUDA_DEVICE=devices,
                       **dict(zip((KERNELS, CALLS, "NVTX_EVENTS"), joined, strict=True)))  # fmt: skip
    steps = analysed(path)["step_idle"].sort_values("start_ns")
    assert steps["idle_after_ns"].fillna(-1).tolist() == [0, 50, -1]


def test_work_from_before_the_step_is_in_its_picture(make_export):
    """A kernel of no step runs until after the step began: what it covers is not drawn as idle."""
    rows = [(10, 45, 9), (30, 40, 1), (60, 70, 2), (110, 120, 3), (130, 140, 4)]
    path = make_export(StringIds=NAMES, **{
        KERNELS: kernels(*rows),
        CALLS: calls((21, 22, 1, LAUNCH), (23, 24, 2, LAUNCH), (101, 102, 3, LAUNCH), (103, 104, 4, LAUNCH)),
        "NVTX_EVENTS": nvtx((20, 29, "step 1"), (100, 109, "step 2")),
    })  # fmt: skip
    tables = analysed(path)
    timeline = tables["timeline"]
    own = tables["step_idle"].set_index("step").loc[timeline["step"].iloc[0]]
    assert timeline.loc[timeline["lane"] == "idle", "duration_ns"].sum() == own["idle_ns"] > 0
    assert timeline.loc[timeline["lane"].str.startswith("GPU"), "start_ns"].min() >= 0


def test_call_around_many_others_is_the_one_that_holds(make_export):
    """Also quick: each gap looks at few calls, not at all that the long one spans."""
    count = 20_000
    kernel_rows = [(1_000 * n + 900, 1_000 * n + 950, n) for n in range(1, count)]
    call_rows = [(0, 1_000 * count, 0, SYNC), *((1_000 * n, 1_000 * n + 100, n, LAUNCH) for n in range(1, count))]
    path = make_export(StringIds=NAMES, **{KERNELS: kernels(*kernel_rows), CALLS: calls(*call_rows)})
    assert set(analysed(path)["gaps"]["held_by"]) == {"cudaStreamSynchronize"}


def test_edge_steps_are_in_no_mean(exporter, tmp_path):
    path = export(FIXTURES / "decode_eager.nsys-rep", exporter)
    # The range cuts the first and the last of the steps that it touches.
    said = run(tmp_path, path, "--filter-time", "60000000/180000000")
    steps = pq.read_table(tmp_path / "out" / "step_idle.parquet").to_pandas()
    whole = steps[~steps["edge"]]
    assert 0 < len(whole) < len(steps)
    assert f"{whole['launches'].mean():,.0f} launch calls per decode bs=16 step" in said


def test_partly_recorded_launches_keep_from_a_verdict(make_export, tmp_path):
    kernel_rows, call_rows, _ = step_rows(0)
    extra = [(5_100 + 10 * n, 5_105 + 10 * n, 500 + n) for n in range(20)]
    path = make_export(StringIds=NAMES, **{KERNELS: kernels(*kernel_rows, *extra), CALLS: calls(*call_rows)})
    assert "nothing is said of CUDA graphs" in run(tmp_path, path).splitlines()[0]


def test_phases_that_do_not_take_turns_keep_their_own_time(make_export, tmp_path):
    """Many prefills and two mixed steps: what follows the prefills is not the mixed steps'."""
    starts = [1_000 * n for n in range(22)]
    kernel_rows = [(start + 100, start + 200, n + 1) for n, start in enumerate(starts)]
    call_rows = [(start + 10, start + 20, n + 1, LAUNCH) for n, start in enumerate(starts)]
    texts = ["execute_context_1(64)_generation_0(0)"] * 10 + ["execute_context_1(64)_generation_4(4)"] * 2
    texts += ["execute_context_1(64)_generation_0(0)"] * 10
    range_rows = [(start, start + 50, text) for start, text in zip(starts, texts, strict=True)]
    path = make_export(StringIds=NAMES, **{KERNELS: kernels(*kernel_rows), CALLS: calls(*call_rows),
                                           "NVTX_EVENTS": nvtx(*range_rows)})  # fmt: skip
    assert sorted(analysed(path)["step_idle"]["phase"].unique()) == ["mixed", "prefill"]
    # Every step is followed by 900 ns of nothing.
    assert "idle for 900 ns per" in run(tmp_path, path)
