"""The weights of a model: parameters and bytes in all, and what a decode step reads of them on one rank.

    weights read = attention, dense MLPs, shared experts, routers, norms   whole
                 + head                                                    whole, also when it is the embedding
                 + one row of the embedding (and of learned positions)     a token
                 + experts x D / E in each layer with experts

How many of E experts a layer reads depends on the routing, k for each token:
    fewest     D = k: all tokens may pick the same. Of ep ranks with E / ep experts each, one reads at least
               max(0, k - (E - E / ep)): as many as the other ranks' experts do not suffice for.
    expected   D = E (1 - (1 - k / E)^tokens): uniform routing, each token by itself. Skewed routing reads fewer.
"""

from __future__ import annotations

from recipes.models.layout import SINGLE, Layout, check_layout, in_stage, replicas, split_share
from recipes.models.model import Model
from recipes.models.weights import Weight, stored_bytes, weights_of

#: The two answers to how many experts a step reads.
FEWEST, EXPECTED = "fewest", "expected"


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
    if model.opaque_bytes is not None:
        return model.opaque_bytes
    return sum(stored_bytes(model, weight) for weight in weights_of(model))


def read_parameters(model: Model, tokens: float, routing: str = FEWEST) -> float | None:
    """Parameters that a step of `tokens` tokens reads."""
    if model.family is None:
        return model.opaque_parameters
    return sum(weight.parameters * _read_share(model, weight, tokens, SINGLE, routing) for weight in weights_of(model))


def read_bytes(model: Model, tokens: float, layout: Layout = SINGLE, routing: str = FEWEST) -> float:
    """Bytes of weights that one rank reads in a step of `tokens` tokens.

    PackError when the model cannot be spread that way.
    """
    check_layout(model, layout)
    if model.opaque_bytes is not None:
        return model.opaque_bytes / (layout.tp * layout.pp)
    stages = range(layout.pp) if layout.stage is None else (layout.stage,)
    return min(_stage_bytes(model, tokens, layout, stage, routing) for stage in stages)


def _stage_bytes(model: Model, tokens: float, layout: Layout, stage: int, routing: str) -> float:
    return sum(
        stored_bytes(model, weight)
        * _read_share(model, weight, tokens, layout, routing, stage)
        * split_share(model, weight, layout)
        for weight in weights_of(model)
        if in_stage(model, weight, layout, stage)
    )


def _read_share(model: Model, weight: Weight, tokens: float, layout: Layout, routing: str, stage: int = 0) -> float:
    """The share of a rank's part that a step reads: over 1 for a tied table: one row per token, and all of the head."""
    if weight.role in ("embedding", "position"):
        rows = tokens / weight.shape[0] if stage == 0 else 0
        return rows + (1 if model.tied and weight.role == "embedding" and stage == layout.pp - 1 else 0)
    moe = model.moe
    if moe is None or weight.role not in ("expert", "expert_vector"):
        return 1
    if routing == EXPECTED:
        return distinct_experts(moe.experts, moe.top_k, tokens * replicas(layout)) / moe.experts
    mine = moe.experts / layout.ep
    return max(0, moe.top_k - (moe.experts - mine)) / mine
