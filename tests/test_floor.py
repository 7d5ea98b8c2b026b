"""Floors: worked tables, FLOP, layouts, speculation, and steps that are faster than they can be.

Unless said otherwise the figures are worked out by hand from the sizes in the configs, at 3.35 TB/s (H100 SXM).
"""

from __future__ import annotations

import json

import pytest

from recipes.base.errors import PackError
from recipes.models.decode_floor import Step, below_floor, floor_of, flop_utilisation
from recipes.models.flop import decode_flop, prefill_flop, train_flop, used_parameters
from recipes.models.kv_cache import Summed
from recipes.models.layout import Layout
from recipes.models.model_bytes import read_bytes
from recipes.models.read_model import load_model, opaque_model, parse_model
from test_model_bytes import HELD_OUT, LLAMA

H100 = 3.35e12
MS = 1e6


@pytest.fixture(scope="module")
def llama():
    return load_model("llama-3.1-8b")


def weights_ms(model, batch=1):
    """With uniform routing, where there are experts."""
    floor = floor_of(model, Step(batch), H100)
    return (floor.expected_floor_ns or floor.floor_ns) / MS


# Worked: Llama-3.1-8B in BF16


@pytest.mark.parametrize(
    ("batch", "context", "gigabytes", "milliseconds", "tokens_per_s"),
    [
        (1, None, 15.010, 4.481, 223.2),
        (1, 1024, 15.144, 4.521, 221.2),
        (1, 8192, 16.084, 4.801, None),
        (16, 1024, 17.158, 5.122, 3124),
        (32, 4096, 32.19, 9.609, 3330),
        (1, 131072, 32.19, 9.609, None),
    ],
)
def test_llama_on_h100(llama, batch, context, gigabytes, milliseconds, tokens_per_s):
    floor = floor_of(llama, Step(batch, context), H100)
    assert floor.read_bytes == pytest.approx(gigabytes * 1e9, rel=4e-5)
    assert floor.floor_ns == pytest.approx(milliseconds * MS, rel=2e-4)
    assert floor.attainable_ns == pytest.approx(milliseconds * MS / 0.85, rel=2e-4)
    if tokens_per_s:
        assert batch / floor.floor_ns * 1e9 == pytest.approx(tokens_per_s, rel=5e-4)


def test_shortcut_stands_beside_what_is_really_read(llama):
    floor = floor_of(llama, Step(1), H100)
    assert floor.shortcut_bytes == 16060522496
    assert (round(floor.shortcut_ns / MS, 2), round(floor.floor_ns / MS, 2)) == (4.79, 4.48)
    assert floor_of(llama, Step(1), 3.35232e12).floor_ns == pytest.approx(4.477 * MS, rel=2e-4)


def test_weights_and_cache_add_up(llama):
    floor = floor_of(llama, Step(16, 1027), 4.814304e12)  # our capture on an H200
    assert floor.weight_ns == pytest.approx(3.118 * MS, rel=1e-3)
    assert floor.kv_ns == pytest.approx(0.447 * MS, rel=2e-3)
    assert floor.weight_ns + floor.kv_ns == pytest.approx(floor.floor_ns)
    assert 1 / floor.ratio(7.79 * MS) == pytest.approx(0.46, abs=0.005)


def test_unknown_context_is_said(llama):
    floor = floor_of(llama, Step(16), H100)
    assert floor.kv_bytes is None
    assert floor.kv_ns is None
    assert floor.floor_ns == floor.weight_ns
    assert floor.remarks == ("context unknown: the floor is that of reading the weights alone",)


def test_unknown_batch_leaves_the_weights(llama):
    for model in (llama, load_model("mixtral-8x7b")):
        floor, one = floor_of(model, Step(None, 1024), H100), floor_of(model, Step(1), H100)
        assert floor.floor_ns == one.floor_ns
        assert (floor.kv_bytes, floor.flop, floor.flop_per_byte, floor.expected_weight_bytes) == (None,) * 4
        assert floor.remarks == ("batch unknown: the floor is that of reading the weights alone",)
    line = below_floor(floor, 1 * MS)
    assert line.startswith("mixtral-8x7b, batch unknown: the step took 1 ms")


