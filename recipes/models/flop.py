"""Floating-point operations of a step, for arithmetic intensity and for MFU: 2 a multiply-add.

Matrices: 2 FLOP a parameter and token (Kaplan et al., arXiv 2001.08361, section 2.1), counted over the matrices
that the token really goes through: top_k experts, the head, no embedding. Attention is added. A training step
is three forward passes, with the head at every token (Chowdhery et al., arXiv 2204.02311, appendix B);
recomputation is not counted, so the share of peak is MFU, not HFU.
"""

from __future__ import annotations

from recipes.models.kv_cache import Contexts, Seen, state_bytes, tokens_seen
from recipes.models.layer_kinds import LINEAR
from recipes.models.layout import SINGLE, Layout, in_stage, replicas, split_share, stage_layers
from recipes.models.model import Model
from recipes.models.weights import MATRICES, Weight, weights_of


def used_parameters(model: Model) -> float | None:
    """Parameters of the matrices that one token is multiplied with; None when only bytes are known."""
    if model.family is None:
        return model.opaque_parameters
    return _body(model, SINGLE) + _head(model, SINGLE)


def _matrix_parameters(model: Model, weight: Weight, layout: Layout) -> float:
    """Parameters of one matrix that a token uses, as this rank's share of all tokens' work."""
    share = split_share(model, weight, layout)
    if model.moe is None or weight.role != "expert":
        return weight.parameters * share
    return weight.parameters * model.moe.top_k / model.moe.experts * share * replicas(layout)


def _body(model: Model, layout: Layout) -> float:
    return sum(
        _matrix_parameters(model, weight, layout)
        for weight in weights_of(model)
        if weight.role in MATRICES - {"head"} and in_stage(model, weight, layout, layout.stage or 0)
    )


def _head(model: Model, layout: Layout) -> float:
    return model.vocab * model.hidden / layout.tp if (layout.stage or 0) == layout.pp - 1 else 0


def _layer_flop(model: Model, absorbed: bool) -> float:
    """FLOP of one token's attention in one layer, for a token of context. q.k and p.v take 2 each per value."""
    if model.mla is None:
        return 4 * model.heads * model.head_dim
    mla = model.mla
    if absorbed:  # each head works on the latent itself
        return 2 * model.heads * (mla.latent + mla.kv_rank)
    return 2 * model.heads * (mla.nope + mla.rope + mla.value)


def _attention_flop(model: Model, pairs: Seen, tokens: float, layout: Layout, absorbed: bool) -> float:
    """Attention of a rank: `pairs` of token and context that layers of each kind look at, and `tokens`."""
    kinds = [model.layers[at] for at in stage_layers(len(model.layers), layout, layout.stage or 0)]
    # A linear layer reads, corrects and writes its state: three multiply-adds a value, of 8 bytes moved.
    linear = 6 * state_bytes(model, kinds.count(LINEAR)) / 8
    return (_layer_flop(model, absorbed) * pairs.of(kinds) + tokens * linear) / layout.tp


def decode_flop(
    model: Model, batch: float, context: Contexts | None, tokens_per_step: float = 1, layout: Layout = SINGLE
) -> float | None:
    """FLOP of one rank in a decode step, at least; without `context` those of attention are left out.

    None when only the weights' bytes are known.
    """
    tokens = batch * tokens_per_step
    if model.family is None:
        return _opaque_flop(model, tokens, layout)
    flop = 2 * tokens * (_body(model, layout) + _head(model, layout))
    if context is None:
        return flop
    seen = tokens_seen(model, batch, context)
    return flop + tokens_per_step * _attention_flop(model, seen, batch, layout, absorbed=True)


def prefill_flop(model: Model, batch: float, prompt_tokens: float, layout: Layout = SINGLE) -> float | None:
    """FLOP of one rank to prefill `batch` prompts of `prompt_tokens` each; the head runs once a prompt."""
    return _forward_flop(model, batch, prompt_tokens, 1, layout)


def train_flop(model: Model, batch: float, sequence_tokens: float, layout: Layout = SINGLE) -> float | None:
    """FLOP of one rank in a training step over `batch` sequences: forward, and backward twice as much."""
    forward = _forward_flop(model, batch, sequence_tokens, sequence_tokens, layout)
    return None if forward is None else 3 * forward


def _forward_flop(model: Model, batch: float, tokens: float, head_tokens: float, layout: Layout) -> float | None:
    if model.family is None:
        return _opaque_flop(model, batch * tokens, layout)
    window = min(model.window or tokens, tokens)
    chunks, rest = divmod(tokens, window)
    pairs = Seen(
        _causal(tokens), _causal(window) + (tokens - window) * window, chunks * _causal(window) + _causal(rest)
    )
    matrices = 2 * (tokens * _body(model, layout) + head_tokens * _head(model, layout))
    return batch * (matrices + _attention_flop(model, pairs, tokens, layout, absorbed=False))


def _opaque_flop(model: Model, tokens: float, layout: Layout) -> float | None:
    used = model.opaque_parameters
    return None if used is None else 2 * used * tokens / (layout.tp * layout.pp)


def _causal(tokens: float) -> float:
    """Pairs in which token t looks at t tokens."""
    return tokens * (tokens + 1) / 2
