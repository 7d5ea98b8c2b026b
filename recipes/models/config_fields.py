"""What a model's config says: nested text_config, fields that are missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipes.base.errors import PackError
from recipes.models.architectures import FAMILIES, WRAPPERS


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
        for key in ("quantization_config", "compression_config"):
            if config.get(key):
                text[key] = config[key]
        text.setdefault("model_type", WRAPPERS.get(str(config.get("model_type")), ""))
    model_type = text.get("model_type")
    if not model_type:
        raise PackError(f"model {name}: the config has no model_type, so its matrices are unknown; add the field")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
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
