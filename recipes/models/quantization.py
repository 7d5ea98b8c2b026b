"""Bits that a stored weight takes: dtypes, quantised formats with their scales, and what stays unquantised.

Read from a config's `quantization_config`. Sources of the formats: OCP Microscaling specification 1.0 (MXFP4,
MXFP8: one 8-bit scale for 32 values); NVIDIA's NVFP4 (one FP8 scale for 16 values and one FP32 a tensor);
DeepSeek-V3 report, section 3.3.2 (FP8 with an FP32 scale for each block of 128 x 128); AutoAWQ and GPTQModel (a
16-bit scale and, if asymmetric, a zero point for each group); QLoRA, arXiv 2305.14314 (NF4, double quantisation);
compressed-tensors `quant_args.py`.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
    word = name.lower().removeprefix("torch.")
    size = _BYTES.get(_OTHER_NAMES.get(word, word))
    if size is None:
        raise PackError(f"dtype {name!r:.60}: unknown; give one of {', '.join(_BYTES)}")
    return size


@dataclass(frozen=True)
class Format:
    """A stored format: bits a value, and bits of scale and zero point for each block of rows x columns.

    A block side of 0 is the whole side of the matrix; `tensor_bits` are there once.
    """

    bits: float
    block: tuple[int, int] = (0, 0)
    block_bits: float = 0
    tensor_bits: float = 0

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


@dataclass(frozen=True)
class Quantization:
    """Which matrices of a checkpoint are quantised, and how.

    `groups` are pairs of targets and format, the first that matches wins; a target is `Linear` (any), a
    module's name, a glob or `re:` with a regular expression. `skipped` are modules that stay as they were.
    `roles` are the roles of weights that the method touches at all.
    """

    method: str = ""
    groups: tuple[tuple[tuple[str, ...], Format | None], ...] = ()
    skipped: tuple[str, ...] = ()
    roles: frozenset[str] = frozenset()
    kv_dtype: str | None = None
    _names: dict[str, Format | None] = field(default_factory=dict, compare=False, repr=False)

    def format_of(self, module: str, role: str) -> Format | None:
        """The format of a matrix, None when it is not quantised."""
        if role not in self.roles:
            return None
        if module not in self._names:
            self._names[module] = self._find(module)
        return self._names[module]

    def _find(self, module: str) -> Format | None:
        if _matches(module, self.skipped):
            return None
        for targets, form in self.groups:
            if "Linear" in targets or _matches(module, targets):
                return form
        return None


PLAIN = Quantization()
_LAYERS = frozenset({"attention", "mlp", "shared", "expert"})
_FORMATS = {"fp8": FP8_TENSOR, "int8": FP8_CHANNEL, "mxfp8": MXFP8, "mxfp4": MXFP4, "nvfp4": NVFP4, "fp4": NVFP4,
            "int4": integer_groups(4, 128, True)}  # fmt: skip
_ALL_LINEAR = _LAYERS | {"head"}  # routers stay: they are modules of their own, or on the list of the skipped


def quantized_layers(dtype: str, kv_dtype: str | None = None) -> Quantization:
    """The matrices of all layers in a dtype of 8 or 4 bits; head, embedding and routers stay as they are."""
    word = dtype.lower().removeprefix("torch.")
    form = _FORMATS[_OTHER_NAMES.get(word, word)]
    return Quantization(dtype, ((("Linear",), form),), roles=_LAYERS, kv_dtype=kv_dtype)


def _matches(module: str, patterns: tuple[str, ...]) -> bool:
    """Whether one of the patterns names the module, one of its parts or a module around it."""
    dotted = f".{module}."
    for pattern in patterns:
        if pattern.startswith("re:"):
            if re.match(pattern[3:], module):
                return True
        elif "*" in pattern:
            if fnmatch.fnmatchcase(module, pattern) or fnmatch.fnmatchcase(module, f"{pattern}.*"):
                return True
        elif f".{pattern}." in dotted:
            return True
    return False


def _patterns(names: Any) -> tuple[str, ...]:
    """The names of a list, with the prefix removed that a model with pictures puts before its language model."""
    found = [str(name).strip(".") for name in names or ()]
    found = [re.sub(r"^(re:\.?\*?)?(model\.)?language_model\.(model\.)?", r"\1model.", name) for name in found]
    return tuple("lm_head" if name == "model.lm_head" else name for name in found)


def read_quantization(model: str, config: Any) -> Quantization:
    """What a config's quantization_config says; PLAIN without one.

    PackError for a method, or an option of one, whose bytes are not known here.
    """
    if not config:
        return PLAIN
    if not isinstance(config, Mapping):
        raise PackError(f"model {model}: quantization_config is not an object; correct the config")
    method = str(config.get("quant_method") or ("bitsandbytes" if _bitsandbytes_flag(config) else ""))
    reader = _METHODS.get(method.lower().replace("_", "-"))
    if reader is None:
        known = ", ".join(sorted(_METHODS))
        raise PackError(
            f"model {model}: quantisation {method or 'without quant_method'!r:.60} is unknown here (known: {known});"
            " give the weights' bytes instead"
        )
    try:
        return reader(model, config)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise PackError(f"model {model}: quantization_config cannot be read: {error}; correct the config") from error


def _bitsandbytes_flag(config: Mapping[str, Any]) -> bool:
    return bool(config.get("load_in_4bit") or config.get("load_in_8bit"))


def _linear(method: str, form: Format, config: Mapping[str, Any], roles: frozenset[str] = _LAYERS) -> Quantization:
    skipped = [
        *(config.get("modules_to_not_convert") or ()),
        *(config.get("ignored_layers") or ()),
        *(config.get("llm_int8_skip_modules") or ()),
    ]
    return Quantization(method, ((("Linear",), form),), _patterns(skipped), roles)


def _fp8(model: str, config: Mapping[str, Any]) -> Quantization:
    block = config.get("weight_block_size")
    return _linear("fp8", fp8_block(*map(int, block)) if block else FP8_TENSOR, config)


def _fbgemm(model: str, config: Mapping[str, Any]) -> Quantization:
    return _linear("fbgemm_fp8", FP8_CHANNEL, config)


def _mxfp4(model: str, config: Mapping[str, Any]) -> Quantization:
    # Only the experts' matrices: transformers' Mxfp4HfQuantizer replaces nothing else.
    return _linear("mxfp4", MXFP4, config, frozenset({"expert"}))


def _awq(model: str, config: Mapping[str, Any]) -> Quantization:
    bits = int(config.get("bits") or config["w_bit"])
    group = int(config.get("group_size") or config.get("q_group_size") or -1)
    return _linear("awq", integer_groups(bits, group, not config.get("zero_point", True)), config)


def _gptq(model: str, config: Mapping[str, Any]) -> Quantization:
    # Symmetric checkpoints store zero points too, but kernels do not read them.
    form = integer_groups(int(config["bits"]), int(config.get("group_size", -1)), bool(config.get("sym", True)))
    return _linear("gptq", form, config, _LAYERS | {"head"} if config.get("lm_head") is True else _LAYERS)


def _bitsandbytes(model: str, config: Mapping[str, Any]) -> Quantization:
    if config.get("load_in_8bit"):
        return _linear("bitsandbytes", FP8_CHANNEL, config)
    # One FP32 scale for 64 values; with double quantisation 8 bits, and one FP32 for 256 of those.
    scale = 8 + 32 / 256 if config.get("bnb_4bit_use_double_quant") else 32
    return _linear("bitsandbytes", Format(4, (1, 64), scale), config)


_MODELOPT = {"FP8": FP8_TENSOR, "NVFP4": NVFP4, "FP8_PER_CHANNEL_PER_TOKEN": FP8_CHANNEL, "MXFP8": MXFP8,
             "W4A16_AWQ": integer_groups(4, 128, True), "INT4_AWQ": integer_groups(4, 128, True),
             "FP8_PB_WO": fp8_block(128, 128), "FP8_BLOCK_SCALES": fp8_block(128, 128)}  # fmt: skip


def _modelopt(model: str, config: Mapping[str, Any]) -> Quantization:
    inner = config.get("quantization") or config
    method = inner.get("quant_algo")
    form = _MODELOPT.get(str(method).upper())
    if method and form is None:
        raise PackError(
            f"model {model}: quant_algo {method!r:.60} is unknown here (known: {', '.join(_MODELOPT)}"
            "); give the weights' bytes instead"
        )
    skipped = _patterns([*(inner.get("ignore") or ()), *(inner.get("exclude_modules") or ())])
    cache = str(inner.get("kv_cache_quant_algo") or "").lower() or _cache_scheme(inner)
    return Quantization("modelopt", ((("Linear",), form),), skipped, _ALL_LINEAR, cache)


def _compressed_tensors(model: str, config: Mapping[str, Any]) -> Quantization:
    groups = []
    for group in config["config_groups"].values():
        targets = tuple("Linear" if name == "FusedMoE" else name for name in _patterns(group.get("targets")))
        weights = group.get("weights")
        groups.append((targets, _scheme(model, weights, str(config.get("format"))) if weights else None))
    return Quantization(
        "compressed-tensors", tuple(groups), _patterns(config.get("ignore")), _ALL_LINEAR, _cache_scheme(config)
    )


def _scheme(model: str, weights: Mapping[str, Any], form: str) -> Format:
    bits, kind, strategy = int(weights["num_bits"]), weights.get("type"), weights.get("strategy")
    group = int(weights.get("group_size") or -1)
    if kind == "float" and bits == 4:
        return MXFP4 if group == 32 else NVFP4
    if kind == "float" and bits == 8 and strategy == "group" and group == 32:
        return MXFP8
    if kind == "float" and bits == 8:
        block = weights.get("block_structure")
        if isinstance(block, str):
            block = block.split("x")
        if strategy == "block":
            return fp8_block(*map(int, block))
        return FP8_TENSOR if strategy == "tensor" else FP8_CHANNEL
    if kind == "int" and strategy in ("group", "channel", "tensor"):
        return integer_groups(bits, group if strategy == "group" else -1, bool(weights.get("symmetric", True)))
    raise PackError(
        f"model {model}: {bits}-bit {kind} weights by {strategy} ({form}) are unknown here; give their bytes"
    )


def _cache_scheme(config: Mapping[str, Any]) -> str | None:
    scheme = config.get("kv_cache_scheme")
    if not isinstance(scheme, Mapping) or not scheme.get("num_bits"):
        return None
    return {8: "fp8" if scheme.get("type") == "float" else "int8", 4: "nvfp4"}.get(int(scheme["num_bits"]))


_METHODS = {
    "fp8": _fp8,
    "fbgemm-fp8": _fbgemm,
    "mxfp4": _mxfp4,
    "awq": _awq,
    "gptq": _gptq,
    "auto-round": _gptq,
    "bitsandbytes": _bitsandbytes,
    "modelopt": _modelopt,
    "modelopt-fp4": _modelopt,
    "compressed-tensors": _compressed_tensors,
}