def test_summed_contexts_are_said_where_windows_bound_them(llama):
    assert floor_of(llama, Step(4, Summed(4000)), H100).kv_ns == floor_of(llama, Step(4, 1000), H100).kv_ns
    assert floor_of(llama, Step(4, Summed(4000)), H100).remarks == ()
    floor = floor_of(load_model("mistral-7b"), Step(4, Summed(20000)), H100)
    assert floor.kv_bytes == (3 + 4096) * 131072
    assert "the least that any split of it allows" in floor.remarks[0]
    assert floor_of(load_model("mistral-7b"), Step(4, 5000), H100).kv_bytes == 4 * 4096 * 131072
    assert "a smaller batch" in below_floor(floor_of(llama, Step(64, Summed(64 * 4096)), H100), 6 * MS)


# Other models: weights only, in ms


INT4_ASYM = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}


@pytest.mark.parametrize(
    ("model", "milliseconds"),
    [
        ("llama-3.2-1b", {1: 0.738}),  # tied: the whole table is read
        ("llama-3.1-70b", {1: 41.49}),
        ("mixtral-8x7b", {1: 7.611, 8: 25.11, 32: 27.80, 128: 27.80}),
        ("Qwen/Qwen3-30B-A3B", {1: 1.816, 8: 7.714, 32: 15.85, 128: 18.04}),
        # Published bytes, where the experts' biases stay in 16 bits: up to 0.1 % more than with all in MXFP4.
        ("gpt-oss-20b", {1: 1.107, 8: 2.718, 32: 3.717, 128: 3.759}),
        ("gpt-oss-120b", {1: 1.493, 8: 5.004, 32: 12.53, 128: 18.80}),
        ("deepseek-v3", {1: 11.24, 8: 48.94, 32: 129.7, 128: 197.0}),
    ],
)
def test_weight_read_floors(model, milliseconds):
    found = HELD_OUT.get(model)
    model = parse_model(model, json.loads(found["config"])) if found else load_model(model)
    for batch, expected in milliseconds.items():
        assert weights_ms(model, batch) == pytest.approx(expected, rel=1.1e-3)
        # All tokens may pick the same experts: but for a row of the embedding a token, the floor is that of one token.
        rows = (batch - 1) * model.hidden * 2
        assert read_bytes(model, batch) == pytest.approx(read_bytes(model, 1) + rows, rel=1e-9)
        assert floor_of(model, Step(batch), H100).floor_ns == pytest.approx(milliseconds[1] * MS, rel=1.2e-3)


@pytest.mark.parametrize(
    ("quantization", "milliseconds", "gigabytes"),
    [({"quant_method": "fp8"}, 2.397, 8.03), (INT4_ASYM, 1.396, 4.68)],
)
def test_quantised_llama(quantization, milliseconds, gigabytes):
    model = parse_model("q", {**LLAMA, "quantization_config": quantization})
    assert weights_ms(model) == pytest.approx(milliseconds, rel=5e-4)
    assert read_bytes(model, 1) == pytest.approx(gigabytes * 1e9, rel=1e-3)
    assert weights_ms(model, 128) == pytest.approx(milliseconds, rel=1e-3)


def test_cache_equals_weights(llama):
    for model, tokens in ((llama, 114516), (load_model("llama-2-7b"), 25205)):
        floor = floor_of(model, Step(1, tokens), H100)
        assert floor.kv_bytes == pytest.approx(floor.weight_bytes, rel=1e-4)


# Speculation, layouts


def test_speculation_reads_more_experts_and_the_cache_once():
    model = load_model("mixtral-8x7b")
    one, four = floor_of(model, Step(2, 500), H100), floor_of(model, Step(2, 500, tokens_per_step=4), H100)
    assert four.weight_bytes == floor_of(model, Step(8), H100).weight_bytes
    assert four.expected_weight_bytes == floor_of(model, Step(8), H100).expected_weight_bytes > 3 * one.weight_bytes
    assert four.kv_bytes == one.kv_bytes
    assert four.flop == pytest.approx(4 * one.flop)


