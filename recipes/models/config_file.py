"""Finding a model's config.json: a file, its folder, or a preset."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recipes.base.errors import PackError

PRESETS = Path(__file__).with_name("presets")

#: Where the newer quantisers of NVIDIA's ModelOpt write what other tools put into quantization_config.
MODELOPT_FILE = "hf_quant_config.json"


def preset_names() -> list[str]:
    """The names that `load_model` takes instead of a path."""
    return sorted(file.stem for file in PRESETS.glob("*.json"))


def find_config(source: str | Path) -> tuple[str, dict[str, Any]]:
    """The name and the JSON object of a model: `source` is a config.json, its folder, or a preset.

    A preset is given by its name or by the name of its repository on Hugging Face; a path that exists comes
    first. PackError when it is none of them or not a JSON object.
    """
    path = Path(source)
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file():
        return _preset(str(source))
    config = _read(path)
    beside = path.with_name(MODELOPT_FILE)
    if beside.is_file():
        config["quantization_config"] = {"quant_method": "modelopt", **_read(beside).get("quantization", {})}
    return _name(path), config


def _name(path: Path) -> str:
    """What a config file is called: the folder of a config.json; in Hugging Face's cache its repository."""
    if path.name != "config.json":
        return path.stem
    folder = path.absolute().parent
    if folder.parent.name == "snapshots":  # models--owner--name/snapshots/<commit>/config.json
        return folder.parent.parent.name.rpartition("--")[2]
    return folder.name


def _preset(name: str) -> tuple[str, dict[str, Any]]:
    for file in PRESETS.glob("*.json"):
        config = _read(file)
        if name.lower() in (file.stem, config["_hf_id"].lower()):
            return file.stem, config
    known = ", ".join(preset_names())
    raise PackError(f"model {name}: no such file or folder, nor a preset; give a config.json or one of: {known}")


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
