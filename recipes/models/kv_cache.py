"""The KV cache that a decode step reads, for one rank: tokens seen by full, sliding and chunked layers, and states.

    KV read a token of context = 2 x kv heads x head size, or latent + rope with MLA (one latent serves both)
    full      a layer sees all c tokens of a sequence
    sliding   min(c, w) tokens, w the window
    chunked   (c - 1) mod w + 1 tokens: those of the chunk of w that the new token lies in (Llama 4)
    linear    no tokens: one FP32 state a sequence, read and written

Where only the sum S of the contexts of B sequences is known, the least that any split of S reads is taken, each
sequence with one token or more. min(c, w) is concave, so its sum is least with all sequences but one at their shortest:
B - 1 + min(S - B + 1, w). In chunks, the sum is S less a multiple of w and not below B; that of one long sequence
reaches the least: B + (S - B) mod w.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from recipes.base.errors import PackError
from recipes.models.layer_kinds import CHUNKED, FULL, LINEAR, SLIDING
from recipes.models.layout import SINGLE, Layout, check_layout, stage_layers
from recipes.models.model import Model
from recipes.models.number_formats import dtype_bytes


@dataclass(frozen=True)
class Summed:
    """The tokens in the caches of all sequences together; how they are split is not known."""

    tokens: float


#: Tokens that each sequence has, tokens of each sequence, or all tokens together.
Contexts = float | Sequence[float] | Summed


@dataclass(frozen=True)
class Seen:
    """Tokens that one layer of each kind looks at, over all sequences of a step."""

    full: float
    sliding: float
    chunked: float

    def of(self, kinds: Sequence[str]) -> float:
        """Tokens that some layers look at, together."""
        counts = {FULL: self.full, SLIDING: self.sliding, CHUNKED: self.chunked}
        return sum(counts.get(kind, 0) for kind in kinds)


def tokens_seen(model: Model, batch: float, context: Contexts) -> Seen:
    """What the new tokens of `batch` sequences look at. PackError for contexts that are not as many as the batch."""
    window = model.window or float("inf")
    if isinstance(context, Summed):
        # With less than a token a sequence the sum is not what it is taken for: then it is itself the least.
        total, others = context.tokens, min(batch, context.tokens) - 1
        _check(model, [total])
        return Seen(total, others + min(total - others, window), others + 1 + (total - others - 1) % window)
    lengths: list[tuple[float, float]]
    lengths = [(length, 1) for length in context] if isinstance(context, Iterable) else [(context, batch)]
    if sum(count for _, count in lengths) != batch:
        raise PackError(
            f"model {model.name}: {len(lengths)} contexts for a batch of {batch:g}; give one for each sequence"
        )
    _check(model, [length for length, _ in lengths])
    full = sum(length * count for length, count in lengths)
    sliding = sum(min(length, window) * count for length, count in lengths)
    return Seen(full, sliding, sum(_in_chunk(length, window) * count for length, count in lengths))


def _in_chunk(length: float, chunk: float) -> float:
    return (length - 1) % chunk + 1 if length >= 1 else length


def _check(model: Model, lengths: Sequence[float]) -> None:
    if any(not length >= 0 for length in lengths):
        raise PackError(f"model {model.name}: a context is below nothing; give tokens")


def kv_values_per_token(model: Model) -> float:
    """Values cached a token of context in one layer that is not linear."""
    return model.mla.latent if model.mla else 2 * model.kv_heads * model.head_dim


def kv_bytes_per_token(model: Model, kv_dtype: str = "bfloat16") -> tuple[float, float]:
    """KV bytes per token of context: in the full layers together, and in the sliding or chunked ones together."""
    each = kv_values_per_token(model) * dtype_bytes(kv_dtype)
    return each * model.layers.count(FULL), each * (model.layers.count(SLIDING) + model.layers.count(CHUNKED))


def state_bytes(model: Model, layers: int | None = None) -> float:
    """Bytes that linear layers read and write for a sequence in a step: one FP32 matrix a value head."""
    if model.linear is None:
        return 0
    net, count = model.linear, model.layers.count(LINEAR) if layers is None else layers
    return 2 * 4.0 * count * net.value_heads * net.key_dim * net.value_dim


def kv_bytes(
    model: Model, batch: float, context: Contexts, kv_dtype: str | None = None, layout: Layout = SINGLE
) -> float:
    """KV bytes that one rank reads at least in a step.

    Kv heads that are fewer than `tp` are replicated; MLA's latent has no heads, so each rank reads it whole.
    PackError for an opaque model and for contexts that are not as many as the batch.
    """
    if model.family is None:
        raise PackError(f"model {model.name}: the KV cache is unknown without a config; leave the context out")
    check_layout(model, layout)
    seen = tokens_seen(model, batch, context)
    stages = range(layout.pp) if layout.stage is None else (layout.stage,)
    return min(_stage_bytes(model, batch, seen, kv_dtype or model.kv_dtype, layout, stage) for stage in stages)


def _stage_bytes(model: Model, batch: float, seen: Seen, kv_dtype: str, layout: Layout, stage: int) -> float:
    kinds = [model.layers[at] for at in stage_layers(len(model.layers), layout, stage)]
    share = 1 if model.mla else 1 / min(layout.tp, model.kv_heads)
    states = batch * state_bytes(model, kinds.count(LINEAR)) / layout.tp
    return kv_values_per_token(model) * seen.of(kinds) * dtype_bytes(kv_dtype) * share + states
