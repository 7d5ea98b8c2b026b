"""Reading a model: config.json, quantisation and, where they lie beside it, the headers of its safetensors files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from recipes.base.errors import PackError
from recipes.models.architectures import FAMILIES, Experts
from recipes.models.checkpoint import Checkpoint, compare_total, measure, read_checkpoint
from recipes.models.config_fields import Fields, language_model
from recipes.models.config_file import config_folder, find_config
from recipes.models.layer_kinds import LINEAR, attention_kinds, moe_layers
from recipes.models.model import LinearAttention, Mla, Model, Moe
from recipes.models.number_formats import dtype_bytes
from recipes.models.quantization import Quantization, quantized_layers
from recipes.models.quantization_config import INSTEAD, read_quantization
from recipes.models.weights import weights_of

#: More than any model has: a mistake in the config, refused before layers are laid out one by one.
MOST_LAYERS = 10_000
BIASES = ("qkv", "out", "mlp", "head")

# Fields with which layers have other matrices or caches than their architecture here.
_VARIANTS = {
    "block_configs": "layers that were pruned one by one",
    "num_kv_shared_layers": "layers that share a KV cache",
    "use_cla": "layers that share a KV cache",
    "sparsity_config": "sparse weights",
}
# Models for other work end in a small matrix of labels, not in a head over the vocabulary.
_NO_HEAD = re.compile(r"(?:Classification|QuestionAnswering|RewardModel|RewardModeling|Regression)$")


def load_model(source: str | Path, weight_dtype: str | None = None) -> Model:
    """The model of a config.json, of the folder it lies in, or of a preset name (`preset_names`).

    Where the checkpoint's safetensors files lie beside the config, their headers say how many bytes the weights have.
    `weight_dtype` replaces what config and checkpoint say: with 16 or 32 bits that of all unquantised weights, with
    less that of the layers' matrices, as engines do that quantise while loading. PackError for an unknown model_type
    or quantisation, for missing fields (all named) and for values that contradict each other.
    """
    name, config = find_config(source)
    folder = config_folder(source)
    return parse_model(name, config, weight_dtype, read_checkpoint(folder) if folder and not weight_dtype else None)


def opaque_model(
    weight_bytes: float | None = None, params: float | None = None, weight_dtype: str | None = None
) -> Model:
    """A model of which only the weights' size is known: in bytes, or as parameters and their dtype.

    PackError unless exactly one of both is given, and for a size that is not positive.
    """
    if weight_bytes is not None and params is None:
        size = weight_bytes
    elif params is None or weight_bytes is not None:
        raise PackError("model: give either the bytes of the weights or the number of parameters, not both or none")
    elif weight_dtype is None:
        raise PackError("model: parameters without a weight dtype have no size in bytes; give it, such as bf16 or fp8")
    else:
        size = params * dtype_bytes(weight_dtype)
    if not size > 0:
        raise PackError(f"model: the weights have {size:g} bytes; give a size above nothing")
    remark = "all given weights are taken as read at every batch; the KV cache is unknown without a config"
    name = "weights as given"
    return Model(
        name, "", opaque_bytes=size, opaque_parameters=params, dtype=weight_dtype or "bfloat16", remarks=(remark,)
    )


def parse_model(
    name: str, config: Mapping[str, Any], weight_dtype: str | None = None, stored: Checkpoint | None = None
) -> Model:
    """The model of a config that is already read, with its checkpoint if there is one. See `load_model`."""
    text = language_model(name, config)
    _refuse_variants(name, text, config.get("architectures"))
    nested = ("only the language model (text_config) is counted: a decode step reads nothing else",)
    try:
        quantization = _quantization(name, text, weight_dtype, bool(stored and stored.tensors))
        model = _parse(name, text, _wide_dtype(weight_dtype), quantization)
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
        raise PackError(f"model {name}: a field of the config is of the wrong kind: {error}; correct it") from error
    model = replace(model, remarks=(nested if "text_config" in config else ()) + model.remarks)
    if stored and stored.tensors:
        return measure(model, stored)
    _refuse_unread(model)
    return compare_total(model, stored) if stored else model


def _refuse_variants(name: str, text: Mapping[str, Any], architectures: Any) -> None:
    for field, what in _VARIANTS.items():
        if text.get(field):
            raise PackError(f"model {name}: {field} means {what}, which are not counted here; {INSTEAD}")
    for architecture in architectures if isinstance(architectures, list) else ():
        if _NO_HEAD.search(str(architecture)):
            raise PackError(f"model {name}: a {architecture!s:.60} has no lm_head and makes no decode steps; {INSTEAD}")


def _wide_dtype(weight_dtype: str | None) -> str | None:
    return weight_dtype if weight_dtype and dtype_bytes(weight_dtype) >= 2 else None


def _quantization(name: str, text: Mapping[str, Any], weight_dtype: str | None, measured: bool) -> Quantization:
    """What is quantised how. Where the checkpoint is measured, a method that is not known here does no harm."""
    config = text.get("quantization_config")
    if not config and text.get("compression_config"):
        config = {"quant_method": "compressed-tensors", **text["compression_config"]}
    try:
        found = read_quantization(name, config)
    except PackError as error:
        if not measured:
            raise
        return Quantization(remarks=(f"{error}".replace(f"; {INSTEAD}", "") + ": bytes as the safetensors files say",))
    if weight_dtype and dtype_bytes(weight_dtype) < 2:
        return quantized_layers(weight_dtype, found.kv_dtype)
    return found


def _refuse_unread(model: Model) -> None:
    """PackError where a quantisation touches no matrix of the model, or some experts of a layer and not others."""
    quantization = model.quantization
    if not any(form for _, form in (*quantization.groups, *quantization.named)):
        return
    weights = [weight for weight in weights_of(model) if weight.role in quantization.roles]
    if not any(quantization.format_of(weight.module, weight.role) for weight in weights):
        raise PackError(
            f"model {model.name}: its {quantization.method} quantisation touches no matrix that is known here, so what"
            f" is stored in fewer bits is unknown; {INSTEAD}"
        )
    pattern = quantization.some_experts()
    for weight in weights if pattern and model.moe else ():
        if weight.role == "expert":
            names = [weight.module.replace(".experts.0.", f".experts.{number}.") for number in range(weight.copies)]
            if len({quantization.format_of(each, weight.role) for each in names}) > 1:
                raise PackError(
                    f"model {model.name}: {pattern:.80} quantises some experts of a layer and not others; {INSTEAD}"
                )


def _parse(name: str, text: Mapping[str, Any], weight_dtype: str | None, quantization: Quantization) -> Model:
    family, fields = FAMILIES[text["model_type"]], Fields(name, text)
    heads, hidden = fields.size("num_attention_heads"), fields.size("hidden_size")
    layer_count = fields.size("num_hidden_layers")
    if layer_count > MOST_LAYERS:
        raise PackError(f"model {name}: {layer_count} layers are more than any model has; correct the config")
    dtype, dtype_remarks = _dtype(text, weight_dtype)
    mla = _mla(fields) if family.attention == "mla" else None
    window, kinds = attention_kinds(fields, layer_count)
    model = Model(
        name=name, model_type=text["model_type"], family=family, hidden=hidden, vocab=fields.size("vocab_size"),
        layers=kinds, heads=heads, kv_heads=heads if mla else _kv_heads(fields, heads),
        head_dim=mla.nope + mla.rope if mla else _head_dim(fields, hidden, heads),
        intermediate=_intermediate(fields, hidden, layer_count), norms=_norms(fields),
        qk_norm=family.qk_norm if not family.qk_norm_if or fields.flag(family.qk_norm_if) else "",
        positions=fields.size(family.positions) + family.extra_positions if family.positions else 0,
        window=window, mla=mla, linear=_linear(fields) if LINEAR in kinds else None, moe=_moe(fields, layer_count),
        biases=frozenset(kind for kind in BIASES if fields.flag(getattr(family, f"{kind}_bias"))),
        tied=bool(fields.value("tie_word_embeddings", family.tied)), dtype=dtype,
        quantization=quantization, remarks=dtype_remarks + quantization.remarks + _unused_window(fields),
    )  # fmt: skip
    fields.refuse_missing()
    _check(model, fields)
    return model


def _unused_window(fields: Fields) -> tuple[str, ...]:
    if fields.family.window or not fields.config.get("sliding_window") or fields.config.get("layer_types"):
        return ()
    kind = fields.config["model_type"]
    return (f"the config's sliding_window is not used: layers of {kind} attend to all tokens",)


def _dtype(text: Mapping[str, Any], chosen: str | None) -> tuple[str, tuple[str, ...]]:
    stated = text.get("torch_dtype") or text.get("dtype")
    if chosen:
        return chosen, ()
    if not stated:
        return "bfloat16", ("the config names no dtype: 2 bytes a weight are taken",)
    stated = str(stated).removeprefix("torch.")
    if dtype_bytes(stated) > 2:
        return stated, (f"the config says {stated}; engines often load such weights with 16 bits: give the dtype then",)
    return stated, ()


def _kv_heads(fields: Fields, heads: int) -> int:
    rule = fields.family.kv_heads
    if rule == "falcon":
        # Falcon-7B ignores num_kv_heads unless the decoder is the new one (modeling_falcon.py).
        if fields.flag("new_decoder_architecture"):
            return fields.size("num_key_value_heads", fields.value("n_head_kv", heads))
        return 1 if fields.value("multi_query", True) else heads
    if rule == "multi_query":
        return 1 if fields.value("multi_query", True) else heads
    inner = fields.value("attn_config")
    default = inner.get("kv_n_heads") if isinstance(inner, Mapping) else None
    return fields.size("num_key_value_heads", default or (heads if rule == "heads" else None))


def _head_dim(fields: Fields, hidden: int, heads: int) -> int:
    given = fields.value("head_dim")
    if given is None and hidden % heads and not fields.missing:
        raise PackError(
            f"model {fields.name}: no head_dim, and hidden_size {hidden} is not a multiple of {heads} heads; add it"
        )
    return fields.size("head_dim", max(hidden // heads, 1))


def _intermediate(fields: Fields, hidden: int, layers: int) -> int:
    experts, width = _experts(fields), fields.family.mlp_width
    if experts and len(moe_layers(fields, experts, layers)) == layers:
        return 0  # no dense MLP is there
    factor = fields.value("expansion_ratio", fields.family.mlp_factor)
    return fields.size(width, int(factor * hidden) or None)


def _norms(fields: Fields) -> int:
    kind = fields.config["model_type"]
    if kind == "falcon":
        # modeling_falcon.py: the new decoder has ln_attn and ln_mlp unless told to have one norm; the old one
        # has a second norm only when attention and MLP follow each other.
        if fields.flag("new_decoder_architecture"):
            return int(fields.value("num_ln_in_parallel_attn", 2))
        return 1 if fields.value("parallel_attn", True) else 2
    if kind == "stablelm" and fields.flag("use_parallel_residual"):
        return 1
    return fields.family.norms


def _mla(fields: Fields) -> Mla:
    sizes = [fields.size(name) for name in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")]
    # Null means one q matrix (DeepSeek-V2-Lite, modeling_deepseek.py); copies of its config leave the field out.
    rank = fields.size("q_lora_rank") if fields.value("q_lora_rank") is not None else None
    return Mla(rank, *sizes)


def _linear(fields: Fields) -> LinearAttention:
    names = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim", "conv_kernel_dim")
    return LinearAttention(*(fields.size(f"linear_{name}") for name in names))


def _experts(fields: Fields) -> Experts | None:
    """DeepSeek's and Qwen's code builds dense layers only when the config says that there are no experts."""
    style = fields.family.experts
    return style if style and (style.layers == "all" or fields.value(style.count, 1) != 0) else None


def _moe(fields: Fields, layers: int) -> Moe | None:
    style = _experts(fields)
    if style is None:
        return None
    width = fields.size(style.width)
    shared = 0
    if style.shared == "counted":
        shared = width * int(fields.value(style.shared_count, 0) or 0)
    elif style.shared:
        shared = fields.size(style.shared)
    experts, top_k = fields.size(style.count), fields.size(style.top_k)
    return Moe(experts, top_k, width, moe_layers(fields, style, layers), shared, style)


def _check(model: Model, fields: Fields) -> None:
    """PackError for sizes that contradict each other and for variants that are not counted here."""
    where = f"model {model.name}"
    if model.heads % model.kv_heads:
        raise PackError(
            f"{where}: {model.heads} heads are not a multiple of {model.kv_heads} kv heads; correct the config"
        )
    if model.moe and model.moe.top_k > model.moe.experts:
        raise PackError(f"{where}: {model.moe.top_k} experts a token of {model.moe.experts}; correct the config")
    width = fields.value("word_embed_proj_dim", model.hidden)
    if width != model.hidden:
        raise PackError(
            f"{where}: embeddings of {width} projected to {model.hidden} are not counted here;"
            " give the weights' bytes instead"
        )
