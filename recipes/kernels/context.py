"""What a name leaves open, decided by how often it occurs in a step and beside what.

A top-k may route tokens to experts or sample the next token; a softmax too, or belong to attention. Names alone cannot
tell, their places can: once per layer after a GEMM it is routing, once per step beside other sampling it is sampling. A
mean, rsqrt and multiplication in a row, again and again, are RMSNorm written out in operators. Where the evidence is
not clear, and always without steps and for rules of the user, the family by name stays.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from recipes.events.gpu_work import KERNEL, GpuWork
from recipes.kernels.families import GROUPS, Rules, packaged_labels
from recipes.kernels.work_families import NameFamilies, name_families

STEPS = 32  # looked at, spread over all: the evidence is in each, and reports have millions of operations
CLEAR = 0.8  # share of a name's occurrences that must have the neighbour
CHAIN = 0.95  # share of a name's occurrences that must lie in a normalization, since all of its time moves
FEWEST_LAYERS = 4  # with fewer, what comes once per layer and what comes a few times per step cannot be told apart
#: Several kernels or layer kinds share a count, and not each layer has experts: from half the layers on.
PER_LAYER, PER_STEP = 0.45, 0.25  # of the layers; a sort once per step is several kernels

SELECTION = re.compile(r"TopK|topk|KthValue|(?:bitonic|radix|Merge|merge)_?[sS]ort|sort_postprocess|fill_index|::Sort")
PRIMITIVE = re.compile(r"Device\w*(?:Sort|Scan|Select|Reduce|Histogram|Unique)|kernelHistogram|tensor_kernel_scan")
SOFTMAX = re.compile(r"softmax_warp_forward|cunn_SoftMaxForward|_?softmax", re.IGNORECASE)
MEAN, RSQRT = re.compile(r"MeanOps"), re.compile(r"rsqrt")
SQUARE, SCALED = re.compile(r"pow_|square"), re.compile(r"MulFunctor")

ROUTING = "context: once a layer, as expert routing; by name"
SAMPLING = "context: once a step, as sampling; by name"
NORM = "context: mean, rsqrt and product in a row, as RMSNorm; by name"


def families_in_context(work: GpuWork, rules: Rules, step: np.ndarray) -> NameFamilies:
    """The family of each name of `work`, refined by its place in steps; `step` as in `refine`."""
    return refine(name_families(work, rules), work, step)


def refine(families: NameFamilies, work: GpuWork, step: np.ndarray) -> NameFamilies:
    """`families` with what the places of names in steps decide, and a rule that says so.

    `step` is the step of each operation (int), negative for none. The same object comes back where nothing is decided.
    """
    seen = _observe(families, work, step)
    if seen is None:
        return families
    decided = _norms(seen) | _selections(seen)
    return _with(families, decided) if decided else families


@dataclass(frozen=True)
class _Seen:
    """Kernels of some steps, and what is known of each name.

    `name` int64 is the name of each kernel in order of device and start. Of each name: its text, its family by name,
    whether it may be refined (bool), its mean count in the steps that have it, its kernels in all. `layers` of a step,
    and `once`, the largest count in a step that is once per step; 0 where they cannot be told.
    """

    texts: list[str]
    name: np.ndarray
    family: np.ndarray
    open: np.ndarray
    per_step: np.ndarray
    total: np.ndarray
    layers: float
    once: float

    def named(self, pattern: re.Pattern[str], *families: str) -> np.ndarray:
        """Which names may be refined, are of one of the families and match."""
        found = self.open & np.isin(self.family, families)
        for code in np.flatnonzero(found).tolist():
            found[code] = pattern.search(self.texts[code]) is not None
        return found

    def share_near(self, wanted: np.ndarray, before: int, after: int) -> np.ndarray:
        """Of each name, the share of its kernels that have one of some others (by name) that many places near."""
        flags = wanted[self.name]
        sums = np.concatenate([[0], np.cumsum(flags)])
        place = np.arange(len(flags))
        low, high = np.maximum(place - before, 0), np.minimum(place + after + 1, len(flags))
        near = sums[high] - sums[low] - flags > 0
        return np.bincount(self.name, weights=near, minlength=len(self.total)) / np.maximum(self.total, 1)


def _observe(families: NameFamilies, work: GpuWork, step: np.ndarray) -> _Seen | None:
    """The kernels of up to STEPS steps; None where there is nothing to learn from or nothing open."""
    count = int(step.max(initial=-1)) + 1
    if count < 2:
        return None
    family = np.array(families.families)[families.of_name]
    packaged = packaged_labels()
    may = np.array([rule in packaged for rule in families.rules], dtype=bool)
    may &= np.isin(family, ("sampling", "reduction", "softmax", "elementwise"))
    if not may.any():
        return None
    chosen = np.zeros(count + 1, dtype=bool)  # the last is for operations in no step
    chosen[np.linspace(0, count - 1, min(count, STEPS)).astype(np.int64)] = True
    rows = np.flatnonzero(chosen[step] & (work.kind == KERNEL))
    rows = rows[np.lexsort((work.start_ns[rows], work.device[rows]))]
    name = work.name[rows].astype(np.int64)
    size = len(family)
    pair, occurs = np.unique(step[rows].astype(np.int64) * size + name, return_counts=True)
    in_steps = np.bincount(pair % size, minlength=size)
    per_step = np.bincount(pair % size, weights=occurs, minlength=size) / np.maximum(in_steps, 1)
    may &= in_steps >= 2
    total = np.bincount(name, minlength=size)
    return _Seen(work.names, name, family, may, per_step, total, *_layers(family, per_step, in_steps >= 2))


def _layers(family: np.ndarray, per_step: np.ndarray, steady: np.ndarray) -> tuple[float, float]:
    """The layers of a step, and the largest count that is once per step; zeros where it cannot be told.

    The largest count of an attention kernel is that of the layers. Without attention kernels it is the commonest
    count of a GEMM, which counts experts too where they run one by one.
    """
    attention = per_step[steady & (family == "attention")]
    if len(attention):
        layers = float(attention.max())
        return (layers, PER_STEP * layers) if layers >= FEWEST_LAYERS else (0.0, 0.0)
    counts, names = np.unique(np.round(per_step[steady & (family == "gemm")]), return_counts=True)
    commonest = counts[(counts >= FEWEST_LAYERS) & (names == names.max(initial=0))]
    return (float(commonest.max()), 1.0) if len(commonest) else (0.0, 0.0)


def _selections(seen: _Seen) -> dict[int, tuple[str, str]]:
    """The family and the reason of top-k, sorts, scans and softmaxes that occur once per layer or once per step."""
    if not seen.layers:
        return {}
    layer = seen.per_step >= max(PER_LAYER * seen.layers, FEWEST_LAYERS)
    once = seen.per_step <= seen.once
    select = seen.named(SELECTION, "sampling")
    primitive, softmax = seen.named(PRIMITIVE, "reduction"), seen.named(SOFTMAX, "softmax")
    after_gemm = seen.share_near(seen.family == "gemm", 8, 0) >= CLEAR
    routing = select & layer & after_gemm
    beside = routing | (seen.family == "moe")
    routing = routing | (softmax & layer & (seen.share_near(routing, 0, 4) >= CLEAR))
    routing = routing | (primitive & layer & (seen.share_near(beside, 12, 12) >= CLEAR))
    training = np.isin(seen.family[seen.total > 0], ("optimizer", "loss")).any()
    sampling = select & once
    if not training:  # where a sort belongs to the backward pass of the embedding
        others = (seen.family == "sampling") & ~routing
        sampling = sampling | ((primitive | softmax) & once & (seen.share_near(others, 12, 12) >= CLEAR))
    decided = dict.fromkeys(np.flatnonzero(sampling).tolist(), ("sampling", SAMPLING))
    return decided | dict.fromkeys(np.flatnonzero(routing).tolist(), ("moe", ROUTING))


def _norms(seen: _Seen) -> dict[int, tuple[str, str]]:
    """The family and the reason of names that occur, nearly all, in RMSNorms written out in operators."""
    mean = seen.named(MEAN, "reduction")[seen.name]
    inverse = seen.named(RSQRT, "elementwise")[seen.name]
    square, scaled = seen.named(SQUARE, "elementwise"), seen.named(SCALED, "elementwise")
    place = np.arange(len(mean))
    last_mean = np.maximum.accumulate(np.where(mean, place, -len(place)))
    ends = np.flatnonzero(inverse & (place - last_mean <= 2))  # between the two, at most the addition of epsilon
    chain = np.zeros(len(mean), dtype=bool)
    for back in range(3):
        inside = ends[ends - back >= last_mean[ends]]
        chain[inside - back] = True
    starts = last_mean[ends] - 1
    starts = starts[starts >= 0]
    chain[starts[square[seen.name[starts]]]] = True
    following = ends[ends + 1 < len(mean)] + 1
    chain[following[scaled[seen.name[following]]]] = True
    share = np.bincount(seen.name, weights=chain, minlength=len(seen.total)) / np.maximum(seen.total, 1)
    repeats = seen.open & (share >= CHAIN) & (seen.per_step >= FEWEST_LAYERS)
    return dict.fromkeys(np.flatnonzero(repeats).tolist(), ("norm", NORM))


def _with(families: NameFamilies, decided: dict[int, tuple[str, str]]) -> NameFamilies:
    """`families` with those names changed."""
    of_name = [families.families[code] for code in families.of_name.tolist()]
    rules = list(families.rules)
    for name, (family, reason) in decided.items():
        of_name[name] = family
        rules[name] = f"{reason} {rules[name]}"
    group_of = dict(zip(families.families, families.groups, strict=True))
    ordered = sorted(set(of_name))
    codes = {family: code for code, family in enumerate(ordered)}
    return replace(
        families,
        of_name=np.array([codes[family] for family in of_name], dtype=np.int32),
        families=ordered,
        groups=[group_of.get(family, GROUPS.get(family, "other")) for family in ordered],
        rules=rules,
    )
