"""Quantised weights: bits with scales, what stays as it was, checkpoints of known size."""

from __future__ import annotations

import pytest

from recipes.models.kv_cache import kv_bytes
from recipes.models.model_bytes import checkpoint_bytes
from recipes.models.number_formats import NVFP4, Format, fp8_block, integer_groups
from recipes.models.read_model import load_model, parse_model
from recipes.models.weights import weights_of
from test_model_bytes import LLAMA, held_out


@pytest.mark.parametrize(
    ("form", "bits"),
    [
        (fp8_block(128, 128), 8.002),
        (Format(8, (1, 32), 8), 8.25),
        (Format(4, (1, 32), 8), 4.25),
        (NVFP4, 4.5),
        (integer_groups(4, 128, False), 4.156),
        (integer_groups(4, 128, True), 4.125),
        (integer_groups(4, 32, False), 4.625),
        (Format(4, (1, 64), 32), 4.5),
        (Format(4, (1, 64), 8 + 32 / 256), 4.127),
    ],
)
def test_bits_a_weight(form, bits):
    assert form.stored_bytes((4096, 4096)) * 8 / 4096**2 == pytest.approx(bits, abs=0.0006)


def test_ragged_blocks_have_a_scale_too():
    assert fp8_block(128, 128).stored_bytes((576, 7168)) == 576 * 7168 + 5 * 56 * 4


def linear_bytes(quantization, **changes):
    """Bytes of Llama-3.1-8B's layers, and whether the head is quantised."""
    model = parse_model("q", {**LLAMA, "quantization_config": quantization, **changes})
    head = next(weight for weight in weights_of(model) if weight.role == "head")
    return checkpoint_bytes(model) - 2 * 2 * 128256 * 4096, model.quantization.format_of(head.module, head.role) is None


LINEAR_WEIGHTS = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
NORM_BYTES = 2 * (32 * 2 + 1) * 4096
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}


@pytest.mark.parametrize(
    ("quantization", "bits"),
    [
        ({"quant_method": "fp8", "activation_scheme": "static"}, 8),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 8 + 32 / 16384),
        ({"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head"]}, 8.0078),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, 4.15625),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "zero_point": True}, 4.3125),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}, 4.125),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1, "sym": True}, 8.003),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False}, 4.625),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, 4.5),
        ({"load_in_4bit": True, "bnb_4bit_use_double_quant": True}, 4.127),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}, 4.5),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}, 8),
        ({"quant_method": "compressed-tensors", "ignore": ["lm_head"], "format": "pack-quantized",
          "config_groups": {"group_0": {"targets": ["Linear"], "weights": {**INT4, "symmetric": True}}}}, 4.125),
        ({"quant_method": "compressed-tensors", "ignore": ["re:.*lm_head"], "format": "pack-quantized",
          "config_groups": {"group_0": {"targets": ["Linear"], "weights": {**INT4, "symmetric": False}}}}, 4.15625),
        ({"quant_method": "compressed-tensors", "ignore": ["lm_head"], "format": "float-quantized",
          "config_groups": {"g": {"targets": ["Linear"], "weights":
                                  {"num_bits": 8, "type": "float", "strategy": "channel"}}}}, 8.0078),
        ({"quant_method": "compressed-tensors", "ignore": ["lm_head"], "format": "nvfp4-pack-quantized",
          "config_groups": {"g": {"targets": ["Linear"], "weights":
                                  {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}}}},
         4.5),
    ],
)  # fmt: skip
def test_quantised_checkpoints(quantization, bits):
    size, head_is_plain = linear_bytes(quantization)
    assert head_is_plain
    assert (size - NORM_BYTES) * 8 / LINEAR_WEIGHTS == pytest.approx(bits, rel=0.0005)


def test_head_is_quantised_when_nothing_spares_it():
    plain = {"quant_method": "compressed-tensors", "ignore": [],
             "config_groups": {"g": {"targets": ["Linear"], "weights": {**INT4, "symmetric": True}}}}  # fmt: skip
    assert not linear_bytes(plain)[1]
    assert not linear_bytes({"quant_method": "gptq", "bits": 4, "group_size": 128, "lm_head": True})[1]


