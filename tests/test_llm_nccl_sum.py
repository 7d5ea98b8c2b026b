"""llm_nccl_sum: names, exposed time, matching across ranks, stragglers, clocks."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import oracle
from conftest import REPORTS, pack
from llm_nccl_sum.analysis import Settings, analyse
from llm_nccl_sum.bandwidth import bus_factor, whole_message
from llm_nccl_sum.kernel_names import Kind, kind_of
from llm_nccl_sum.matching import match
from llm_nccl_sum.recipe import NEEDS
from llm_nccl_sum.verdicts import judge, straggler_scores
from recipes.capture import read_capture
from recipes.families import load_rules
from recipes.gpu_work import Span
from recipes.phases import load_phase_rules
from recipes.report.report import open_export
from test_gpu_work import KERNELS, P
from test_llm_idle_gaps import calls, kernels
from test_steps import newest

RULES = load_phase_rules()


def analysed(path: Path, settings: Settings = Settings()) -> dict[str, pd.DataFrame]:
    tables, _ = analyse(read_capture(open_export(path), Span(), RULES, NEEDS), settings)
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
    given = analysed(sqlite_of(newest("tp_graph_rank0")), Settings(bytes=131_072))["communication"]
    assert given["bytes"].unique().tolist() == [131_072]


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
    assert said.splitlines()[0].split("; ")[1].split(":")[0] in ("mixed", "transfer-bound")


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
    assert "inconclusive: 56 % of the time in matched collectives is waiting, but 2 ranks are missing" in said
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


def made(*ranks, communicator=None, clock=0, operation="all_reduce"):
    """Rows of COMMUNICATION: for each rank its kernels as (nth_step, start, duration)."""
    rows = [(number, *kernel) for number, own in enumerate(ranks) for kernel in own]
    frame = pd.DataFrame(rows, columns=["participant", "nth_step", "start_ns", "duration_ns"])
    frame = frame.assign(phase="decode", name="k", operation=operation, communicator=communicator, clock_ns=clock)
    return frame, frame["participant"].to_numpy()


def test_matching_by_hand():
    # The second collective of step 0 and the one of step 1; the first of all is left out.
    kernels_made, participant = made(
        [(0, 100, 50), (0, 200, 10), (1, 300, 30)], [(0, 140, 10), (0, 180, 30), (1, 320, 10)]
    )
    found = match(kernels_made, participant, 2)
    assert (found.left_out_ns, found.unmatched) == (40, 0)
    assert found.duration_ns.tolist() == [10, 30, 30, 10]
    assert found.transfer_ns.tolist() == [10, 10, 10, 10]
    assert found.wait_ns.tolist() == [0, 20, 20, 0]
    assert found.last.tolist() == [True, False, False, True]
    assert found.arrival_ns.tolist() == [20, 0, 0, 20]
    times_last, score = straggler_scores(found, 2)
    assert times_last.tolist() == [1, 1]
    assert score.tolist() == [0.5, 0.5]


def test_what_a_rank_lacks_is_unmatched_and_shifts_nothing_in_the_next_step():
    kernels_made, participant = made(
        [(0, 0, 5), (0, 10, 5), (0, 20, 5), (1, 90, 7)], [(0, 0, 5), (0, 10, 5), (1, 90, 5)]
    )
    found = match(kernels_made, participant, 2)
    assert found.unmatched == 1
    assert found.duration_ns.tolist() == [5, 5, 7, 5]


def test_communicators_have_their_own_members():
    """Ranks 0 and 1 are one group, 2 and 3 another: each is matched in itself."""
    own = [[(0, start, 10) for start in range(0, 90, 30)] for _ in range(4)]
    kernels_made, participant = made(*own)
    kernels_made["communicator"] = np.where(participant < 2, "a", "b")
    found = match(kernels_made, participant, 4)
    assert found.unmatched == 0
    # Three collectives of each pair, less the first one of all.
    assert len(found) == 2 * (3 + 2)
    groups = pd.Series(found.participant // 2).groupby(found.collective).nunique()
    assert (groups == 1).all()


def test_send_and_receive_are_not_matched():
    found = match(*made([(0, 0, 5)] * 3, [(0, 0, 5)] * 3, operation="send_recv"), 2)
    assert len(found) == 0 and found.unmatched == 0


def test_clocks_are_aligned_by_the_ends():
    """Rank 1's clock is 1,000,000 ns ahead; it comes 400 ns later each time."""
    starts = range(0, 100_000, 1_000)
    kernels_made, participant = made([(0, s, 500) for s in starts], [(0, s + 1_000_400, 100) for s in starts])
    found = match(kernels_made, participant, 2)
    assert found.offset_ns.tolist() == [0, 1_000_000]
    assert found.residual_ns.tolist() == [0, 0]
    assert found.aligned
    assert found.arrival_ns[found.participant == 1].tolist() == [400] * 99
    assert judge(found, 2, 0).straggler == 1


def test_clocks_that_drift_say_nothing_of_arrival():
    rng = np.random.default_rng(7)
    starts = np.arange(0, 1_000_000, 10_000)
    jitter = rng.integers(-4_000, 4_000, len(starts))
    kernels_made, participant = made([(0, int(s), 500) for s in starts],
                                     [(0, int(s) + 400, 100) for s in starts + jitter])  # fmt: skip
    found = match(kernels_made, participant, 2)
    assert not found.aligned
    # By durations alone it is clear.
    assert judge(found, 2, 0).straggler == 1


def test_chance_names_nobody():
    """Who comes last is thrown by a coin, and waits are long: there is no straggler in that."""
    rng = np.random.default_rng(3)
    late = rng.random(200) < 0.5
    first = [(0, k * 1_000, 500 if slow else 100) for k, slow in enumerate(late)]
    second = [(0, k * 1_000, 100 if slow else 500) for k, slow in enumerate(late)]
    verdict = judge(match(*made(first, second), 2), 2, 0)
    assert (verdict.kind, verdict.straggler) == ("mixed", None)


def test_million_collectives_match_in_seconds():
    count = 1_000_000
    rng = np.random.default_rng(1)
    one = pd.DataFrame({
        "nth_step": np.repeat(np.arange(count // 100), 100), "start_ns": np.arange(count) * 1_000,
        "duration_ns": rng.integers(100, 900, count), "phase": "decode", "name": "k", "operation": "all_reduce",
        "communicator": None, "clock_ns": 0,
    })  # fmt: skip
    both = pd.concat([one, one], ignore_index=True)
    participant = np.repeat([0, 1], count)
    begin = time.perf_counter()
    found = match(both, participant, 2)
    assert time.perf_counter() - begin < 20
    assert len(found) == 2 * (count - 1)
    assert found.unmatched == 0


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


@pytest.mark.parametrize("option", [["--ranks", "1"], ["--bytes", "many"], ["--rank-map", "a"], ["--rank-map", "a=b"]])
def test_bad_options_are_usage_errors(option, make_export):
    done = pack("run", "llm_nccl_sum", "--input", make_export(), *option)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


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
