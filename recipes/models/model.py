"""A language model as the floor sees it: sizes, kinds of layers, experts, and how its weights are stored.

read_model.py makes it of a config.json; which matrices follow from it is in weights.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from recipes.models.architectures import Experts, Family
from recipes.models.number_formats import COMPUTED_IN, dtype_bytes, dtype_name, wide_dtype
from recipes.models.quantization import PLAIN, Quantization
from recipes.models.tensor_names import Place


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
    """A model: sizes in elements; `layers` is the kind of attention of each layer, `window` in tokens: that of
    sliding layers, or the chunks of chunked ones.

    `measured` is what the checkpoint stores over what the sizes and formats here come to, by place; empty where no
    checkpoint was at hand.

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
    measured: Mapping[Place, float] = field(default_factory=dict, compare=False, repr=False)

    @property
    def built_as(self) -> Family:
        """How the layers are built: of every model that is not opaque."""
        assert self.family is not None
        return self.family

    @property
    def bytes_per_value(self) -> float:
        """Bytes of an unquantised weight."""
        return dtype_bytes(self.dtype)

    @property
    def kv_dtype(self) -> str:
        """The dtype of the KV cache that the checkpoint asks for; that of the model when it asks for none."""
        return self.quantization.kv_dtype or ("bfloat16" if self.bytes_per_value < 2 else self.dtype)

    @property
    def gemm_dtype(self) -> str:
        """The type in which products run: that of quantised weights and inputs, the model's own where weights are
        widened first (GPTQ, AWQ, MXFP4 and other weight-only formats).
        """
        return self.quantization.gemm_dtype or COMPUTED_IN.get(dtype_name(self.dtype)) or wide_dtype(self.dtype)
