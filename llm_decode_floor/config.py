"""Finding a model's config.json and reading it: presets, folders, nested text_config, fields that are missing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llm_decode_floor.architectures import FAMILIES, WRAPPERS
from recipes.errors import PackError

PRESETS = Path(__file__).with_name("models")

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


def language_model(name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of `config` that a decode step runs: `text_config` where there is one, else all of it.

    Values that a wrapper keeps outside (dtype, quantisation, tied embeddings) are carried inwards. PackError
    for a model_type that this pack does not know.
    """
    inner = config.get("text_config")
    text = dict(config)
    if isinstance(inner, Mapping):
        outer = {key: config[key] for key in ("torch_dtype", "dtype", "tie_word_embeddings") if key in config}
        text = outer | dict(inner)
        if config.get("quantization_config"):
            text["quantization_config"] = config["quantization_config"]
        text.setdefault("model_type", WRAPPERS.get(str(config.get("model_type")), ""))
    model_type = text.get("model_type")
    if not model_type:
        raise PackError(f"model {name}: the config has no model_type, so its matrices are unknown; add the field")
    if model_type not in FAMILIES:
        raise PackError(
            f"model {name}: model_type {str(model_type)!r:.60} is unknown here, and sizes alone do not tell which"
            " matrices it has; give the bytes of its weights or its parameters and their dtype instead of a config"
        )
    return text


class Fields:
    """The fields of a config; those that are needed and missing are collected and refused together."""

    def __init__(self, name: str, config: Mapping[str, Any]) -> None:
        self.name, self.config = name, config
        self.family = FAMILIES[config["model_type"]]
        self.missing: list[str] = []

    def value(self, field: str, default: Any = None) -> Any:
        """The value under the field's own or its family's name, else the type's default, else `default`."""
        for key in (field, self.family.fields.get(field)):
            if key and self.config.get(key) is not None:
                return self.config[key]
        return self.family.defaults.get(field, default)

    def size(self, field: str, default: int | None = None) -> int:
        """A positive whole number; noted as missing when it is neither given nor has a default."""
        value = self.value(field, default)
        if value is None:
            self.missing.append(self.family.fields.get(field, field))
            return 1
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise PackError(
                f"model {self.name}: {field} is {value!r:.60}, not a positive whole number; correct the config"
            )
        return value

    def flag(self, field: bool | str) -> bool:
        """True, False, or what the field of that name says (false when it is not there)."""
        return bool(self.value(field, False)) if isinstance(field, str) else field

    def refuse_missing(self) -> None:
        """PackError with all that was needed and not found."""
        if self.missing:
            names = ", ".join(dict.fromkeys(self.missing))
            kind = self.config["model_type"]
            raise PackError(f"model {self.name}: the config ({kind}) lacks {names}; add them, they cannot be guessed")
