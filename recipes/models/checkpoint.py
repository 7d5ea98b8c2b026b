"""The exact bytes of a checkpoint: from the headers of its safetensors files, never their tensors.

A safetensors file begins with the length of its header (8 bytes, little endian) and the header, a JSON object of dtype,
shape and data_offsets by tensor name (github.com/huggingface/safetensors, "Format"; headers of over 100 MB are refused
there too). Several files have an index, model.safetensors.index.json: which file has which tensor, and the total size.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from recipes.base.errors import PackError
from recipes.models.model import Model
from recipes.models.tensor_names import Place, tensor_place, weight_place
from recipes.models.weights import stored_bytes, weights_of

INDEX = "model.safetensors.index.json"
#: In bytes: the limit of the safetensors library itself (MAX_HEADER_SIZE); more is damage.
LARGEST_HEADER = 100_000_000
#: Totals that differ by more than this share are told: less changes no floor that matters.
WORTH_SAYING = 0.01

_BITS = {"F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16,
         "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I8": 8, "U8": 8, "BOOL": 8, "F4": 4}  # fmt: skip
_PART_OF = re.compile(r"-(\d{5})-of-(\d{5})\.safetensors$")


@dataclass(frozen=True)
class Checkpoint:
    """What lies beside a config: the bytes of each tensor (empty where files are missing), and the index's total."""

    folder: Path
    tensors: Mapping[str, int]
    total_size: int | None = None


def read_checkpoint(folder: Path) -> Checkpoint | None:
    """The checkpoint in a folder; None where there is none. PackError for headers and indexes that are malformed."""
    index = folder / INDEX
    if index.is_file():
        names, total = _read_index(index)
    else:
        names, total = _files_without_index(folder), None
    files = [folder / name for name in sorted(names)]
    if all(file.is_file() for file in files):
        tensors = {name: size for file in files for name, size in _tensors(file)}
        return Checkpoint(folder, tensors, total) if tensors or total else None
    return Checkpoint(folder, {}, total)


def _files_without_index(folder: Path) -> set[str]:
    """One file, or numbered ones of which none is missing."""
    if (folder / "model.safetensors").is_file():
        return {"model.safetensors"}
    parts = {name: match for name in sorted(path.name for path in folder.glob("model-*.safetensors"))
             if (match := _PART_OF.search(name))}  # fmt: skip
    complete = {int(match[2]) for match in parts.values()} == {len(parts)}
    return set(parts) if complete else set()


def _read_index(path: Path) -> tuple[set[str], int | None]:
    if path.stat().st_size > LARGEST_HEADER:
        raise PackError(f"{path}: too large for an index of safetensors files; fetch it again or remove it")
    try:
        tree = json.loads(path.read_bytes())
        names = {str(name) for name in tree["weight_map"].values()}
        total = (tree.get("metadata") or {}).get("total_size")
    except OSError as error:
        raise PackError(f"{path}: cannot be read: {error.strerror}; check the file") from error
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise PackError(f"{path}: not an index of safetensors files; fetch it again or remove it") from error
    if any(Path(name).name != name for name in names):
        raise PackError(f"{path}: names files outside its folder; fetch it again or remove it")
    if isinstance(total, bool) or not isinstance(total, (int, float)) or not total > 0:
        return names, None
    return names, round(total)


def _tensors(path: Path) -> Iterator[tuple[str, int]]:
    """Names and bytes of the tensors of a file. PackError for a header that is none."""
    header = _header(path)
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        try:
            start, end = tensor["data_offsets"]
            shape, bits = [int(side) for side in tensor["shape"]], _BITS.get(tensor["dtype"])
            expected = None if bits is None else math.prod(shape) * bits // 8
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise _malformed(path, f"{name!r:.80} has no dtype, shape and data_offsets") from error
        if not (type(start) is type(end) is int and 0 <= start <= end) or min(shape, default=0) < 0:
            raise _malformed(path, f"the data_offsets or shape of {name!r:.80} make no sense")
        if expected not in (None, end - start):
            raise _malformed(path, f"{name!r:.80} has {end - start} bytes where dtype and shape give {expected}")
        yield name, end - start


