"""Reading what a config says of quantisation: a reader for each method, and nothing that changes bytes left unread.

A field that changes bytes is read or refused; one that is not known is named in a remark. Sources: the configuration
classes of transformers (`utils/quantization_config.py`), of compressed-tensors (`quantization/quant_config.py`), of
GPTQModel, AutoRound and ModelOpt, and how vLLM reads them (`model_executor/layers/quantization/`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from recipes.base.errors import PackError
from recipes.models.number_formats import (
    FP8_CHANNEL,
    FP8_TENSOR,
    MXFP4,
    MXFP8,
    NVFP4,
    Format,
    fp8_block,
    integer_groups,
)
from recipes.models.quantization import ALL_LINEAR, LAYERS, PLAIN, Group, Quantization

INSTEAD = "give --weight-bytes instead"

# Fields that say which matrices are stored how. What a method's reader does not read of them is refused.
_CHANGES_BYTES = ("dynamic", "modules_in_block_to_quantize", "extra_config", "sparsity_config", "quantized_layers",
                  "adapter", "transform_config")  # fmt: skip
# Fields that say how the weights were made or how kernels run, not what is stored.
_HARMLESS = frozenset(re.findall(r"\w+", """
    quant_method activation_scheme fmt scale_fmt version backend exllama_config use_exllama disable_exllama
    max_input_length do_fuse fuse_max_seq_len modules_to_fuse damp_percent damp_auto_increment desc_act act_group_aware
    true_sequential static_groups dataset tokenizer batch_size model_seqlen pad_token_id use_cuda_fp16
    cache_block_outputs module_name_preceding_first_block checkpoint_format format is_marlin_format meta pack_dtype
    model_name_or_path model_file_base_name quantizer mse autoround_version nsamples seqlen iters lr minmax_lr
    low_gpu_mem_usage enable_minmax_tuning enable_quanted_input enable_norm_bias_tuning gradient_accumulate_steps amp
    scale_dtype packing_format provider producer quantization_status global_compression_ratio bnb_4bit_compute_dtype
    bnb_4bit_quant_storage bnb_4bit_quant_type llm_int8_enable_fp32_cpu_offload llm_int8_has_fp16_weight
    llm_int8_threshold activation_scale_ub act_bits act_data_type act_dynamic act_group_size act_sym has_zero_point
"""))  # fmt: skip
# Fields that the readers below read, each its own.
_READ = frozenset(re.findall(r"\w+", """
    modules_to_not_convert ignored_layers llm_int8_skip_modules weight_block_size bits w_bit group_size q_group_size
    zero_point sym lm_head dynamic modules_in_block_to_quantize extra_config data_type load_in_4bit load_in_8bit
    _load_in_4bit _load_in_8bit bnb_4bit_use_double_quant quantization quant_algo kv_cache_quant_algo kv_cache_scheme
    exclude_modules ignore quantized_layers config_groups sparsity_config block_name_to_quantize to_quant_block_names
    quant_block_list
