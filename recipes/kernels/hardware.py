"""GPUs: memory bandwidth and peak rates, from the packaged table or from the report.

The table is data, with sources: gpus.tsv beside this file. A name in a report is matched whole: shorter names are
the beginning of longer ones of other products (RTX PRO 6000 Blackwell Server and Workstation, H200 and H200 NVL),
and the number in "GH200 480GB" is not that of its HBM. The report's own figure, TARGET_INFO_GPU.memoryBandwidth,
is B/s: 2 x memory clock x bus width. Its values for 23 discrete GPU names lie within 0.2 % of the data sheets;
for integrated GPUs CUDA gives nonsense (39 GB/s and 546 GB/s where 205 and 273 are true).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from recipes.base.errors import PackError
from recipes.base.rule_file import packaged_rows

TABLE = Path(__file__).with_name("gpus.tsv")

#: What the report may say of a GPU that is not in the table, in bytes per second.
SANE_BYTES_PER_S = (0.1e12, 20e12)

#: Report and table are both shown from this relative difference on.
WORTH_SAYING = 0.02

PEAKS = ("fp16_bf16", "tf32", "fp8", "fp4", "int8")
_PEAK_OF = {"bfloat16": "fp16_bf16", "bf16": "fp16_bf16", "float16": "fp16_bf16", "fp16": "fp16_bf16",
            "float8": "fp8", "mxfp8": "fp8", "nvfp4": "fp4", "mxfp4": "fp4"}  # fmt: skip

# A slice of a GPU: MIG instances, and vGPU profiles such as GRID T4-8Q, NVIDIA A100-4C, NVIDIA L40S-48Q.
_SLICE = re.compile(r"\bMIG\b|^GRID\b|\bvGPU\b|-\d+[ABCQ](?:ME)?$", re.IGNORECASE)


@dataclass(frozen=True)
class Gpu:
    """A GPU product. Rates are per GPU: bytes per second, and dense FLOP/s with FP32 accumulation (None: no unit).

    `nvlink_bytes_per_s` counts both directions.
    """

    name: str
    device_names: tuple[str, ...]
    bandwidth_bytes_per_s: float
    fp16_bf16: float | None
    tf32: float | None
    fp8: float | None
    fp4: float | None
    int8: float | None
    nvlink_bytes_per_s: float
    integrated: bool
    source: str
    note: str

    def peak(self, dtype: str) -> float | None:
        """Dense FLOP/s in a dtype such as bf16, fp8 or nvfp4; None when the GPU has no unit for it."""
        column = _PEAK_OF.get(dtype.lower(), dtype.lower())
        return getattr(self, column) if column in PEAKS else None


@dataclass(frozen=True)
class Bandwidth:
    """A memory bandwidth, where it comes from (chosen, table, report or ""), and what has to be said of it.

    `bytes_per_s` is None when it is unknown; `remark` then tells why and what to do.
    """

    bytes_per_s: float | None
    source: str
    remark: str = ""


@cache
def gpus() -> tuple[Gpu, ...]:
    """The GPUs of the packaged table, in its order."""
    return tuple(map(_gpu, packaged_rows(TABLE)))


def _gpu(row: dict[str, str]) -> Gpu:
    return Gpu(
        name=row["name"],
        device_names=tuple(name for name in row["device_names"].split("|") if name),
        bandwidth_bytes_per_s=float(row["bandwidth_bytes_per_s"]),
        **{column: float(row[column]) if row[column] else None for column in PEAKS},
        nvlink_bytes_per_s=float(row["nvlink_bytes_per_s"]),
        integrated=row["integrated"] == "yes",
        source=row["source"],
        note=row["note"],
    )


def find_gpu(name: str | None) -> Gpu | None:
    """The GPU that a report calls `name`; None when it is not in the table or is a slice of a GPU (MIG, vGPU)."""
    wanted = _spelling(name or "")
    return next((gpu for gpu in gpus() if any(_spelling(known) == wanted for known in gpu.device_names)), None)


def choose_gpu(name: str) -> Gpu:
    """The GPU that a user calls `name`: as a report would, or by the table's own name (H100 SXM, A100 PCIe 80GB).

    PackError when it is none or could be several; it lists those that it could be.
    """
    wanted = _spelling(name)
    found = find_gpu(name) or next((gpu for gpu in gpus() if _spelling(gpu.name) == wanted), None)
    if found:
        return found
    words = wanted.split()
    near = [gpu.name for gpu in gpus() if words and all(word in _spelling(gpu.name) for word in words)]
    if len(near) == 1:
        return next(gpu for gpu in gpus() if gpu.name == near[0])
    what = "could be several" if near else "is not in the table"
    raise PackError(
        f"GPU {name!r:.60}: {what}; give one of {', '.join(near or [gpu.name for gpu in gpus()])}, or a bandwidth"
    )


def _spelling(name: str) -> str:
    return " ".join(name.lower().split()).removeprefix("nvidia ")


def bandwidth(
    name: str | None,
    report_bytes_per_s: float | None,
    is_discrete: bool | None,
    *,
    chosen_gpu: str | None = None,
    chosen_bandwidth: float | None = None,
) -> Bandwidth:
    """The memory bandwidth of the GPU that a report calls `name`.

    In this order: the user's figure, the user's GPU, the table, and for unknown discrete GPUs the report's own
    figure (`report_bytes_per_s`, TARGET_INFO_GPU.memoryBandwidth) when it is between 0.1 and 20 TB/s. PackError
    for a bad choice.
    """
    if chosen_bandwidth is not None:
        if not 1e9 <= chosen_bandwidth <= 1e15:
            raise PackError(f"bandwidth {chosen_bandwidth:g} bytes per second is not that of a memory; check its unit")
        return Bandwidth(chosen_bandwidth, "chosen")
    reported = report_bytes_per_s if _is_sane(report_bytes_per_s) and is_discrete and not is_slice(name) else None
    gpu = choose_gpu(chosen_gpu) if chosen_gpu else find_gpu(name)
    if gpu is None:
        if reported is not None:
            remark = f"{name or 'the GPU'} is not in the pack's table: bandwidth as the report says"
            return Bandwidth(reported, "report", remark)
        return Bandwidth(None, "", _unknown(name, report_bytes_per_s, is_discrete))
    own = gpu.bandwidth_bytes_per_s
    return Bandwidth(own, "chosen" if chosen_gpu else "table", _difference(gpu, reported))


def is_slice(name: str | None) -> bool:
    """Whether the name is that of a MIG instance or of a vGPU profile."""
    return bool(_SLICE.search((name or "").strip()))


def _is_sane(value: float | None) -> bool:
    low, high = SANE_BYTES_PER_S
    return value is not None and low <= value <= high


def _difference(gpu: Gpu, reported: float | None) -> str:
    own = gpu.bandwidth_bytes_per_s
    if reported is None or abs(reported / own - 1) <= WORTH_SAYING:
        return ""
    return f"{gpu.name}: {own / 1e12:.4g} TB/s taken; the report says {reported / 1e12:.4g} TB/s"


def _unknown(name: str | None, reported: float | None, is_discrete: bool | None) -> str:
    if is_slice(name):
        why = "it is a slice of a GPU, whose share of the bandwidth is not known"
    elif not reported:
        why = "it is not in the pack's table and the report has no bandwidth"
    elif not is_discrete:
        why = "it is not in the pack's table, and what reports say of integrated GPUs is not to be trusted"
    else:
        why = f"it is not in the pack's table, and {reported / 1e12:.4g} TB/s in the report cannot be right"
    return f"bandwidth of {name or 'an unnamed GPU'} unknown: {why}; give the GPU or its bandwidth"
