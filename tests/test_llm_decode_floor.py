"""llm_decode_floor: books that balance on every report, the two reference captures, and the guide's worked example."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from conftest import FIXTURES, REPORTS, pack
from llm_decode_floor import recipe as floor_recipe
from llm_decode_floor.analysis import BETWEEN_STEPS, Settings, analyse
from llm_decode_floor.phase_floors import FloorSettings
from llm_nccl_sum.analysis import Settings as NcclSettings
from llm_nccl_sum.analysis import analyse as nccl
from recipes.capture.capture import Capture
from recipes.events.gpu_work import Span
from recipes.models.read_model import load_model, opaque_model
from recipes.nsight.export import export
from recipes.report.report import open_export
from recipes.steps.phases import load_phase_rules
from test_gpu_work import KERNELS, P
from test_steps import CALLS, MAIN, newest, ranges

RULES = load_phase_rules()
LLAMA = load_model("llama-3.1-8b")


def analysed(path: Path, floor: FloorSettings = FloorSettings()) -> dict[str, pd.DataFrame]:
    capture = Capture(open_export(path), Span(), RULES)
    return {name: table.to_pandas() for name, table in analyse(capture, Settings(None, floor))[0].items()}


@pytest.mark.parametrize("with_model", [False, True], ids=["plain", "floor"])
@pytest.mark.parametrize("report", REPORTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_parts_add_up_to_every_step(report, with_model, sqlite_of):
    tables = analysed(sqlite_of(report), FloorSettings(model=LLAMA, context=1024) if with_model else FloorSettings())
    steps = tables["steps"]
    steps = steps[steps["device"].notna()].set_index(["device", "step"])
    parts = tables["step_parts"]
    within = parts[parts["part"] != BETWEEN_STEPS]
    assert (parts["time_ns"] > 0).all()
    assert within.groupby(["device", "step"])["time_ns"].sum().to_dict() == steps["duration_ns"].astype(int).to_dict()
    idle = within[within["part"].str.startswith("idle_")].groupby(["device", "step"])["time_ns"].sum()
    assert idle.reindex(steps.index, fill_value=0).tolist() == steps["idle_ns"].tolist()
    assert (steps["busy_ns"] + steps["idle_ns"] == steps["duration_ns"]).all()
    between = parts[parts["part"] == BETWEEN_STEPS].set_index(["device", "step"])["time_ns"]
    for key, time_ns in between.items():
        assert steps.loc[key, "duration_ns"] + time_ns == steps.loc[key, "period_ns"]


@pytest.mark.parametrize(
    ("name", "first_ns", "period_ns", "gemm_ms", "idle_ms"),
    [("decode_graph", 6_766_483, 7_771_468, 4.072, 0.110), ("decode_eager", 44_236_000, 44_560_000, 4.069, 37.52)],
)
def test_reference_captures(name, first_ns, period_ns, gemm_ms, idle_ms, exporter):
    tables = analysed(export(FIXTURES / f"{name}.nsys-rep", exporter), FloorSettings(model=LLAMA, context=1027))
    steps, floor = tables["steps"], tables["floor"].iloc[0]
    assert steps["operations"].tolist() == [1042] * 5
    assert steps["batch"].tolist() == [16] * 5
    assert steps["launches"].tolist() == ([1] * 5 if name == "decode_graph" else [1042] * 5)
    assert steps["duration_ns"].iloc[0] == pytest.approx(first_ns, abs=500)
    assert tables["phases"]["period_p50_ns"].iloc[0] == pytest.approx(period_ns, rel=1e-4)
    # Weights really read 15.010 GB and KV 131,072 bytes a token, 16 x 1027 tokens, over 4.8 TB/s.
    assert floor["weight_bytes"] == pytest.approx(15.010e9, rel=1e-4)
    assert floor["kv_bytes"] == 131_072 * 16 * 1027
    assert floor["floor_ns"] == pytest.approx((15.010e9 + 131_072 * 16 * 1027) / 4.8e12 * 1e9, rel=1e-4)
    assert floor["ratio"] * floor["floor_ns"] == pytest.approx(floor["duration_p50_ns"])
    assert floor["mbu"] == pytest.approx(1 / floor["ratio"])
    mean_ms = tables["step_parts"].groupby("part")["time_ns"].sum() / 5e6
    assert mean_ms["weights_floor"] + mean_ms["gemm_above_floor"] == pytest.approx(gemm_ms, abs=0.01)
    assert mean_ms[mean_ms.index.str.startswith("idle_")].sum() == pytest.approx(idle_ms, rel=0.01)


def test_batches_are_never_averaged(sqlite_of):
    tables = analysed(sqlite_of(newest("decode_batches_graph")), FloorSettings(model=LLAMA))
    assert tables["floor"]["batch"].tolist() == [1, 16, 64]
    assert tables["phases"]["steps"].tolist() == [4, 4, 4]


def test_engine_ranges_give_context_and_tokens(sqlite_of):
    tables = analysed(sqlite_of(newest("serving_vllm_detailed")), FloorSettings(model=LLAMA))
    decode = tables["floor"].query("phase == 'decode'").iloc[0]
    steps = tables["steps"].query("phase == 'decode'")
    assert decode["context"] == pytest.approx(steps["kv_tokens"].median() / 16, abs=1)
    assert decode["kv_bytes"] == pytest.approx(131_072 * steps["kv_tokens"].median(), rel=1e-6)


def test_edge_steps_are_in_the_table_and_in_no_median(sqlite_of):
    tables = analysed(sqlite_of(newest("broken_stop_inside")))
    assert tables["steps"]["edge"].tolist() == [False] * 4 + [True]
    assert tables["phases"]["steps"].tolist() == [4]


def test_step_below_its_floor_is_said_and_has_no_mbu(sqlite_of, tmp_path):
    path = sqlite_of(newest("serving_vllm"))
    assert analysed(path, FloorSettings(model=LLAMA))["floor"].query("phase == 'decode'")["mbu"].isna().all()
    done = pack("run", "llm_decode_floor", "--input", path, "--model", "llama-3.1-8b", "--output", tmp_path / "out")
    assert "below its floor" in done.stdout
    assert "so an input is wrong" in done.stdout


def test_inter_token_latency_is_told_beside_the_period(make_export, tmp_path):
    # Decode steps 100 us apart; after every tenth a prefill of 2 ms.
    rows, now = [], 0
    for number in range(40):
        rows.append((now, "decode bs=4"))
        now += 100_000
        if number % 10 == 9:
            rows.append((now, "prefill bs=1 tokens=512"))
            now += 2_000_000
    columns = {
        "start": [start + 10_000 for start, _ in rows], "end": [start + 90_000 for start, _ in rows],
        "deviceId": [0] * len(rows), "globalPid": [P] * len(rows), "correlationId": list(range(len(rows))),
        "demangledName": [1] * len(rows), "shortName": [1] * len(rows),
    }  # fmt: skip
    path = make_export(
        StringIds={"id": [1, 2], "value": ["gemm", "cudaLaunchKernel_v7000"]},
        **{KERNELS: columns,
           CALLS: {"start": [start + 1 for start, _ in rows], "end": [start + 2 for start, _ in rows],
                   "globalTid": [MAIN] * len(rows), "nameId": [2] * len(rows), "correlationId": list(range(len(rows)))},
           "NVTX_EVENTS": ranges(*[(start, start + 90_000, MAIN, text, 59) for start, text in rows])},
    )  # fmt: skip
    tables = analysed(path)
    decode, prefill = (tables["phases"].query(f"phase == '{name}'").iloc[0] for name in ("decode", "prefill"))
    assert (decode["period_p99_ns"], decode["itl_p50_ns"], decode["itl_p99_ns"]) == (100_000, 100_000, 2_100_000)
    assert np.isnan(prefill["itl_p50_ns"])
    assert tables["steps"]["itl_ns"].notna().sum() == 39
    text = pack("run", "llm_decode_floor", "--input", path, "--output", tmp_path / "out").stdout
    (head,) = (line for line in text.splitlines() if "ITL p99 ms" in line)
    (row,) = (line for line in text.splitlines() if line.startswith("decode bs=4 ") and "projected" not in line)
    assert row.split()[-3:] == ["0.100", "0.100", "2.100"]
    assert head.split("  ")[-1].strip() == "ITL p99 ms"


def test_exposed_communication_is_what_no_work_on_the_device_covers(make_export):
    # A step of P: a GEMM from 100 to 120, NCCL from 110 to 200. Q computes from 150 to 180, and its own copy of NCCL
    # runs from 190 to 210.
    kernels = {
        "start": [100, 110, 150, 190, 300, 310], "end": [120, 200, 180, 210, 320, 400], "deviceId": [0] * 6,
        "globalPid": [P, P, 200 << 24, 200 << 24, P, P], "correlationId": [1, 2, 1, 2, 3, 4],
        "demangledName": [1, 3, 1, 3, 1, 3], "shortName": [1, 3, 1, 3, 1, 3],
    }  # fmt: skip
    calls = {"start": [90, 91, 290, 291], "end": [91, 92, 291, 292], "globalTid": [MAIN] * 4, "nameId": [2] * 4,
             "correlationId": [1, 2, 3, 4]}  # fmt: skip
    path = make_export(
        StringIds={"id": [1, 2, 3],
                   "value": ["gemm", "cudaLaunchKernel_v7000", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"]},
        TARGET_INFO_CUDA_DEVICE={"gpuId": [0, 0], "cudaId": [0, 0], "pid": [100, 200], "uuid": ["a", "a"]},
        **{KERNELS: kernels, CALLS: calls,
           "NVTX_EVENTS": ranges((80, 95, MAIN, "step 0", 59), (280, 295, MAIN, "step 1", 59))},
    )  # fmt: skip
    parts = analysed(path)["step_parts"].pivot(index="step", columns="part", values="time_ns").fillna(0)
    # Of 120 to 200 Q covers 30; of 190 to 200 the time is that of the NCCL kernel that started first.
    assert parts[["gemm", "communication", "other_work"]].to_numpy().tolist() == [[20, 50, 30], [20, 80, 0]]
    told = nccl(Capture(open_export(path), Span(), RULES), NcclSettings()).tables["step_communication"].to_pandas()
    assert told[told["step"].notna()]["exposed_ns"].tolist() == [50, 80]


def test_work_of_others_is_told_apart(make_export):
    # Two processes on one GPU: while the step of P runs from 100 to 200, Q is busy from 120 to 160.
    kernels = {
        "start": [100, 180, 120, 300, 380], "end": [110, 200, 160, 310, 400], "deviceId": [0] * 5,
        "globalPid": [P, P, 200 << 24, P, P], "correlationId": [1, 2, 1, 3, 4], "demangledName": [1] * 5,
        "shortName": [1] * 5,
    }  # fmt: skip
    calls = {"start": [90, 91, 290, 291], "end": [91, 92, 291, 292], "globalTid": [MAIN] * 4, "nameId": [2] * 4,
             "correlationId": [1, 2, 3, 4]}  # fmt: skip
    devices = {"gpuId": [0, 0], "cudaId": [0, 0], "pid": [100, 200], "uuid": ["a", "a"]}
    tables = analysed(make_export(
        StringIds={"id": [1, 2], "value": ["gemm", "cudaLaunchKernel_v7000"]}, TARGET_INFO_CUDA_DEVICE=devices,
        NVTX_EVENTS=ranges((80, 95, MAIN, "decode bs=1", 59), (280, 295, MAIN, "decode bs=1", 59)),
        **{KERNELS: kernels, CALLS: calls},
    ))  # fmt: skip
    parts = tables["step_parts"].query("step == 0").set_index("part")["time_ns"].to_dict()
    # Of Q's kernel no launch was recorded: the 10 ns before it are unknown.
    assert parts == {"gemm": 30, "other_work": 40, "idle_unknown": 10, "idle_queued": 20, BETWEEN_STEPS: 100}


def test_report_without_steps_says_what_to_do(make_export, tmp_path):
    done = pack("run", "llm_decode_floor", "--input", make_export(), "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "No steps were found" in done.stdout
    assert "--phases FILE" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--model", "no-such-model"], "no-such-model"),
        (["--tp", "2"], "give --model as well"),
        (["--params", "8G"], "give it, such as bf16"),
        (["--model", "llama-3.1-8b", "--gpu", "H900"], "H900"),
        (["--model", "llama-3.1-8b", "--attainable", "2"], "attainable"),
        (["--families", "/nowhere.tsv"], "/nowhere.tsv"),
    ],
)
def test_bad_options_are_one_line(options, expected, make_export, tmp_path):
    done = pack("run", "llm_decode_floor", "--input", make_export(), "--output", tmp_path / "out", *options)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("ERROR: ")
    assert expected in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--context=many", "--step-time=15", "--bandwidth=fast"])
def test_bad_numbers_are_usage_errors(option, make_export):
    done = pack("run", "llm_decode_floor", "--input", make_export(), option)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


# The guide's worked example: a 7.6 ms step on an H100; GEMMs 5.3, attention 0.8, norms and activations 0.3, other 0.1
# ms, and 1.1 ms idle in gaps of a few microseconds, one launch a kernel.
FAMILY_MS = {
    "nvjet_gemm": 5.3,
    "flash_fwd_kernel": 0.8,
    "rms_norm_kernel": 0.2,
    "silu_and_mul_kernel": 0.1,
    "mystery": 0.1,
}
KERNELS_A_STEP, STEPS = 500, 6
STEP_NS, IDLE_NS = 7_600_000, 1_100_000


@pytest.fixture(scope="module")
def worked_example(tmp_path_factory):
    """The example as an export: kernels of each family in turn, each launched by its own call just before it runs."""
    import sqlite3

    names = list(FAMILY_MS)
    durations = np.concatenate(
        [np.full(KERNELS_A_STEP // 5, round(ms * 1e6) // (KERNELS_A_STEP // 5)) for ms in FAMILY_MS.values()]
    )
    name = np.repeat(np.arange(5), KERNELS_A_STEP // 5)
    order = np.argsort(np.tile(np.arange(KERNELS_A_STEP // 5), 5), kind="stable")
    durations, name = durations[order], name[order]
    gaps = np.full(KERNELS_A_STEP - 1, IDLE_NS // (KERNELS_A_STEP - 1))
    gaps[: IDLE_NS - gaps.sum()] += 1
    starts = np.concatenate(([0], np.cumsum(durations[:-1] + gaps)))
    path = tmp_path_factory.mktemp("guide") / "guide.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE META_DATA_EXPORT (name, value)")
        db.execute("CREATE TABLE TARGET_INFO_GPU (id, cuDevice, name, memoryBandwidth, isDiscrete)")
        db.execute("INSERT INTO TARGET_INFO_GPU VALUES (0, 0, 'NVIDIA H100 80GB HBM3', 3352320000000, 1)")
        db.execute("CREATE TABLE StringIds (id, value)")
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", [*enumerate(names), (9, "cudaLaunchKernel_v7000")])
        db.execute(f"CREATE TABLE {KERNELS} (start, end, deviceId, globalPid, correlationId, demangledName, shortName)")
        db.execute(f"CREATE TABLE {CALLS} (start, end, globalTid, correlationId, nameId)")
        db.execute("CREATE TABLE NVTX_EVENTS (start, end, eventType, domainId, globalTid, text, textId)")
        for step in range(STEPS):
            begin = 10_000_000 + step * (STEP_NS + 50_000)
            for number in range(KERNELS_A_STEP):
                start, launch = int(begin + starts[number]), step * KERNELS_A_STEP + number
                row = (start, int(start + durations[number]), 0, P, launch, int(name[number]), int(name[number]))
                db.execute(f"INSERT INTO {KERNELS} VALUES (?, ?, ?, ?, ?, ?, ?)", row)
                # The call begins when the kernel before has ended, and returns when its own kernel starts.
                before = start - int(gaps[number - 1]) if number else start - 2000
                db.execute(f"INSERT INTO {CALLS} VALUES (?, ?, ?, ?, 9)", (before, start, MAIN, launch))
            db.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, 0, ?, 'decode bs=16', NULL)",
                       (begin - 3000, begin + STEP_NS, MAIN))  # fmt: skip
    db.close()
    return path


def test_guides_worked_example_comes_out_exactly(worked_example):
    tables = analysed(worked_example, FloorSettings(model=LLAMA))
    assert tables["steps"]["duration_ns"].tolist() == [STEP_NS] * STEPS
    assert tables["steps"]["idle_ns"].tolist() == [IDLE_NS] * STEPS
    parts = tables["step_parts"].query("step == 0").set_index("part")["time_ns"]
    assert parts["weights_floor"] + parts["gemm_above_floor"] == 5_300_000
    assert (parts["attention"], parts["norm"] + parts["activation"], parts["other"]) == (800_000, 300_000, 100_000)
    assert parts["idle_launch"] == IDLE_NS
    floor = tables["floor"].iloc[0]
    assert floor["floor_ns"] == pytest.approx(4_481_000, abs=1000)
    assert floor["batch"] == 16
    assert pd.isna(floor["kv_bytes"])


def test_guides_worked_example_tells_the_story(worked_example, tmp_path):
    done = pack(
        "run", "llm_decode_floor", "--input", worked_example, "--model", "llama-3.1-8b", "--output", tmp_path / "out"
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("decode bs=16 on NVIDIA H100 80GB HBM3: 7.60 ms projected (p50 of 6 steps)")
    assert "floor 4.48 ms at 3.35 TB/s (weights 4.48 ms; all weights would be 4.79 ms): 1.70x" in lines[0]
    told = [line for line in lines if line[:2] in ("1.", "2.", "3.", "4.", "5.")]
    assert told[0].startswith(
        "1. CUDA graphs are off: 500 launches for 500 operations a step leave the GPU idle for 1.10 ms"
    )
    assert any("GEMMs are near the floor: 5.30 ms for 4.48 ms" in line and line.endswith("leave them") for line in told)


def test_without_the_profiler_is_shown_beside(worked_example, tmp_path):
    done = pack(
        "run", "llm_decode_floor", "--input", worked_example, "--step-time", "7ms", "--output", tmp_path / "out"
    )
    # The period, as an engine measures: 7.60 ms of step and 50 us to the next.
    said = "Without the profiler a step takes 7.00 ms, in the capture 7.65 ms start to start: 1.09 times that"
    assert said in done.stdout
    for recipe, same in (("llm_idle_gaps", "(1.09 times that)"), ("llm_capture_check", "steps take 1.09 times")):
        told = pack("run", recipe, "--input", worked_example, "--step-time", "7ms", "--output", tmp_path / recipe)
        assert same in told.stdout, told.stdout
    assert "No floor without a model" in done.stdout


def test_weights_as_bytes_or_parameters_give_a_floor(worked_example):
    for model in (opaque_model(weight_bytes=16.06e9), opaque_model(params=8.03e9, weight_dtype="bf16")):
        floor = analysed(worked_example, FloorSettings(model=model))["floor"].iloc[0]
        assert floor["floor_ns"] == pytest.approx(16.06e9 / 3.35e12 * 1e9, rel=1e-3)


def test_schema_is_that_of_the_tables(worked_example):
    capture = Capture(open_export(worked_example), Span(), RULES)
    for name, table in analyse(capture, Settings(None, FloorSettings()))[0].items():
        (spec,) = (spec for spec in floor_recipe.TABLES if spec.name == name)
        assert table.column_names == [column for column in spec.names if column not in ("report", "rank")]
        assert {field.type for field in table.schema} <= {pa.int64(), pa.float64(), pa.string(), pa.bool_()}


def test_what_follows_the_last_step_is_not_taken_for_nothing(exporter, tmp_path):
    report = FIXTURES / "decode_graph.nsys-rep"
    done = pack("run", "llm_decode_floor", "--input", report, "--output", tmp_path / "out")
    steps = pd.read_parquet(tmp_path / "out" / "steps.parquet").iloc[:-1]
    between_ms = (steps["period_ns"] - steps["duration_ns"]).mean() / 1e6
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("between steps"))
    assert line.split()[-1] == f"{between_ms:.3f}"


def test_range_that_cuts_steps_rates_only_whole_ones(exporter):
    path = export(FIXTURES / "decode_graph.nsys-rep", exporter)
    capture = Capture(open_export(path), Span(20_000_000, 35_000_000), RULES)
    tables = {name: table.to_pandas() for name, table in analyse(capture, Settings(None, FloorSettings()))[0].items()}
    assert tables["steps"][["step", "edge"]].to_numpy().tolist() == [[1, True], [2, False], [3, True]]
    assert tables["phases"][["steps", "duration_p50_ns"]].to_numpy().tolist() == [[1, 6_787_571]]


def remarks_of(path: Path, batch: int) -> tuple[dict[str, pd.DataFrame], list[str]]:
    capture = Capture(open_export(path), Span(), RULES)
    tables, remarks, _ = analyse(capture, Settings(None, FloorSettings(model=LLAMA, batch=batch, context=64)))
    return {name: table.to_pandas() for name, table in tables.items()}, remarks


def test_batch_of_the_user_goes_before_that_of_the_ranges(exporter):
    path = export(FIXTURES / "decode_graph.nsys-rep", exporter)
    tables, remarks = remarks_of(path, 8)
    for name in ("steps", "phases", "floor"):
        assert tables[name]["batch"].eq(8).all(), name
    # 64 tokens of 131,072 bytes for each of 8 sequences.
    assert tables["floor"]["kv_bytes"].tolist() == [8 * 64 * 131_072]
    assert "decode: --batch 8 counts, though the ranges tell 16" in remarks
    assert remarks_of(path, 16)[1] == []


def test_one_batch_is_not_taken_for_several(sqlite_of):
    tables, remarks = remarks_of(sqlite_of(newest("decode_batches_graph")), 3)
    told = sorted(tables["floor"]["batch"])
    assert len(told) > 1
    assert 3 not in told
    named = ", ".join(map(str, told))
    assert f"decode: the ranges tell batches {named}; --batch 3 is not taken for all of them" in remarks


def test_family_below_its_floor_is_left_whole(exporter):
    path = export(FIXTURES / "decode_graph.nsys-rep", exporter)
    tables = analysed(path, FloorSettings(model=load_model("llama-3.1-70b"), context=1027))
    assert {"gemm", "attention"} <= set(tables["step_parts"]["part"])
    assert "weights_floor" not in set(tables["step_parts"]["part"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [["--params", "8", "--weight-dtype", "bf16"], ["--weight-bytes", "16"], ["--batch", "0"], ["--batch", "16.5"]],
)
def test_sizes_that_make_no_sense_are_usage_errors(options, make_export):
    done = pack("run", "llm_decode_floor", "--input", make_export(), *options)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_billions_of_parameters_are_written_with_b():
    read = [floor_recipe._count("8.03B"), floor_recipe._count("8.03G"), floor_recipe._weight_bytes("16.1GB"),
            floor_recipe._size("3.35TB/s"), floor_recipe._size("3.35T")]  # fmt: skip
    assert read == pytest.approx([8.03e9, 8.03e9, 16.1e9, 3.35e12, 3.35e12])
    assert floor_recipe._tokens("32k") == 32_000


@pytest.mark.slow
def test_two_models_at_once_are_refused(make_export):
    done = pack("run", "llm_decode_floor", "--input", make_export(), "--model", "llama-3.1-8b", "--weight-bytes", "16G")
    assert done.returncode == 1
    assert "--model and --weight-bytes each say how large the model is" in done.stderr


def test_quality_names_steps_without_work(sqlite_of, tmp_path):
    path = sqlite_of(FIXTURES / "2023.4.4" / "broken_startup.nsys-rep")
    done = pack("run", "llm_decode_floor", "--input", path, "--output", tmp_path / "out")
    assert "quality: warn" in done.stdout
    assert "GPU records stop while steps go on" in done.stdout
    assert "5 of 5 steps have no GPU work" in done.stdout