def _header(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            start = file.read(8)
            if start == b"version ":
                raise _malformed(path, "it is a Git LFS pointer; run `git lfs pull`")
            length = int.from_bytes(start, "little")
            if len(start) < 8 or not 2 <= length <= LARGEST_HEADER:
                raise _malformed(path, "it does not begin with the length of a header")
            text = file.read(length)
    except OSError as error:
        raise PackError(f"{path}: cannot be read: {error.strerror}; check the file") from error
    if len(text) < length:
        raise _malformed(path, f"it ends inside its header of {length} bytes")
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _malformed(path, "its header is not valid JSON") from error
    if not isinstance(header, dict):
        raise _malformed(path, "its header is not a JSON object")
    return header


def _malformed(path: Path, why: str) -> PackError:
    return PackError(f"{path}: not a safetensors file: {why}; fetch it again or move it away from the config")


def measure(model: Model, stored: Checkpoint) -> Model:
    """The model with the bytes of its checkpoint.

    Sums by place, so that fused, packed and stacked tensors need no names of their own; shares of a rank still come
    from shapes. PackError where the checkpoint lacks a part that the config tells.
    """
    found = _by_place(model, stored)
    if (None, "head") not in found and not model.tied:
        model = replace(model, tied=True, remarks=(*model.remarks, "no lm_head is stored: the embedding is the head"))
    told = _computed(model)
    for (layer, part), size in told.items():
        if size and not found.get((layer, part)):
            where = "outside the layers" if layer is None else f"of layer {layer}"
            raise PackError(
                f"{stored.folder}: its safetensors files lack the weights ({part}) {where} that config.json tells;"
                " complete them, move them away from the config, or give --weight-bytes instead"
            )
    measured, computed = sum(found[place] for place in told if told[place]), sum(told.values())
    model = replace(model, measured={place: found[place] / size for place, size in told.items() if size})
    remarks = [*model.remarks]
    if not model.quantization.remarks and abs(measured / computed - 1) > WORTH_SAYING:
        remarks.append(
            f"the safetensors files store {measured / 1e9:.4g} GB where the config tells {computed / 1e9:.4g} GB:"
            " what is stored counts"
        )
    whole = sum(stored.tensors.values())
    if stored.total_size and abs(whole / stored.total_size - 1) > WORTH_SAYING:
        remarks.append(
            f"{INDEX} tells {stored.total_size / 1e9:.4g} GB, the safetensors files hold {whole / 1e9:.4g} GB:"
            " the files count"
        )
    return replace(model, remarks=tuple(remarks))


def _computed(model: Model) -> dict[Place, float]:
    told: dict[Place, float] = {}
    for weight in weights_of(model):
        place = weight_place(weight.module)
        told[place] = told.get(place, 0) + stored_bytes(model, weight)
    return told


def _by_place(model: Model, stored: Checkpoint) -> dict[Place, int]:
    found: dict[Place, int] = {}
    # Of symmetric integers the zero points are stored, but kernels do not read them.
    symmetric = model.quantization.method in ("gptq", "auto-round")
    symmetric = symmetric and all(form.block_bits == 16 for _, form in model.quantization.groups if form)
    for name, size in stored.tensors.items():
        place = tensor_place(name, len(model.layers))
        if place is not None and not (symmetric and name.endswith(".qzeros")):
            found[place] = found.get(place, 0) + size
    return found


def compare_total(model: Model, stored: Checkpoint) -> Model:
    """The model, with a remark where the index's total is another than the config's. PackError where it is less: the
    checkpoint may hold more than the language model, but what it does not hold is not read.
    """
    computed, total = sum(_computed(model).values()), stored.total_size
    if not total or abs(total / computed - 1) <= WORTH_SAYING:
        return model
    line = f"{INDEX} tells {total / 1e9:.4g} GB, the config {computed / 1e9:.4g} GB"
    if total < computed:
        raise PackError(
            f"{stored.folder}: {line}: something is stored in fewer bits than the config tells; put the safetensors"
            " files beside it (their headers are read), or give --weight-bytes instead"
        )
    remark = f"{line}: what the config does not tell, such as pictures or draft layers, is not counted"
    return replace(model, remarks=(*model.remarks, remark))
