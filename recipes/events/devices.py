"""Which GPU an operation ran on: the ordinal that a process sees is not yet a GPU."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from recipes.report import schema
from recipes.report.report import Report

# Bits 24 to 47 of Nsight's global ids are the process id.
_PID_SHIFT, _PID_MASK = 24, 0xFFFFFF


@dataclass(frozen=True)
class Devices:
    """The devices with work: for each its number, GPU name and UUID (as nvidia-smi writes it; both empty where not
    known); the processes with GPU work, and each pair of process and ordinal; a remark if the report leaves it open
    which GPU an ordinal means (empty otherwise)."""

    numbers: list[int]
    gpu_names: list[str]
    pids: list[int]
    seen: list[tuple[int, int]]
    remark: str
    gpu_uuids: list[str] = field(default_factory=list)


def pid_of(global_ids: np.ndarray) -> np.ndarray:
    """The process ids in Nsight's global process or thread ids, int64[n] as they are."""
    return (global_ids >> _PID_SHIFT) & _PID_MASK


def find_devices(report: Report, global_pid: np.ndarray, device_id: np.ndarray) -> tuple[Devices, np.ndarray]:
    """The devices of a report, and for each operation (by its process and the ordinal it names) its device, as
    an index (int32) into them. Arrays have one entry per operation, `global_pid` and `device_id` int64.
    PackError when the report's export is damaged.

    With TARGET_INFO_CUDA_DEVICE a device is the physical GPU (gpuId). Without it the ordinal stands for the GPU,
    unless several processes use the same one on a machine with several GPUs: with CUDA_VISIBLE_DEVICES these may be
    different GPUs, so each process's device is then kept apart, numbered by process and ordinal.
    """
    pairs, of_operation = _distinct_pairs(global_pid, device_id)
    pids = [int(pid) for pid in pid_of(np.array([pair[0] for pair in pairs], dtype=np.int64))]
    seen = [(pid, ordinal) for pid, (_, ordinal) in zip(pids, pairs, strict=True)]
    gpu_ids = _gpu_ids(report)
    numbers, remark = _numbers(seen, gpu_ids, only_one=report.count(schema.GPUS) == 1)
    distinct = sorted(set(numbers))
    index = np.array([distinct.index(number) for number in numbers], dtype=np.int32)
    mapped = bool(seen) and all(pair in gpu_ids for pair in seen)
    names = _gpu_names(report, dict(zip(numbers, seen, strict=True)), mapped=mapped, kept_apart=bool(remark))
    uuids = _gpu_uuids(report, distinct, mapped=mapped)
    names_of = [names.get(number, "") for number in distinct]
    return Devices(distinct, names_of, sorted(set(pids)), seen, remark, uuids), index[of_operation]


def _distinct_pairs(global_pid: np.ndarray, device_id: np.ndarray) -> tuple[list[tuple[int, int]], np.ndarray]:
    """The distinct (global pid, ordinal) in order, and for each operation its place among them."""
    pid = pa.array(global_pid).dictionary_encode()
    device = pa.array(device_id).dictionary_encode()
    pids, ordinals = pid.dictionary.to_pylist(), device.dictionary.to_pylist()
    width = np.int64(len(ordinals))
    code = pa.array(pid.indices.to_numpy() * width + device.indices.to_numpy()).dictionary_encode()
    pairs = [(pids[c // width], ordinals[c % width]) for c in code.dictionary.to_pylist()]
    order = sorted(range(len(pairs)), key=pairs.__getitem__)
    place = np.empty(len(pairs), dtype=np.int32)
    place[order] = np.arange(len(pairs))
    return [pairs[i] for i in order], place[code.indices.to_numpy()]


def _numbers(
    seen: list[tuple[int, int]], gpu_ids: dict[tuple[int, int], int], *, only_one: bool
) -> tuple[list[int], str]:
    """A device number for each (pid, ordinal), and the remark."""
    if seen and all(pair in gpu_ids for pair in seen):
        return [gpu_ids[pair] for pair in seen], ""
    ordinals = [ordinal for _, ordinal in seen]
    if only_one or len(set(ordinals)) == len(ordinals):
        return ordinals, ""
    shared = sorted({ordinal for ordinal in ordinals if ordinals.count(ordinal) > 1})
    users = sum(ordinal in shared for ordinal in ordinals)
    remark = (
        f"{users} processes use device {', '.join(map(str, shared))} and the report does not say whether that is "
        f"one GPU: kept apart as devices 0 to {len(seen) - 1}"
    )
    return list(range(len(seen))), remark


def _gpu_ids(report: Report) -> dict[tuple[int, int], int]:
    rows = report.read(schema.CUDA_DEVICES, ["pid", "cuda_id", "gpu_id"])
    columns = [rows[name].to_pylist() for name in rows.column_names]
    return {(pid, cuda): gpu for pid, cuda, gpu in zip(*columns, strict=True) if gpu is not None}


def _gpu_names(report: Report, seen: dict[int, tuple[int, int]], *, mapped: bool, kept_apart: bool) -> dict[int, str]:
    """The GPU name of each device number, where it is known."""
    rows = report.read(schema.GPUS, ["gpu_id", "cuda_device", "name"])
    by_gpu = dict(zip(rows["gpu_id"].to_pylist(), rows["name"].to_pylist(), strict=True))
    by_ordinal = dict(zip(rows["cuda_device"].to_pylist(), rows["name"].to_pylist(), strict=True))
    every = set(by_gpu.values())
    if len(every) == 1:
        return dict.fromkeys(seen, every.pop())
    if kept_apart:
        return {}
    if mapped:
        return by_gpu
    return {number: by_ordinal.get(ordinal, "") for number, (_, ordinal) in seen.items()}


def _gpu_uuids(report: Report, numbers: list[int], *, mapped: bool) -> list[str]:
    """The UUID of each device, empty unless it is certain: an ordinal names a GPU only where the report maps it, or
    where the machine has no other."""
    rows = report.read(schema.GPUS, ["gpu_id", "uuid"])
    by_gpu = dict(zip(rows["gpu_id"].to_pylist(), map(_written, rows["uuid"].to_pylist()), strict=True))
    if len(by_gpu) == 1 and len(numbers) == 1:
        return list(by_gpu.values())
    return [by_gpu.get(number, "") if mapped else "" for number in numbers]


def _written(uuid: str | None) -> str:
    """A UUID as nvidia-smi and DCGM write it; reports leave the word in front away."""
    return f"GPU-{uuid}" if uuid and not uuid.startswith(("GPU-", "MIG-")) else uuid or ""