"""))  # fmt: skip


def read_quantization(model: str, config: Any) -> Quantization:
    """What a config's quantization_config says; PLAIN without one.

    PackError for a method, or an option of one, whose bytes are not known here.
    """
    if not config:
        return PLAIN
    if not isinstance(config, Mapping):
        raise PackError(f"model {model}: quantization_config is not an object; correct the config")
    older = config.get("load_in_4bit") or config.get("load_in_8bit")  # bitsandbytes, before methods were named
    method = str(config.get("quant_method") or ("bitsandbytes" if older else ""))
    reader = _METHODS.get(method.lower().replace("_", "-"))
    if reader is None:
        known = ", ".join(sorted(_METHODS))
        raise PackError(
            f"model {model}: quantisation {method or 'without quant_method'!r:.60} is unknown here (known: {known});"
            f" {INSTEAD}"
        )
    for name in _CHANGES_BYTES:
        if config.get(name) and name not in reader.reads:
            raise PackError(f"model {model}: {name} of the {method} quantisation is not read here; {INSTEAD}")
    try:
        found = reader.read(model, config)
        for pattern in _patterns_of(found):
            re.compile(pattern)
    except (TypeError, ValueError, AttributeError, KeyError, IndexError, re.error) as error:
        raise PackError(f"model {model}: quantization_config cannot be read: {error}; correct the config") from error
    unknown = sorted(str(name) for name, value in config.items() if value and name not in _HARMLESS | _READ)
    told = f"quantization_config has {', '.join(unknown)}: not known here, taken as not changing what is stored"
    return replace(found, remarks=(told,)) if unknown else found


def _patterns_of(found: Quantization) -> Iterator[str]:
    for name in (*found.skipped, *(name for names, _ in found.groups for name in names)):
        if name.startswith("re:"):
            yield name[3:]


def _patterns(names: Any) -> tuple[str, ...]:
    """The names of a list, with the prefix removed that a model with pictures puts before its language model."""
    if isinstance(names, str):
        raise TypeError(f"{names!r:.60} stands where a list of modules should")
    found = [str(name).strip(".") for name in names or ()]
    found = [re.sub(r"^(re:\.?\*?)?(model\.)?language_model\.(model\.)?", r"\1model.", name) for name in found]
    return tuple("lm_head" if name == "model.lm_head" else name for name in found)


def _apart(names: tuple[str, ...]) -> tuple[tuple[tuple[str, None], ...], tuple[str, ...]]:
    """Exact names of experts' matrices, of which there may be thousands, and all other names and patterns."""
    exact = {name for name in names if re.fullmatch(r"[\w.]+\.experts\.\d+\.\w+", name)}
    return tuple((name, None) for name in sorted(exact)), tuple(name for name in names if name not in exact)


def _linear(method: str, form: Format | None, config: Mapping[str, Any], **others: Any) -> Quantization:
    """One format for all matrices of the layers but those on the config's lists."""
    lists = ("modules_to_not_convert", "ignored_layers", "llm_int8_skip_modules")
    named, skipped = _apart(tuple(name for key in lists for name in _patterns(config.get(key))))
    found = Quantization(method, ((("Linear",), form),), skipped, LAYERS, named=named)
    return replace(found, **others)


def _fp8(model: str, config: Mapping[str, Any]) -> Quantization:
    block = config.get("weight_block_size")
    return _linear("fp8", fp8_block(*map(int, block)) if block else FP8_TENSOR, config, gemm_dtype="fp8")


def _fbgemm(model: str, config: Mapping[str, Any]) -> Quantization:
    return _linear("fbgemm_fp8", FP8_CHANNEL, config, gemm_dtype="fp8")


def _mxfp4(model: str, config: Mapping[str, Any]) -> Quantization:
    # Only the experts' matrices: transformers' Mxfp4HfQuantizer replaces nothing else.
    return _linear("mxfp4", MXFP4, config, roles=frozenset({"expert"}))


def _awq(model: str, config: Mapping[str, Any]) -> Quantization:
    bits = int(config.get("bits") or config["w_bit"])
    group = int(config.get("group_size") or config.get("q_group_size") or -1)
    return _linear("awq", integer_groups(bits, group, not config.get("zero_point", True)), config)


def _marlin(model: str, config: Mapping[str, Any]) -> Quantization:
    return _linear("marlin", integer_groups(int(config.get("bits", 4)), int(config["group_size"]), True), config)


def _marlin_24(model: str, config: Mapping[str, Any]) -> Quantization:
    form = integer_groups(int(config.get("bits", 4)), int(config.get("group_size", -1)), True).halved()
    return _linear("gptq_marlin_24", form, config)


def _integers(config: Mapping[str, Any]) -> Format | None:
    """The format of GPTQ or AutoRound; None from 16 bits on.

    Symmetric checkpoints store zero points too, but kernels do not read them.
    """
    bits, group, kind = int(config["bits"]), int(config.get("group_size", -1)), str(config.get("data_type", "int"))
    if bits >= 16:
        return None
    if kind == "int":
        return integer_groups(bits, group, bool(config.get("sym", True)))
    known = {"mx_fp4": MXFP4, "mx_fp8": MXFP8, "nv_fp4": NVFP4}
    form = known.get(re.sub(r"fp\d*.*", "fp", kind) + str(bits))
    if form is None:
        raise ValueError(f"{bits}-bit {kind} weights are unknown here ({INSTEAD})")
    return form


