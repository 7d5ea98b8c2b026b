"""Weights as the headers of safetensors files tell them, and quantisation told beside a config.json."""

from __future__ import annotations

import json

import pytest

from recipes.base.errors import PackError
from recipes.models.checkpoint import INDEX
from recipes.models.layout import Layout
from recipes.models.model_bytes import checkpoint_bytes, read_bytes
from recipes.models.read_model import load_model, parse_model

# Two layers: q and o 64 x 64, k and v 32 x 64, three MLP matrices 96 x 64, two norms of 64; table and head 1000 x 64.
SMALL = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000, "torch_dtype": "bfloat16"}  # fmt: skip
ATTENTION, MLP, TABLE = 2 * 64 * 64 + 2 * 32 * 64, 3 * 96 * 64, 1000 * 64
SIZES = {"U8": 1, "I32": 4, "F16": 2, "BF16": 2, "F32": 4, "F8_E4M3": 1}


def header(tensors):
    """The header of a file with tensors as (dtype, shape) by name; no data follow, which are never read."""
    tree, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape) in tensors.items():
        size = SIZES[dtype]
        for side in shape:
            size *= side
        tree[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(tree).encode()
    return len(text).to_bytes(8, "little") + text


def layer_tensors(layer, dtype="BF16"):
    shapes = {"self_attn.q_proj": (64, 64), "self_attn.k_proj": (32, 64), "self_attn.v_proj": (32, 64),
              "self_attn.o_proj": (64, 64), "mlp.gate_proj": (96, 64), "mlp.up_proj": (96, 64),
              "mlp.down_proj": (64, 96)}  # fmt: skip
    found = {f"model.layers.{layer}.{name}.weight": (dtype, shape) for name, shape in shapes.items()}
    norms = {f"model.layers.{layer}.{name}.weight": ("BF16", (64,)) for name in
             ("input_layernorm", "post_attention_layernorm")}  # fmt: skip
    return found | norms


OUTSIDE = {"model.embed_tokens.weight": ("BF16", (1000, 64)), "lm_head.weight": ("BF16", (1000, 64)),
           "model.norm.weight": ("BF16", (64,))}  # fmt: skip
WHOLE = OUTSIDE | layer_tensors(0) | layer_tensors(1)
NORMS = 5 * 64 * 2


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    return tmp_path


def put(folder, tensors, name="model.safetensors"):
    (folder / name).write_bytes(header(tensors))
    return folder


def test_the_same_as_the_config_where_both_are_right(folder):
    plain = load_model(folder)
    measured = load_model(put(folder, WHOLE))
    assert checkpoint_bytes(measured) == checkpoint_bytes(plain) == 4 * (ATTENTION + MLP + TABLE) + NORMS
    assert read_bytes(measured, 3, Layout(tp=2)) == pytest.approx(read_bytes(plain, 3, Layout(tp=2)))
    assert measured.remarks == ()


def test_what_is_stored_counts_not_what_the_config_tells(folder):
    """The MLPs are stored in FP8 with a scale each, which the config does not say."""
    small = {name: ("F8_E4M3" if ".mlp." in name else dtype, shape) for name, (dtype, shape) in WHOLE.items()}
    small |= {f"model.layers.{layer}.mlp.up_proj.weight_scale": ("F32", (1,)) for layer in (0, 1)}
    model = load_model(put(folder, small))
    stored = 4 * (ATTENTION + TABLE) + 2 * MLP + NORMS + 8
    assert checkpoint_bytes(model) == pytest.approx(stored)
    assert read_bytes(model, 1) == pytest.approx(stored - 2 * TABLE + 2 * 64)  # of the table a row
    assert "safetensors files store" in model.remarks[0]
    # Over two ranks: all matrices in halves (there are two kv heads), norms whole; they are in the MLP's sum.
    half = (stored - 2 * TABLE - NORMS - 8) / 2 + 64 + NORMS
    assert read_bytes(model, 1, Layout(tp=2)) == pytest.approx(half, rel=0.02)


def test_unknown_quantisation_is_measured(folder):
    (folder / "config.json").write_text(json.dumps({**SMALL, "quantization_config": {"quant_method": "hqq"}}))
    with pytest.raises(PackError, match="quantisation 'hqq' is unknown here"):
        load_model(folder)
    packed = {name.replace(".weight", ".W_q") if "_proj" in name else name:
              ("U8", (shape[0] // 2, shape[1])) if "_proj" in name else (dtype, shape)
              for name, (dtype, shape) in WHOLE.items()}  # fmt: skip
    model = load_model(put(folder, packed))
    assert checkpoint_bytes(model) == pytest.approx(ATTENTION + MLP + 4 * TABLE + NORMS)
    assert model.remarks[0].startswith(f"model {folder.name}: quantisation 'hqq' is unknown here")
    assert model.remarks[0].endswith("bytes as the safetensors files say")


def test_what_a_decode_step_does_not_read_is_left_out(folder):
    more = layer_tensors(2) | {"model.vision_tower.layers.0.mlp.fc1.weight": ("BF16", (500, 500)),
            "mtp.layers.0.mlp.up_proj.weight": ("BF16", (500, 500)),
            "model.layers.0.self_attn.rotary_emb.inv_freq": ("F32", (8,))}  # fmt: skip
    assert checkpoint_bytes(load_model(put(folder, WHOLE | more))) == 4 * (ATTENTION + MLP + TABLE) + NORMS


def test_experts_by_their_names(folder):
    config = {**SMALL, "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 16,
              "moe_intermediate_size": 32, "decoder_sparse_step": 1}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    plain = read_bytes(load_model(folder), 1)
    tensors = dict(OUTSIDE)
    for layer in (0, 1):
        own = {name: tensor for name, tensor in layer_tensors(layer).items() if ".mlp." not in name}
        experts = {f"model.layers.{layer}.mlp.experts.{number}.{leaf}_proj.weight": ("F8_E4M3", (32, 64))
                   for number in range(4) for leaf in ("gate", "up", "down")}  # fmt: skip
        qk = {f"model.layers.{layer}.self_attn.{one}_norm.weight": ("BF16", (16,)) for one in "qk"}
        tensors |= own | experts | qk | {f"model.layers.{layer}.mlp.gate.weight": ("BF16", (4, 64))}
    # Two of four experts a layer, three matrices of 32 x 64 each, in one byte instead of two.
    assert plain - read_bytes(load_model(put(folder, tensors)), 1) == pytest.approx(2 * 2 * 3 * 32 * 64)


def test_head_that_is_not_stored_is_the_embedding(folder):
    model = load_model(put(folder, {name: tensor for name, tensor in WHOLE.items() if name != "lm_head.weight"}))
    assert model.tied
    assert "no lm_head is stored" in model.remarks[0]


def test_symmetric_zero_points_are_not_read(folder):
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True}
    (folder / "config.json").write_text(json.dumps({**SMALL, "quantization_config": gptq}))
    tensors = dict(OUTSIDE)
    for name, (dtype, shape) in (layer_tensors(0) | layer_tensors(1)).items():
        if "_proj" not in name:
            tensors[name] = (dtype, shape)
            continue
        rows, columns, module = *shape, name.removesuffix(".weight")
        tensors |= {f"{module}.qweight": ("I32", (columns // 8, rows)), f"{module}.g_idx": ("I32", (columns,)),
                    f"{module}.scales": ("F16", (columns // 32, rows)),
                    f"{module}.qzeros": ("I32", (columns // 32, rows // 8))}  # fmt: skip
    expected = 2 * (ATTENTION + MLP) * 4.5 / 8 + 4 * TABLE + NORMS
    assert checkpoint_bytes(load_model(put(folder, tensors))) == pytest.approx(expected)
    asymmetric = {**gptq, "sym": False}
    (folder / "config.json").write_text(json.dumps({**SMALL, "quantization_config": asymmetric}))
    assert checkpoint_bytes(load_model(folder)) == pytest.approx(expected + 2 * (ATTENTION + MLP) * 4 / 32 / 8)


# Several files and their index


def write_index(folder, names, total=None):
    metadata = {} if total is None else {"total_size": total}
    (folder / INDEX).write_text(json.dumps({"metadata": metadata, "weight_map": names}))


def test_files_of_an_index(folder):
    total = 4 * (ATTENTION + MLP + TABLE) + NORMS
    write_index(folder, {"a": "one.safetensors", "b": "two.safetensors"}, total)
    put(folder, OUTSIDE | layer_tensors(0), "one.safetensors")
    put(folder, WHOLE, "consolidated.safetensors")  # a second copy, which the index does not name
    assert load_model(folder).measured == {}  # a file is missing: the total agrees with the config
    put(folder, layer_tensors(1), "two.safetensors")
    model = load_model(folder)
    assert checkpoint_bytes(model) == total
    assert model.measured
    write_index(folder, {"a": "one.safetensors", "b": "two.safetensors"}, total * 2)
    assert "the files count" in load_model(folder).remarks[0]


def test_numbered_files_without_an_index(folder):
    put(folder, OUTSIDE | layer_tensors(0), "model-00001-of-00002.safetensors")
    assert load_model(folder).measured == {}
    put(folder, layer_tensors(1), "model-00002-of-00002.safetensors")
    assert load_model(folder).measured


def test_total_of_an_index_alone(folder):
    total = 4 * (ATTENTION + MLP + TABLE) + NORMS
    write_index(folder, {"a": "one.safetensors"}, total * 1.5)
    assert "such as pictures or draft layers, is not counted" in load_model(folder).remarks[0]
    write_index(folder, {"a": "one.safetensors"}, total / 2)
    with pytest.raises(PackError, match="stored in fewer bits than the config tells"):
        load_model(folder)
    assert load_model(folder, "fp8")  # quantised while loading: the checkpoint is not what is read


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "does not begin with the length"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        ((10**12).to_bytes(8, "little") + b"{}", "does not begin with the length"),
        ((100).to_bytes(8, "little") + b"{}", "ends inside its header of 100 bytes"),
        ((2).to_bytes(8, "little") + b"[]", "not a JSON object"),
        ((3).to_bytes(8, "little") + b"{a}", "not valid JSON"),
    ],
)
def test_malformed_files_are_one_line(folder, content, why):
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(PackError, match=why) as raised:
        load_model(folder)
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize(
    "tensor",
    [
        {},
        7,
        {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 7]},
        {"dtype": "BF16", "shape": [2, 2], "data_offsets": [8, 0]},
        {"dtype": "BF16", "shape": [-2, 2], "data_offsets": [0, 8]},
        {"dtype": "BF16", "shape": ["a"], "data_offsets": [0, 8]},
        {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 4, 8]},
        {"dtype": ["BF16"], "shape": [2, 2], "data_offsets": [0, 8]},
    ],
)
def test_malformed_tensors_are_one_line(folder, tensor):
    text = json.dumps({"model.norm.weight": tensor}).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(PackError, match=r"model\.safetensors: not a safetensors file: "):
        load_model(folder)


@pytest.mark.parametrize(
    ("index", "why"),
    [
        ("{", "not an index"),
        ("{}", "not an index"),
        ('{"weight_map": [1]}', "not an index"),
        ('{"weight_map": {"a": "../other.safetensors"}}', "outside its folder"),
    ],
)
def test_malformed_indexes_are_one_line(folder, index, why):
    (folder / INDEX).write_text(index)
    with pytest.raises(PackError, match=why):
        load_model(folder)


def test_files_of_another_model_are_refused(folder):
    lacking = {name: tensor for name, tensor in WHOLE.items() if "layers.1.mlp" not in name and "layers.1.p" not in name
               and "layers.1.i" not in name}  # fmt: skip
    with pytest.raises(PackError, match=r"lack the weights \(rest\) of layer 1 that config.json tells"):
        load_model(put(folder, lacking))


# Quantisation told beside the config


@pytest.mark.parametrize(
    ("name", "content", "method", "bits"),
    [
        ("quantize_config.json", {"bits": 4, "group_size": 32, "sym": True, "desc_act": True}, "gptq", 4.5),
        ("quant_config.json", {"w_bit": 4, "q_group_size": 64, "zero_point": True, "version": "GEMM"}, "awq", 4.3125),
        ("hf_quant_config.json", {"quantization": {"quant_algo": "NVFP4", "group_size": 16,
                                                   "exclude_modules": ["lm_head"]}}, "modelopt", 4.5),
    ],
)  # fmt: skip
def test_quantisation_told_beside_the_config(folder, name, content, method, bits):
    (folder / name).write_text(json.dumps(content))
    model = load_model(folder)
    assert model.quantization.method == method
    expected = 2 * (ATTENTION + MLP) * bits / 8 + 4 * TABLE + NORMS
    assert checkpoint_bytes(model) == pytest.approx(expected, rel=2e-3)  # NVFP4 has four bytes more a matrix
    (folder / name).write_text("[]")
    with pytest.raises(PackError, match=name):
        load_model(folder)


def test_the_config_goes_before_files_beside_it(folder):
    own = {**SMALL, "quantization_config": {"quant_method": "fp8"}}
    (folder / "config.json").write_text(json.dumps(own))
    (folder / "quantize_config.json").write_text(json.dumps({"bits": 4, "group_size": 32}))
    assert load_model(folder) == parse_model(folder.name, own)
