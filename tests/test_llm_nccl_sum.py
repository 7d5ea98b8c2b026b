"""llm_nccl_sum: names, exposed time, matching across ranks, stragglers, clocks."""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import oracle
from benchmarks import straggler as simulated
from conftest import REPORTS, pack
from llm_nccl_sum.all_ranks import _sizes, combine
from llm_nccl_sum.analysis import Settings, analyse
from llm_nccl_sum.summary import _clocks, _decode
from llm_nccl_sum.summary import _sizes as _no_sizes
from llm_nccl_sum.tables import COMMUNICATION
from recipes.base.text_table import told_apart
from recipes.capture.capture import Capture
from recipes.collectives.bandwidth import bus_factor, whole_message
from recipes.collectives.kernel_names import Kind, kind_of
from recipes.collectives.matching import match_sets, rank_sets, told_by_all
from recipes.collectives.payloads import _decoded, _with_groups
from recipes.collectives.verdicts import blame, is_enough, judge
from recipes.events.gpu_work import Span
from recipes.kernels.families import load_rules
from recipes.report.report import open_export
from recipes.steps.phases import load_phase_rules
from recipes.steps.ranges import Payloads
from test_gpu_work import COPIES, KERNELS, P
from test_llm_idle_gaps import calls, kernels
from test_steps import CALLS, MAIN, newest

RULES = load_phase_rules()


def analysed(path: Path, settings: Settings = Settings()) -> dict[str, pd.DataFrame]:
    tables, *_ = analyse(Capture(open_export(path), Span(), RULES), settings)
    return {name: table.to_pandas() for name, table in tables.items()}


def run(tmp_path, *arguments) -> tuple[str, dict[str, pd.DataFrame]]:
    done = pack("run", "llm_nccl_sum", "--input", *arguments, "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    return done.stdout, {file.stem: pq.read_table(file).to_pandas() for file in (tmp_path / "out").glob("*.parquet")}


# From NVIDIA/nccl src/device/generate.py (2.19 on, and before), vLLM, flashinfer, DeepEP, mscclpp, PyTorch.
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
         Kind("all_reduce", "bf16", "RING", "LL")),
        ("ncclDevKernel_AllReduce_Sum_f32_TREE_LL128(ncclDevKernelArgsStorage<4096ul>)",
         Kind("all_reduce", "fp32", "TREE", "LL128")),
        ("ncclDevKernel_AllReduce_Sum_f16_NVLS_TREE_SIMPLE(x)", Kind("all_reduce", "fp16", "NVLS_TREE", "SIMPLE")),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", Kind("all_reduce", "fp32", "RING", "LL")),
        ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*)", Kind("broadcast", "int8", "RING", "LL")),
        ("ncclDevKernel_AllGather_RING_LL(x)", Kind("all_gather", None, "RING", "LL")),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_COLLNET_DIRECT_SIMPLE(x)",
         Kind("reduce_scatter", "bf16", "COLLNET_DIRECT", "SIMPLE")),
        ("ncclDevKernel_SendRecv(x)", Kind("send_recv", None, None, None)),
        ("ncclDevKernel_Gather(x)", Kind("gather", None, None, None)),
        ("void userbuffers_fp16_sum_inplace_gpu_rr_rs<4>(x)", Kind("reduce_scatter", None, None, None)),
        ("void userbuffers_fp16_sum_inplace_gpu_mc_ag<8>(x)", Kind("all_gather", None, None, None)),
        ("void userbuffers_fp16_sum_inplace_gpu_mc<8>(x)", Kind("all_reduce", None, None, None)),
        ("kuserbuffers_pullrecv(int, int)", Kind("send_recv", None, None, None)),
        ("void moeA2ADispatchKernel<8>(x)", Kind("dispatch", None, None, None)),
        ("moeA2ACombineKernel(x)", Kind("combine", None, None, None)),
        ("a2a_dispatch(x)", Kind("dispatch", None, None, None)),
        ("ncclDevKernel_Generic_1(x)", Kind("other", None, None, None)),
        ("ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_bf16(x)",
         Kind("all_reduce", "bf16", "RSxLDMC_AGxSTMC", None)),
        ("void vllm::cross_device_reduce_2stage<__nv_bfloat16, 2>(vllm::RankData*)",
         Kind("all_reduce", "bf16", "two_shot", None)),
        ("void vllm::cross_device_reduce_1stage<half, 8>(vllm::RankData*)",
         Kind("all_reduce", "fp16", "one_shot", None)),
        ("flashinfer::trtllm_mnnvl_allreduce::oneshotAllreduceFusionKernel",
         Kind("all_reduce_fused", None, "one_shot", None)),
        ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<3, __half>(x)",
         Kind("all_reduce_fused", "fp16", "one_shot", None)),
        ("void deep_ep::internode_ll::dispatch<true, 3, 10, 7168>(void*, float*)", Kind("dispatch", None, None, None)),
        ("void deep_ep::intranode::combine<__nv_bfloat16, 2>(T1 *)", Kind("combine", "bf16", None, None)),
        ("void allreduce7<(Op)0, __nv_bfloat16>(mscclpp::MemoryChannelDeviceHandle*)",
         Kind("all_reduce", "bf16", None, None)),
        ("void two_shot_reduce_scatter_kernel<half>(x)", Kind("reduce_scatter", "fp16", "two_shot", None)),
        ("_multimem_all_gather_kernel", Kind("all_gather", None, None, None)),
        ("void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 4, 2>(c10::BFloat16**)",
         Kind("all_reduce", "bf16", "two_shot", None)),
    ],
)  # fmt: skip
def test_names_tell_their_kind(name, expected):
    assert load_rules(None).classify(name)[0] == "communication"
    assert kind_of(name) == expected


