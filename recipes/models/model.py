"""A language model as the floor sees it: sizes, kinds of layers, experts, and how its weights are stored.

All of it comes from a Hugging Face config.json; which matrices follow is in weights.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recipes.base.errors import PackError
from recipes.models.architectures import FAMILIES, Experts, Family
from recipes.models.config_fields import Fields, language_model
from recipes.models.config_file import find_config
from recipes.models.layer_kinds import LINEAR, attention_kinds, moe_layers
from recipes.models.quantization import PLAIN, Quantization, dtype_bytes, quantized_layers, read_quantization

MOST_LAYERS = 10_000
BIASES = ("qkv", "out", "mlp", "head")


@dataclass(frozen=True)
class Mla:
    """Multi-head latent attention: the ranks and head sizes of DeepSeek-V2 (arXiv 2405.04434, section 2.1)."""

    q_rank: int | None
    kv_rank: int
    nope: int
    rope: int
    value: int

    @property
    def latent(self) -> int:
        """Values cached a token and layer."""
        return self.kv_rank + self.rope


@dataclass(frozen=True)
class LinearAttention:
    """A gated delta net: heads and sizes of keys and values, and the width of its convolution."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int


@dataclass(frozen=True)
class Moe:
    """A mixture of experts: `top_k` of `experts` a token, each `width` wide, in the layers named.

    `shared_width` is 0 without a shared expert.
    """

    experts: int
    top_k: int
    width: int
    layers: frozenset[int]
    shared_width: int
    style: Experts


@dataclass(frozen=True)
class Model:
    """A model: sizes in elements; `layers` is the kind of attention of each layer, `window` in tokens.

    Made with `weight_bytes` or `params` alone it is opaque: `family` is None, `opaque_bytes` what a step reads,
    and the KV cache is unknown.
    """

    name: str
    model_type: str
    family: Family | None = None
    hidden: int = 0
    vocab: int = 0
    layers: tuple[str, ...] = ()
    heads: int = 1
    kv_heads: int = 1
    head_dim: int = 0
    intermediate: int = 0
    norms: int = 2
    qk_norm: str = ""
    positions: int = 0
    window: int | None = None
    mla: Mla | None = None
    linear: LinearAttention | None = None
    moe: Moe | None = None
    biases: frozenset[str] = frozenset()
    tied: bool = False
    dtype: str = "bfloat16"
    quantization: Quantization = field(default=PLAIN)
    opaque_bytes: float | None = None
    opaque_parameters: float | None = None
    remarks: tuple[str, ...] = ()

    @property
    def bytes_per_value(self) -> float:
        """Bytes of an unquantised weight."""
        return dtype_bytes(self.dtype)

    @property
    def kv_dtype(self) -> str:
        """The dtype of the KV cache that the checkpoint asks for; that of the model when it asks for none."""
        return self.quantization.kv_dtype or ("bfloat16" if self.bytes_per_value < 2 else self.dtype)


def load_model(source: str | Path, weight_dtype: str | None = None) -> Model:
    """The model of a config.json, of the folder it lies in, or of a preset name (`preset_names`).

    `weight_dtype` replaces what the config says: with 16 or 32 bits that of all unquantised weights, with less
    that of the layers' matrices, as engines do that quantise while loading. PackError for an unknown model_type
    or quantisation, for missing fields (all named) and for values that contradict each other.
    """
    name, config = find_config(source)
    return parse_model(name, config, weight_dtype)


def opaque_model(
    weight_bytes: float | None = None, params: float | None = None, weight_dtype: str | None = None
) -> Model:
    """A model of which only the weights' size is known: in bytes, or as parameters and their dtype.

    PackError unless exactly one of both is given, and for a size that is not positive.
    """
    if (weight_bytes is None) == (params is None):
        raise PackError("model: give either the bytes of the weights or the number of parameters, not both or none")
    if params is not None and weight_dtype is None:
        raise PackError("model: parameters without a weight dtype have no size in bytes; give it, such as bf16 or fp8")
    size = weight_bytes if params is None else params * dtype_bytes(str(weight_dtype))
    if not size > 0:
        raise PackError(f"model: the weights have {size:g} bytes; give a size above nothing")
    remark = "all given weights are taken as read at every batch; the KV cache is unknown without a config"
    name = "weights as given"
    return Model(
        name, "", opaque_bytes=size, opaque_parameters=params, dtype=weight_dtype or "bfloat16", remarks=(remark,)
    )


def parse_model(name: str, config: Mapping[str, Any], weight_dtype: str | None = None) -> Model:
    """The model of a config that is already read. See `load_model`."""
    text = language_model(name, config)
    nested = "only the language model (text_config) is counted: a decode step reads nothing else"
    try:
        return _parse(name, text, weight_dtype, (nested,) if "text_config" in config else ())
    except (TypeError, ValueError, AttributeError) as error:
        raise PackError(f"model {name}: a field of the config is of the wrong kind: {error}; correct it") from error


def _parse(name: str, text: Mapping[str, Any], weight_dtype: str | None, remarks: tuple[str, ...]) -> Model:
    family, fields = FAMILIES[text["model_type"]], Fields(name, text)
    heads, hidden = fields.size("num_attention_heads"), fields.size("hidden_size")
    layer_count = fields.size("num_hidden_layers")
    if layer_count > MOST_LAYERS:
        raise PackError(f"model {name}: {layer_count} layers are more than any model has; correct the config")
    quantization = read_quantization(name, text.get("quantization_config"))
    if weight_dtype and dtype_bytes(weight_dtype) < 2:
        quantization, weight_dtype = quantized_layers(weight_dtype, quantization.kv_dtype), None
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
        quantization=quantization, remarks=remarks + dtype_remarks,
    )  # fmt: skip
    fields.refuse_missing()
    _check(model, fields)
    return model


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
    experts, width = fields.family.experts, fields.family.mlp_width
    if _has_experts(fields) and len(moe_layers(fields, experts, layers)) == layers:
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


def _has_experts(fields: Fields) -> bool:
    """DeepSeek's and Qwen's code builds dense layers only when the config says that there are no experts."""
    style = fields.family.experts
    return style is not None and (style.layers == "all" or fields.value(style.count, 1) != 0)


def _moe(fields: Fields, layers: int) -> Moe | None:
    if not _has_experts(fields):
        return None
    style = fields.family.experts
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
