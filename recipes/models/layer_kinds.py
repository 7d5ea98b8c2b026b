"""Which layers of a model do what: full, sliding, chunked or linear attention, and which have experts.

The rules are those of the configuration classes of transformers 5.24.0, where a config does not list its layers.
"""

from __future__ import annotations

from recipes.base.errors import PackError
from recipes.models.architectures import Experts
from recipes.models.config_fields import Fields

FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
CHUNKED = "chunked_attention"


def attention_kinds(fields: Fields, layers: int) -> tuple[int | None, tuple[str, ...]]:
    """The window in tokens (None without one) and the kind of attention of each layer."""
    given = fields.value("layer_types")
    if given is not None:
        return _listed_kinds(fields, given, layers)
    family = fields.family
    if family.attention == "gqa+linear":
        period = fields.size("full_attention_interval", 4)
        return None, tuple(FULL if (at + 1) % period == 0 else LINEAR for at in range(layers))
    window = fields.value(family.window_field) if family.window else None
    if family.window == "qwen" and not fields.flag("use_sliding_window"):
        window = None
    if not window:
        if family.window in ("alternate", "pattern") and family.window_field not in fields.config:
            fields.missing.append(family.window_field)
        return None, (FULL,) * layers
    if isinstance(window, list):
        return _windows_of_layers(fields, window, layers)
    bounded = _bounded(fields)
    return fields.size(family.window_field), tuple(bounded if _slides(fields, at) else FULL for at in range(layers))


def _bounded(fields: Fields) -> str:
    return CHUNKED if fields.family.window_field == "attention_chunk_size" else SLIDING


def _windows_of_layers(fields: Fields, windows: list, layers: int) -> tuple[int | None, tuple[str, ...]]:
    """A window for each layer, null or 0 where it sees all: read where all windows are the same."""
    field, sizes = fields.family.window_field, {window for window in windows if window}
    if len(windows) != layers or len(sizes) > 1 or not all(type(size) is int and size > 0 for size in sizes):
        raise PackError(
            f"model {fields.name}: {field} is a list that does not give each of {layers} layers none or the same number"
            " of tokens, so the KV cache is unknown; give --weight-bytes instead"
        )
    bounded = _bounded(fields)
    return next(iter(sizes), None), tuple(bounded if window else FULL for window in windows)


def _listed_kinds(fields: Fields, given: list[str], layers: int) -> tuple[int | None, tuple[str, ...]]:
    kinds = tuple(map(str, given))
    known = {FULL, SLIDING, CHUNKED} | ({LINEAR} if fields.family.attention == "gqa+linear" else set())
    odd = sorted(set(kinds) - known)
    if odd:
        raise PackError(f"model {fields.name}: layer_types has the unknown kind {odd[0]!r:.40}; give the bytes")
    if len(kinds) != layers and not fields.missing:
        raise PackError(f"model {fields.name}: {len(kinds)} layer_types for {layers} layers; correct the config")
    if {SLIDING, CHUNKED} <= set(kinds):
        raise PackError(f"model {fields.name}: layers with windows and with chunks are not both read; give the bytes")
    field = "attention_chunk_size" if CHUNKED in kinds else fields.family.window_field
    return (fields.size(field) if {SLIDING, CHUNKED} & set(kinds) else None), kinds


def _slides(fields: Fields, layer: int) -> bool:
    rule = fields.family.window
    if rule == "all":
        return True
    if rule == "alternate":
        return layer % 2 == 0
    if rule == "qwen":
        return layer >= fields.size("max_window_layers")
    period = fields.value("sliding_window_pattern", fields.family.window_period)
    if isinstance(period, str):  # EXAONE-4 writes LLLG: local, local, local, global
        return period[layer % len(period)] == "L"
    return (layer + 1) % int(period) != 0


def moe_layers(fields: Fields, experts: Experts, layers: int) -> frozenset[int]:
    """The numbers of the layers that have experts."""
    if experts.layers == "deepseek":
        first, every = fields.value("first_k_dense_replace", 0), fields.size("moe_layer_freq", 1)
        return frozenset(at for at in range(layers) if at >= first and at % every == 0)
    if experts.layers == "qwen":
        dense, step = fields.value("mlp_only_layers", ()), fields.size("decoder_sparse_step", 1)
        return frozenset(at for at in range(layers) if at not in dense and (at + 1) % step == 0)
    if experts.layers == "ernie":
        first, every = fields.value("moe_layer_start_index", 0), fields.size("moe_layer_interval", 1)
        last = fields.value("moe_layer_end_index", -1)
        last = layers - 1 if last < 0 else last
        return frozenset(at for at in range(layers) if first <= at <= last and (at + 1) % every == 0)
    if experts.layers == "llama4":
        step = fields.size("interleave_moe_layer_step", 1)
        return frozenset(fields.value("moe_layers") or range(step - 1, layers, step))
    return frozenset(range(layers))
