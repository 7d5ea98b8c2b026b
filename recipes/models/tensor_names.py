"""What a tensor of a checkpoint is, by its name: the layer it is in, and which part of it.

Names as the modeling files of transformers write them, beside those of the older repositories: model.layers.3.mlp...,
transformer.h.3.attn..., gpt_neox.layers.3.attention..., model.decoder.layers.3.fc1...
"""

from __future__ import annotations

import re

#: Place of a tensor: its layer (None outside the layers), and embedding, position, head, attention, experts or rest.
Place = tuple[int | None, str]

# What a decode step of the language model does not read: pictures, sound, layers that draft, and buffers.
_OTHERS = re.compile(
    r"vision|visual|image|audio|speech|multi_modal|mm_projector|(?:^|\.)mtp[._]|eagle"
    r"|inv_freq|masked_bias|causal_mask|\.g_idx$|(?:^|\.)h\.\d+\.attn\.bias$|gpt_neox\.layers\.\d+\.attention\.bias$"
)
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d+)\.")
_EXPERTS = re.compile(r"\.experts\.|block_sparse_moe\.(?:in|out)put_linear\.")
_ATTENTION = re.compile(r"\.(?:self_attn|attn|attention|self_attention|linear_attn|norm_attn_norm\.attn)\.")
_OUTSIDE = (
    ("embedding", re.compile(r"(?:^|\.)(?:embed_tokens|wte|word_embeddings|tok_embeddings|embed_in)(?:\.|$)")),
    ("position", re.compile(r"(?:^|\.)(?:wpe|embed_positions)(?:\.|$)")),
    ("head", re.compile(r"(?:^|\.)(?:lm_head|embed_out|output_layer)(?:\.|$)|^output\.")),
)


def weight_place(name: str) -> Place:
    """The place of a tensor or module of the language model."""
    layer = _LAYER.search(name)
    if layer:
        part = "experts" if _EXPERTS.search(name) else "attention" if _ATTENTION.search(name) else "rest"
        return int(layer[1]), part
    return None, next((part for part, pattern in _OUTSIDE if pattern.search(name)), "rest")


def tensor_place(name: str, layers: int) -> Place | None:
    """The place of a checkpoint's tensor; None for what a model of so many layers does not read when it decodes."""
    if _OTHERS.search(name):
        return None
    place = weight_place(name)
    return None if place[0] is not None and place[0] >= layers else place
