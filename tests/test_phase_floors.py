"""Floors of a report's phases: peaks by the type of the products, steps without a batch, contexts, steps that train."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from conftest import pack
from llm_decode_floor.phase_floors import FloorSettings
from llm_decode_floor.training import is_training, optimizer_names
from recipes.models.read_model import load_model, parse_model
from test_gpu_work import KERNELS, P
from test_llm_decode_floor import analysed
from test_model_bytes import LLAMA
from test_steps import CALLS, MAIN, ranges

FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}
STEP_NS = 20_000_000
ADAM = "void multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor<float, 4>>(int)"
COPY = "void multi_tensor_apply_kernel<TensorListMetadata<2>, CopyFunctor<float, float, 2>>(int)"


@pytest.fixture
def capture(make_export):
    """Steps of 20 ms on a GPU: each a GEMM, and a kernel of another name."""

    def make(text, gpu="NVIDIA H200", second="rms_norm_kernel", steps=4):
        begin = np.arange(steps) * 30_000_000 + 1_000_000
        half = STEP_NS // 2
        starts = np.column_stack([begin, begin + half]).ravel()
        number = np.arange(2 * steps)
        kernels = {
            "start": starts.tolist(), "end": (starts + half).tolist(), "deviceId": [0] * 2 * steps,
            "globalPid": [P] * 2 * steps, "correlationId": number.tolist(),
            "demangledName": [1, 3] * steps, "shortName": [1, 3] * steps,
        }  # fmt: skip
        launched = np.repeat(begin, 2) - 2000 + number % 2 * 100
        calls = {"start": launched.tolist(), "end": (launched + 50).tolist(), "globalTid": [MAIN] * 2 * steps,
                 "nameId": [2] * 2 * steps, "correlationId": number.tolist()}  # fmt: skip
        opened = [(at - 3000, at + STEP_NS, MAIN, text.format(n), 59) for n, at in enumerate(begin.tolist())]
        gpus = {"id": [0], "cuDevice": [0], "name": [gpu], "memoryBandwidth": [4814304000000], "isDiscrete": [1]}
        return make_export(
            StringIds={"id": [1, 2, 3], "value": ["nvjet_gemm", "cudaLaunchKernel_v7000", second]},
            TARGET_INFO_GPU=gpus, NVTX_EVENTS=ranges(*opened), **{KERNELS: kernels, CALLS: calls},
        )  # fmt: skip

    return make


# 2 FLOP for each of 7,504,920,576 parameters and token: 512 tokens in 20 ms are 384.25 TFLOP/s.
RATE = 2 * (32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 128256 * 4096) * 512 / 0.020


@pytest.mark.parametrize(
    ("gpu", "quantization", "peak", "ridge"),
    [
        ("NVIDIA H200", None, 989.4e12, 206),
        ("NVIDIA H200", FP8, 1979e12, 412),
        ("NVIDIA H200", GPTQ, 989.4e12, 206),
        ("NVIDIA A100-SXM4-80GB", FP8, 312e12, 153),  # no unit for FP8: weights are widened
        ("NVIDIA B200", {"quant_method": "modelopt", "quant_algo": "NVFP4"}, 9000e12, 1169),
    ],
)
def test_peak_is_that_of_the_products(capture, gpu, quantization, peak, ridge):
    model = parse_model("m", {**LLAMA, "quantization_config": quantization} if quantization else LLAMA)
    row = analysed(capture("decode bs=512", gpu), FloorSettings(model=model))["floor"].iloc[0]
    assert row["ridge_flop_per_byte"] == pytest.approx(ridge, rel=0.005)
    if peak > RATE:
        assert row["mfu"] == pytest.approx(RATE / peak, rel=1e-6)
    else:
        assert pd.isna(row["mfu"])


@pytest.mark.parametrize("name", ["llama-3.1-8b", "mixtral-8x7b"])
def test_weights_have_a_floor_without_a_batch(capture, tmp_path, name):
    path = capture("decode")
    row = analysed(path, FloorSettings(model=load_model(name)))["floor"].iloc[0]
    weights = {"llama-3.1-8b": 15_009_857_536, "mixtral-8x7b": 25_497_714_688}[name]
    assert row["weight_bytes"] == weights
    assert row["floor_ns"] == pytest.approx(weights / 4.8e12 * 1e9, abs=1)
    assert row[["batch", "kv_bytes", "flop_per_byte", "mfu", "expected_weight_bytes"]].isna().all()
    done = pack("run", "llm_decode_floor", "--input", path, "--model", name, "--output", tmp_path / "out")
    assert "Batch unknown: the floor is that of reading the weights alone." in done.stdout
    assert "; floor " in done.stdout.splitlines()[0]


def test_expected_experts_stand_beside_the_fewest(capture, tmp_path):
    path = capture("decode bs=8")
    row = analysed(path, FloorSettings(model=load_model("mixtral-8x7b")))["floor"].iloc[0]
    # An expert in 32 layers has 11.27 GB; of 8 experts two, or 8 (1 - 0.75^8) = 7.199, are read; 7 rows more than one.
    expert = 32 * 3 * 4096 * 14336 * 2
    assert row["weight_bytes"] == 25_497_714_688 + 7 * 2 * 4096
    assert row["expected_weight_bytes"] - row["weight_bytes"] == pytest.approx((8 * (1 - 0.75**8) - 2) * expert, abs=1)
    assert row["expected_floor_ns"] == pytest.approx(row["expected_weight_bytes"] / 4.8e12 * 1e9, abs=1)
    done = pack("run", "llm_decode_floor", "--input", path, "--model", "mixtral-8x7b", "--output", tmp_path / "out")
    assert "17.5 ms expected with uniform routing; all weights would be 19.5 ms" in done.stdout.splitlines()[0]
    # The GEMMs take 10 ms: twice what the fewest experts take, but less than uniform routing: no advice on them.
    assert "above what is attainable" not in done.stdout


@pytest.mark.parametrize(
    ("text", "options", "tokens"),
    [
        ("decode bs=4 kv=20000", {}, 3 + 4096),  # the least of any split
        ("decode bs=4 kv=20000", {"context": 5000}, 4 * 4096),
        ("decode bs=1 kv=3000", {}, 3000),
    ],
)
def test_windows_and_contexts(capture, text, options, tokens):
    row = analysed(capture(text), FloorSettings(model=load_model("mistral-7b"), **options))["floor"].iloc[0]
    assert row["kv_bytes"] == tokens * 131072


# Steps that train


@pytest.mark.parametrize("text", ["step {}", "decode bs=4"])
def test_steps_with_an_optimizer_have_no_decode_floor(capture, tmp_path, text):
    path = capture(text, second=ADAM)
    options = FloorSettings(model=load_model("llama-3.1-8b"), batch=4, context=1024)
    tables = analysed(path, options)
    row = tables["floor"].iloc[0]
    assert row[["weight_bytes", "kv_bytes", "floor_ns", "attainable_ns", "ratio", "mbu"]].isna().all()
    assert not {"weights_floor", "kv_floor"} & set(tables["step_parts"]["part"])
    done = pack("run", "llm_decode_floor", "--input", path, "--model", "llama-3.1-8b", "--batch", "4", "--context",
                "1024", "--output", tmp_path / "out")  # fmt: skip
    assert "No floor: optimizer kernels run in these steps, so they train" in done.stdout
    assert "; floor " not in done.stdout


def test_copies_of_lists_are_no_optimizer(capture):
    tables = analysed(capture("step {}", second=COPY), FloorSettings(model=load_model("llama-3.1-8b")))
    assert tables["floor"]["floor_ns"].notna().all()


def test_what_trains():
    names = optimizer_names([ADAM, COPY, "gemm"], ["optimizer", "optimizer", "gemm"])
    assert names.tolist() == [True, False, False]
    steps = np.arange(10)
    assert is_training(steps, np.array([3]))  # the optimizer runs after ten accumulated gradients
    assert not is_training(np.arange(11), np.array([3]))
    assert not is_training(steps, np.array([10, 11]))
    assert not is_training(steps[:0], steps)