def test_skipped_modules_stay_as_they_were():
    quantization = {"quant_method": "modelopt", "quant_algo": "FP8",
                    "exclude_modules": ["lm_head", "model.layers.0.*", "model.layers.*.self_attn"]}  # fmt: skip
    model = parse_model("q", {**LLAMA, "quantization_config": quantization})
    spared = {weight.module for weight in weights_of(model) if weight.role in ("attention", "mlp")
              and model.quantization.format_of(weight.module, weight.role) is None}  # fmt: skip
    assert len(spared) == 32 * 4 + 3
    quantization = {"quant_method": "awq", "bits": 4, "group_size": 128, "modules_to_not_convert": ["self_attn"]}
    model = parse_model("q", {**LLAMA, "quantization_config": quantization})
    assert model.quantization.format_of("model.layers.7.self_attn.q_proj", "attention") is None
    assert model.quantization.format_of("model.layers.7.mlp.up_proj", "mlp") is not None


def test_modules_have_the_names_of_the_checkpoint():
    qwen, mixtral = held_out("Qwen/Qwen1.5-MoE-A2.7B"), load_model("mixtral-8x7b")
    names = {weight.module for model in (qwen, mixtral) for weight in weights_of(model)}
    assert {"model.layers.3.mlp.shared_expert.up_proj", "model.layers.3.mlp.shared_expert_gate"} <= names
    assert {"model.layers.3.mlp.gate", "model.layers.3.mlp.experts.0.gate_proj"} <= names
    assert {"model.layers.3.block_sparse_moe.gate", "model.layers.3.block_sparse_moe.experts.0.w2"} <= names


def test_checkpoints_of_known_size():
    """Published tensor bytes: index total_size of gpt-oss, safetensors headers of Kimi K2."""
    assert checkpoint_bytes(load_model("gpt-oss-20b")) == 13761264768
    assert checkpoint_bytes(load_model("gpt-oss-120b")) == 65248815744
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    k2 = held_out("moonshotai/Kimi-K2-Instruct", quantization_config=fp8)
    assert checkpoint_bytes(k2) == pytest.approx(1029173256720, rel=1e-6)
    int4 = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {**INT4, "group_size": 32, "symmetric": True}}},
        "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"],
    }
    thinking = held_out("moonshotai/Kimi-K2-Instruct", quantization_config=int4)
    assert checkpoint_bytes(thinking) == pytest.approx(594205920512, rel=1e-5)


def test_routers_and_biases_stay_plain():
    model = load_model("gpt-oss-20b")
    plain = {
        weight.role for weight in weights_of(model) if model.quantization.format_of(weight.module, weight.role) is None
    }
    assert plain == {"embedding", "head", "attention", "router", "vector", "expert_vector"}


def test_cache_dtype_of_the_checkpoint():
    quantization = {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}
    model = parse_model("q", {**LLAMA, "quantization_config": quantization})
    assert model.kv_dtype == "fp8"
    assert kv_bytes(model, 1, 1000) == 1000 * 65536
    scheme = {"num_bits": 8, "type": "float"}
    quantization = {"quant_method": "compressed-tensors", "config_groups": {}, "kv_cache_scheme": scheme}
    assert parse_model("q", {**LLAMA, "quantization_config": quantization}).kv_dtype == "fp8"
    cache_only = {"quant_method": "modelopt", "quant_algo": None, "kv_cache_quant_algo": "FP8"}
    model = parse_model("q", {**LLAMA, "quantization_config": cache_only})
    assert (model.kv_dtype, checkpoint_bytes(model)) == ("fp8", 16060522496)
    assert load_model("llama-2-7b").kv_dtype == "float16"


@pytest.mark.parametrize(
    ("dtype", "bits"), [("fp8", 8), ("fp8_e4m3", 8), ("int8", 8), ("mxfp4", 4.25), ("nvfp4", 4.5), ("int4", 4.125)]
)
def test_weights_quantised_while_loading(dtype, bits):
    model = parse_model("m", LLAMA, dtype)
    expected = LINEAR_WEIGHTS * bits / 8 + NORM_BYTES + 2 * 2 * 128256 * 4096
    assert checkpoint_bytes(model) == pytest.approx(expected, rel=1e-3)
    assert model.kv_dtype == "bfloat16"
