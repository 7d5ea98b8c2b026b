"""Bytes of stored numbers: dtypes, and quantised formats with their scales.

Sources of the formats: OCP Microscaling specification 1.0 (MXFP4, MXFP8: one 8-bit scale for 32 values); NVIDIA's
NVFP4 (one FP8 scale for 16 values and one FP32 a tensor); DeepSeek-V3 report, section 3.3.2 (FP8 with an FP32 scale for
each block of 128 x 128); AutoAWQ and GPTQModel (a 16-bit scale and, if asymmetric, a zero point for each group); QLoRA,
arXiv 2305.14314 (NF4, double quantisation); compressed-tensors `quant_args.py`. With 2:4 sparsity, two of four values
are kept, with two bits each for their places, or a mask of four bits, which is as much (NVIDIA Ampere architecture
whitepaper; the formats sparse-24-bitmask and marlin-24 of compressed-tensors).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from recipes.base.errors import PackError

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "fp8": 1, "int8": 1, "mxfp8": 33 / 32, "mxfp4": 17 / 32,
          "nvfp4": 9 / 16, "int4": 0.5, "fp4": 0.5}  # fmt: skip
_OTHER_NAMES = {"fp32": "float32", "f32": "float32", "float": "float32", "fp16": "float16", "half": "float16",
                "f16": "float16", "bf16": "bfloat16", "auto": "bfloat16", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8",
                "float8": "fp8", "float8_e4m3fn": "fp8", "e4m3": "fp8"}  # fmt: skip


def dtype_bytes(name: str) -> float:
    """Bytes a value of a dtype such as bf16, float16, fp8 or nvfp4 (block formats with their scales).

    PackError for a name that is none.
    """
    size = _BYTES.get(dtype_name(name))
    if size is None:
        raise PackError(f"dtype {name!r:.60}: unknown; give one of {', '.join(_BYTES)}")
    return size


def dtype_name(name: str) -> str:
    """One spelling of a dtype: bf16 and torch.bfloat16 are bfloat16, fp8_e4m3 is fp8."""
    word = name.lower().removeprefix("torch.")
    return _OTHER_NAMES.get(word, word)


def wide_dtype(name: str) -> str:
    """The type in which products of weight-only formats run: the dtype itself from 16 bits on, else bfloat16."""
    return dtype_name(name) if dtype_bytes(name) >= 2 else "bfloat16"


#: The type in which engines run products with weights that they quantise themselves; others they widen first.
COMPUTED_IN = {"fp8": "fp8", "mxfp8": "fp8", "nvfp4": "fp4", "fp4": "fp4"}


@dataclass(frozen=True)
class Format:
    """A stored format: bits per value, and bits of scale and zero point for each block of rows x columns.

    A block side of 0 is the whole side of the matrix; `tensor_bits` are there once.
    """

    bits: float
    block: tuple[int, int] = (0, 0)
    block_bits: float = 0
    tensor_bits: float = 0

    def halved(self) -> Format:
        """The same values with 2:4 sparsity: half of them, and one bit of mask for each place."""
        return replace(self, bits=self.bits / 2 + 1)

    def stored_bytes(self, shape: tuple[int, ...]) -> float:
        """Bytes of a matrix of `shape` (out, in)."""
        rows, columns = math.prod(shape[:-1]), shape[-1]
        blocks = math.prod(
            math.ceil(side / size) if size else 1 for side, size in zip((rows, columns), self.block, strict=True)
        )
        return (self.bits * rows * columns + self.block_bits * blocks + self.tensor_bits) / 8


FP8_TENSOR = Format(8, tensor_bits=32)
FP8_CHANNEL = Format(8, (1, 0), 32)
MXFP4 = Format(4, (1, 32), 8)
MXFP8 = Format(8, (1, 32), 8)
NVFP4 = Format(4, (1, 16), 8, 32)


def fp8_block(rows: int, columns: int) -> Format:
    """FP8 with one FP32 scale for each block."""
    return Format(8, (rows, columns), 32)


def integer_groups(bits: int, group: int, symmetric: bool) -> Format:
    """Integers with a 16-bit scale, and a zero point of `bits` if asymmetric, for `group` inputs of an output.

    A group of -1 or 0 is the whole row.
    """
    return Format(bits, (1, max(group, 0)), 16 + (0 if symmetric else bits))


INT4 = integer_groups(4, 128, True)
#: What a dtype below 16 bits means for the matrices of all layers.
OF_DTYPE = {"fp8": FP8_TENSOR, "int8": FP8_CHANNEL, "mxfp8": MXFP8, "mxfp4": MXFP4, "nvfp4": NVFP4, "fp4": NVFP4,
            "int4": INT4}  # fmt: skip
