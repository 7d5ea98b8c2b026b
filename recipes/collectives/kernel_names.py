"""What the name of a communication kernel says: operation, datatype, algorithm, protocol."""

from __future__ import annotations

import re
from dataclasses import dataclass

# NCCL from 2.19 on: ncclDevKernel_AllReduce_Sum_bf16_RING_LL; before: ncclKernel_AllReduce_RING_LL_Sum_float; with
# symmetric memory: ncclSymkDevKernel_AllReduce_AGxLL_R_sum_bf16.
_NCCL = re.compile(r"nccl(?:Symk?)?(?:Dev)?Kernel_(?P<operation>[A-Za-z]+)(?P<rest>\w*)")
_PROTOCOLS = ("LL128", "LL", "SIMPLE")
_ALGORITHMS = ("RING", "TREE", "COLLNET_DIRECT", "COLLNET_CHAIN", "COLLNET", "NVLS_TREE", "NVLS", "PAT")
_SYMMETRIC = re.compile(r"_(?P<algorithm>(?:AGx|RSx)\w+?)_(?:sum|prod|min|max|avg)")
_TYPES = {
    "bf16": "bf16", "bfloat16": "bf16", "__nv_bfloat16": "bf16", "BFloat16": "bf16", "nv_bfloat16": "bf16",
    "f16": "fp16", "half": "fp16", "__half": "fp16", "Half": "fp16", "f32": "fp32", "float": "fp32", "f64": "fp64",
    "double": "fp64", "f8e4m3": "fp8", "f8e5m2": "fp8", "__nv_fp8_e4m3": "fp8", "i8": "int8", "int8_t": "int8",
    "u8": "uint8", "uint8_t": "uint8", "i32": "int32", "u32": "uint32", "i64": "int64", "u64": "uint64",
}  # fmt: skip
_LONGEST_FIRST = "|".join(sorted(map(re.escape, _TYPES), key=len, reverse=True))
_TYPE = re.compile(rf"(?<![A-Za-z0-9])({_LONGEST_FIRST})(?![A-Za-z0-9])")
# In order; the first that the name, without parameters, holds.
_OPERATIONS = (
    # TransformerEngine's: reduce-scatter, all-gather, both.
    (r"userbuffers\w*_rs(?![a-z])", "reduce_scatter"),
    (r"userbuffers\w*_ag(?![a-z])", "all_gather"),
    (r"userbuffers\w*sum_inplace", "all_reduce"),
    (r"userbuffers_(?:push|pull)", "send_recv"),
    # To experts and back, as moeA2ADispatch is: ranks send as much as the routing says.
    (r"combine", "combine"),
    (r"dispatch|notify", "dispatch"),
    (r"all_?to_?all|a2a(?![a-z])|A2A", "all_to_all"),
    (r"all_?gather", "all_gather"),
    (r"reduce_?scatter", "reduce_scatter"),
    (r"all_?reduce|cross_device_reduce|one_?shot|two_?shot|lamport|quick_?reduce|(?<![a-z])cuda_ar_", "all_reduce"),
    (r"broadcast", "broadcast"),
    (r"send_?recv|push_?pull|halo|p2p|_send|_recv|put_signal", "send_recv"),
    (r"barrier|wait|signal", "barrier"),
    (r"reduce", "reduce"),
)
_NCCL_OPERATIONS = {
    "AllReduce": "all_reduce", "AllGather": "all_gather", "ReduceScatter": "reduce_scatter", "Broadcast": "broadcast",
    "Reduce": "reduce", "SendRecv": "send_recv", "AllToAll": "all_to_all", "AlltoAll": "all_to_all",
    "Gather": "gather", "Scatter": "scatter",
}  # fmt: skip
# Fused with what comes behind the reduction: not a collective alone.
_FUSED = re.compile(r"(?i)fusion|fused|rms_?norm|residual|_norm|moefinalize")


@dataclass(frozen=True)
class Kind:
    """What a kernel's name says of its communication; None for what it does not say."""

    operation: str
    dtype: str | None
    algorithm: str | None
    protocol: str | None


def kind_of(name: str) -> Kind:
    """The kind of a communication kernel. Reductions fused with a norm are an operation of their own."""
    found = _NCCL.search(name)
    if found:
        operation = _NCCL_OPERATIONS.get(found["operation"], "other")
        return Kind(operation, _dtype(found["rest"]), _algorithm(found[0]), _protocol(found["rest"]))
    head = re.split(r"[<(]", re.sub(r"^void |\(anonymous namespace\)::|<unnamed>::", "", name), maxsplit=1)[0]
    operation = next((kind for pattern, kind in _OPERATIONS if re.search(rf"(?i){pattern}", head)), "other")
    if operation == "all_reduce" and _FUSED.search(head):
        operation = "all_reduce_fused"
    # The template's types; those of the parameters may be of anything.
    return Kind(operation, _dtype(name.rsplit(">", 1)[0] if ">" in name else head), _shots(head), None)


def _dtype(text: str) -> str | None:
    found = _TYPE.search(text) or _TYPE.search(text.replace("_", " "))
    return _TYPES[found[1]] if found else None


def _algorithm(text: str) -> str | None:
    symmetric = _SYMMETRIC.search(text)
    if symmetric:
        return symmetric["algorithm"]
    return next((one for one in sorted(_ALGORITHMS, key=len, reverse=True) if f"_{one}" in text), None)


def _protocol(text: str) -> str | None:
    return next((one for one in _PROTOCOLS if re.search(rf"_{one}(?:_|$)", text)), None)


def _shots(head: str) -> str | None:
    found = re.search(r"(?i)(one|two|1|2)_?(?:shot|stage)", head)
    return {"one": "one_shot", "1": "one_shot", "two": "two_shot", "2": "two_shot"}[found[1].lower()] if found else None