def _gptq(model: str, config: Mapping[str, Any]) -> Quantization:
    """GPTQModel's `dynamic`: regular expressions in order, `-:` leaves a module plain, others change its format."""
    _check_blocks(model, config)
    groups: list[Group] = []
    for pattern, changes in (config.get("dynamic") or {}).items():
        plain = pattern.startswith("-:")
        form = None if plain else _integers({**config, **changes})
        groups.append(((f"re:{re.sub(r'^[-+]:', '', pattern)}",), form))
    inside = config.get("modules_in_block_to_quantize") or [["Linear"]]
    modules = [name for part in inside for name in ([part] if isinstance(part, str) else part)]
    groups.append((_patterns(modules), _integers(config)))
    roles = ALL_LINEAR if config.get("lm_head") is True else LAYERS
    return _linear("gptq", None, config, groups=tuple(groups), roles=roles)


def _auto_round(model: str, config: Mapping[str, Any]) -> Quantization:
    """AutoRound's `extra_config`: modules, or regular expressions to be found in their names, with their own bits."""
    _check_blocks(model, config)
    named, groups = [], []
    for name, changes in (config.get("extra_config") or {}).items():
        (module,), form = _patterns([name]), _integers({**config, **changes})
        if re.search(r"[*+?^$|()\[\]\\{}]", name):
            groups.append(((f"re:.*(?:{name.removeprefix('re:')})",), form))
        elif module.startswith(("model.", "lm_head")):
            named.append((module, form))
        else:
            groups.append(((module,), form))
    roles = ALL_LINEAR if any(name == "lm_head" and form for name, form in named) or config.get("lm_head") else LAYERS
    groups.append((("Linear",), _integers(config)))
    found = _linear("auto-round", None, config, groups=tuple(groups), roles=roles)
    return replace(found, named=(*found.named, *named))


def _check_blocks(model: str, config: Mapping[str, Any]) -> None:
    """PackError for lists of single layers: which others stay plain would have to be guessed."""
    for name in ("block_name_to_quantize", "to_quant_block_names", "quant_block_list"):
        if re.search(r"\.\d", str(config.get(name) or "")):
            raise PackError(f"model {model}: {name} names single layers, which is not read here; {INSTEAD}")


def _bitsandbytes(model: str, config: Mapping[str, Any]) -> Quantization:
    if config.get("load_in_8bit"):
        return _linear("bitsandbytes", FP8_CHANNEL, config, gemm_dtype="int8")  # LLM.int8(), arXiv 2208.07339
    # One FP32 scale for 64 values; with double quantisation 8 bits, and one FP32 for 256 of those.
    scale = 8 + 32 / 256 if config.get("bnb_4bit_use_double_quant") else 32
    return _linear("bitsandbytes", Format(4, (1, 64), scale), config)


