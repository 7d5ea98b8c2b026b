"""The weights of a model, one by one: shape, role in a decode step, and how tensor parallelism splits them.

Names are those of the checkpoint's modules, because the lists of unquantised modules use them. Which matrices
an architecture has is data (architectures.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from recipes.models.layer_kinds import LINEAR
from recipes.models.model import LinearAttention, Mla, Model, Moe
from recipes.models.tensor_names import weight_place

#: Roles whose weights are matrices that a token is multiplied with.
MATRICES = frozenset({"attention", "mlp", "shared", "expert", "router", "head"})


@dataclass(frozen=True)
class Weight:
    """One weight: `copies` arrays of `shape` (out, in) or (n,).

    `role`: embedding and position (one row per token is read), head, attention, mlp, shared, router, expert
    (read as far as tokens are routed to it) or vector (norms, biases, convolutions). `split`: what tensor
    parallelism divides it by: heads, kv (kv heads), width, vocab, experts, or "" for a copy on each rank.
    `layer` is None before the first layer (embedding) and -1 behind the last (final norm, head).
    """

    module: str
    shape: tuple[int, ...]
    role: str
    split: str = ""
    layer: int | None = None
    copies: int = 1

    @property
    def parameters(self) -> int:
        return math.prod(self.shape) * self.copies


@cache
def weights_of(model: Model) -> tuple[Weight, ...]:
    """All weights of the model in the order of the layers; none for an opaque model."""
    return tuple(_weights(model)) if model.family else ()


def stored_bytes(model: Model, weight: Weight) -> float:
    """Bytes of the weight as the checkpoint stores it, scales included; measured where its headers were read."""
    form = model.quantization.format_of(weight.module, weight.role)
    each = math.prod(weight.shape) * model.bytes_per_value if form is None else form.stored_bytes(weight.shape)
    measured = model.measured.get(weight_place(weight.module), 1) if model.measured else 1
    return each * weight.copies * measured


def _weights(model: Model) -> Iterator[Weight]:
    family, hidden = model.built_as, model.hidden
    yield Weight("model.embed_tokens", (model.vocab, hidden), "embedding", "vocab")
    if model.positions:
        yield Weight("model.embed_positions", (model.positions, hidden), "position")
    if family.embedding_norm:
        yield from _norm(model, "model.embed_norm", None)
    for layer in range(len(model.layers)):
        yield from _layer(model, layer)
    if family.final_norm:
        yield from _norm(model, "model.norm", -1)
    if not model.tied:
        yield Weight("lm_head", (model.vocab, hidden), "head", "vocab", -1)
    if "head" in model.biases:
        yield Weight("lm_head", (model.vocab,), "vector", "vocab", -1)


def _layer(model: Model, layer: int) -> Iterator[Weight]:
    if model.linear and model.layers[layer] == LINEAR:
        yield from _linear_attention(model, model.linear, layer)
    elif model.mla:
        yield from _latent_attention(model, model.mla, layer)
    else:
        yield from _attention(model, layer)
    if model.moe and layer in model.moe.layers:
        yield from _experts(model, model.moe, layer)
    else:
        yield from _mlp(model, layer, "mlp", model.intermediate, "mlp")
    for number in range(model.norms):
        yield from _norm(model, f"model.layers.{layer}.norm{number}", layer)


def _norm(model: Model, module: str, layer: int | None) -> Iterator[Weight]:
    vectors = {"none": 0, "rms": 1, "layer": 2}[model.built_as.norm]
    if vectors:
        yield Weight(module, (model.hidden,), "vector", "", layer, vectors)


def _matrix(model: Model, layer: int, leaf: str, shape: tuple[int, int], role: str, split: str) -> Weight:
    return Weight(_module(model, layer, leaf), shape, role, split, layer)


def _module(model: Model, layer: int, leaf: str) -> str:
    """The checkpoint's name of a module in a layer."""
    for ours, theirs in model.built_as.modules.items():
        if leaf == ours or leaf.startswith(f"{ours}."):
            leaf = theirs + leaf[len(ours) :]
            break
    return f"model.layers.{layer}.{leaf}"


def _vector(layer: int, leaf: str, shape: tuple[int, ...], split: str) -> Weight:
    return Weight(f"model.layers.{layer}.{leaf}", shape, "vector", split, layer)


