"""Quantised weights: bits with scales, what stays as it was, checkpoints of known size."""

from __future__ import annotations

import pytest

from recipes.base.errors import PackError
from recipes.models.kv_cache import kv_bytes
from recipes.models.model_bytes import checkpoint_bytes
from recipes.models.number_formats import NVFP4, Format, fp8_block, integer_groups
from recipes.models.read_model import load_model, opaque_model, parse_model
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


# What changes the bytes of some matrices only


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}
Q, K, V, O = 4096 * 4096, 1024 * 4096, 1024 * 4096, 4096 * 4096  # noqa: E741
UP = 14336 * 4096  # so have gate and down
PLAIN_LAYER, INT4_BITS, INT8_G32_BITS = 2 * (Q + K + V + O + 3 * UP), 4 + 16 / 128, 8 + 16 / 32


def layers_bytes(quantization, **changes):
    """Bytes of the matrices in Llama-3.1-8B's 32 layers."""
    return linear_bytes(quantization, **changes)[0] - NORM_BYTES


def in_layers(plain=0, int4=0, int8=0):
    """Bytes of matrices with so many values, in BF16, 4 bits in groups of 128, and 8 bits in groups of 32."""
    return plain * 2 + int4 * INT4_BITS / 8 + int8 * INT8_G32_BITS / 8


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # The first that matches decides: down stays plain, attention has 8 bits; in layer 0 the MLP too.
        ({"dynamic": {r"-:.*\.down_proj": {}, r"+:.*self_attn": {"bits": 8, "group_size": 32},
                      r"model\.layers\.0\.": {"bits": 8, "group_size": 32}}},
         in_layers(32 * UP, 31 * 2 * UP, 32 * (Q + K + V + O) + 2 * UP)),
        ({"modules_in_block_to_quantize": [["self_attn.q_proj", "self_attn.k_proj"], ["mlp.up_proj"]]},
         32 * in_layers(V + O + 2 * UP, Q + K + UP)),
        ({"modules_in_block_to_quantize": ["mlp.down_proj"]}, 32 * in_layers(Q + K + V + O + 2 * UP, UP)),
        ({"modules_in_block_to_quantize": None, "dynamic": {}}, 32 * in_layers(0, Q + K + V + O + 3 * UP)),
        ({"quant_method": "auto-round", "extra_config": {
            "model.layers.0.self_attn.q_proj": {"bits": 16}, r".*\.k_proj$": {"bits": 8, "group_size": 32},
            "mlp.down_proj": {"bits": 16, "data_type": "float"}}},
         in_layers(Q, 31 * Q, 0) + 32 * in_layers(UP, V + O + 2 * UP, K)),
        ({"quant_method": "auto-round", "data_type": "mx_fp", "group_size": 32}, 32 * (PLAIN_LAYER / 2) * 4.25 / 8),
        ({"quant_method": "gptq_marlin_24"}, 32 * (PLAIN_LAYER / 2) * (3 + 16 / 128) / 8),
        ({"quant_method": "marlin"}, 32 * (PLAIN_LAYER / 2) * INT4_BITS / 8),
    ],
)  # fmt: skip
def test_some_modules_have_other_bits(changes, expected):
    assert layers_bytes({**GPTQ, **changes}) == pytest.approx(expected, rel=1e-9)


def compressed(weights, inputs=None, **changes):
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    common = {"quant_method": "compressed-tensors", "ignore": ["lm_head"], "config_groups": {"group_0": group}}
    return {**common, **changes}


INT8 = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
FP8 = {"num_bits": 8, "type": "float", "strategy": "tensor"}
HALF = {"format": "sparse-24-bitmask", "sparsity_structure": "2:4", "targets": ["Linear"], "ignore": ["lm_head"]}


@pytest.mark.parametrize(
    ("quantization", "bits"),
    [
        (compressed({**INT4, "symmetric": True}, format="marlin-24"), 3 + 16 / 128),
        (compressed({**INT4, "symmetric": True}, format="naive-quantized"), 8 + 16 / 128),
        (compressed({**INT4, "symmetric": True}, format="dense"), 16),
        (compressed(FP8, FP8, sparsity_config=HALF), 5),
        (compressed(FP8, FP8, sparsity_config={"format": "dense", "targets": []}), 8),
        ({"quant_method": "modelopt", "quant_algo": "W4A16_AWQ", "group_size": 64, "ignore": ["lm_head"]}, 4.25),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 32, "ignore": ["lm_head"]}, 4.25),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"],
          "config_groups": {"group_0": {"weights": {"group_size": 64}}}}, 4 + 8 / 64),
    ],
)  # fmt: skip
def test_sparse_and_grouped_formats(quantization, bits):
    assert layers_bytes(quantization) * 8 / LINEAR_WEIGHTS == pytest.approx(bits, rel=2e-6)


def test_older_name_of_compressed_tensors():
    old = {key: value for key, value in compressed(FP8).items() if key != "quant_method"}
    model = parse_model("m", {**LLAMA, "compression_config": old})
    assert checkpoint_bytes(model) == pytest.approx(LINEAR_WEIGHTS + NORM_BYTES + 4 * 128256 * 4096, rel=1e-6)


