"""Which matrices of a checkpoint are quantised, in which format, and in which type their products run.

What a config says of it is read by quantization_config.py; here is what that means for one matrix.
"""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass, field

from recipes.models.number_formats import COMPUTED_IN, OF_DTYPE, Format, dtype_name

#: Roles of the matrices of the layers. Routers stay plain: they are modules of their own, or among the skipped.
LAYERS = frozenset({"attention", "mlp", "shared", "expert"})
ALL_LINEAR = LAYERS | {"head"}

Group = tuple[tuple[str, ...], Format | None]

# A pattern that names some experts and not others: experts.3., experts.(1|2).
_SOME_EXPERTS = re.compile(r"experts\\?\.[\d(\[](?!0-9)")


@dataclass(frozen=True)
class Quantization:
    """Which matrices of a checkpoint are quantised, and how.

    `named` are exact module names and their format (None: as it was), which come first; then `skipped`, modules that
    stay as they were; then `groups`, pairs of targets and format, the first that matches. A target is `Linear` (any), a
    module's name, a glob or `re:` with a regular expression. `roles` are the roles of weights that the method
    touches at all. `gemm_dtype` is the type in which the products run (fp8, fp4, int8), None where weights are widened
    to the model's own type first. `remarks` say what was not understood and taken as of no weight.
    """

    method: str = ""
    groups: tuple[Group, ...] = ()
    skipped: tuple[str, ...] = ()
    roles: frozenset[str] = frozenset()
    kv_dtype: str | None = None
    named: tuple[tuple[str, Format | None], ...] = ()
    gemm_dtype: str | None = None
    remarks: tuple[str, ...] = ()
    _formats: dict[str, Format | None] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        self._formats.update(self.named)

    def format_of(self, module: str, role: str) -> Format | None:
        """The format of a matrix, None when it is not quantised."""
        if role not in self.roles:
            return None
        if module not in self._formats:
            self._formats[module] = self._find(module)
        return self._formats[module]

    def _find(self, module: str) -> Format | None:
        if matches(module, self.skipped):
            return None
        for targets, form in self.groups:
            if "Linear" in targets or matches(module, targets):
                return form
        return None

    def some_experts(self) -> str | None:
        """A name or pattern that tells experts of one layer apart, if there is any."""
        targets = (name for names, _ in self.groups for name in names)
        patterns = (*self.skipped, *(name for name, _ in self.named), *targets)
        return next((pattern for pattern in patterns if _SOME_EXPERTS.search(pattern)), None)


PLAIN = Quantization()


def quantized_layers(dtype: str, kv_dtype: str | None = None) -> Quantization:
    """The matrices of all layers in a dtype of 8 or 4 bits; head, embedding and routers stay as they are."""
    word = dtype_name(dtype)
    return Quantization(
        dtype, ((("Linear",), OF_DTYPE[word]),), roles=LAYERS, kv_dtype=kv_dtype, gemm_dtype=COMPUTED_IN.get(word)
    )


def matches(module: str, patterns: tuple[str, ...]) -> bool:
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
