"""Whether CUDA graphs are on: the definition by hand, and that two recipes say the same of every kind of report."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import test_llm_decode_floor as floor
import test_llm_idle_gaps as idle
from conftest import pack
from recipes.events.gpu_work import GRAPH, KERNEL, MEMCPY
from recipes.events.launch_state import OFF, ON, PARTLY, UNKNOWN, WHOLE, launch_counts, launch_state
from recipes.events.launches import NONE
from test_gpu_work import KERNELS
from test_steps import CALLS, newest


def counted(operations, launched=None, *, kernels=0, graph_kernels=0, graph_operations=None, opaque=0):
    return {
        "operations": operations,
        "launched": operations if launched is None else launched,
        "kernels": kernels,
        "kernels_in_graphs": graph_kernels,
        "in_graphs": graph_kernels if graph_operations is None else graph_operations,
        "opaque_graphs": opaque,
    }


@pytest.mark.parametrize(
    ("counts", "graphs", "share"),
    [
        # Six piecewise graphs of three kernels, one kernel between: 19 kernels from 7 launches.
        (counted(19, kernels=19, graph_kernels=18), ON, 18 / 19),
        # One graph of three kernels and two copies beside it: three operations of five are in it, and all kernels.
        (counted(5, kernels=3, graph_kernels=3), ON, 1.0),
        (counted(1000, kernels=1000), OFF, 0.0),
        # A prefill without a graph and a decode in one, in one step.
        (counted(40, kernels=40, graph_kernels=20), PARTLY, 0.5),
        (counted(10, kernels=10, graph_kernels=9), ON, 0.9),
        (counted(100, kernels=100, graph_kernels=89), PARTLY, 0.89),
        (counted(2, graph_operations=2), ON, 1.0),
        (counted(2), OFF, 0.0),
        # Kernels outside, and a graph of copies only: graphs are launched.
        (counted(9, kernels=8, graph_operations=1), PARTLY, 0.0),
        (counted(10, launched=5, kernels=5), OFF, 0.0),
    ],
)
def test_state_goes_by_kernels_in_graphs(counts, graphs, share):
    state = launch_state(counts)
    assert (state.graphs, state.in_graphs) == (graphs, pytest.approx(share))


@pytest.mark.parametrize(
    ("counts", "lost", "graphs"),
    [
        (counted(1, opaque=1), False, WHOLE),
        (counted(21, kernels=20, opaque=1), False, WHOLE),
        (counted(10, launched=4, kernels=4), False, UNKNOWN),
        (counted(10, launched=0), False, UNKNOWN),
        (counted(0), False, UNKNOWN),
        (counted(10, kernels=10), True, UNKNOWN),
        (counted(21, kernels=20, opaque=1), True, UNKNOWN),
    ],
)
def test_state_that_is_not_seen_has_no_share(counts, lost, graphs):
    state = launch_state(counts, lost=lost)
    assert state.graphs == graphs
    assert np.isnan(state.in_graphs)


def test_counts_by_hand():
    """Two groups, and operations of none. Launch 0 is a graph, launch 1 not; NONE is not known."""
    kinds, launch, group = zip(
        (KERNEL, 0, 0), (KERNEL, 0, 0), (MEMCPY, 0, 0), (KERNEL, 1, 0), (KERNEL, NONE, 0),
        (GRAPH, 0, 1), (MEMCPY, 1, 1), (KERNEL, 0, -1),
        strict=True,
    )  # fmt: skip
    work, launches = SimpleNamespace(kind=np.array(kinds, np.int8)), SimpleNamespace(of_operation=np.array(launch))
    found = launch_counts(work, launches, np.array([True, False]), np.array(group, dtype=np.int32), 3)
    assert {name: values.tolist() for name, values in found.items()} == {
        "operations": [5, 2, 0], "launched": [4, 2, 0], "kernels": [3, 0, 0], "in_graphs": [3, 0, 0],
        "kernels_in_graphs": [2, 0, 0], "opaque_graphs": [0, 1, 0],
    }  # fmt: skip


@pytest.mark.parametrize(
    "name",
    ["decode_batches_graph", "decode_batches_eager", "decode_compiled", "decode_graph_whole", "decode_no_nvtx",
     "ranges", "startup", "tp_graph", "training_foreach", "serving_trtllm"],
)  # fmt: skip
def test_two_recipes_agree_on_every_phase_and_batch(name, sqlite_of):
    path = sqlite_of(newest(name))
    tables = idle.analysed(path)
    whole = tables["idle"][tables["idle"]["phase"] == "all"]
    lost = bool((whole["lost_graph_launches"] > whole["graph_launches"]).any())
    steps = tables["step_idle"]
    keys = ["device", "phase", "batch"]
    sums = steps[~steps["edge"]].groupby(keys, dropna=False).sum(numeric_only=True)
    expected = {key: launch_state(row, lost=lost) for key, row in sums.iterrows()}
    found = floor.analysed(path)["phases"].set_index(keys)[["graphs", "in_graphs"]]
    assert len(found) == len(expected) > 0
    for (key, state), (other, row) in zip(
        sorted(expected.items(), key=str), sorted(found.iterrows(), key=str), strict=True
    ):
        assert str(key) == str(other)
        assert row["graphs"] == state.graphs
        assert row["in_graphs"] == pytest.approx(state.in_graphs, nan_ok=True)


def small_graphs(make_export, eager_kernels: int):
    """Twelve steps of one graph of three kernels and so many kernels outside, each launched late."""
    kernels, calls, ranges, launch = [], [], [], 0
    for step in range(12):
        at = step * 100_000
        launch += 1
        kernels += [(at + start, at + start + 900, launch) for start in (100, 1000, 2000)]
        calls.append((at + 10, at + 50, launch, idle.GRAPH_LAUNCH))
        for number in range(eager_kernels):
            launch, begin = launch + 1, at + 10_000 + 5000 * number
            kernels.append((begin + 100, begin + 1000, launch))
            calls.append((begin, begin + 50, launch, idle.LAUNCH))
        ranges.append((at, at + 90_000, "decode bs=4"))
    tables = {KERNELS: idle.kernels(*kernels), CALLS: idle.calls(*calls), "NVTX_EVENTS": idle.nvtx(*ranges)}
    return make_export(StringIds=idle.NAMES, **tables)


@pytest.mark.parametrize(("eager_kernels", "state"), [(0, "on"), (3, "partly on")])
def test_both_recipes_print_the_same_of_small_graphs(make_export, tmp_path, eager_kernels, state):
    """Four or fewer operations a launch: that alone would be off."""
    path = small_graphs(make_export, eager_kernels)
    for recipe in ("llm_idle_gaps", "llm_decode_floor"):
        done = pack("run", recipe, "--input", path, "--output", tmp_path / recipe)
        assert done.returncode == 0, done.stderr
        assert f"CUDA graphs are {state}" in done.stdout, recipe
