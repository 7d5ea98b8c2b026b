"""Counting a model: parameters, and what a decode step reads, as totals and for one rank of a parallel layout.

One decode step: `batch` sequences, one new token each (with speculation `tokens_per_step` each).

    weights read = attention, dense MLPs, shared experts, routers, norms   whole
                 + head                                                    whole, also when it is the embedding
                 + one row of the embedding (and of learned positions)     a token
                 + experts x D / E in each layer with experts
    D = E (1 - (1 - k / E)^tokens)      expected distinct experts, k of E each, uniform routing: an upper bound

    KV read a token of context = 2 x kv heads x head size, or latent + rope with MLA (one latent serves both)
    Sliding layers read min(context, window) tokens. Linear layers read and write one FP32 state a sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real

from recipes.base.errors import PackError
from recipes.models.layer_kinds import FULL, LINEAR, SLIDING
from recipes.models.model import Model
from recipes.models.quantization import dtype_bytes
from recipes.models.weights import Weight, stored_bytes, weights_of

Contexts = float | Sequence[float]


@dataclass(frozen=True)
class Layout:
    """How a model is spread: tensor, pipeline and expert parallel sizes, and the pipeline stage looked at.

    `ep` ranks share the experts of a layer. With ep > tp the attention is data-parallel over ep / tp replicas,
    each with its own batch; with ep < tp each expert is split over tp / ep ranks. `stage` None is the stage
    that reads least, so that the floor holds for every rank.
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1
    stage: int | None = None


SINGLE = Layout()


def distinct_experts(experts: int, top_k: int, tokens: float) -> float:
    """Expected number of distinct experts of a layer that `tokens` tokens are routed to."""
    return experts * (1 - (1 - top_k / experts) ** tokens)


def total_parameters(model: Model) -> float | None:
    """All parameters, a tied head once; None when only the weights' bytes are known."""
    if model.family is None:
        return model.opaque_parameters
    return sum(weight.parameters for weight in weights_of(model))


def checkpoint_bytes(model: Model) -> float:
    """Bytes of all weights as stored: what the usual shortcut divides by the bandwidth."""
    if model.family is None:
        return model.opaque_bytes
    return sum(stored_bytes(model, weight) for weight in weights_of(model))


def read_parameters(model: Model, tokens: float) -> float | None:
    """Parameters that a step of `tokens` tokens reads."""
    if model.family is None:
        return model.opaque_parameters
    return sum(weight.parameters * _read_share(model, weight, tokens, SINGLE) for weight in weights_of(model))


def read_bytes(model: Model, tokens: float, layout: Layout = SINGLE) -> float:
    """Bytes of weights that one rank reads in a step of `tokens` tokens.

    PackError when the model cannot be spread that way.
    """
    check_layout(model, layout)
    if model.family is None:
        return model.opaque_bytes / (layout.tp * layout.pp)
    stages = range(layout.pp) if layout.stage is None else (layout.stage,)
    return min(_stage_bytes(model, tokens, layout, stage) for stage in stages)


def _stage_bytes(model: Model, tokens: float, layout: Layout, stage: int) -> float:
    return sum(
        stored_bytes(model, weight)
        * _read_share(model, weight, tokens, layout, stage)
        * split_share(model, weight, layout)
        for weight in weights_of(model)
        if in_stage(model, weight, layout, stage)
    )


def _read_share(model: Model, weight: Weight, tokens: float, layout: Layout, stage: int = 0) -> float:
    """The share of a weight that a step reads: over 1 for a tied table, a row a token and the head as a whole."""
    if weight.role in ("embedding", "position"):
        rows = tokens / weight.shape[0] if stage == 0 else 0
        return rows + (1 if model.tied and weight.role == "embedding" and stage == layout.pp - 1 else 0)
    if weight.role in ("expert", "expert_vector"):
        moe = model.moe
        return distinct_experts(moe.experts, moe.top_k, tokens * replicas(layout)) / moe.experts
    return 1


