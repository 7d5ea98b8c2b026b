"""Finding a model's config.json: a file, its folder, or a preset, also by the model's name on Hugging Face."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recipes.base.errors import PackError

PRESETS = Path(__file__).with_name("presets")

#: Where quantisers write what others put into quantization_config: NVIDIA's ModelOpt, AutoGPTQ and GPTQModel, AutoAWQ.
MODELOPT_FILE = "hf_quant_config.json"
QUANTISER_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq"}

# Variants of a model that have the same matrices as its base.
_SAME_SIZES = re.compile(r"-(?:instruct|chat|it|pt|base|hf|thinking)(?=-|$)")


def preset_names() -> list[str]:
    """The names that `load_model` takes instead of a path."""
    return sorted(file.stem for file in PRESETS.glob("*.json"))


def find_config(source: str | Path) -> tuple[str, dict[str, Any]]:
    """The name and the JSON object of a model: `source` is a config.json, its folder, or a preset.

    A preset is given by its name or by that of its repository on Hugging Face, in any case, with or without the
    owner, also as -Instruct, -Chat or -it; a path that exists comes first. What files beside a config.json tell of
    quantisation is put into its quantization_config. PackError when it is none of them or not a JSON object.
    """
    path = _config_path(source)
    if not path.is_file():
        return _preset(str(source))
    config = _read(path)
    modelopt = path.with_name(MODELOPT_FILE)
    if modelopt.is_file():
        config["quantization_config"] = {"quant_method": "modelopt", **_inner(modelopt)}
    elif not (config.get("quantization_config") or config.get("compression_config")):
        for name, method in QUANTISER_FILES.items():
            if path.with_name(name).is_file():
                config["quantization_config"] = {"quant_method": method, **_read(path.with_name(name))}
                break
    return _name(path), config


def config_folder(source: str | Path) -> Path | None:
    """The folder of the config.json that `source` is or has; None for presets and for files with other names."""
    path = _config_path(source)
    return path.parent if path.is_file() and path.name == "config.json" else None


def _config_path(source: str | Path) -> Path:
    path = Path(source)
    return path / "config.json" if path.is_dir() else path


def _inner(path: Path) -> dict[str, Any]:
    inner = _read(path).get("quantization", {})
    if not isinstance(inner, dict):
        raise PackError(f"{path}: quantization is not an object; correct the file")
    return inner


def _name(path: Path) -> str:
    """What a config file is called: the folder of a config.json; in Hugging Face's cache its repository."""
    if path.name != "config.json":
        return path.stem
    folder = path.absolute().parent
    if folder.parent.name == "snapshots":  # models--owner--name/snapshots/<commit>/config.json
        return folder.parent.parent.name.rpartition("--")[2]
    return folder.name


def _preset(name: str) -> tuple[str, dict[str, Any]]:
    owner, _, wanted = name.lower().rpartition("/")
    wanted = _base_name(wanted)
    for file in sorted(PRESETS.glob("*.json")):
        config = _read(file)
        own_owner, _, own = config["_hf_id"].lower().rpartition("/")
        if wanted in (file.stem, _base_name(own)) and owner in ("", own_owner):
            return file.stem, config
    known = preset_names()
    near = difflib.get_close_matches(wanted, known, 2)
    meant = f"did you mean {' or '.join(near)}? Give" if near else "give"
    raise PackError(
        f"model {name}: no such file or folder, nor a preset; {meant} a config.json or one of: {', '.join(known)}"
    )


def _base_name(name: str) -> str:
    """A repository's name without what does not change a model's matrices: meta-llama-3.1-8b-instruct, llama-3.1-8b."""
    return _SAME_SIZES.sub("", name).removeprefix("meta-")


def _read(path: Path) -> dict[str, Any]:
    try:
        tree = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise PackError(f"{path}: cannot read the model's config: {error.strerror}; check the path") from error
    except (ValueError, RecursionError) as error:
        raise PackError(f"{path}: not valid JSON: {error}; give the config.json of a Hugging Face model") from error
    if not isinstance(tree, dict):
        raise PackError(f"{path}: not a JSON object; give the config.json of a Hugging Face model")
    return tree


def layer_count(source: str | Path) -> int:
    """The layers of a model given as `find_config` takes it. PackError when its config does not tell."""
    name, config = find_config(source)
    inner = config.get("text_config")
    for part in (config, inner if isinstance(inner, Mapping) else {}):
        for field in ("num_hidden_layers", "n_layer", "num_layers", "n_layers"):
            if isinstance(part.get(field), int) and part[field] > 0:
                return part[field]
    raise PackError(f"model {name}: the config lacks num_hidden_layers; add it, it cannot be guessed")
