"""GPU operations as columns: what counts, when, and on which device."""

from __future__ import annotations

import numpy as np
import pytest

from recipes.events.gpu_work import GRAPH, KERNEL, MEMCPY, MEMSET, Span, page_migrations, read_gpu_work
from recipes.report.report import open_export

P, Q = 100 << 24, 200 << 24
KERNELS, COPIES, SETS, GRAPHS = (
    f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")
)


def operations(*rows, **more):
    """Rows of (start, end, deviceId, globalPid) as the columns of an exported table."""
    columns = dict(zip(("start", "end", "deviceId", "globalPid"), map(list, zip(*rows, strict=True)), strict=True))
    return {**columns, **{name: [value] * len(rows) for name, value in more.items()}}


def kernels(*rows):
    return operations(*rows, demangledName=1, shortName=1)


@pytest.fixture
def work(make_export):
    def read(**tables):
        return read_gpu_work(open_export(make_export(**tables)))

    return read


def test_no_tables_are_no_work(work):
    nothing = work()
    assert len(nothing) == 0
    assert nothing.devices.numbers == []
    assert nothing.dropped == 0


def test_all_four_kinds_are_work(work):
    found = work(
        **{
            KERNELS: kernels((10, 20, 0, P)),
            COPIES: operations((30, 40, 0, P), (41, 42, 0, P), copyKind=1),
            SETS: operations((50, 60, 0, P)),
            GRAPHS: operations((70, 90, 0, P)),
        }
    )
    assert found.kind.tolist() == [KERNEL, MEMCPY, MEMCPY, MEMSET, GRAPH]
    assert found.start_ns.tolist() == [10, 30, 41, 50, 70]
    assert [found.names[code] for code in found.name] == [
        "gemm", "memcpy HtoD", "memcpy HtoD", "memset", "CUDA graph (traced as a whole)",
    ]  # fmt: skip


def test_page_migrations_are_named_with_their_direction(work):
    copies = operations((1, 2, 0, P), (3, 4, 0, P), (5, 6, 0, P), (7, 8, 0, P)) | {"copyKind": [1, 11, 12, 13]}
    found = work(**{COPIES: copies, KERNELS: kernels((10, 20, 0, P))})
    assert [found.names[code] for code in found.name] == [
        "gemm", "memcpy HtoD", "page migration HtoD", "page migration DtoH", "page migration DtoD",
    ]  # fmt: skip
    assert page_migrations(found).tolist() == [False, False, True, True, True]


def test_rows_without_usable_times_are_dropped_and_counted(work):
    found = work(**{KERNELS: kernels((10, 20, 0, P), (30, 29, 0, P), (0, 0, 0, P), (40, 40, 0, P), (0, 7, 0, P))})
    assert found.start_ns.tolist() == [10, 40, 0]
    assert found.dropped == 2


def test_row_without_a_time_is_dropped(work):
    assert work(**{KERNELS: kernels((10, None, 0, P), (None, None, 0, P), (10, 11, 0, P))}).dropped == 2


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        (Span(), [True] * 3),
        (Span(start_ns=21), [False, True, True]),
        (Span(start_ns=20), [True] * 3),
        (Span(end_ns=29), [True, False, False]),
        (Span(start_ns=35, end_ns=36), [False, True, False]),
        (Span(start_ns=41, end_ns=49), [False] * 3),
    ],
)
def test_span_keeps_what_touches_it(span, expected):
    starts, ends = np.array([10, 30, 50]), np.array([20, 40, 60])
    assert span.touches(starts, ends).tolist() == expected


def test_one_process_keeps_its_ordinals(work):
    found = work(**{KERNELS: kernels((1, 2, 3, P), (1, 2, 1, P))})
    assert found.devices.numbers == [1, 3]
    assert found.device.tolist() == [1, 0]
    assert found.devices.pids == [100]
    assert found.devices.remark == ""


def test_two_processes_on_different_ordinals_need_no_remark(work):
    found = work(**{KERNELS: kernels((1, 2, 0, P), (1, 2, 1, Q))})
    assert (found.devices.numbers, found.devices.remark) == ([0, 1], "")


def test_same_ordinal_in_two_processes_is_kept_apart_and_said(work):
    found = work(**{KERNELS: kernels((1, 2, 0, Q), (1, 2, 0, P))})
    assert found.devices.numbers == [0, 1]
    assert found.device.tolist() == [1, 0]
    assert "2 processes use device 0" in found.devices.remark


def test_same_ordinal_is_one_gpu_where_the_machine_has_no_other(work):
    gpus = {"id": [0], "cuDevice": [0], "name": ["H200"], "uuid": ["GPU-a"]}
    found = work(**{KERNELS: kernels((1, 2, 0, Q), (1, 2, 0, P)), "TARGET_INFO_GPU": gpus})
    assert (found.devices.numbers, found.device.tolist(), found.devices.remark) == ([0], [0, 0], "")
    assert (found.devices.gpu_names, found.devices.gpu_uuids) == (["H200"], ["GPU-a"])
    two = {name: values * 2 for name, values in gpus.items()} | {"id": [0, 1]}
    assert work(**{KERNELS: kernels((1, 2, 0, Q), (1, 2, 0, P)), "TARGET_INFO_GPU": two}).devices.numbers == [0, 1]


def devices(*rows):
    return dict(zip(("gpuId", "cudaId", "pid", "uuid"), map(list, zip(*rows, strict=True)), strict=True))


def test_same_ordinal_is_two_gpus_where_the_report_says_so(work):
    # As measured with CUDA_VISIBLE_DEVICES: each process sees one GPU as device 0.
    table = devices((0, 0, 100, "a"), (1, 1, 100, "b"), (1, 0, 200, "b"), (0, 1, 200, "a"))
    found = work(**{KERNELS: kernels((1, 2, 0, P), (1, 2, 0, Q)), "TARGET_INFO_CUDA_DEVICE": table})
    assert found.devices.numbers == [0, 1]
    assert found.device.tolist() == [0, 1]
    assert found.devices.remark == ""


def test_two_processes_share_a_gpu_where_the_report_says_so(work):
    table = devices((5, 0, 100, "a"), (5, 0, 200, "a"))
    found = work(**{KERNELS: kernels((1, 2, 0, P), (1, 2, 0, Q)), "TARGET_INFO_CUDA_DEVICE": table})
    assert found.devices.numbers == [5]
    assert found.device.tolist() == [0, 0]
    assert found.devices.pids == [100, 200]


def test_gpu_names_follow_the_mapping(work):
    gpus = {"id": [0, 1], "cuDevice": [0, 1], "name": ["H100", "L4"]}
    table = devices((1, 0, 100, "b"))
    mapped = work(**{KERNELS: kernels((1, 2, 0, P)), "TARGET_INFO_GPU": gpus, "TARGET_INFO_CUDA_DEVICE": table})
    assert mapped.devices.gpu_names == ["L4"]
    assert work(**{KERNELS: kernels((1, 2, 0, P)), "TARGET_INFO_GPU": gpus}).devices.gpu_names == ["H100"]


def test_types_are_narrow(work):
    found = work(**{KERNELS: kernels((10, 20, 0, P))})
    types = [found.start_ns.dtype, found.kind.dtype, found.device.dtype, found.name.dtype]
    assert types == [np.int64, np.int8, np.int32, np.int32]