def test_a_rank_of_a_layout(llama):
    model = load_model("llama-3.1-70b")
    floor = floor_of(model, Step(8, 1000), H100, Layout(tp=8))
    assert floor.kv_bytes == 8 * 1000 * 327680 / 8
    assert floor.shortcut_bytes == 141107412992 / 8
    assert floor.flop == pytest.approx(floor_of(model, Step(8, 1000), H100).flop / 8)
    first = floor_of(llama, Step(1, 100), H100, Layout(pp=2))
    assert first.layout.stage == 0  # the last one has the head
    assert "stage 0 of 2, which reads least" in first.remarks[0]
    last = floor_of(llama, Step(1, 100), H100, Layout(pp=2, stage=1))
    whole = floor_of(llama, Step(1, 100), H100)
    assert first.read_bytes + last.read_bytes == pytest.approx(whole.read_bytes)
    assert first.flop + last.flop == pytest.approx(whole.flop)


def test_expert_parallel_flop_adds_up():
    model = load_model("deepseek-v3")
    whole = floor_of(model, Step(8), H100).flop
    # Eight replicas of the attention, one set of experts: eight ranks do eight batches.
    assert floor_of(model, Step(8), H100, Layout(ep=8)).flop == pytest.approx(whole)
    split = [floor_of(model, Step(8), H100, Layout(tp=8, ep=ep)).flop for ep in (1, 8)]
    assert split[0] == pytest.approx(split[1])


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(PackError, match=r"qwen2.5-7b: attention heads \(28\) cannot be split over 8 ranks \(tp 8\)"):
        floor_of(load_model("qwen2.5-7b"), Step(1, 100), H100, Layout(tp=8))


# FLOP


def test_used_parameters_are_the_active_ones(llama):
    layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    assert used_parameters(llama) == 32 * layer + 128256 * 4096
    # Published: 36.7B active for DeepSeek-V3 without its embedding (README_WEIGHTS.md), 3.6B and 5.1B for gpt-oss.
    assert used_parameters(load_model("deepseek-v3")) == pytest.approx(36.6e9, rel=2e-3)
    assert used_parameters(load_model("gpt-oss-20b")) == pytest.approx(3.6e9, rel=3e-3)
    assert used_parameters(load_model("gpt-oss-120b")) == pytest.approx(5.1e9, rel=1e-2)
    assert used_parameters(load_model("llama-3.2-1b")) == pytest.approx(1235814400, rel=1e-4)


def test_attention_intensity(llama):
    """FLOP a byte of BF16 cache: heads over kv heads; 242 for the absorbed latent of DeepSeek-V3; 71 for Falcon-7B."""
    falcon = parse_model("falcon", json.loads(HELD_OUT["tiiuae/falcon-7b"]["config"]))
    deepseek = load_model("deepseek-v3")
    for model, expected in ((llama, 4), (load_model("llama-3.1-70b"), 8), (falcon, 71), (deepseek, 241.8)):
        flop = decode_flop(model, 4, 1000) - decode_flop(model, 4, None)
        assert flop / floor_of(model, Step(4, 1000), H100).kv_bytes == pytest.approx(expected, rel=1e-3)


def test_intensity_and_ridge(llama):
    floor = floor_of(llama, Step(1), H100)
    assert floor.flop_per_byte == pytest.approx(1, rel=1e-4)
    assert floor.ridge(989.4e12) == pytest.approx(295.3, rel=1e-3)
    assert floor_of(llama, Step(295), H100).flop / 989.4e12 * 1e9 == pytest.approx(floor.floor_ns, rel=2e-3)


def test_prefill_and_training(llama):
    used, n = used_parameters(llama), 2048
    head = 128256 * 4096
    attention = 32 * 4 * 4096 * n * (n + 1) / 2
    assert prefill_flop(llama, 2, n) == pytest.approx(2 * (2 * n * (used - head) + 2 * head + attention))
    assert train_flop(llama, 2, n) == pytest.approx(3 * 2 * (2 * n * used + attention))
    mistral = load_model("mistral-7b")
    long = prefill_flop(mistral, 1, 20000) - prefill_flop(mistral, 1, 10000)
    used = used_parameters(mistral) - 32000 * 4096
    assert long == pytest.approx(10000 * (2 * used + 32 * 4 * 4096 * 4096))  # the window is full
    assert prefill_flop(opaque_model(weight_bytes=1e9), 1, 10) is None
    assert train_flop(opaque_model(params=1e9, weight_dtype="bf16"), 1, 10) == 6e10