def replicas(layout: Layout) -> int:
    """Data-parallel attention replicas that route to one set of experts."""
    return max(layout.ep // layout.tp, 1)


def split_share(model: Model, weight: Weight, layout: Layout) -> float:
    """The share of a weight that one rank holds: 1 for what every rank has a copy of."""
    if weight.split == "":
        return 1
    if weight.split == "kv":
        return 1 / min(layout.tp, model.kv_heads)
    if weight.split == "experts":
        return 1 / max(layout.tp, layout.ep)
    return 1 / layout.tp


def stage_layers(layers: int, layout: Layout, stage: int) -> range:
    """The layers of a pipeline stage, as vLLM cuts them (`get_pp_indices`): what is left over goes to the
    stages before the last, from the back.
    """
    counts = [layers // layout.pp] * layout.pp
    for number in range(layers % layout.pp):
        counts[-(number + 2)] += 1
    start = sum(counts[:stage])
    return range(start, start + counts[stage])


def in_stage(model: Model, weight: Weight, layout: Layout, stage: int) -> bool:
    """Whether a pipeline stage holds the weight."""
    if layout.pp == 1:
        return True
    if weight.layer is None:  # a tied embedding is also the last stage's head
        return stage == 0 or (stage == layout.pp - 1 and model.tied and weight.role == "embedding")
    if weight.layer == -1:
        return stage == layout.pp - 1
    return weight.layer in stage_layers(len(model.layers), layout, stage)


def kv_values_per_token(model: Model) -> float:
    """Values cached a token of context in one layer that is not linear."""
    return model.mla.latent if model.mla else 2 * model.kv_heads * model.head_dim


def kv_bytes_per_token(model: Model, kv_dtype: str = "bfloat16") -> tuple[float, float]:
    """KV bytes a token of context: in the full layers together, and in the sliding ones together."""
    each = kv_values_per_token(model) * dtype_bytes(kv_dtype)
    return each * model.layers.count(FULL), each * model.layers.count(SLIDING)


def state_bytes(model: Model, layers: int | None = None) -> float:
    """Bytes that linear layers read and write for a sequence in a step: one FP32 matrix a value head."""
    if model.linear is None:
        return 0
    net, count = model.linear, model.layers.count(LINEAR) if layers is None else layers
    return 2 * 4.0 * count * net.value_heads * net.key_dim * net.value_dim


def kv_bytes(
    model: Model, batch: float, context: Contexts, kv_dtype: str | None = None, layout: Layout = SINGLE
) -> float:
    """KV bytes that one rank reads in a step, `context` tokens each or one number for each sequence.

    Kv heads that are fewer than `tp` are replicated; MLA's latent has no heads, so each rank reads it whole.
    PackError for an opaque model and for contexts that are not as many as the batch.
    """
    if model.family is None:
        raise PackError(f"model {model.name}: the KV cache is unknown without a config; leave the context out")
    check_layout(model, layout)
    lengths = context_lengths(model, batch, context)
    stages = range(layout.pp) if layout.stage is None else (layout.stage,)
    return min(_stage_kv_bytes(model, lengths, kv_dtype or model.kv_dtype, layout, stage) for stage in stages)


def context_lengths(model: Model, batch: float, context: Contexts) -> list[tuple[float, float]]:
    """Pairs of a context length in tokens and the number of sequences that have it."""
    lengths = [(context, batch)] if isinstance(context, Real) else [(length, 1) for length in context]
    if sum(count for _, count in lengths) != batch:
        raise PackError(
            f"model {model.name}: {len(lengths)} contexts for a batch of {batch:g}; give one for each sequence"
        )
    if any(not length >= 0 for length, _ in lengths):
        raise PackError(f"model {model.name}: a context is below nothing; give tokens")
    return lengths


def _stage_kv_bytes(
    model: Model, lengths: list[tuple[float, float]], kv_dtype: str, layout: Layout, stage: int
) -> float:
    kinds = [model.layers[at] for at in stage_layers(len(model.layers), layout, stage)]
    tokens = sum(length * count for length, count in lengths)
    seen = sum(min(length, model.window or length) * count for length, count in lengths)
    values = kv_values_per_token(model) * (tokens * kinds.count(FULL) + seen * kinds.count(SLIDING))
    share = 1 if model.mla else 1 / min(layout.tp, model.kv_heads)
    states = sum(count for _, count in lengths) * state_bytes(model, kinds.count(LINEAR)) / layout.tp
    return values * dtype_bytes(kv_dtype) * share + states


def check_layout(model: Model, layout: Layout) -> None:
    """PackError when the sizes are no whole numbers from 1, or do not divide what they split."""
    for name in ("tp", "pp", "ep"):
        size = getattr(layout, name)
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise PackError(f"{name} is {size!r:.40}: give a whole number from 1")
    if layout.stage is not None and not 0 <= layout.stage < layout.pp:
        raise PackError(f"pipeline stage {layout.stage} of {layout.pp}: give one from 0 to {layout.pp - 1}")
    if max(layout.tp, layout.ep) % min(layout.tp, layout.ep):
        raise PackError(f"ep {layout.ep} and tp {layout.tp}: neither is a multiple of the other; correct them")
    if model.family is not None:
        _check_model_layout(model, layout)


def _check_model_layout(model: Model, layout: Layout) -> None:
    where = f"model {model.name}"
    if not model.mla and model.kv_heads % layout.tp and layout.tp % model.kv_heads:
        raise PackError(
            f"{where}: {model.kv_heads} kv heads neither divide nor are divided by tp {layout.tp}; correct it"
        )
    if layout.pp > len(model.layers):
        raise PackError(f"{where}: {len(model.layers)} layers cannot be spread over pp {layout.pp} stages; correct it")
    if layout.ep > 1 and model.moe is None:
        raise PackError(f"{where}: it has no experts, so ep {layout.ep} spreads nothing; leave it out")
    if model.moe and model.moe.experts % layout.ep:
        raise PackError(f"{where}: {model.moe.experts} experts cannot be spread over ep {layout.ep}; correct it")