def test_mixed_precision_of_modelopt():
    names = [f"model.layers.{layer}.mlp.{leaf}_proj" for layer in range(32) for leaf in ("gate", "up")]
    layers = {name: {"quant_algo": "FP8"} for name in names}
    layers["model.layers.3.mlp.down_proj"] = {"quant_algo": "W4A16_AWQ", "group_size": 128}
    mixed = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    expected = 32 * 2 * (Q + K + V + O) + 31 * 2 * UP + UP * INT4_BITS / 8 + 64 * (UP + 4)
    assert layers_bytes(mixed) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"quantization_config": compressed(FP8, sparsity_config={**HALF, "format": "sparse-bitmask"})},
         r"sparsity_config \('sparse-bitmask'\) stores less"),
        ({"quantization_config": compressed(FP8, sparsity_config={**HALF, "ignore": ["re:.*down_proj"]})},
         "sparsity_config"),
        ({"quantization_config": compressed(FP8, config_groups={"g": {"targets": ["LlamaMLP"], "weights": FP8}})},
         "which matrices are in a LlamaMLP"),
        ({"quantization_config": compressed(FP8, config_groups={"g": {"targets": ["re:vit"], "weights": FP8}})},
         "touches no matrix"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "mxfp4 quantisation touches no matrix"),
        ({"quantization_config": {**GPTQ, "extra_config": {"lm_head": {"bits": 8}}}}, "extra_config of the gptq"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4, "dynamic": {"a": {}}}}, "dynamic of the awq"),
        ({"quantization_config": {**GPTQ, "adapter": {"name": "lora"}}}, "adapter of the gptq"),
        ({"quantization_config": {**GPTQ, "dynamic": {"+:(": {"bits": 8}}}}, "cannot be read"),
        ({"quantization_config": {**GPTQ, "dynamic": ["a"]}}, "cannot be read"),
        ({"quantization_config": {**GPTQ, "quant_method": "auto-round", "block_name_to_quantize": "model.layers.0"}},
         "names single layers"),
        ({"quantization_config": {**GPTQ, "quant_method": "auto-round", "data_type": "log"}}, "cannot be read"),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": "x"}},
         "cannot be read"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4, "modules_to_not_convert": "lm_head"}},
         "cannot be read"),
    ],
)  # fmt: skip
def test_what_changes_bytes_and_is_not_read_is_refused(changes, why):
    with pytest.raises(PackError, match=why) as raised:
        parse_model("m", {**LLAMA, **changes})
    assert len(str(raised.value).splitlines()) == 1
    assert "--weight-bytes" in str(raised.value) or "correct the config" in str(raised.value)


def test_experts_that_differ_are_refused():
    some = {**GPTQ, "dynamic": {r"-:.*experts\.(1|2)\.": {}}}
    with pytest.raises(PackError, match="quantises some experts of a layer and not others"):
        held_out("Qwen/Qwen3-30B-A3B", quantization_config=some)
    listed = [f"model.layers.{layer}.mlp.experts.{number}.{leaf}_proj" for layer in range(48) for number in range(128)
              for leaf in ("gate", "up", "down")]  # fmt: skip
    model = held_out("Qwen/Qwen3-30B-A3B", quantization_config={**FP8_CONFIG, "modules_to_not_convert": listed})
    experts = [weight for weight in weights_of(model) if weight.role == "expert"]
    assert all(model.quantization.format_of(weight.module, weight.role) is None for weight in experts)
    with pytest.raises(PackError, match="quantises some experts"):
        held_out("Qwen/Qwen3-30B-A3B", quantization_config={**FP8_CONFIG, "modules_to_not_convert": listed[3:]})


FP8_CONFIG = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def test_unknown_fields_are_named():
    model = parse_model("m", {**LLAMA, "quantization_config": {**GPTQ, "desc_act": True, "new_thing": 3, "off": None}})
    assert model.remarks == ("quantization_config has new_thing: not known here, taken as not changing what is stored",)


# The type of the products


@pytest.mark.parametrize(
    ("quantization", "gemm"),
    [
        (None, "bfloat16"),
        (FP8_CONFIG, "fp8"),
        ({"quant_method": "fbgemm_fp8"}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "fp4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}, "bfloat16"),
        (compressed(FP8, FP8), "fp8"),
        (compressed(INT8, INT8), "int8"),
        (compressed(FP8), "bfloat16"),
        (compressed({**INT4, "symmetric": True}), "bfloat16"),
        (compressed({**INT4, "symmetric": True}, FP8), "fp8"),
        (compressed({"num_bits": 4, "type": "float", "group_size": 16}, {"num_bits": 4, "type": "float"}), "fp4"),
        (GPTQ, "bfloat16"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "bfloat16"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bfloat16"),
    ],
)
def test_products_run_in_the_type_of_their_inputs(quantization, gemm):
    assert parse_model("m", {**LLAMA, "quantization_config": quantization}).gemm_dtype == gemm


def test_products_of_presets_and_of_weights_quantised_while_loading():
    assert load_model("deepseek-v3").gemm_dtype == "fp8"
    assert load_model("gpt-oss-20b").gemm_dtype == "bfloat16"
    found = {
        dtype: parse_model("m", LLAMA, dtype).gemm_dtype for dtype in ("fp8_e4m3", "nvfp4", "int4", "mxfp4", "fp16")
    }
    assert found == {"fp8_e4m3": "fp8", "nvfp4": "fp4", "int4": "bfloat16", "mxfp4": "bfloat16", "fp16": "float16"}
    assert opaque_model(params=8e9, weight_dtype="fp8").gemm_dtype == "fp8"
    assert opaque_model(params=8e9, weight_dtype="int4").gemm_dtype == "bfloat16"