@pytest.mark.parametrize("report", REPORTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_exposed_time_is_what_nothing_else_covers(report, sqlite_of):
    """Against plain code: the union of communication, less what other operations cover."""
    path = sqlite_of(report)
    tables = analysed(path)
    rows, steps = tables["communication"], tables["step_communication"]
    assert steps["exposed_ns"].sum() == rows["exposed_ns"].sum()
    assert steps["time_ns"].sum() == rows["duration_ns"].sum()
    assert steps["calls"].sum() == len(rows)
    assert (rows["exposed_ns"] <= rows["duration_ns"]).all()
    rules = load_rules(None)
    for device, own in rows.groupby("device"):
        found = oracle.operations(path, device=device)
        talking = [op[:2] for op in found if op[3] is not None and rules.classify(op[3])[0] == "communication"]
        others = [op[:2] for op in found if op[3] is None or rules.classify(op[3])[0] != "communication"]
        assert len(talking) == len(own)
        assert own["exposed_ns"].sum() == oracle.busy_ns(talking + others) - oracle.busy_ns(others)


def test_messages_are_those_of_nccls_ranges(sqlite_of):
    eager = analysed(sqlite_of(newest("tp_eager_rank0")))["communication"]
    # 16 sequences of 4096 bf16 values; 16 of 64,128 logits on each of two ranks.
    by_operation = eager.groupby("operation", observed=True)["bytes"].unique()
    assert by_operation["all_reduce"].tolist() == [16 * 4096 * 2]
    assert by_operation["all_gather"].tolist() == [2_052_096]
    assert eager["communicator"].nunique() == 1
    # Launched at a group's end: the message is that of the call in the group.
    pairs = analysed(sqlite_of(newest("send_recv")))["communication"]
    assert pairs["bytes"].unique().tolist() == [4_194_304]
    replayed = analysed(sqlite_of(newest("tp_graph_rank0")))["communication"]
    assert replayed["bytes"].isna().all()
    for sizes, expected in (({"": 131_072}, {131_072}), ({"all_reduce": 131_072}, {131_072, -1})):
        given = analysed(sqlite_of(newest("tp_graph_rank0")), Settings(bytes=sizes))["communication"]
        assert set(given["bytes"].fillna(-1)) == expected


@pytest.mark.parametrize("name", ["tp_eager_rank0", "send_recv", "ddp"])
def test_bytes_of_a_payload_say_what_its_text_says(name, sqlite_of, tmp_path):
    path = sqlite_of(newest(name))
    raw = copy_of(path, tmp_path / "raw.sqlite", "UPDATE NVTX_EVENTS SET jsonText = NULL, jsonTextId = NULL")
    told, decoded = (analysed(one)["communication"] for one in (path, raw))
    assert decoded["bytes"].notna().all()
    pd.testing.assert_frame_equal(decoded, told, check_categorical=False, check_dtype=False)


def test_factors_are_those_of_nccl_tests():
    assert [bus_factor("all_reduce", n) for n in (1, 2, 8)] == [None, 1.0, 1.75]
    assert [bus_factor("all_gather", n) for n in (2, 8)] == [0.5, 0.875]
    assert (bus_factor("broadcast", 8), bus_factor("dispatch", 8)) == (1.0, None)
    assert (whole_message("all_reduce", 8), whole_message("all_gather", 8)) == (1, 8)


def test_bandwidths_by_hand(sqlite_of, tmp_path):
    _, tables = run(tmp_path, sqlite_of(newest("tp_eager")))
    for row in tables["collectives"].itertuples():
        per_s = row.bytes / row.time_ns * 1e9
        expected = (per_s, per_s) if row.operation == "all_reduce" else (2 * per_s, per_s)
        assert (row.algbw_bytes_per_s, row.busbw_bytes_per_s) == pytest.approx(expected)


@pytest.mark.parametrize("reports", [["tp_slow"], ["tp_slow_rank0", "tp_slow_rank1"]], ids=["one", "ranks"])
def test_slowed_rank_is_named(reports, sqlite_of, tmp_path):
    said, tables = run(tmp_path, *(sqlite_of(newest(name)) for name in reports))
    assert "arrival skew (straggler: rank 1)" in said.splitlines()[0]
    ranks = tables["ranks"].set_index("rank")
    assert ranks.loc[1, "straggler_score"] > 0.99
    assert (ranks["late"].tolist(), ranks.loc[1, "late_reason"]) == ([False, True], "gpu")
    assert "is late: longer GPU work before its collectives" in said
    # 21 us before each of 16 all-reduces.
    assert 320_000 < ranks.loc[1, "late_work_ns"] < 360_000
    assert ranks.loc[1, "times_last"] >= 82
    assert ranks["matched"].tolist() == [84, 84]
    # 16 all-reduces and one all-gather a step, five steps, less the first.
    assert len(tables["matched"]) == 2 * (5 * 17 - 1)
    # It spins 21 us before each all-reduce, and so much the other one waits.
    waits = tables["matched"].query("rank == 0 and operation == 'all_reduce'")["wait_ns"]
    assert 19_000 < waits.median() < 23_000
    assert tables["matched"]["arrival_ns"].notna().all()


@pytest.mark.parametrize("reports", [["tp_graph"], ["tp_graph_rank0", "tp_graph_rank1"]], ids=["one", "ranks"])
def test_healthy_pair_is_acquitted(reports, sqlite_of, tmp_path):
    said, _ = run(tmp_path, *(sqlite_of(newest(name)) for name in reports))
    assert "straggler" not in said
    # Three of its five steps hold most of the waiting: who is late in these is no verdict on a rank.
    assert "arrival skew" not in said
    assert "steps that hold most of it, which may be chance: capture " in said


def test_training_is_bound_by_transfer_and_hides_most_of_it(sqlite_of, tmp_path):
    said, tables = run(tmp_path, *(sqlite_of(newest(f"ddp_rank{rank}")) for rank in (0, 1)))
    assert "transfer-bound" in said.splitlines()[0]
    backward = tables["step_communication"].query("phase == 'backward'")
    assert backward["calls"].tolist() == [18] * 6
    hidden = 1 - backward["exposed_ns"].sum() / backward["time_ns"].sum()
    assert f"{hidden * 100:.1f} % of the communication in backward overlaps other work" in said


def test_one_rank_alone_cannot_be_split(sqlite_of, tmp_path):
    said, tables = run(tmp_path, sqlite_of(newest("tp_slow_rank0")))
    assert "inconclusive: one rank alone: its time cannot be split into transfer and waiting" in said.splitlines()[0]
    assert tables["matched"].empty
    assert tables["ranks"]["straggler_score"].isna().all()


def test_missing_ranks_keep_everyone_from_being_accused(sqlite_of, tmp_path):
    paths = [sqlite_of(newest(f"tp_slow_rank{rank}")) for rank in (0, 1)]
    said, _ = run(tmp_path / "a", *paths, "--ranks", "4")
    assert "inconclusive: 2 ranks are missing, so nobody knows who came last" in said.splitlines()[0]
    said, tables = run(tmp_path / "b", *paths, "--rank-map", f"{paths[0].stem}=0,{paths[1].stem}=3")
    assert "2 ranks are missing" in said
    assert tables["ranks"]["rank"].tolist() == [0, 3]
    assert set(tables["files"]["rank_source"]) == {"--rank-map"}


def test_two_reports_of_one_rank_are_an_error_that_names_them(sqlite_of, tmp_path):
    paths = [sqlite_of(newest(f"tp_slow_rank{rank}")) for rank in (0, 1)]
    names = [path.stem for path in paths]
    done = pack("run", "llm_nccl_sum", "--input", *paths, "--rank-map", f"{names[0]}=1,{names[1]}=1", "--output",
                tmp_path / "out")  # fmt: skip
    assert done.returncode == 1
    assert "rank 1 is that of several reports" in done.stderr and all(name in done.stderr for name in names)
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_collectives_of_a_step_against_the_model(sqlite_of, tmp_path):
    path = sqlite_of(newest("tp_graph_rank0"))
    config = tmp_path / "eight"
    config.mkdir()
    (config / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": 8}')
    assert (
        "16 all-reduces a step; two for each of 8 layers are 16, as" in run(tmp_path / "a", path, "--model", config)[0]
    )
    said, _ = run(tmp_path / "b", path, "--model", "llama-3.1-8b")
    assert "16 all-reduces a step; two for each of 32 layers are 64: 48 fewer than that" in said


def test_two_all_reduces_for_each_of_32_layers(sqlite_of, tmp_path):
    said, tables = run(tmp_path, sqlite_of(newest("tp_full")), "--model", "llama-3.1-8b")
    reduces = tables["communication"].query("operation == 'all_reduce'").groupby(["device", "step"]).size()
    assert reduces.tolist() == [64] * 10
    assert "64 all-reduces a step; two for each of 32 layers are 64, as tensor parallelism has them" in said
    assert "straggler" not in said


def test_report_without_communication_says_so(sqlite_of, tmp_path):
    said, tables = run(tmp_path, sqlite_of(newest("decode_compiled")))
    assert said.startswith("No communication kernels were found.\nquality: ok")
    assert all(tables[name].empty for name in ("communication", "collectives", "matched", "ranks"))


def made(*ranks, communicator=None, clocks=None, operation="all_reduce", phase="decode", reports=None):
    """Rows of COMMUNICATION: for each rank, a report each, its kernels as (nth_step, start, duration)."""
    rows = [(number, *kernel) for number, own in enumerate(ranks) for kernel in own]
    frame = pd.DataFrame(rows, columns=["participant", "nth_step", "start_ns", "duration_ns"])
    frame["nth_step"] = frame["nth_step"].where(frame["nth_step"] >= 0)
    participant = frame["participant"].to_numpy()
    clock_ns = np.zeros(len(frame), dtype=np.int64) if clocks is None else np.array(clocks)[participant]
    frame = frame.assign(
        phase=phase, name="k", operation=operation, communicator=communicator, stream=7, edge=False, clock_ns=clock_ns,
        clock_known=clocks is not None, report=participant if reports is None else np.array(reports)[participant],
    )  # fmt: skip
    return frame, participant


def sets_of(frame, participant, ranks=None):
    place = np.arange(int(participant.max()) + 1)
    frame = frame.assign(communicator=told_by_all(frame["communicator"], participant))
    return match_sets(frame, participant, rank_sets(frame, participant, place, ranks))


def only(frame, participant):
    (found,) = sets_of(frame, participant)
    return found


def test_matching_by_hand():
    # The second collective of step 0 and the one of step 1; the first of all is left out.
    first = [(0, 100, 50), (0, 200, 10), (1, 300, 30)]
    found = only(*made(first, [(0, 140, 10), (0, 180, 30), (1, 320, 10)], reports=[0, 0]))
    assert (found.left_out_ns, found.unmatched, found.uneven, found.count) == (40, 0, 0, 2)
    assert found.duration_ns.tolist() == [10, 30, 30, 10]
    assert found.transfer_ns.tolist() == [10, 10, 10, 10]
    assert found.wait_ns.tolist() == [0, 20, 20, 0]
    assert found.last.tolist() == [True, False, False, True]
    assert found.arrival_ns.tolist() == [20, 0, 0, 20]
    assert blame(found).tolist() == [[20, 0], [0, 20]]


@pytest.mark.parametrize(("streams", "wait_ns"), [((7, 9), 0), ((13, 20), 0), ((7, 7), 61 * 400)])
def test_unknown_communicators_have_streams_of_their_own(streams, wait_ns):
    """Two communicators take turns, 500 and 100 ns, and rank 1 comes to them the other way round."""
    lengths = [500, 100]
    first = [(n, 1_000 * n + 500 * k, lengths[k]) for n in range(31) for k in range(2)]
    frame, participant = made(first, [(n, 1_000 * n + 500 * k, lengths[1 - k]) for n in range(31) for k in range(2)])
    long = frame["duration_ns"] == 500
    other = np.where(long, *streams)
    frame["stream"] = np.where(participant == 0, np.where(long, 7, 9), other)
    if streams == (7, 7):
        frame["stream"] = 7
    assert only(frame, participant).wait_ns.sum() == wait_ns


def test_equally_short_ones_blame_nobody():
    found = only(*made([(0, k, 5) for k in range(0, 90, 10)], [(0, k, 5) for k in range(0, 90, 10)]))
    assert not found.last.any()
    assert blame(found).sum() == 0


def test_step_with_unequal_numbers_is_left_out_and_shifts_nothing():
    first = [(0, 0, 5), (0, 10, 5), (0, 20, 5), (1, 90, 7), (2, 190, 7)]
    found = only(*made(first, [(0, 0, 5), (0, 10, 5), (1, 90, 5), (2, 190, 5)]))
    assert (found.unmatched, found.uneven) == (5, 1)
    # Steps 1 and 2 match; the first of them is left out.
    assert found.duration_ns.tolist() == [7, 5]


def test_edge_steps_are_not_matched():
    frame, participant = made([(n, 100 * n, 5) for n in range(4)], [(n, 100 * n, 5) for n in range(4)])
    frame["edge"] = frame["nth_step"] == 3
    assert only(frame, participant).step.tolist() == [1, 1, 2, 2]


@pytest.mark.parametrize("clocks", [None, [1_000, 1_000]], ids=["unknown", "known"])
def test_window_that_begins_a_step_later_is_matched_to_the_right_steps(clocks):
    """Steps of varying length, all healthy; rank 1's first step is not in its capture, so its steps count from 0."""
    rng = np.random.default_rng(5)
    begins = np.cumsum(rng.integers(5_000, 50_000, 30))
    lengths = rng.integers(100, 900, 30)
    whole = [(n, int(t), int(d)) for n, (t, d) in enumerate(zip(begins, lengths, strict=True))]
    late = [(n - 1, start, length) for n, start, length in whole[1:]]
    found = only(*made(whole, late, clocks=clocks))
    assert found.shifted == 1
    assert found.wait_ns.sum() == 0
    assert found.offset_ns.tolist() == [0, 0]


@pytest.mark.parametrize("offset_ns", [0, 2_000_000, 40_000_000])
def test_clocks_that_disagree_shift_no_steps(offset_ns):
    """Forty alike steps of 5 ms on two hosts whose clocks are some ms apart."""
    steps = [(n, 5_000_000 * n, 1_000) for n in range(40)]
    other = [(n, start + offset_ns + 17 * (n % 3), 1_000) for n, start, _ in steps]
    found = only(*made(steps, other, clocks=[0, 0]))
    assert (found.shifted, found.count) == (0, 39)
    assert judge(found, 0).kind == "transfer-bound"


def test_windows_twenty_steps_apart_are_set_straight():
    rng = np.random.default_rng(2)
    begins = np.cumsum(rng.integers(8_000_000, 12_000_000, 80))
    steps = [(n, int(start), int(1_000_000 * 0.97**n)) for n, start in enumerate(begins)]
    found = only(*made(steps, [(n - 20, start, length) for n, start, length in steps[20:]], clocks=[0, 0]))
    assert (found.shifted, found.wait_ns.sum()) == (20, 0)


def late_window(first, begin):
    """The same kernels in a window that begins so many steps later."""
    return [(n - begin, start, length) for n, start, length in first if n >= begin]


def ending_at(ends, lengths):
    return [(n, int(end) - int(length), int(length)) for n, (end, length) in enumerate(zip(ends, lengths, strict=True))]


def test_one_clock_tells_how_far_windows_of_regular_steps_are_apart():
    """Three devices of one report, steps of 1 ms give or take 1 us; the third's window begins eight steps later."""
    rng = np.random.default_rng(3)
    steps = ending_at(np.cumsum(1_000_000 + rng.integers(-1_000, 1_000, 60)), 200_000 * 0.97 ** np.arange(60))
    found = only(*made(steps, steps, late_window(steps, 8), clocks=[0, 0, 0], reports=[0, 0, 0]))
    assert (found.shifted, found.wait_ns.sum(), found.arrival_ns.max()) == (8, 0, 0)


@pytest.mark.parametrize("seed", range(20))
def test_one_clock_shifts_no_steps_by_chance(seed):
    """Eight steps of 1 ms whose ends differ by 10 us."""
    rng = np.random.default_rng(seed)
    ends = np.cumsum(1_000_000 + rng.integers(-20_000, 20_000, 8))
    other = ending_at(ends + rng.integers(-10_000, 10_000, 8), np.full(8, 500))
    found = only(*made(ending_at(ends, np.full(8, 500)), other, clocks=[0, 0], reports=[0, 0]))
    assert (found.shifted, found.wait_ns.sum()) == (0, 0)


@pytest.mark.parametrize("clocks", [None, [0, 0]], ids=["unknown", "known"])
def test_the_steps_unlike_others_tell_the_shift(clocks):
    """Of steps of 1 ms three in ten take 30 ms."""
    rng = np.random.default_rng(3)
    ends = np.cumsum(np.where(rng.random(60) < 0.3, 30_000_000, 1_000_000) + rng.integers(-2_000, 2_000, 60))
    steps = ending_at(ends, rng.integers(20_000, 200_000, 60))
    found = only(*made(steps, late_window(steps, 1), clocks=clocks))
    assert (found.shifted, found.wait_ns.sum()) == (1, 0)


def with_prefill(first, other, *, reports):
    """Forty alike decode steps of 1 ms from 1 s on, on both ranks, and these prefills."""
    decode = [(n, 1_000_000_000 + 1_000_000 * n, 500) for n in range(40)]
    frames = made(decode, decode, reports=reports), made(first, other, phase="prefill", reports=reports)
    return only(pd.concat([frame for frame, _ in frames], ignore_index=True), np.concatenate([p for _, p in frames]))


@pytest.mark.parametrize("reports", [[0, 0], [0, 1]], ids=["one report", "two"])
def test_a_phase_of_few_steps_follows_the_one_of_many(reports):
    """Rank 0 has the prefills at 0 and 50 ms, rank 1 the second alone, or it and one that rank 0 lacks."""
    first = [(0, 0, 900_000), (1, 50_000_000, 100_000)]
    for more in ([], [(1, 102_000_000, 300_000)]):
        found = with_prefill(first, [(0, 50_000_000, 100_000), *more], reports=reports)
        assert (found.shifted, found.wait_ns.sum(), found.arrival_ns.max()) == (1, 0, 0)
        # One prefill of both and 40 decode steps, the first collective left out.
        assert (found.count, found.unmatched, found.unclear) == (40, 1 + len(more), False)


def test_a_doubtful_phase_is_left_out_and_the_rest_is_matched():
    """The prefills of two ranks are 7 ms apart, which is nothing of the 1 ms steps of both."""
    found = with_prefill([(0, 0, 500)], [(0, 7_000_000, 500)], reports=[0, 0])
    assert (found.count, found.unmatched, found.uneven, found.unclear) == (39, 2, 0, False)


def test_sets_without_enough_collectives_raise_no_doubts():
    late = [(n, 1_000 * n + k * 100 + 80, 10) for n in range(5) for k in range(5)]
    sets = sets_of(*made([(n, start - 80, 90) for n, start, _ in late], late))
    assert [is_enough(found) for found in sets] == [True]
    assert judge(sets[0], 0, 1).stragglers == (1,)
    assert not any(is_enough(found) for found in sets_of(*made([(0, 0, 20)], [(0, 0, 20)], operation="barrier")))


@pytest.mark.parametrize(
    ("told", "ranks", "expected"),
    [(["a", None], None, [2, 2]), (["a", "a"], None, [2, 2]), (["a", "b"], 8, [8, 8]), ([None, None], 8, [8, 8])],
)
def test_ranks_of_a_collective(told, ranks, expected):
    """Those of its communicator where all tell one; what the user says where nobody or one rank alone does."""
    frame, participant = made([(0, 0, 5)], [(0, 0, 5)])
    told = told_by_all(pd.Series([told[number] for number in participant], dtype=object), participant)
    frame = frame.assign(communicator=told)
    sets = rank_sets(frame, participant, np.arange(2), ranks)
    assert _sizes(frame, participant, sets, match_sets(frame, participant, sets), ranks).tolist() == expected


def test_steps_that_do_not_belong_together_are_not_judged():
    rng = np.random.default_rng(4)
    one, other = (np.cumsum(rng.integers(1_000_000, 9_000_000, 40)) for _ in range(2))
    found = only(*made([(n, int(t), 500) for n, t in enumerate(one)], [(n, int(t), 100) for n, t in enumerate(other)]))
    assert found.unclear and found.count == 0
    assert "belong together cannot be told" in judge(found, 0).why


def test_rank_with_incomplete_steps_only_keeps_the_others_from_being_judged():
    steps = [(n, 1_000 * n, 500) for n in range(30)]
    frame, participant = made(steps, [(n, s + 400, 100) for n, s, _ in steps], [(n, s + 450, 50) for n, s, _ in steps])
    frame["edge"] = participant == 2
    found = only(frame, participant)
    assert (found.members.tolist(), found.count, found.unmatched, found.edges) == ([0, 1, 2], 0, 90, 30)
    assert judge(found, 0).kind == "inconclusive"


def test_known_communicators_tell_the_sets_of_graph_replays():
    """Prefill tells the pairs; decode replays of graphs tell nothing, and one pair has shorter kernels."""
    prefill = [(n, 1_000 * n, 100) for n in range(30)]
    frame, participant = made(*[prefill] * 4)
    frame["communicator"] = np.where(participant < 2, "a", "b")
    decode, _ = made(*[[(n, 1_000_000 + 1_000 * n, length) for n in range(30)] for length in (500, 500, 100, 100)],
                     phase="decode")  # fmt: skip
    both = pd.concat([frame.assign(phase="prefill"), decode], ignore_index=True)
    sets = sets_of(both, np.concatenate([participant, participant]))
    assert sorted(found.members.tolist() for found in sets) == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert all(found.wait_ns.sum() == 0 for found in sets)


def test_blocks_go_by_rank_and_lack_what_is_not_there():
    frame, participant = made(*[[(n, 1_000 * n, 100) for n in range(30)]] * 4)
    sets = match_sets(frame, participant, rank_sets(frame, participant, np.array([0, 1, 2, 5]), 2))
    assert [found.members.tolist() for found in sets] == [[0, 1], [2], [3]]


@pytest.mark.slow
def test_many_sets_accuse_nobody_by_chance():
    rng = np.random.default_rng(11)
    accused = 0
    for _ in range(30):
        late = rng.random((8, 5)) < 0.5
        ranks = []
        for one in late:
            times = np.where(np.repeat(one, 20), 400, 0)
            ranks.extend(
                [(k // 20, 1_000 * k + int(t), 500 - int(t)) for k, t in enumerate(mine)]
                for mine in (times, 400 - times)
            )
        frame, participant = made(*ranks)
        frame["communicator"] = (participant // 2).astype(str)
        sets = sets_of(frame, participant)
        accused += any(bool(judge(found, 0, len(sets)).stragglers) for found in sets)
    assert accused <= 4


@pytest.mark.parametrize("late", [0, 1])
def test_steps_without_waiting_blame_nobody(late):
    """Four late steps and one of ties are four of five, whoever is late."""

    def times(rank):
        return [(k // 20, 1_000 * k + (400 if rank == late and k < 80 else 0),
                 100 if rank == late and k < 80 else 500) for k in range(100)]  # fmt: skip

    verdict = judge(only(*made(times(0), times(1))), 0)
    assert (verdict.kind, verdict.stragglers) == ("inconclusive", ())
    # Five steps are needed for one of two ranks, and one says nothing; 80 % of the waiting is in all four.
    assert "latest in 4 of the 4 steps that hold most of it, which may be chance" in verdict.why


def test_each_report_has_one_clock():
    """Two reports of two devices: the second's clock is 120 ns ahead, however far its ends lie apart."""
    ranks = [[(n, 1_000 * n + ahead, 500) for n in range(30)] for ahead in (0, 0, 110, 130)]
    found = only(*made(*ranks, reports=[0, 0, 1, 1]))
    assert found.offset_ns.tolist() == [0, 0, 120, 120]
    assert found.reports == 2


def test_many_steps_are_judged_in_a_moment():
    steps, each = 20_000, 4
    frame = pd.DataFrame({
        "nth_step": np.repeat(np.arange(steps), each), "start_ns": np.arange(steps * each) * 1_000,
        "duration_ns": 500, "phase": "decode", "name": "k", "operation": "all_reduce", "communicator": "a",
        "clock_ns": 0, "clock_known": True, "edge": False,
    })  # fmt: skip
    late = frame.assign(start_ns=frame["start_ns"] + 400, duration_ns=100, report=1)
    both = pd.concat([frame.assign(report=0), late], ignore_index=True)
    found = only(both, np.repeat([0, 1], len(frame)))
    begin = time.perf_counter()
    assert judge(found, 0).stragglers == (1,)
    assert time.perf_counter() - begin < 2


def test_report_without_communication_is_a_missing_rank(sqlite_of, tmp_path):
    paths = [sqlite_of(newest(f"tp_slow_rank{rank}")) for rank in (0, 1)]
    third = copy_of(sqlite_of(newest("decode_compiled")), tmp_path / "other_rank2.sqlite")
    said, _ = run(tmp_path, *paths, third)
    assert "1 rank is missing" in said.splitlines()[0]


def communication(*rows):
    """Rows of COMMUNICATION by hand: one all-reduce each, with what is given."""
    one = {
        "report": "a", "rank": None, "device": 0, "phase": "decode", "step": 0, "nth_step": 0, "edge": False,
        "name": "k", "operation": "all_reduce", "dtype": None, "algorithm": None, "protocol": None,
        "communicator": None, "stream": 7,
        "start_ns": 0, "duration_ns": 1_000, "exposed_ns": 1_000, "bytes": None, "work_before_ns": 0,
        "idle_before_ns": 0, "clock_ns": 1, "world_size": None,
    }  # fmt: skip
    types = {column.name: column.type for column in COMMUNICATION.columns}
    columns = {name: [{**one, **row}[name] for row in rows] for name in one}
    files = {"report": [row.get("report", "a") for row in rows], "rank": columns["rank"]}
    files = pa.table(files).append_column("rank_source", pa.array([None] * len(rows), pa.string()))
    made = {name: pa.array(values, types[name]) for name, values in columns.items()}
    return {"communication": COMMUNICATION.build(made)}, files


@pytest.mark.parametrize(("world_size", "expected"), [(3, None), (4, "1 rank is missing"), (6, "3 ranks are missing")])
def test_ranks_that_the_launcher_told_are_missing(world_size, expected):
    """Three reports of a job; two kernels each."""
    rows = [{"report": f"r{rank}", "rank": rank, "world_size": world_size} for rank in range(3)]
    (verdict,) = combine(*communication(*rows), Settings()).told.verdicts
    assert (f"{expected}, so nobody knows who came last" in verdict.why) if expected else "missing" not in verdict.why


def test_places_of_reports_go_by_the_numbers_in_their_names():
    rows = [{"report": f"pod-{number}-report1"} for number in (0, 1, 10, 11, 2, 9)]
    found = combine(*communication(*rows), Settings()).tables["ranks"].to_pydict()
    assert found["report"] == [f"pod-{number}-report1" for number in (0, 1, 2, 9, 10, 11)]
    assert found["rank"] == [0, 1, 2, 3, 4, 5]


def test_cut_names_keep_what_tells_them_apart():
    assert told_apart(["a-worker-10-report", "a-worker-11-report"], 16) == ["...ker-10-report", "...ker-11-report"]
    pods = [f"trainer-worker-{number}-0123456789-report1" for number in (2, 10, 11)]
    assert told_apart(pods, 20) == ["...2-0123456789-repo", "...10-0123456789-rep", "...11-0123456789-rep"]
    assert told_apart(["short", "a name that is far too long"], 12) == ["short", "a name...ong"]
    same_until_late = [f"a{'x' * 30}{end}" for end in ("b" * 30 + "1", "c" * 30 + "1")]
    assert len(set(told_apart(same_until_late, 20))) == 2
    assert told_apart(["ab" + "x" * 30 + "1y", "b" + "x" * 31 + "2y", "ab" + "x" * 29 + "11y"], 10)[1].startswith("b")


@pytest.mark.parametrize(
    ("version", "path", "expected"),
    [("2023.4.4", "a.sqlite", "before 2025 do not hold them"), ("2025.3.1", "a.sqlite", "--include-json true"),
     ("2025.3.1", "a.nsys-rep", "no NCCL ranges with them")],
)  # fmt: skip
def test_what_gives_message_sizes(version, path, expected):
    kinds = pd.DataFrame({"report": ["a"], "bytes": [None]})
    (said,) = _no_sizes(kinds, pd.DataFrame({"report": ["a"], "nsys_version": [version], "path": [path]}))
    assert expected in said


def test_step_without_a_phase_is_no_decode_step():
    steps = pd.DataFrame(
        {"phase": ["step"], "edge": [False], "duration_ns": [1_000], "calls": [1], "exposed_ns": [300]}
    )
    kernels = pd.DataFrame({"phase": ["step"], "edge": [False], "duration_ns": [300]})
    together = SimpleNamespace(kernels=kernels, sets=[])
    (said,) = _decode(steps, together, pd.DataFrame({"phase": ["step"], "bytes": [None], "calls": [1]}))
    assert said.startswith("Exposed communication is 30.0 % of a step (300 ns), waiting for other ranks included")
    (said,) = _decode(steps.assign(phase="decode"), together, pd.DataFrame())
    assert said.startswith("Exposed communication is 30.0 % of a decode step")


def test_sets_without_waiting_say_nothing_against_the_clocks():
    steps = [(n, 1_000 * n, 100) for n in range(30)]
    assert _clocks([only(*made(steps, steps))]) == "By the ends of collectives clocks agree within 0 ns"


def test_edge_steps_only_are_said(sqlite_of, tmp_path):
    path = sqlite_of(newest("tp_eager"))
    with sqlite3.connect(path) as db:
        ((begin,),) = db.execute("SELECT min(start) FROM NVTX_EVENTS WHERE text LIKE 'decode%'").fetchall()
    db.close()
    said, _ = run(tmp_path, path, "--filter-time", f"{begin + 2_000_000}/{begin + 6_000_000}")
    assert "inconclusive" in said.splitlines()[0]
    assert "in incomplete steps" in said


def test_communicators_are_sets_of_their_own():
    """Ranks 0 and 1 are one group, 2 and 3 another, in which rank 3 is always late."""

    def steps(length):
        return [(n, 1_000 * n, length) for n in range(30)]

    late = [(n, 1_000 * n + 400, 100) for n in range(30)]
    frame, participant = made(steps(100), steps(100), steps(500), late)
    frame["communicator"] = np.where(participant < 2, "a", "b")
    sets = sets_of(frame, participant)
    assert [found.members.tolist() for found in sets] == [[0, 1], [2, 3]]
    assert [found.left_out_ns for found in sets] == [0, 400]
    verdicts = [judge(found, 0) for found in sets]
    assert [(one.kind, one.stragglers) for one in verdicts] == [("transfer-bound", ()), ("arrival skew", (3,))]


def test_number_of_ranks_makes_sets_where_communicators_are_not_known():
    frame, participant = made(*[[(n, 1_000 * n, 100) for n in range(5)]] * 4)
    assert [found.members.tolist() for found in sets_of(frame, participant)] == [[0, 1, 2, 3]]
    assert [found.members.tolist() for found in sets_of(frame, participant, ranks=2)] == [[0, 1], [2, 3]]


def test_communicators_that_only_one_export_tells_are_not_used():
    frame, participant = made(*[[(n, 1_000 * n, 100) for n in range(5)]] * 2)
    frame["communicator"] = np.where(participant == 0, "a", None)
    assert only(frame, participant).count == 4


@pytest.mark.parametrize("operation", ["send_recv", "broadcast", "dispatch"])
def test_what_some_rank_may_leave_early_is_not_split(operation):
    assert sets_of(*made([(0, 0, 5)] * 3, [(0, 0, 5)] * 3, operation=operation)) == []


@pytest.mark.parametrize(("sizes", "count"), [([7, 7], 29), ([7, 9], 0), ([None, None], 0)])
def test_all_to_all_is_split_where_all_send_equally_much(sizes, count):
    """Rank 1 has half the work in each, or less to send."""
    one, other = [(n, 1_000 * n, 500) for n in range(30)], [(n, 1_000 * n, 250) for n in range(30)]
    frame, participant = made(one, other, operation="all_to_all")
    found = only(frame.assign(bytes=[sizes[number] for number in participant]), participant)
    assert (found.count, found.unmatched) == (count, 0 if count else 60)
    assert bool(judge(found, 0).stragglers) == bool(count)


def test_clocks_are_aligned_by_the_ends():
    """Rank 1's clock is 1,000,000 ns ahead; it comes 400 ns later each time."""
    late = [(n, 1_000 * n + 1_000_400, 100) for n in range(100)]
    found = only(*made([(n, 1_000 * n, 500) for n in range(100)], late))
    assert found.offset_ns.tolist() == [0, 1_000_000]
    assert found.residual_ns.tolist() == [0, 0]
    assert found.aligned
    assert found.arrival_ns[found.participant == 1].tolist() == [400] * 99
    assert judge(found, 0).stragglers == (1,)


def test_clock_of_one_report_is_one():
    """Its ends may lie apart: that is no clock."""
    other = [(n, 1_000 * n + 30, 520) for n in range(30)]
    found = only(*made([(n, 1_000 * n, 500) for n in range(30)], other, reports=[0, 0]))
    assert found.offset_ns.tolist() == [0, 0]
    assert found.arrival_ns[found.participant == 1].tolist() == [30] * 29


def test_clocks_that_drift_say_nothing_of_arrival():
    rng = np.random.default_rng(7)
    starts = np.arange(0, 1_000_000, 10_000)
    jitter = rng.integers(-4_000, 4_000, len(starts))
    first = [(n, int(start), 500) for n, start in enumerate(starts)]
    found = only(*made(first, [(n, int(start) + 400, 100) for n, start in enumerate(starts + jitter)]))
    assert not found.aligned
    # By durations alone it is clear.
    assert judge(found, 0).stragglers == (1,)


def test_captures_of_different_times_are_not_of_one_run():
    steps = [(n, 1_000 * n, 500) for n in range(40)]
    found = only(*made(steps, [(n, start, 100) for n, start, _ in steps], clocks=[0, 60_000_000_000]))
    assert found.apart and found.count == 0
    verdict = judge(found, 0)
    assert verdict.kind == "inconclusive"
    assert "not of one run" in verdict.why


def test_chance_names_nobody():
    """Who comes last is thrown by a coin for each step, and waits are long: there is no straggler in that."""
    rng = np.random.default_rng(3)
    accused = 0
    for _ in range(60):
        late = np.repeat(rng.random(8) < 0.5, 20)
        # All end at the same time, as collectives do.
        times = {True: (400, 100), False: (0, 500)}
        first = [(k // 20, k * 1_000 + times[slow][0], times[slow][1]) for k, slow in enumerate(late.tolist())]
        second = [(k // 20, k * 1_000 + times[not slow][0], times[not slow][1]) for k, slow in enumerate(late.tolist())]
        verdict = judge(only(*made(first, second)), 0)
        assert verdict.kind in ("mixed", "inconclusive", "arrival skew")
        accused += bool(verdict.stragglers)
    assert accused <= 5


def test_few_collectives_and_missing_ranks_are_inconclusive():
    steps = [(n, 1_000 * n, 500) for n in range(20)]
    late = [(n, start, 100) for n, start, _ in steps]
    found = only(*made(steps, late))
    assert judge(found, 0).why == "only 19 collectives are matched across 2 ranks"
    more = only(*made([*steps, (20, 20_000, 500)], [*late, (20, 20_000, 100)]))
    assert judge(more, 0).stragglers == (1,)
    assert judge(more, 1).kind == "inconclusive"
    assert "1 rank is missing, so nobody knows who came last" in judge(more, 1).why


@pytest.mark.parametrize(("wait_ns", "expected"), [(9, "transfer-bound"), (10, "arrival skew")])
def test_late_by_one_per_cent_of_a_step(wait_ns, expected):
    """One collective in each step of 1,000 ns: rank 1 costs 0.9 or 1 % of it."""
    steps = [(n, 1_000 * n, 100 + wait_ns) for n in range(40)]
    assert judge(only(*made(steps, [(n, start + wait_ns, 100) for n, start, _ in steps])), 0).kind == expected


def ranks_with(work_ns, transfer_ns=10):
    """Kernels of ranks that do so much work, (steps, places, ranks), before each collective; all leave it together."""
    steps, places, ranks = work_ns.shape
    apart_ns = work_ns.max(axis=2) + transfer_ns
    ends_ns = np.cumsum(apart_ns.ravel()).reshape(steps, places)
    wait_ns = (work_ns.max(axis=2, keepdims=True) - work_ns).astype(int)
    return [
        [(s, int(ends_ns[s, p] - transfer_ns - wait_ns[s, p, r]), int(transfer_ns + wait_ns[s, p, r]))
         for s in range(steps) for p in range(places)]
        for r in range(ranks)
    ]  # fmt: skip


def test_late_at_every_second_collective_of_a_step():
    """Rank 1 of three has 50 ns more of 1,000 before the second and fourth of four collectives."""
    work_ns = np.full((10, 4, 3), 1_000)
    work_ns[:, 1::2, 1] += 50
    verdict = judge(only(*made(*ranks_with(work_ns))), 0)
    (late,) = verdict.late
    assert (verdict.stragglers, late.cost_ns) == ((1,), 100)
    assert "rank 1 causes 100 % of that, 100 ns per step (2.4 % of it), at 2 of 4 collectives of a step" in verdict.why
    assert "(number 2, 4)" in verdict.why


def test_both_of_two_late_ranks_are_named():
    work_ns = np.full((20, 2, 4), 1_000)
    work_ns[:, :, :2] += 90
    verdict = judge(only(*made(*ranks_with(work_ns))), 0)
    # Each comes 60 ns after the mean of the three others in 39 collectives, and causes half of the waiting.
    assert verdict.stragglers == (0, 1)
    assert [late.cost_ns for late in verdict.late] == [60 * 39 / 20] * 2
    assert blame(only(*made(*ranks_with(work_ns)))).sum(axis=0).tolist() == [39 * 90, 39 * 90, 0, 0]


def test_collectives_outside_steps_are_no_steps():
    late = [(-1, 1_000 * n + 400, 100) for n in range(40)]
    verdict = judge(only(*made([(-1, 1_000 * n, 500) for n in range(40)], late)), 0)
    assert verdict.kind == "inconclusive"
    assert "none of it is in a step" in verdict.why


@pytest.mark.parametrize("case", simulated.LATE)
@pytest.mark.parametrize("ranks", [8, 16])
def test_simulated_late_ranks_are_named(case, ranks):
    assert simulated.rightly(np.random.default_rng(8), case, 40, ranks, 20) >= 0.95


@pytest.mark.parametrize("jitter", simulated.HEALTHY)
@pytest.mark.parametrize(("ranks", "steps"), [(2, 3), (2, 5), (2, 20), (8, 8), (8, 100), (64, 20)])
def test_simulated_healthy_ranks_are_acquitted(jitter, ranks, steps):
    """At most 2 % in the long run; more than 3 of 50 would be a chance of 2 % then."""
    assert simulated.wrongly(np.random.default_rng(9), jitter, steps, ranks, 50) <= 0.06


@pytest.mark.slow
def test_million_collectives_match_in_seconds():
    count = 1_000_000
    rng = np.random.default_rng(1)
    one = pd.DataFrame({
        "nth_step": np.repeat(np.arange(count // 100), 100), "start_ns": np.arange(count) * 1_000,
        "duration_ns": rng.integers(100, 900, count), "phase": "decode", "name": "k", "operation": "all_reduce",
        "communicator": "a", "stream": 7, "clock_ns": 0, "clock_known": True, "edge": False,
    })  # fmt: skip
    both = pd.concat([one.assign(report=0), one.assign(report=1)], ignore_index=True)
    participant = np.repeat([0, 1], count)
    begin = time.perf_counter()
    found = only(both, participant)
    judge(found, 0)
    assert time.perf_counter() - begin < 10
    assert found.count == count - 1
    assert found.unmatched == 0


def payloads(*rows):
    """NCCL's ranges of (start, end, name, bytes, communicator), as read_payloads gives them."""
    names = sorted({row[2] for row in rows})
    texts = [json.dumps({"Message size [bytes]": row[3], "NCCL communicator ID": row[4]}) for row in rows]
    told = np.array([number if row[3] is not None else -1 for number, row in enumerate(rows)])
    return Payloads(
        start_ns=np.array([row[0] for row in rows]), end_ns=np.array([row[1] for row in rows]),
        global_tid=np.full(len(rows), MAIN), name=np.array([names.index(row[2]) for row in rows]), payload=told,
        names=names, payloads=texts, domain_id=np.ones(len(rows), dtype=np.int64), payload_bytes=pa.nulls(len(rows)),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        # A send and a receive go at the same time.
        ([("ncclSend", 100, 1), ("ncclRecv", 100, 1)], (100, 0)),
        ([("ncclSend", 25, 1)] * 4 + [("ncclRecv", 25, 1)] * 4, (100, 0)),
        ([("ncclAllReduce", 64, 1), ("ncclAllReduce", 36, 1)], (100, 0)),
        # Two communicators: two kernels, whose shares nobody knows.
        ([("ncclAllReduce", 64, 1), ("ncclAllReduce", 64, 2)], (-1, -1)),
        # A group inside: the outer end launches all of it.
        ([("ncclAllReduce", 40, 1), ("ncclGroupStart", None, None), ("ncclAllReduce", 60, 1),
          ("ncclGroupEnd", None, None)], (100, 0)),
    ],
)  # fmt: skip
def test_groups_add_up(inner, expected):
    rows = [("ncclAllReduce", 7, 1), ("ncclGroupStart", None, None), *inner, ("ncclGroupEnd", None, None)]
    ranges = payloads(*((10 * n, 10 * n + 5, *row) for n, row in enumerate(rows)))
    sizes, communicator = _with_groups(ranges, *_decoded(ranges.payload, ranges.payloads)[:2])
    assert (sizes[-1], communicator[-1]) == expected


def test_end_without_a_start_opens_nothing():
    ranges = payloads((0, 5, "ncclAllReduce", 7, 1), (10, 15, "ncclGroupEnd", None, None))
    sizes, _ = _with_groups(ranges, *_decoded(ranges.payload, ranges.payloads)[:2])
    assert sizes.tolist() == [7, -1]


def copy_of(path: Path, to: Path, *statements: str) -> Path:
    """A copy of an export, changed by SQL."""
    shutil.copy(path, to)
    with sqlite3.connect(to) as db:
        for statement in statements:
            db.execute(statement)
    db.close()
    return to


def test_missing_session_start_leaves_clocks_to_the_ends(sqlite_of, tmp_path):
    one = sqlite_of(newest("tp_slow_rank0"))
    other = copy_of(sqlite_of(newest("tp_slow_rank1")), tmp_path / "other_rank1.sqlite",
                    "DELETE FROM TARGET_INFO_SESSION_START_TIME")  # fmt: skip
    said, tables = run(tmp_path, one, other)
    assert "straggler: rank 1" in said.splitlines()[0]
    assert tables["ranks"]["clock_residual_ns"].max() < 1_000


def test_ranks_of_different_runs_accuse_nobody(sqlite_of, tmp_path):
    said, tables = run(tmp_path, sqlite_of(newest("tp_slow_rank0")), sqlite_of(newest("tp_graph_rank1")))
    assert "the captures do not overlap in time: they are not of one run" in said.splitlines()[0]
    assert tables["matched"].empty


def test_later_window_on_a_real_pair(sqlite_of, tmp_path):
    """Rank 1's capture without its first step."""
    one, other = (sqlite_of(newest(f"tp_slow_rank{rank}")) for rank in (0, 1))
    with sqlite3.connect(other) as db:
        found = db.execute("SELECT start FROM NVTX_EVENTS WHERE text LIKE 'decode%' ORDER BY start").fetchall()
    db.close()
    second = found[1][0]
    gone = f"correlationId NOT IN (SELECT correlationId FROM {CALLS})"
    late = copy_of(
        other, tmp_path / "late_rank1.sqlite", f"DELETE FROM NVTX_EVENTS WHERE start < {second}",
        f"DELETE FROM {CALLS} WHERE start < {second}",
        *(f"DELETE FROM {table} WHERE {gone}" for table in (KERNELS, COPIES)),
    )  # fmt: skip
    said, tables = run(tmp_path, one, late)
    assert "windows begin 1 step apart" in said
    # The other four steps, less the first collective: too few steps to accuse anybody.
    assert tables["ranks"]["matched"].tolist() == [4 * 17 - 1] * 2
    assert "inconclusive" in said.splitlines()[0] and "which may be chance: capture five steps or more" in said
    assert tables["ranks"]["straggler_score"].tolist()[1] > 0.99
    assert abs(tables["ranks"]["clock_offset_ns"]).max() < 1_000_000


def test_bandwidth_takes_the_ranks_of_the_communicator():
    """Two pairs: n is 2, not 4."""
    rows = {
        "report": ["a", "b", "c", "d"], "rank": [0, 1, 2, 3], "device": [0] * 4, "phase": ["decode"] * 4,
        "step": [0] * 4, "nth_step": [0] * 4, "edge": [False] * 4, "name": ["k"] * 4, "operation": ["all_gather"] * 4,
        "dtype": [None] * 4, "algorithm": [None] * 4, "protocol": [None] * 4, "communicator": ["x", "x", "y", "y"],
        "stream": [7] * 4, "start_ns": [0] * 4, "duration_ns": [1_000] * 4, "exposed_ns": [1_000] * 4,
        "bytes": [4_000] * 4, "clock_ns": [1] * 4, "work_before_ns": [0] * 4, "idle_before_ns": [0] * 4,
        "world_size": [None] * 4,
    }  # fmt: skip
    columns = {name: pa.array(values, pa.string()) if name in ("dtype", "algorithm", "protocol") else values
               for name, values in rows.items()}  # fmt: skip
    files = pa.table({"report": rows["report"], "rank": rows["rank"], "rank_source": ["file name"] * 4})
    tables = combine({"communication": COMMUNICATION.build(columns)}, files, Settings()).tables
    found = tables["collectives"].to_pandas()
    assert found["ranks"].tolist() == [2] * 4
    # Each rank gives 4,000 bytes: 8,000 in 1 us, of which half crosses the links.
    assert found["algbw_bytes_per_s"].tolist() == [8e9] * 4
    assert found["busbw_bytes_per_s"].tolist() == [4e9] * 4


def test_decode_advice(sqlite_of, tmp_path):
    """Waiting is no transfer: only what is left of it says that the degree is too high."""
    waiting, _ = run(tmp_path / "a", sqlite_of(newest("tp_eager")))
    assert "of which 96.5 % is waiting for other ranks" in waiting
    assert "degree is too high" not in waiting
    assert "is late: later launches, its GPU is idle before its collectives" in waiting
    alone, _ = run(tmp_path / "b", sqlite_of(newest("tp_slow_rank0")))
    assert "if it is not that, the tensor parallel degree is too high for this batch" in alone


def test_rank_in_the_name_of_a_thread(make_export):
    from recipes.report.facts import read_facts

    names = {"id": [1, 2, 3], "value": ["gemm", "worker", "rank 5 main"]}
    threads = {"globalTid": [P + 1, P + 2], "nameId": [2, 3]}
    report = open_export(make_export(StringIds=names, ThreadNames=threads))
    facts = read_facts(report, "capture")
    assert (facts.rank, facts.rank_source) == (5, "thread name")
    assert read_facts(report, "capture_rank2").rank_source == "file name"


def test_same_files_twice(sqlite_of, tmp_path):
    path = sqlite_of(newest("tp_eager"))
    for name in ("one", "two"):
        run(tmp_path / name, path)
    for file in (tmp_path / "one" / "out").glob("*.parquet"):
        assert file.read_bytes() == (tmp_path / "two" / "out" / file.name).read_bytes()
        assert {str(field.type) for field in pq.read_schema(file)} <= {"int64", "double", "string", "bool"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "option",
    [
        ["--ranks", "1"],
        ["--bytes", "many"],
        ["--bytes", "9999999999G"],
        ["--rank-map", "a"],
        ["--rank-map", "a=b"],
        ["--rank-map", "a=0,a=1"],
    ],
)
def test_bad_options_are_usage_errors(option, make_export):
    done = pack("run", "llm_nccl_sum", "--input", make_export(), *option)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_map_of_ranks_that_names_no_input_is_an_error(sqlite_of, tmp_path):
    done = pack("run", "llm_nccl_sum", "--input", sqlite_of(newest("tp_slow_rank0")), "--rank-map", "tp_slow_rnk0=5",
                "--output", tmp_path / "out")  # fmt: skip
    assert done.returncode == 1
    assert "--rank-map: tp_slow_rnk0 is not one of the inputs" in done.stderr


def test_unreadable_payload_is_no_message(make_export):
    names = {
        "id": [1, 2, 3],
        "value": ["ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", "cudaLaunchKernel", "ncclAllReduce"],
    }
    rows = {"start": [0, 20, 40], "end": [10, 30, 50], "globalTid": [P + 1] * 3, "textId": [3] * 3,
            "eventType": [59] * 3,
            "jsonText": ["{broken", "[1]", '{"Message size [bytes]": 64, "NCCL communicator ID": 255}']}  # fmt: skip
    path = make_export(StringIds=names, NVTX_EVENTS=rows, **{
        KERNELS: kernels((100, 110, 1), (120, 130, 2), (140, 150, 3)),
        "CUPTI_ACTIVITY_KIND_RUNTIME": calls((5, 6, 1, 2), (25, 26, 2, 2), (45, 46, 3, 2)),
    })  # fmt: skip
    found = analysed(path)["communication"]
    assert found["bytes"].fillna(-1).tolist() == [-1, -1, 64]
    assert found["communicator"].astype(object).where(found["communicator"].notna(), None).tolist() == [
        None,
        None,
        "ff",
    ]
