"""Reading models: configs in files, folders and wrappers, presets, sizes alone, and everything that is refused."""

from __future__ import annotations

import json

import pytest

from recipes.base.errors import PackError
from recipes.models.kv_cache import kv_bytes
from recipes.models.layout import Layout
from recipes.models.model_bytes import checkpoint_bytes, read_bytes, total_parameters
from recipes.models.number_formats import dtype_bytes
from recipes.models.read_model import load_model, opaque_model, parse_model
from test_model_bytes import HELD_OUT, LLAMA


def test_folder_file_and_nested_config(tmp_path):
    folder = tmp_path / "my-model"
    folder.mkdir()
    inner = {key: value for key, value in LLAMA.items() if key not in ("torch_dtype", "tie_word_embeddings")}
    wrapped = {"model_type": "llava", "torch_dtype": "float16", "tie_word_embeddings": False, "text_config": inner}
    (folder / "config.json").write_text(json.dumps(wrapped))
    model = load_model(folder)
    assert (model.name, model.dtype, model.model_type) == ("my-model", "float16", "llama")
    assert total_parameters(model) == total_parameters(load_model("llama-3.1-8b"))
    assert load_model(folder / "config.json") == model
    assert model.remarks == ("only the language model (text_config) is counted: a decode step reads nothing else",)
    cache = tmp_path / "models--owner--Name-8B" / "snapshots" / "0a1b"
    cache.mkdir(parents=True)
    (cache / "config.json").write_text(json.dumps(LLAMA))
    assert load_model(cache).name == "Name-8B"
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "NVFP4"}}))
    assert load_model(str(folder)).quantization.method == "modelopt"


def test_gemma_configs_leave_out_what_transformers_assumes():
    """google/gemma-3-4b-it's config.json leaves defaults of its class out; total 4,300,079,472."""
    text = {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
            "sliding_window": 1024}  # fmt: skip
    model = parse_model("gemma", {"model_type": "gemma3", "text_config": text, "torch_dtype": "bfloat16"})
    assert total_parameters(model) == 3880263168 == 4300079472 - 419816304  # SigLIP tower and projector


def test_unknown_types_are_refused():
    with pytest.raises(PackError, match=r"model_type 'mamba2' is unknown here.*give the bytes of its weights"):
        parse_model("m", {**LLAMA, "model_type": "mamba2"})
    with pytest.raises(PackError, match="no model_type"):
        parse_model("m", {key: value for key, value in LLAMA.items() if key != "model_type"})
    with pytest.raises(PackError, match="no model_type"):
        parse_model("m", {"model_type": "llava", "text_config": {"hidden_size": 1}})


