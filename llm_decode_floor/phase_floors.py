"""The floor of each phase and batch of a capture: model, GPU and what the steps tell, brought together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from recipes.base.errors import PackError
from recipes.base.units import format_ns
from recipes.capture.capture import Capture
from recipes.kernels.hardware import Bandwidth, bandwidth, choose_gpu, find_gpu
from recipes.models.decode_floor import ATTAINABLE, Floor, Step, below_floor, floor_of, flop_utilisation
from recipes.models.flop import prefill_flop, train_flop
from recipes.models.kv_cache import Summed
from recipes.models.layout import SINGLE, Layout
from recipes.models.model import Model
from recipes.models.number_formats import wide_dtype
from recipes.report import schema
from recipes.steps.phases import COMPUTE_PHASES, DECODE_PHASES


@dataclass(frozen=True)
class FloorSettings:
    """What the user says of model, layout, batch and GPU; None is unknown. Times in ns."""

    model: Model | None = None
    layout: Layout = SINGLE
    kv_dtype: str | None = None
    context: float | None = None
    batch: int | None = None
    tokens_per_step: float | None = None
    gpu: str | None = None
    bandwidth_bytes_per_s: float | None = None
    attainable: float = ATTAINABLE
    step_time_ns: float | None = None


@dataclass(frozen=True)
class Rated:
    """A phase and batch on a device: its row of PHASES, its floor, bandwidth and peak.

    The floor is None without a model and for steps that train.
    """

    row: dict[str, Any]
    floor: Floor | None
    bandwidth: Bandwidth
    peak_flop_per_s: float | None
    flop: float | None
    context: float | None

    @property
    def remarks(self) -> list[str]:
        """What shows that an input is wrong, and what must be said of the bandwidth."""
        duration_ns = self.row["duration_p50_ns"]
        found = []
        if self.floor and duration_ns:
            found.append(below_floor(self.floor, duration_ns))
        if self.flop and self.peak_flop_per_s and duration_ns:
            try:
                flop_utilisation(self.flop, duration_ns, self.peak_flop_per_s)
            except PackError as error:
                found.append(f"{self.row['phase']}: {error}")
        if self.floor:
            found.append(self.bandwidth.remark)
        return [remark for remark in found if remark]


def rate(capture: Capture, phase_rows: list[dict[str, Any]], settings: FloorSettings) -> list[Rated]:
    """Every phase and batch that has a floor or a share of peak. PackError when the settings contradict the model."""
    gpus = _gpu_rows(capture)
    rated = []
    for row in phase_rows:
        name = gpus.get(row["device"], {}).get("name")
        found = _bandwidth(gpus.get(row["device"], {}), settings)
        peak = _peak(name, settings)
        if row["phase"] in DECODE_PHASES and not row["trains"]:
            context, floor = _decode_floor(row, found, settings)
            rated.append(Rated(row, floor, found, peak, floor.flop if floor else None, context))
        elif row["phase"] in (*DECODE_PHASES, *COMPUTE_PHASES):
            rated.append(Rated(row, None, found, peak, _compute_flop(row, settings), settings.context))
    return rated


def _gpu_rows(capture: Capture) -> dict[int, dict[str, Any]]:
    """What the report says of the GPU of each device."""
    rows = {row["name"]: row for row in capture.report.read(schema.GPUS).to_pylist()}
    devices = capture.work.devices
    named = zip(devices.numbers, devices.gpu_names, strict=True)
    return {number: rows.get(name, {"name": name}) for number, name in named}


def _bandwidth(gpu: dict[str, Any], settings: FloorSettings) -> Bandwidth:
    discrete = gpu.get("is_discrete")
    return bandwidth(
        gpu.get("name"),
        gpu.get("memory_bandwidth_bytes_per_s"),
        None if discrete is None else bool(discrete),
        chosen_gpu=settings.gpu,
        chosen_bandwidth=settings.bandwidth_bytes_per_s,
    )


def _peak(name: str | None, settings: FloorSettings) -> float | None:
    gpu = choose_gpu(settings.gpu) if settings.gpu else find_gpu(name)
    if gpu is None or settings.model is None:
        return None
    # A GPU without a unit for the type widens the weights and multiplies in the model's own.
    return gpu.peak(settings.model.gemm_dtype) or gpu.peak(wide_dtype(settings.model.dtype))


def _decode_floor(row: dict[str, Any], found: Bandwidth, settings: FloorSettings) -> tuple[float | None, Floor | None]:
    """The mean context taken, and the floor; no floor without a model, that of the weights alone without a batch."""
    batch, kv_tokens = row["batch"], row.get("kv_tokens")
    context = settings.context
    if context is None and kv_tokens and batch:
        context = kv_tokens / batch
    if settings.model is None:
        return context, None
    step = step_of(batch, kv_tokens, row.get("tokens"), settings)
    return context, floor_of(settings.model, step, found.bytes_per_s, settings.layout, settings.attainable)


def step_of(batch: float | None, kv_tokens: float | None, tokens: float | None, settings: FloorSettings) -> Step:
    """A decode step, of which the ranges tell `kv_tokens` in all caches and `tokens` new tokens in all, or None.

    The context that the user gives is that of each sequence; ranges tell the sum, whose split is not known.
    """
    each = settings.tokens_per_step or (max(tokens / (batch or 1), 1) if tokens else 1)
    context = settings.context if settings.context or not kv_tokens else Summed(kv_tokens)
    return Step(batch or None, context, each, settings.kv_dtype)


def _compute_flop(row: dict[str, Any], settings: FloorSettings) -> float | None:
    """FLOP of a prefill or training step, where batch and tokens are known."""
    batch = row["batch"]
    if settings.model is None or not batch:
        return None
    if row["phase"] == "prefill":
        tokens = row.get("tokens")
        return prefill_flop(settings.model, batch, tokens / batch, settings.layout) if tokens else None
    return train_flop(settings.model, batch, settings.context, settings.layout) if settings.context else None


def floor_columns(rated: list[Rated]) -> dict[str, list]:
    """The columns of FLOOR."""
    rows = [_floor_row(one) for one in rated]
    names = rows[0] if rows else _floor_row(_NOTHING)
    return {name: [row[name] for row in rows] for name in names}


def _floor_row(rated: Rated) -> dict[str, Any]:
    row, floor, duration_ns = rated.row, rated.floor, rated.row["duration_p50_ns"]
    floor_ns = floor.floor_ns if floor else None
    peak, flop, width = rated.peak_flop_per_s, rated.flop, rated.bandwidth.bytes_per_s
    ratio = floor.ratio(duration_ns) if floor and floor_ns and duration_ns else None
    mfu = flop / (duration_ns * 1e-9 * peak) if flop and peak and duration_ns else None
    return {
        "device": row["device"],
        "phase": row["phase"],
        "batch": row["batch"],
        "context": _whole(rated.context),
        "weight_bytes": _whole(floor.weight_bytes if floor else None),
        "expected_weight_bytes": _whole(floor.expected_weight_bytes if floor else None),
        "kv_bytes": _whole(floor.kv_bytes if floor else None),
        "bandwidth_bytes_per_s": None if width is None else float(width),
        "bandwidth_source": rated.bandwidth.source or None,
        "floor_ns": _whole(floor_ns),
        "expected_floor_ns": _whole(floor.expected_floor_ns if floor else None),
        "attainable_ns": _whole(floor.attainable_ns if floor else None),
        "duration_p50_ns": duration_ns,
        "period_p50_ns": row["period_p50_ns"],
        "ratio": ratio,
        # Above 1, or with kernels below their own floor, an input is wrong: said in words, and no number that could be
        # taken for one.
        "mbu": None if ratio is None or ratio < 1 or row.get("impossible") else 1 / ratio,
        "flop_per_byte": floor.flop_per_byte if floor else None,
        "ridge_flop_per_byte": peak / width if peak and width else None,
        "mfu": None if mfu is None or mfu > 1 or row.get("impossible") else mfu,
    }


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


_NOTHING = Rated(
    {"device": None, "phase": None, "batch": None, "duration_p50_ns": None, "period_p50_ns": None},
    None, Bandwidth(None, ""), None, None, None,
)  # fmt: skip


def split_at_floor(parts: dict[str, np.ndarray], entries: np.ndarray, floor: Floor) -> dict[str, np.ndarray]:
    """The parts of some steps with GEMM and attention split at their floors; the sum stays what it was.

    `parts` as `step_parts` gives them (ns, int64 per entry), `entries` int64, those that the floor is of; the others'
    parts stay whole.

    The weights' floor is taken off the GEMMs, the KV cache's off attention. A family that mostly takes less than its
    floor is left whole: then the floor is not that of what was captured.
    """
    split = dict(parts)
    for family, name, floor_ns in _floors_of_families(floor):
        if family not in parts or not floor_ns or np.median(parts[family][entries]) < floor_ns:
            continue
        time_ns = split[family]
        at_floor = split.setdefault(name, np.zeros(len(time_ns), dtype=np.int64)).copy()
        above = split.setdefault(f"{family}_above_floor", np.zeros(len(time_ns), dtype=np.int64)).copy()
        at_floor[entries] = np.minimum(time_ns[entries], round(floor_ns))
        above[entries] = time_ns[entries] - at_floor[entries]
        rest = time_ns.copy()
        rest[entries] = 0
        split |= {family: rest, name: at_floor, f"{family}_above_floor": above}
    return split


def left_whole(parts: dict[str, np.ndarray], entries: np.ndarray, floor: Floor) -> dict[str, str]:
    """The families of some steps that mostly take less than their floor, and what is wrong then, in words; `parts` and
    `entries` as in `split_at_floor`."""
    found = {}
    for family, name, floor_ns in _floors_of_families(floor):
        time_ns = np.median(parts[family][entries]) if family in parts else 0
        if time_ns and floor_ns and time_ns < floor_ns:
            what = {"weights_floor": "the weights", "kv_floor": "the KV cache"}[name]
            found[family] = (
                f"{family} kernels take {format_ns(time_ns)}, less than reading {what} of {floor.model.name} takes "
                f"({format_ns(floor_ns)}): check --model, --tp, --context, the types, --gpu and rules of your own "
                "(--families) against what was captured"
            )
    return found


def _floors_of_families(floor: Floor) -> tuple[tuple[str, str, float | None], ...]:
    """Each family that has a floor, the part at the floor, and that floor in ns."""
    return ("gemm", "weights_floor", floor.weight_ns), ("attention", "kv_floor", floor.kv_ns)


def check_settings(settings: FloorSettings) -> None:
    """PackError when the settings cannot work together, before any report is read."""
    if settings.gpu:
        choose_gpu(settings.gpu)
    if settings.model is not None:
        step = Step(settings.batch or 1, settings.context, settings.tokens_per_step or 1, settings.kv_dtype)
        floor_of(settings.model, step, None, settings.layout, settings.attainable)
    elif settings.layout != SINGLE or settings.context or settings.kv_dtype:
        raise PackError("--tp, --pp, --ep, --kv-dtype and --context say something of a model; give --model as well")
