"""How a model is spread over ranks: tensor, pipeline and expert parallel, and which share of a weight a rank holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from recipes.base.errors import PackError
from recipes.models.model import Model
from recipes.models.weights import Weight


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
        _check_tensor_parallel(model, layout)
        _check_stages_and_experts(model, layout)


def _check_tensor_parallel(model: Model, layout: Layout) -> None:
    where, tp = f"model {model.name}", layout.tp
    if not model.mla and model.kv_heads % tp and tp % model.kv_heads:
        raise PackError(f"{where}: {model.kv_heads} kv heads neither divide nor are divided by tp {tp}; correct it")
    for size, what, parts in _divided(model, layout):
        if size % parts:
            raise PackError(f"{where}: {what} ({size}) cannot be split over {parts} ranks (tp {tp}); correct it")


def _divided(model: Model, layout: Layout) -> Iterator[tuple[int, str, int]]:
    """What engines cut into even parts, and into how many; the vocabulary is padded instead."""
    yield model.heads, "attention heads", layout.tp
    yield model.intermediate, "the MLP's width", layout.tp
    if model.linear:
        yield model.linear.key_heads, "key heads of linear attention", layout.tp
        yield model.linear.value_heads, "value heads of linear attention", layout.tp
    if model.moe:
        yield model.moe.width, "the experts' width", max(layout.tp // layout.ep, 1)
        yield model.moe.shared_width, "the shared experts' width", layout.tp


def _check_stages_and_experts(model: Model, layout: Layout) -> None:
    where = f"model {model.name}"
    if layout.pp > len(model.layers):
        raise PackError(f"{where}: {len(model.layers)} layers cannot be spread over pp {layout.pp} stages; correct it")
    if layout.ep > 1 and model.moe is None:
        raise PackError(f"{where}: it has no experts, so ep {layout.ep} spreads nothing; leave it out")
    if model.moe and model.moe.experts % layout.ep:
        raise PackError(f"{where}: {model.moe.experts} experts cannot be spread over ep {layout.ep}; correct it")