def test_mfu(llama):
    flop = prefill_flop(llama, 1, 8192)
    assert flop_utilisation(flop, 250 * MS, 989.4e12) == pytest.approx(flop / 0.25 / 989.4e12)
    assert floor_of(llama, Step(1), H100).mfu(7.6 * MS, 989.4e12) == pytest.approx(0.002, rel=0.01)
    with pytest.raises(PackError, match=r"MFU 2\d\d%: .* is above the peak of 989.4 TFLOP/s; check the batch"):
        flop_utilisation(flop, 60 * MS, 989.4e12)
    with pytest.raises(PackError, match="give a duration above nothing"):
        flop_utilisation(flop, 0, 989.4e12)


# Steps below their floor


def test_a_step_below_its_floor_names_what_may_be_wrong(llama):
    floor = floor_of(llama, Step(16, 1024), H100)
    assert below_floor(floor, floor.floor_ns) is None
    assert below_floor(floor, 7.6 * MS) is None
    line = below_floor(floor, 2.4 * MS)
    assert line.startswith(
        "llama-3.1-8b, batch 16: the step took 2.4 ms, below its floor of 5.122 ms (213% of the bandwidth), so an input"
    )
    assert line.endswith(
        " is wrong: each of these alone would allow it: tp 4, 4-bit weights; else check the model and the bandwidth"
    )


@pytest.mark.parametrize(
    ("model", "step", "milliseconds", "cause"),
    [
        ("llama-3.1-8b", Step(32, 4096), 4.6, "a shorter context, tp 4;"),
        ("mixtral-8x7b", Step(8), 7, "each of these alone would allow it: tp 2, 8-bit weights;"),
        ("llama-3.1-8b", Step(1), 3, "tp 2, 8-bit weights;"),
        ("llama-3.1-405b", Step(1), 1, "wrong: check the model and the bandwidth"),
        ("gpt2", Step(1), 0.01, "247 MB stay in the GPU's L2 cache in good part"),
    ],
)
def test_causes(model, step, milliseconds, cause):
    assert cause in below_floor(floor_of(load_model(model), step, H100), milliseconds * MS)


# What is given


def test_sizes_instead_of_a_config():
    floor = floor_of(opaque_model(params=8.03e9, weight_dtype="bf16"), Step(16, 1024), H100)
    assert floor.floor_ns == pytest.approx(4.794 * MS, rel=1e-4)
    assert floor.kv_bytes is None
    assert floor.flop == 2 * 8.03e9 * 16
    assert "KV cache is unknown without a config" in floor.remarks[0]
    floor = floor_of(opaque_model(weight_bytes=16.06e9), Step(1), H100)
    assert floor.flop is None
    assert floor.flop_per_byte is None
    assert floor.mfu(1, 1) is None


def test_unknown_bandwidth_leaves_bytes(llama):
    floor = floor_of(llama, Step(1, 10), None)
    assert floor.weight_bytes > 15e9
    assert (floor.floor_ns, floor.attainable_ns, floor.kv_ns, floor.ratio(1)) == (None,) * 4
    assert floor.ridge(1e12) is None
    assert below_floor(floor, 1) is None


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((Step(0), H100), "batch is 0: give a number from 1"),
        ((Step(float("nan")), H100), "batch is nan"),
        ((Step(1, tokens_per_step=0.5), H100), "tokens per step is 0.5"),
        ((Step(1), 0), "bandwidth is 0: give bytes per second"),
        ((Step(1), H100, Layout(), 85), "attainable is 85: give a share"),
        ((Step(1, kv_dtype="fp3", context=1), H100), "dtype 'fp3': unknown"),
        ((Step(2, context=[1]), H100), "1 contexts for a batch of 2"),
    ],
)
def test_bad_steps_are_refused(llama, arguments, why):
    with pytest.raises(PackError, match=why):
        floor_of(llama, *arguments)
