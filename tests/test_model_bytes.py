"""Counting models: known totals, what a step reads, quantised formats, layouts, and configs that are refused."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from recipes.base.errors import PackError
from recipes.models.architectures import FAMILIES
from recipes.models.config_file import preset_names
from recipes.models.kv_cache import Summed, kv_bytes, kv_bytes_per_token, state_bytes
from recipes.models.layer_kinds import CHUNKED, SLIDING
from recipes.models.layout import Layout, check_layout
from recipes.models.model_bytes import EXPECTED, distinct_experts, read_bytes, read_parameters, total_parameters
from recipes.models.number_formats import fp8_block
from recipes.models.read_model import load_model, parse_model

DATA = Path(__file__).parent / "data"


def read_table(name):
    lines = [line for line in (DATA / name).read_text(encoding="utf-8").splitlines() if not line.startswith("# ")]
    return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))


MODELS = read_table("models.tsv")
HELD_OUT = {row["name"]: row for row in read_table("models_held_out.tsv")}
BUILT = read_table("models_built.tsv")
WITHIN = 0.001

LLAMA = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
             "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "torch_dtype": "bfloat16",
             "tie_word_embeddings": False}  # fmt: skip


def held_out(name, **changes):
    return parse_model(name, {**json.loads(HELD_OUT[name]["config"]), **changes})


# Known totals


@pytest.mark.parametrize("row", MODELS, ids=lambda row: row["name"])
def test_presets_equal_the_known_counts(row):
    model = load_model(row["name"])
    assert total_parameters(model) == pytest.approx(int(row["total"]), rel=WITHIN)
    assert total_parameters(model) + int(row["published_extra"]) == pytest.approx(int(row["published"]), rel=WITHIN)
    for tokens in (1, 8, 32, 128):
        assert read_parameters(model, tokens, EXPECTED) == pytest.approx(int(row[f"read_B{tokens}"]), rel=WITHIN)
        fewest = int(row["read_B1"]) + (tokens - 1) * model.hidden
        assert read_parameters(model, tokens) == pytest.approx(fewest, rel=WITHIN)
    assert kv_bytes_per_token(model) == (int(row["kv_full"]), int(row["kv_window"]))


def test_presets_by_their_repository():
    assert load_model("meta-llama/Llama-3.1-8B") == load_model("LLAMA-3.1-8b") == load_model("llama-3.1-8b")


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("llama-3.1-70b-instruct", "llama-3.1-70b"),
        ("meta-llama/Llama-2-70b-chat-hf", "llama-2-70b"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("QWEN3-8B-BASE", "qwen3-8b"),
        ("qwen/qwen3-next-80b-a3b-thinking", "qwen3-next-80b-a3b"),
        ("google/gemma-3-27b-it", "gemma-3-27b"),
        ("gemma-3-27b-pt", "gemma-3-27b"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("mistralai/Mistral-7B-Instruct-v0.1", "mistral-7b"),
        ("deepseek-ai/DeepSeek-V2-Lite-Chat", "deepseek-v2-lite"),
        ("deepseek-ai/DeepSeek-V3-Base", "deepseek-v3"),
        ("openai/gpt-oss-20b", "gpt-oss-20b"),
    ],
)
def test_names_of_the_hub_are_presets(name, preset):
    assert load_model(name) == load_model(preset)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("llama-3.1-8", "did you mean llama-3.1-8b"),
        ("mistralai/Mistral-7B-Instruct-v0.2", "did you mean mistral-7b"),  # without the window of v0.1
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8", "did you mean llama-3.1-8b"),  # other bytes
        ("someone/gpt2", "did you mean gpt2"),
        ("qwen3-9b", "did you mean qwen3-8b"),
    ],
)
def test_other_models_are_not_taken_for_presets(name, meant):
    with pytest.raises(
        PackError, match=rf"no such file or folder, nor a preset; {meant}.*\? Give a config.json or one"
    ):
        load_model(name)


def test_every_known_model_is_a_preset():
    assert preset_names() == sorted(row["name"] for row in MODELS)


@pytest.mark.parametrize("row", HELD_OUT.values(), ids=lambda row: row["name"])
def test_models_not_looked_at_before(row):
    assert total_parameters(parse_model(row["name"], json.loads(row["config"]))) == int(row["total"])


@pytest.mark.parametrize("row", BUILT, ids=lambda row: json.loads(row["config"])["model_type"])
def test_same_as_transformers_builds(row):
    model = parse_model("built", json.loads(row["config"]))
    assert total_parameters(model) == int(row["total"])
    if row["sliding_layers"]:
        assert model.layers.count(SLIDING) + model.layers.count(CHUNKED) == int(row["sliding_layers"])


def test_every_architecture_is_checked():
    configs = [json.loads(row["config"]) for row in (*HELD_OUT.values(), *BUILT)]
    seen = {config["model_type"] for config in configs} | {load_model(name).model_type for name in preset_names()}
    # The same layers as qwen2_vl_text and qwen2_5_vl_text, in configs that are not nested.
    assert set(FAMILIES) - seen == {"qwen2_vl", "qwen2_5_vl"}


def test_llama_by_hand():
    """Counted on paper: attention 2 x 4096^2 + 2 x 4096 x 1024, MLP 3 x 4096 x 14336, two norms a layer."""
    layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096
    model = parse_model("llama", LLAMA)
    assert total_parameters(model) == 32 * layer + 2 * 128256 * 4096 + 4096
    assert read_parameters(model, 5) == 32 * layer + 128256 * 4096 + 4096 + 5 * 4096


# Windows, states, caches


def test_layers_that_slide():
    gemma, oss, mistral = load_model("gemma-3-27b"), load_model("gpt-oss-20b"), load_model("mistral-7b")
    assert (gemma.window, gemma.layers.count(SLIDING)) == (1024, 52)
    assert [at for at, kind in enumerate(gemma.layers) if kind != SLIDING][:3] == [5, 11, 17]
    assert (oss.window, oss.layers[0], oss.layers.count(SLIDING)) == (128, SLIDING, 12)
    assert (mistral.window, mistral.layers.count(SLIDING)) == (4096, 32)


def test_windows_bound_what_is_read():
    model = load_model("gpt-oss-20b")
    assert kv_bytes(model, 1, 100) == 100 * 49152
    assert kv_bytes(model, 1, 5000) == 5000 * 24576 + 128 * 24576
    assert kv_bytes(model, 2, [100, 5000]) == kv_bytes(model, 1, 100) + kv_bytes(model, 1, 5000)


def least_of_all_splits(total, batch, seen):
    """By trying every split of `total` tokens over `batch` sequences with one or more each."""
    if batch == 1:
        return seen(total)
    rest = range(1, total - batch + 2)
    return min(seen(one) + least_of_all_splits(total - one, batch - 1, seen) for one in rest)


@pytest.mark.parametrize(("total", "batch"), [(3, 3), (10, 1), (10, 3), (12, 3), (13, 4), (21, 2)])
def test_summed_contexts_read_the_least_of_any_split(total, batch):
    """Layers with a window of 4 tokens, and with chunks of 4, where only the sum of the contexts is known."""
    # Ten tokens of three sequences, split 1, 1 and 8: the window shows 1 + 1 + 4, and so do chunks.
    model = replace(load_model("gpt-oss-20b"), window=4)
    each = 2 * 8 * 64 * 2
    for kind, seen in ((SLIDING, lambda c: min(c, 4)), (CHUNKED, lambda c: (c - 1) % 4 + 1)):
        one = replace(model, layers=(kind,))
        assert kv_bytes(one, batch, Summed(total)) == each * least_of_all_splits(total, batch, seen)
    assert kv_bytes(replace(model, layers=("full_attention",)), batch, Summed(total)) == each * total


def test_summed_contexts_by_hand():
    model = load_model("gpt-oss-20b")  # 12 full layers and 12 with a window of 128, 2048 bytes a token and layer
    assert kv_bytes(model, 2, Summed(5100)) == 5100 * 24576 + (1 + 128) * 24576
    assert kv_bytes(model, 2, [100, 5000]) == 5100 * 24576 + (100 + 128) * 24576
    assert kv_bytes(model, 2, 2550) == 5100 * 24576 + 256 * 24576
    assert kv_bytes(model, 1, Summed(5100)) == kv_bytes(model, 1, 5100)


def test_chunks_bound_what_is_read():
    """Llama 4 attends to the chunk of 8192 tokens that a token lies in: just after a boundary, to one token."""
    config = json.loads(next(row["config"] for row in BUILT if "llama4_text" in row["config"]))
    model = parse_model("llama4", config)  # 6 of 8 layers chunked; 2 x 2 kv heads x 64 x 2 bytes a token and layer
    assert (model.window, model.layers.count(CHUNKED)) == (8192, 6)
    for context, chunked in ((8191, 8191), (8192, 8192), (8193, 1), (20000, 20000 - 2 * 8192)):
        assert kv_bytes(model, 1, context) == 512 * (2 * context + 6 * chunked)
    assert kv_bytes(model, 2, Summed(8000)) == 512 * 8 * 8000  # both in their first chunk, however it is split


def test_contexts_one_by_one_or_one_for_all():
    model = load_model("llama-3.1-8b")
    assert kv_bytes(model, 3, [10, 20, 30]) == kv_bytes(model, 3, 20) == 60 * 131072
    with pytest.raises(PackError, match="2 contexts for a batch of 3"):
        kv_bytes(model, 3, [10, 20])
    with pytest.raises(PackError, match="below nothing"):
        kv_bytes(model, 1, -1)


def test_fp8_cache_is_half():
    model = load_model("llama-3.1-8b")
    assert kv_bytes(model, 1, 1000, "fp8") == kv_bytes(model, 1, 1000) / 2


def test_linear_layers_read_and_write_their_state():
    model = load_model("qwen3-next-80b-a3b")
    assert state_bytes(model) == 36 * 32 * 128 * 128 * 4 * 2
    assert kv_bytes(model, 2, 1000) == 2 * (1000 * 24576 + state_bytes(model))
    assert kv_bytes(model, 2, 1000, layout=Layout(tp=2)) == 2 * (1000 * 12288 + state_bytes(model) / 2)


# Experts


@pytest.mark.parametrize(
    ("experts", "top_k", "expected"),
    [
        (256, 8, {1: 8, 2: 15.8, 4: 30.5, 8: 57.4, 16: 102, 32: 163, 64: 222, 128: 252}),
        (8, 2, {1: 2, 2: 3.5, 4: 5.5, 8: 7.2, 16: 7.9}),
    ],
)
def test_distinct_experts(experts, top_k, expected):
    for tokens, count in expected.items():
        assert distinct_experts(experts, top_k, tokens) == pytest.approx(count, rel=0.006)


def test_distinct_experts_by_drawing():
    import random

    draw = random.Random(7)
    rounds = [len({e for _ in range(8) for e in draw.sample(range(64), 6)}) for _ in range(3000)]
    assert distinct_experts(64, 6, 8) == pytest.approx(sum(rounds) / len(rounds), rel=0.005)


# Layouts: shares of one rank


def test_tensor_parallel_splits_matrices_and_copies_norms():
    model, norms = load_model("llama-3.1-70b"), 2 * 8192 * 161
    whole = read_bytes(model, 1)
    assert read_bytes(model, 1, Layout(tp=8)) == pytest.approx((whole - norms) / 8 + norms, rel=1e-9)


def test_kv_heads_fewer_than_ranks_are_copied():
    llama, qwen = load_model("llama-3.1-70b"), load_model("qwen2.5-7b")
    assert kv_bytes(llama, 1, 1000, layout=Layout(tp=8)) == kv_bytes(llama, 1, 1000) / 8
    assert kv_bytes(llama, 1, 1000, layout=Layout(tp=16)) == kv_bytes(llama, 1, 1000) / 8
    # Qwen2.5-7B has 28 heads and 4 kv heads: over 28 ranks each rank still has one of the four.
    assert kv_bytes(qwen, 1, 1000, layout=Layout(tp=4)) == kv_bytes(qwen, 1, 1000) / 4
    assert kv_bytes(replace(qwen, intermediate=28), 1, 1000, layout=Layout(tp=28)) == kv_bytes(qwen, 1, 1000) / 4
    falcon = replace(held_out("tiiuae/falcon-7b"), heads=72)
    assert kv_bytes(falcon, 1, 1000, layout=Layout(tp=4)) == kv_bytes(falcon, 1, 1000)
    # 80 layers of k and v, 1024 rows each in all: at 16 ranks each rank still has 128 of them.
    k_and_v, rest = 80 * 2 * 1024 * 8192 * 2, 2 * 8192 * 161
    others = read_bytes(llama, 1) - k_and_v - rest
    assert read_bytes(llama, 1, Layout(tp=16)) == pytest.approx(others / 16 + k_and_v / 8 + rest, rel=1e-9)


def test_latent_cache_is_not_split():
    model = load_model("deepseek-v3")
    assert kv_bytes(model, 4, 1000, layout=Layout(tp=8)) == kv_bytes(model, 4, 1000) == 4 * 1000 * 70272


def test_expert_parallel_ranks_read_their_own_experts():
    model = load_model("deepseek-v3")
    expert = 58 * sum(fp8_block(128, 128).stored_bytes(shape) for shape in [(2048, 7168)] * 2 + [(7168, 2048)])
    others = read_bytes(model, 1) - 8 * expert
    rows = 2 * 7168
    # Eight attention replicas of 4 sequences each route 32 tokens to 256 experts, 32 of them on this rank.
    expected = others - rows + 4 * rows + distinct_experts(256, 8, 32) / 8 * expert
    assert read_bytes(model, 4, Layout(ep=8), EXPECTED) == pytest.approx(expected, rel=1e-9)
    # All tokens may go to experts of other ranks.
    assert read_bytes(model, 4, Layout(ep=8)) == pytest.approx(others + 3 * rows, rel=1e-9)
    # With the attention split over the same ranks there is one batch.
    split = [read_bytes(model, 32, Layout(tp=8, ep=ep), EXPECTED) for ep in (1, 8)]
    assert split[0] == pytest.approx(split[1], rel=1e-9)
    # Mixtral picks 2 of 8: of 2 ranks with 4 experts each one may get none. Were 5 picked, it would get one or more.
    mixtral = load_model("mixtral-8x7b")
    one = 3 * 4096 * 14336 * 2 * 32  # an expert in all layers
    many = replace(mixtral, moe=replace(mixtral.moe, top_k=5))
    none = read_bytes(mixtral, 1) - 2 * one
    assert read_bytes(mixtral, 1, Layout(ep=2)) == pytest.approx(none, rel=1e-9)
    assert read_bytes(many, 9, Layout(ep=2)) == pytest.approx(none + 8 * 2 * 4096 + one, rel=1e-9)
    # With tp 4 as well each expert is split over two ranks.
    whole, half = (read_bytes(one_of, 9, Layout(tp=4, ep=2)) for one_of in (many, mixtral))
    assert whole - half == pytest.approx(one / 2)


def test_pipeline_stages_add_up():
    for name in ("llama-3.1-8b", "llama-3.2-1b", "deepseek-v3", "gpt2"):
        model, layout = load_model(name), [Layout(pp=3, stage=stage) for stage in range(3)]
        assert sum(read_bytes(model, 4, one) for one in layout) == pytest.approx(read_bytes(model, 4), rel=1e-12)
        assert sum(kv_bytes(model, 4, 99, layout=one) for one in layout) == pytest.approx(kv_bytes(model, 4, 99))
        assert read_bytes(model, 4, Layout(pp=3)) == min(read_bytes(model, 4, one) for one in layout)


@pytest.mark.parametrize(
    ("layout", "why"),
    [
        (Layout(tp=0), "tp is 0: give a whole number from 1"),
        (Layout(pp=2.0), "pp is 2.0: give a whole number"),
        (Layout(tp=2, ep=3), "neither is a multiple of the other"),
        (Layout(pp=2, stage=2), "pipeline stage 2 of 2"),
        (Layout(pp=33), "32 layers cannot be spread over pp 33"),
        (Layout(ep=2), "it has no experts"),
        (Layout(tp=3), "8 kv heads neither divide nor are divided by tp 3"),
        (Layout(tp=64), r"attention heads \(32\) cannot be split over 64 ranks"),
    ],
)
def test_layouts_that_cannot_be(layout, why):
    with pytest.raises(PackError, match=why):
        check_layout(load_model("llama-3.1-8b"), layout)


def test_phi4_at_tp4():
    with pytest.raises(PackError, match="10 kv heads neither divide nor are divided by tp 4"):
        read_bytes(held_out("microsoft/phi-4"), 1, Layout(tp=4))
    with pytest.raises(PackError, match=r"the experts' width \(14336\) cannot be split over 3 ranks \(tp 3\)"):
        check_layout(replace(load_model("mixtral-8x7b"), heads=33, kv_heads=3), Layout(tp=3))
    with pytest.raises(PackError, match="160 experts cannot be spread over ep 3"):
        read_bytes(load_model("glm-4.5"), 1, Layout(ep=3))