def _attention(model: Model, layer: int) -> Iterator[Weight]:
    hidden, q_width, kv_width = model.hidden, model.heads * model.head_dim, model.kv_heads * model.head_dim
    # Qwen3-Next: the q matrix makes a gate of the same width (modeling_qwen3_next.py).
    q_rows = q_width * (2 if model.built_as.gated_attention else 1)
    for leaf, rows, split in (("q_proj", q_rows, "heads"), ("k_proj", kv_width, "kv"), ("v_proj", kv_width, "kv")):
        yield _matrix(model, layer, f"self_attn.{leaf}", (rows, hidden), "attention", split)
        if "qkv" in model.biases:
            yield _vector(layer, f"self_attn.{leaf}", (rows,), split)
    yield _matrix(model, layer, "self_attn.o_proj", (hidden, q_width), "attention", "heads")
    if "out" in model.biases:
        yield _vector(layer, "self_attn.o_proj", (hidden,), "")
    if model.qk_norm == "head":
        yield _vector(layer, "self_attn.qk_norm", (2, model.head_dim), "")
    elif model.qk_norm:  # over all heads, or one for each
        yield _vector(layer, "self_attn.q_norm", (q_width,), "heads")
        yield _vector(layer, "self_attn.k_norm", (kv_width,), "kv")
    if model.built_as.sinks:
        yield _vector(layer, "self_attn.sinks", (model.heads,), "heads")


def _latent_attention(model: Model, mla: Mla, layer: int) -> Iterator[Weight]:
    """DeepSeek's modeling_deepseek.py: the down projections have no head axis, so every rank has them whole."""
    hidden, heads = model.hidden, model.heads
    q_width = heads * (mla.nope + mla.rope)
    matrices = [
        ("kv_a_proj_with_mqa", (mla.latent, hidden), ""),
        ("kv_b_proj", (heads * (mla.nope + mla.value), mla.kv_rank), "heads"),
        ("o_proj", (hidden, heads * mla.value), "heads"),
    ]
    if mla.q_rank is None:
        matrices.append(("q_proj", (q_width, hidden), "heads"))
    else:
        matrices += [("q_a_proj", (mla.q_rank, hidden), ""), ("q_b_proj", (q_width, mla.q_rank), "heads")]
    for leaf, shape, split in matrices:
        yield _matrix(model, layer, f"self_attn.{leaf}", shape, "attention", split)
    yield _vector(layer, "self_attn.a_layernorms", (mla.kv_rank + (mla.q_rank or 0),), "")
    if "qkv" in model.biases:
        yield _vector(layer, "self_attn.kv_a_proj_with_mqa", (mla.latent + (mla.q_rank or 0),), "")
    if "out" in model.biases:
        yield _vector(layer, "self_attn.o_proj", (hidden,), "")


def _linear_attention(model: Model, net: LinearAttention, layer: int) -> Iterator[Weight]:
    """A gated delta net as in modeling_qwen3_next.py: q, k, v, z and the two gates, a convolution over q, k, v."""
    hidden = model.hidden
    keys, values = net.key_heads * net.key_dim, net.value_heads * net.value_dim
    qkvz, gates = (2 * keys + 2 * values, hidden), (2 * net.value_heads, hidden)
    yield _matrix(model, layer, "linear_attn.in_proj_qkvz", qkvz, "attention", "linear")
    yield _matrix(model, layer, "linear_attn.in_proj_ba", gates, "attention", "linear")
    yield _matrix(model, layer, "linear_attn.out_proj", (hidden, values), "attention", "linear")
    yield _vector(layer, "linear_attn.conv1d", (2 * keys + values, net.kernel), "linear")
    yield _vector(layer, "linear_attn.dt_bias_and_a_log", (2, net.value_heads), "linear")
    yield _vector(layer, "linear_attn.norm", (net.value_dim,), "")


def _mlp(model: Model, layer: int, module: str, width: int, role: str) -> Iterator[Weight]:
    hidden = model.hidden
    for leaf in ("gate_proj", "up_proj") if model.built_as.gated else ("up_proj",):
        yield _matrix(model, layer, f"{module}.{leaf}", (width, hidden), role, "width")
        if "mlp" in model.biases:
            yield _vector(layer, f"{module}.{leaf}", (width,), "width")
    yield _matrix(model, layer, f"{module}.down_proj", (hidden, width), role, "width")
    if "mlp" in model.biases:
        yield _vector(layer, f"{module}.down_proj", (hidden,), "")


def _experts(model: Model, moe: Moe, layer: int) -> Iterator[Weight]:
    hidden = model.hidden
    shapes = [("gate_proj", (moe.width, hidden)), ("up_proj", (moe.width, hidden)), ("down_proj", (hidden, moe.width))]
    for leaf, shape in shapes:
        module = _module(model, layer, f"mlp.experts.0.{leaf}")
        yield Weight(module, shape, "expert", "experts", layer, moe.experts)
        if moe.style.biases:
            # Not quantised: the role expert_vector is read with the experts but is no matrix.
            yield Weight(module, shape[:1], "expert_vector", "experts", layer, moe.experts)
    yield _matrix(model, layer, "mlp.router", (moe.experts, hidden), "router", "")
    if moe.style.router_bias:
        yield _vector(layer, "mlp.router", (moe.experts,), "")
    if moe.shared_width:
        yield from _mlp(model, layer, "mlp.shared_experts", moe.shared_width, "shared")
        if moe.style.shared_gate:
            yield _matrix(model, layer, "mlp.shared_expert_gate", (1, hidden), "router", "")