# Of ModelOpt's algorithms: the format of a group, the group when none is told, and the type of the products.
_Algorithm = tuple[Callable[[int], Format], int, str | None]
_MODELOPT: dict[str, _Algorithm] = {
    "FP8": (lambda group: FP8_TENSOR, 0, "fp8"),
    "FP8_PER_CHANNEL_PER_TOKEN": (lambda group: FP8_CHANNEL, 0, "fp8"),
    "FP8_BLOCK_SCALES": (lambda group: fp8_block(group, group), 128, "fp8"),
    "FP8_PB_WO": (lambda group: fp8_block(group, group), 128, None),
    "MXFP8": (lambda group: Format(8, (1, group), 8), 32, "fp8"),
    "NVFP4": (lambda group: Format(4, (1, group), 8, 32), 16, "fp4"),
    "NVFP4_AWQ": (lambda group: Format(4, (1, group), 8, 32), 16, "fp4"),
    "W4A8_NVFP4_FP8": (lambda group: Format(4, (1, group), 8, 32), 16, "fp8"),
    "W4A8_MXFP4_FP8": (lambda group: Format(4, (1, group), 8), 32, "fp8"),
    "W4A8_MXFP4_MXFP8": (lambda group: Format(4, (1, group), 8), 32, "fp8"),
    "W4A16_MXFP4": (lambda group: Format(4, (1, group), 8), 32, None),
    "W4A16_AWQ": (lambda group: integer_groups(4, group, True), 128, None),
    "INT4_AWQ": (lambda group: integer_groups(4, group, True), 128, None),
    "W4A8_AWQ": (lambda group: integer_groups(4, group, True), 128, "fp8"),
    "W8A8_SQ_PER_CHANNEL": (lambda group: FP8_CHANNEL, 0, "int8"),
}


def _modelopt(model: str, config: Mapping[str, Any]) -> Quantization:
    inner = config.get("quantization") or config
    if not isinstance(inner, Mapping):
        raise TypeError("quantization is not an object")
    named, skipped = _apart(_patterns([*(inner.get("ignore") or ()), *(inner.get("exclude_modules") or ())]))
    cache = str(inner.get("kv_cache_quant_algo") or "").lower() or _cache_scheme(inner)
    found = Quantization("modelopt", skipped=skipped, roles=ALL_LINEAR, kv_dtype=cache)
    algorithm, each = inner.get("quant_algo"), inner.get("quantized_layers")
    if each:
        read = {name: _algorithm(model, layer["quant_algo"], layer) for name, layer in each.items()}
        mixed = [(module, read[name][0]) for name in each for module in _patterns([name])]
        return replace(found, named=(*named, *mixed), gemm_dtype=_fastest(gemm for _, gemm in read.values()))
    if not algorithm:
        return found
    form, gemm = _algorithm(model, algorithm, inner)
    return replace(found, groups=((("Linear",), form),), named=named, gemm_dtype=gemm)


def _algorithm(model: str, name: str, config: Mapping[str, Any]) -> tuple[Format, str | None]:
    known = _MODELOPT.get(str(name).upper())
    if known is None:
        raise PackError(
            f"model {model}: quant_algo {name!r:.60} is unknown here (known: {', '.join(_MODELOPT)}); {INSTEAD}"
        )
    make, group, gemm = known
    told = config.get("group_size") or next(
        (part["weights"].get("group_size") for part in (config.get("config_groups") or {}).values()), None
    )
    if told is not None and (isinstance(told, bool) or int(told) < 1):
        raise ValueError(f"group_size is {told!r:.40}")
    return make(int(told or group)), gemm


def _fastest(types: Any) -> str | None:
    """Of the types that products run in, the one with the highest peak, so that no share of it comes out too high."""
    return max((name for name in types if name), key=("int8", "fp8", "fp4").index, default=None)


def _compressed_tensors(model: str, config: Mapping[str, Any]) -> Quantization:
    """compressed-tensors, also under its older name compression_config."""
    named, ignored = _apart(_patterns(config.get("ignore")))
    groups, gemms = [], []
    for group in (config.get("config_groups") or {}).values():
        targets = tuple("Linear" if name == "FusedMoE" else name for name in _patterns(group.get("targets")))
        classes = [name for name in targets if re.fullmatch(r"[A-Z]\w+", name) and name != "Linear"]
        if classes:
            raise PackError(f"model {model}: which matrices are in a {classes[0]:.40} is not known here; {INSTEAD}")
        weights = group.get("weights")
        form = str(group.get("format") or config.get("format"))
        groups.append((targets, _scheme(model, weights, form) if weights else None))
        gemms.append(_activations(group.get("input_activations")) if weights else None)
    found = Quantization(
        "compressed-tensors", tuple(groups), ignored, ALL_LINEAR, _cache_scheme(config), named, _fastest(gemms)
    )
    return _sparse(model, found, config)


