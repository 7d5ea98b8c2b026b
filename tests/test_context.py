"""Families that a name leaves open, decided by the places of its kernels in steps: small tables worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from recipes.events.devices import Devices
from recipes.events.gpu_work import GRAPH, KERNEL, GpuWork
from recipes.kernels.context import NORM, ROUTING, SAMPLING, families_in_context, refine
from recipes.kernels.families import load_rules
from recipes.kernels.work_families import name_families

GEMM = "nvjet_hsh_128x8_64x12_2x1_v_bz_TNT"
OTHER_GEMM = "nvjet_hsh_64x8_64x16_4x1_v_bz_TNT"
ATTENTION = "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<96, 64, 64, 4, false>>"
TOPK = "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>(at::cuda::detail::TensorInfo<float const>)"
SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 7, false, false>(float*, float const*)"
SORT = "void at_cuda_detail::cub::detail::radix_sort::DeviceRadixSortOnesweepKernel<at_cuda_detail::cub::X>"
ARGMAX = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>, unsigned>>"
ADAM = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::FusedAdamMathFunctor<float, 4>>"
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::"
POW = ELEMENTWISE + "pow_tensor_scalar_kernel_impl<float, float>(at::TensorIteratorBase&, float)::{lambda(float)#1}>"
MEAN = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float, float>>>"
ADD = ELEMENTWISE + "CUDAFunctorOnSelf_add<float>, std::array<char*, 2ul> >"
RSQRT = ELEMENTWISE + "rsqrt_kernel_cuda(at::TensorIteratorBase&)::{lambda()#1}::operator()() const::{lambda(float)#1}>"
MUL = ELEMENTWISE + "BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> > >"
RMSNORM = (POW, MEAN, ADD, RSQRT, MUL)


def work_of(*steps):
    """Kernels of 5 ns, one after the other, of steps given as lists of names; and the step of each."""
    texts = [name for step in steps for name in step]
    names = sorted(set(texts))
    start_ns = np.arange(len(texts), dtype=np.int64) * 10
    zeros = np.zeros(len(texts), dtype=np.int32)
    work = GpuWork(
        start_ns=start_ns,
        end_ns=start_ns + 5,
        kind=np.full(len(texts), KERNEL, dtype=np.int8),
        device=zeros,
        name=np.array([names.index(name) for name in texts], dtype=np.int32),
        names=names,
        short_names=names,
        devices=Devices([0], *([None] * (len(Devices.__dataclass_fields__) - 1))),
        dropped=0,
        rows=slice(None),
    )
    return work, np.repeat(np.arange(len(steps)), [len(step) for step in steps])


def refined(*steps, rules=None):
    """Family and rule of each name."""
    work, step = work_of(*steps)
    found = families_in_context(work, rules or load_rules(), step)
    family = [found.families[code] for code in found.of_name]
    return {name: (family[code], found.rules[code]) for code, name in enumerate(work.names)}


def layers(count, *more):
    return [ATTENTION, GEMM, *more, OTHER_GEMM] * count


def test_top_k_and_softmax_once_a_layer_are_routing():
    found = refined(*[layers(8, SOFTMAX, TOPK)] * 2)
    assert found[TOPK][0] == found[SOFTMAX][0] == "moe"
    assert found[TOPK][1].startswith(f"{ROUTING} families.tsv:")


def test_layers_without_experts_do_not_matter():
    found = refined(*[[*layers(4), *layers(4, SOFTMAX, TOPK)]] * 2)
    assert found[TOPK][0] == found[SOFTMAX][0] == "moe"


def test_a_sort_that_follows_routing_belongs_to_it():
    assert refined(*[layers(8, TOPK, SORT)] * 2)[SORT][0] == "moe"
    assert refined(*[layers(8, SORT)] * 2)[SORT][0] == "reduction"  # beside nothing that routes


def test_top_k_and_sort_once_a_step_are_sampling():
    found = refined(*[[*layers(16), TOPK, SOFTMAX, *[SORT] * 4, ARGMAX]] * 3)
    assert {found[name][0] for name in (TOPK, SOFTMAX, SORT)} == {"sampling"}
    assert found[SORT][1].startswith(SAMPLING) and found[TOPK][1].startswith(SAMPLING)


def test_the_softmax_of_attention_stays():
    found = refined(*[[*[GEMM, SOFTMAX, OTHER_GEMM] * 8, TOPK]] * 3)
    assert found[SOFTMAX][0] == "softmax" and not found[SOFTMAX][1].startswith("context")
    assert found[TOPK][1].startswith(SAMPLING)  # the layers are counted by GEMMs


def test_a_sort_of_a_training_step_stays():
    assert refined(*[[*layers(8), SORT, ARGMAX, ADAM]] * 3)[SORT][0] == "reduction"


@pytest.mark.parametrize(
    "steps",
    [
        [layers(8, SOFTMAX, TOPK)],  # one step is no repetition
        [layers(3, SOFTMAX, TOPK)] * 3,  # three layers are too few to tell a layer from a step
        [[*layers(16), *[TOPK, SOFTMAX] * 6]] * 3,  # neither once a layer nor once a step
    ],
)
def test_nothing_is_decided_without_clear_evidence(steps):
    found = refined(*steps)
    assert found[TOPK][0] == "sampling" and found[SOFTMAX][0] == "softmax"
    assert not any(rule.startswith("context") for _, rule in found.values())


def test_experts_that_run_one_by_one_are_not_layers():
    # Two layers of eight experts: sixteen GEMMs of one name, and a top-k twice a step.
    found = refined(*[[TOPK, *[GEMM] * 8] * 2] * 3)
    assert found[TOPK] == refined([TOPK])[TOPK]


def test_without_steps_nothing_changes():
    work, step = work_of(*[layers(8, SOFTMAX, TOPK)] * 2)
    by_name = name_families(work, load_rules())
    found = families_in_context(work, load_rules(), np.full_like(step, -1))
    assert (found.of_name == by_name.of_name).all() and found.rules == by_name.rules


def test_graphs_traced_as_a_whole_tell_nothing():
    work, step = work_of(*[layers(8, SOFTMAX, TOPK)] * 2)
    whole = replace(work, kind=np.full_like(work.kind, GRAPH))
    by_name = name_families(whole, load_rules())
    assert refine(by_name, whole, step) is by_name


def test_the_users_rules_are_left_alone(tmp_path):
    path = tmp_path / "families.tsv"
    path.write_text("gatherTopK\tsampling\nOnesweep\tsampling\n")
    found = refined(*[layers(8, SOFTMAX, TOPK)] * 2, rules=load_rules(path))
    assert found[TOPK] == ("sampling", "families.tsv:1 gatherTopK")


def test_a_norm_written_out_in_operators():
    found = refined(*[[GEMM, *RMSNORM] * 4] * 2)
    assert {name: found[name][0] for name in RMSNORM} == dict.fromkeys(RMSNORM, "norm")
    assert found[MEAN][1].startswith(f"{NORM} families.tsv:")


def test_a_multiplication_that_also_occurs_elsewhere_stays():
    found = refined(*[[GEMM, *RMSNORM, GEMM, MUL] * 4] * 2)
    assert found[MUL][0] == "elementwise"
    assert found[RSQRT][0] == found[MEAN][0] == found[POW][0] == found[ADD][0] == "norm"


def test_rsqrt_far_from_a_mean_is_no_norm():
    found = refined(*[[MEAN, GEMM, GEMM, RSQRT, MUL] * 4] * 2)
    assert (found[MEAN][0], found[RSQRT][0], found[MUL][0]) == ("reduction", "elementwise", "elementwise")


def test_the_order_of_records_does_not_matter():
    work, step = work_of(*[[*layers(8, SOFTMAX, TOPK), *RMSNORM * 4]] * 2)
    order = np.random.default_rng(3).permutation(len(work))
    columns = ("start_ns", "end_ns", "kind", "device", "name")
    mixed = replace(work, **{name: getattr(work, name)[order] for name in columns})
    found = families_in_context(mixed, load_rules(), step[order])
    assert found.rules == families_in_context(work, load_rules(), step).rules
    assert any(rule.startswith(NORM) for rule in found.rules) and any(rule.startswith(ROUTING) for rule in found.rules)