def test_missing_fields_are_named_together():
    with pytest.raises(PackError, match=r"\(mistral\) lacks num_attention_heads, vocab_size, num_key_value_heads; add"):
        parse_model("m", {"model_type": "mistral", "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 9})
    config = json.loads(HELD_OUT["deepseek-ai/DeepSeek-V2"]["config"])
    del config["kv_lora_rank"], config["moe_intermediate_size"]
    with pytest.raises(PackError, match="lacks kv_lora_rank, moe_intermediate_size"):
        parse_model("m", config)
    with pytest.raises(PackError, match="lacks sliding_window"):
        parse_model("m", {**LLAMA, "model_type": "gemma2"})
    for field in ("hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size"):
        with pytest.raises(PackError, match=f"lacks {field}"):
            parse_model("m", {key: value for key, value in LLAMA.items() if key != field})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"hidden_size": 0}, "hidden_size is 0, not a positive whole number"),
        ({"vocab_size": "many"}, "vocab_size is 'many'"),
        ({"num_hidden_layers": 10**9}, "more than any model has"),
        ({"num_attention_heads": 33}, "no head_dim, and hidden_size 4096 is not a multiple of 33 heads"),
        ({"num_key_value_heads": 5}, "32 heads are not a multiple of 5 kv heads"),
        ({"layer_types": ["full_attention"]}, "1 layer_types for 32 layers"),
        ({"layer_types": ["mamba"] * 32}, "unknown kind 'mamba'"),
        ({"layer_types": ["linear_attention"] * 32}, "unknown kind 'linear_attention'"),
        ({"layer_types": 7}, "wrong kind"),
        ({"model_type": "exaone4", "sliding_window": 8, "sliding_window_pattern": 0}, "wrong kind"),
        ({"model_type": ["llama"]}, "is unknown here"),
        ({"block_configs": [{"attention": {"no_op": True}}]}, r"block_configs means layers that were pruned"),
        ({"num_kv_shared_layers": 4}, "num_kv_shared_layers means layers that share a KV cache"),
        ({"use_cla": True, "cla_share_factor": 2}, "use_cla means layers that share a KV cache"),
        ({"sparsity_config": {"format": "sparse-bitmask"}}, "sparsity_config means sparse weights"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification has no lm_head"),
        ({"architectures": ["Qwen2ForRewardModel"]}, "Qwen2ForRewardModel has no lm_head"),
        ({"model_type": "mistral", "sliding_window": [4096, 0]}, "sliding_window is a list that does not give"),
        ({"model_type": "mistral", "sliding_window": [4096, 512] * 16}, "sliding_window is a list that does not give"),
        ({"model_type": "mistral", "sliding_window": [True] * 32}, "sliding_window is a list that does not give"),
        ({"model_type": "mistral", "sliding_window": "4096"}, "sliding_window is '4096', not a positive"),
        ({"layer_types": ["sliding_attention"] * 32, "sliding_window": [5] * 32}, "not a positive whole number"),
        ({"layer_types": ["sliding_attention", "chunked_attention"] * 16, "sliding_window": 8}, "not both read"),
        ({"torch_dtype": "int3"}, "dtype 'int3': unknown"),
        ({"quantization_config": {"quant_method": "hqq"}}, "quantisation 'hqq' is unknown here"),
        ({"quantization_config": {"bits": 4}}, "'without quant_method' is unknown"),
        ({"quantization_config": [1]}, "quantization_config is not an object"),
        ({"quantization_config": {"quant_method": "awq"}}, "cannot be read"),
        ({"quantization_config": {"quant_method": "gptq", "bits": "x"}}, "cannot be read"),
        (
            {"quantization_config": {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}},
            "'MIXED_PRECISION' is",
        ),
        (
            {"model_type": "opt", "ffn_dim": 4, "max_position_embeddings": 8, "word_embed_proj_dim": 512},
            "512 projected",
        ),
        ({"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 3}, "3 experts a token of 2"),
    ],
)
def test_bad_values_are_refused(changes, why):
    with pytest.raises(PackError, match=why) as raised:
        parse_model("m", {**LLAMA, **changes})
    assert len(str(raised.value).splitlines()) == 1


def test_variants_that_change_nothing_are_read():
    plain = parse_model("m", LLAMA)
    none = {"block_configs": None, "num_kv_shared_layers": 0, "use_cla": False, "architectures": ["LlamaForCausalLM"]}
    assert parse_model("m", {**LLAMA, **none}) == plain
    window = parse_model("m", {**LLAMA, "sliding_window": 4096})
    assert window.window is None
    assert window.remarks == ("the config's sliding_window is not used: layers of llama attend to all tokens",)


def test_window_of_each_layer():
    mistral = {**LLAMA, "model_type": "mistral"}
    model = parse_model("m", {**mistral, "sliding_window": [None, 4096] * 16})
    assert (model.window, model.layers[:2]) == (4096, ("full_attention", "sliding_attention"))
    # 16 layers see 10000 tokens, 16 see 4096; 2 x 8 kv heads x 128 x 2 bytes each.
    assert kv_bytes(model, 1, 10000) == 16 * (10000 + 4096) * 4096
    assert parse_model("m", {**mistral, "sliding_window": [0] * 32}).window is None


def test_files_that_are_no_config(tmp_path):
    with pytest.raises(
        PackError, match=r"no such file or folder, nor a preset; give a config.json or one of: deepseek"
    ):
        load_model("no-such-model")
    with pytest.raises(PackError, match="nor a preset"):
        load_model("../models/gpt2")
    with pytest.raises(PackError, match="nor a preset"):
        load_model(tmp_path)
    file = tmp_path / "config.json"
    for text, why in (("{", "not valid JSON"), ("[]", "not a JSON object")):
        file.write_text(text)
        with pytest.raises(PackError, match=why):
            load_model(file)


def test_dtypes():
    assert dtype_bytes("torch.bfloat16") == dtype_bytes("FP16") == 2
    assert dtype_bytes("nvfp4") == 0.5625
    model = parse_model("m", {key: value for key, value in LLAMA.items() if key != "torch_dtype"})
    assert model.bytes_per_value == 2
    assert "names no dtype" in model.remarks[0]
    single = parse_model("m", {**LLAMA, "torch_dtype": "float32"})
    assert single.bytes_per_value == 4
    assert "often load such weights with 16 bits" in single.remarks[0]
    assert parse_model("m", {**LLAMA, "torch_dtype": "float32"}, "bf16").bytes_per_value == 2
    with pytest.raises(PackError, match="dtype 'q4': unknown; give one of float32"):
        parse_model("m", LLAMA, "q4")


def test_no_experts_at_all():
    """qwen2_moe without experts is Qwen2: LLAMA's sizes and biases on q, k and v."""
    model = parse_model("m", {**LLAMA, "model_type": "qwen2_moe", "num_experts": 0})
    assert total_parameters(model) == total_parameters(parse_model("m", LLAMA)) + 32 * (4096 + 2 * 1024)


def test_sizes_instead_of_a_config():
    model = opaque_model(params=8.03e9, weight_dtype="bf16")
    assert checkpoint_bytes(model) == read_bytes(model, 128) == 16.06e9
    assert read_bytes(model, 1, Layout(tp=2, pp=2)) == 4.015e9
    assert total_parameters(model) == 8.03e9
    assert total_parameters(opaque_model(weight_bytes=5e9)) is None
    with pytest.raises(PackError, match="unknown without a config"):
        kv_bytes(model, 1, 100)
    for wrong in ({}, {"weight_bytes": 1, "params": 1, "weight_dtype": "fp8"}, {"params": 1}, {"weight_bytes": 0}):
        with pytest.raises(PackError):
            opaque_model(**wrong)