def _sparse(model: str, found: Quantization, config: Mapping[str, Any]) -> Quantization:
    """The same with what sparsity_config says: 2:4 halves the values of quantised matrices and adds a bit for each."""
    sparsity = config.get("sparsity_config") or {}
    kind = sparsity.get("format", "dense")
    if kind == "dense":
        return found
    spared = set(_patterns(sparsity.get("ignore"))) <= {*_patterns(config.get("ignore"))}
    if kind != "sparse-24-bitmask" or sparsity.get("targets") != ["Linear"] or not spared or not found.groups:
        raise PackError(f"model {model}: sparsity_config ({kind!r:.40}) stores less than its config tells; {INSTEAD}")
    return replace(found, groups=tuple((names, form and form.halved()) for names, form in found.groups))


def _activations(scheme: Any) -> str | None:
    """The type of a product whose inputs are quantised too; None for weight-only formats."""
    if not isinstance(scheme, Mapping) or not scheme.get("num_bits"):
        return None
    return {("float", 8): "fp8", ("int", 8): "int8", ("float", 4): "fp4"}.get(
        (str(scheme.get("type", "int")), int(scheme["num_bits"]))
    )


def _scheme(model: str, weights: Mapping[str, Any], form: str) -> Format | None:
    """The format of a group; None where the values are stored as they were."""
    if form in ("dense", "fakequant"):
        return None
    bits, kind, strategy = int(weights["num_bits"]), weights.get("type"), weights.get("strategy")
    group = int(weights.get("group_size") or -1)
    if kind == "float" and bits == 4 and group in (16, 32, -1):
        return MXFP4 if group == 32 else NVFP4
    if kind == "float" and bits == 8:
        return _fp8_scheme(weights, strategy, group)
    if kind == "int" and strategy in ("group", "channel", "tensor"):
        symmetric = bool(weights.get("symmetric", True))
        if form in ("int-quantized", "naive-quantized"):
            bits = max(bits, 8)  # one value a byte
        made = integer_groups(bits, group if strategy == "group" else -1, symmetric)
        return made.halved() if form == "marlin-24" else made
    raise PackError(f"model {model}: {bits}-bit {kind} weights by {strategy} ({form}) are unknown here; {INSTEAD}")


def _fp8_scheme(weights: Mapping[str, Any], strategy: Any, group: int) -> Format:
    if strategy == "group":
        return MXFP8 if group == 32 else Format(8, (1, max(group, 0)), 32)
    if strategy == "block":
        block: Any = weights.get("block_structure")
        return fp8_block(*map(int, block.split("x") if isinstance(block, str) else block))
    return FP8_TENSOR if strategy == "tensor" else FP8_CHANNEL


def _cache_scheme(config: Mapping[str, Any]) -> str | None:
    scheme = config.get("kv_cache_scheme")
    if not isinstance(scheme, Mapping) or not scheme.get("num_bits"):
        return None
    return {8: "fp8" if scheme.get("type") == "float" else "int8", 4: "nvfp4"}.get(int(scheme["num_bits"]))


@dataclass(frozen=True)
class _Reader:
    """A method's reader, and which of the fields that change bytes it reads."""

    read: Callable[[str, Mapping[str, Any]], Quantization]
    reads: tuple[str, ...] = ()


_METHODS = {
    "fp8": _Reader(_fp8),
    "fbgemm-fp8": _Reader(_fbgemm),
    "mxfp4": _Reader(_mxfp4),
    "awq": _Reader(_awq),
    "marlin": _Reader(_marlin),
    "gptq": _Reader(_gptq, ("dynamic", "modules_in_block_to_quantize")),
    "gptq-marlin-24": _Reader(_marlin_24),
    "auto-round": _Reader(_auto_round, ("extra_config",)),
    "bitsandbytes": _Reader(_bitsandbytes),
    "modelopt": _Reader(_modelopt, ("quantized_layers",)),
    "modelopt-fp4": _Reader(_modelopt, ("quantized_layers",)),
    "compressed-tensors": _Reader(_compressed_tensors, ("sparsity_config",)),
}
