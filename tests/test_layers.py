"""Layers: ranges inside steps, of work launched one by one and of CUDA graphs."""

from __future__ import annotations

import numpy as np

from recipes.steps.layers import _used
from test_gpu_work import KERNELS, P
from test_steps import CALLS, MAIN, calls, kernels, newest, ranges, read


def layers_of(capture):
    """Layer and its attribution of each operation."""
    layers = capture.layers
    names = [*layers.names, None]
    return [(names[number], bool(by)) for number, by in zip(layers.of_operation, layers.by_capture, strict=True)]


def test_layers_are_the_ranges_inside_a_step(sqlite_of):
    capture = read(sqlite_of(newest("layers")))
    assert {"layer * / attention", "layer * / mlp"} <= set(capture.layers.names)
    assert not capture.layers.by_capture.any()
    in_layers = capture.layers.of_operation >= 0
    assert (capture.attribution.step[in_layers] >= 0).all()


def test_range_around_a_step_is_no_layer(make_export):
    nested = (0, 100, MAIN, "epoch", 59), (10, 90, MAIN, "decode bs=1", 59), (20, 40, MAIN, "layer 3", 59)
    path = make_export(
        StringIds={"id": [1, 2], "value": ["gemm", "cudaLaunchKernel"]},
        NVTX_EVENTS=ranges(*nested, (110, 190, MAIN, "decode bs=1", 59)),
        **{KERNELS: kernels((50, 60, P, 1), (61, 62, P, 2)), CALLS: calls((30, 31, MAIN, 1), (45, 46, MAIN, 2))},
    )
    assert layers_of(read(path)) == [("layer *", False), (None, False)]


def replays(make_export, ranges_, nodes, kernel_rows, call_rows, ran):
    """A report of graph replays: NVTX ranges, node events (time, thread, node, original), kernels, calls, nodes run."""
    start, thread, node, original = (list(column) for column in zip(*nodes, strict=True))
    return make_export(
        StringIds={"id": [1, 2], "value": ["gemm", "cudaGraphLaunch_v10000"]},
        NVTX_EVENTS=ranges(*ranges_),
        CUDA_GRAPH_NODE_EVENTS={
            "start": start, "end": start, "globalTid": thread, "graphNodeId": node, "originalGraphNodeId": original,
        },
        **{KERNELS: {**kernels(*kernel_rows), "graphNodeId": ran}, CALLS: calls(*call_rows)},
    )  # fmt: skip


DECODES = [(30, 45, MAIN, "decode bs=1", 59), (230, 245, MAIN, "decode bs=1", 59)]
REPLAYS = (40, 41, MAIN, 7), (240, 241, MAIN, 8)


def test_graph_nodes_belong_to_the_range_open_at_capture(make_export):
    # Captured at 5 and 15 inside layer ranges; made ready at 24 (nodes 101, 102 are copies of 1, 2, with a row each for
    # the making and for the copying, as Nsight writes them); replayed in the steps.
    layers = (0, 10, MAIN, "layer 0", 59), (4, 8, MAIN, "attention", 59), (11, 19, MAIN, "layer 1", 59)
    path = replays(
        make_export, [*layers, (20, 28, MAIN, "instantiate", 59), *DECODES],
        [(5, MAIN, 1, None), (15, MAIN, 2, None), (24, MAIN, 101, None), (24, MAIN, 101, 1), (24, MAIN, 102, None),
         (24, MAIN, 102, 2)],
        [(50, 60, P, 7), (61, 70, P, 7), (250, 260, P, 8), (261, 270, P, 8)], REPLAYS, [101, 102, 101, 102],
    )  # fmt: skip
    assert layers_of(read(path)) == [("layer * / attention", True), ("layer *", True)] * 2


def test_graph_nodes_of_two_processes_with_the_same_ids(make_export):
    process, main = P + (1 << 24), MAIN + (1 << 24)
    second = [(start, end, main, text, kind) for start, end, _, text, kind in DECODES]
    path = replays(
        make_export, [(0, 10, MAIN, "attention", 59), (0, 10, main, "mlp", 59), *DECODES, *second],
        [(5, MAIN, 1, None), (5, main, 1, None)],
        [(50, 60, P, 7), (250, 260, P, 8), (50, 60, process, 7), (250, 260, process, 8)],
        [*REPLAYS, (40, 41, main, 7), (240, 241, main, 8)], [1, 1, 1, 1],
    )  # fmt: skip
    assert layers_of(read(path)) == [("attention", True)] * 2 + [("mlp", True)] * 2


def test_graph_nodes_whose_capture_is_not_in_the_report_keep_the_range_of_their_launch(make_export):
    forward = (32, 44, MAIN, "forward", 59), (232, 244, MAIN, "forward", 59)
    path = replays(
        make_export, [*DECODES, *forward], [(5, MAIN, 99, None)], [(50, 60, P, 7), (250, 260, P, 8)], REPLAYS, [1, 1]
    )
    assert layers_of(read(path)) == [("forward", False)] * 2


def test_layers_that_touch_are_beside_each_other_and_not_inside(make_export):
    inside = [(31, 100, "layer"), (31, 40, "attention"), (40, 60, "mlp"), (45, 50, "up"), (60, 100, "norm")]
    steps = [(30, 100, MAIN, "decode bs=1", 59), (230, 300, MAIN, "decode bs=1", 59)]
    launches = [35, 42, 46, 60, 230]
    path = make_export(
        StringIds={"id": [1, 2], "value": ["gemm", "cudaLaunchKernel"]},
        NVTX_EVENTS=ranges(*steps, *((start, end, MAIN, text, 59) for start, end, text in inside)),
        **{KERNELS: kernels(*((400 + 10 * n, 405 + 10 * n, P, n) for n in range(5))),
           CALLS: calls(*((at, at + 1, MAIN, n) for n, at in enumerate(launches)))},
    )  # fmt: skip
    found = [name for name, _ in layers_of(read(path))]
    assert found == ["layer / attention", "layer / mlp", "layer / mlp / up", "layer / norm", None]


def test_paths_that_are_cut_alike_are_one_layer():
    path = np.array([0, 1, 2, 3, -1], dtype=np.int32)
    used, names = _used(path, ["a", "b", "a", "b / c"])
    assert names == ["a", "b", "b / c"]
    assert used.tolist() == [0, 1, 0, 2, -1]
