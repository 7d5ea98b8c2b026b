"""Idle time and its causes: reference values, invariants on every report, and each cause by hand."""

from __future__ import annotations

import numpy as np
import pytest

import oracle
from conftest import FIXTURES, REPORTS
from recipes.capture.capture import Capture
from recipes.events.gpu_work import Span
from recipes.events.host_activity import HostActivity
from recipes.events.idle import CAUSES, Gaps, find_gaps, split_by_cause
from recipes.nsight.export import export
from recipes.report.report import open_export
from recipes.steps.phases import load_phase_rules
from test_gpu_work import KERNELS, P, operations
from test_steps import CALLS

RULES = load_phase_rules()


def all_gaps(work, rows):
    """The gaps in one piece."""
    pieces = list(find_gaps(work, rows)) or [Gaps(*np.zeros((4, 0), dtype=np.int64))]
    columns = zip(*((gaps.start_ns, gaps.end_ns, gaps.before, gaps.after) for gaps in pieces), strict=True)
    return Gaps(*map(np.concatenate, columns))


def idle(path):
    """The capture's gaps on its first device, and their ns by cause."""
    capture = Capture(open_export(path), Span(), RULES)
    rows = np.flatnonzero(capture.work.device == 0)
    gaps = all_gaps(capture.work, rows)
    host = HostActivity(capture.report, capture.launches.thread)
    return capture, gaps, split_by_cause(capture.work, gaps, capture.launches, host)


# fixtures/README.md says where these figures come from. Profiler overhead is told apart here; in these captures
# it lies inside the launch calls (eager), and between graph nodes (graph).
@pytest.mark.parametrize(
    ("name", "number", "total", "longest", "expected_ms"),
    [
        ("decode_eager", 5229, 188_630_105, 219_391,
         {"sync": 0.043, "api": 1.781, "host": 138.841, "launch": 41.822, "queued": 6.144, "graph": 0}),
        ("decode_graph", 5229, 4_593_976, 1_104_953,
         {"sync": 0.026, "api": 0.029, "host": 0.178, "launch": 3.786, "queued": 0.027, "graph": 0.549}),
    ],
)  # fmt: skip
def test_reference_values(name, number, total, longest, expected_ms, exporter):
    _, gaps, causes = idle(export(FIXTURES / f"{name}.nsys-rep", exporter))
    length_ns = gaps.end_ns - gaps.start_ns
    assert (len(gaps), length_ns.sum(), length_ns.max()) == (number, total, longest)
    told = {cause: causes[cause].sum() / 1e6 for cause in expected_ms}
    told["graph" if name == "decode_graph" else "launch"] += causes["profiler"].sum() / 1e6
    assert told == {cause: pytest.approx(value, abs=0.0011) for cause, value in expected_ms.items()}
    assert causes["unknown"].sum() == 0


@pytest.mark.parametrize("report", REPORTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_causes_add_up_to_every_gap_and_gaps_to_idle(report, sqlite_of):
    path = sqlite_of(report)
    capture, gaps, causes = idle(path)
    assert list(causes) == list(CAUSES)
    assert (np.sum(list(causes.values()), axis=0) == gaps.end_ns - gaps.start_ns).all()
    assert min((values.min() for values in causes.values() if len(values)), default=0) >= 0
    if len(capture.work) and len(capture.work.devices.numbers) == 1:
        found = [op[:2] for op in oracle.operations(path)]
        window_ns = max(end for _, end in found) - min(start for start, _ in found)
        assert oracle.busy_ns(found) + (gaps.end_ns - gaps.start_ns).sum() == window_ns


MAIN = P + 1
NAMES = {
    "id": [1, 2, 3, 4],
    "value": ["gemm", "cudaLaunchKernel_v7000", "cudaStreamSynchronize_v3020", "cudaMalloc_v3020"],
}
LAUNCH, SYNC, MALLOC = 2, 3, 4


@pytest.fixture
def causes_of(make_export):
    """The causes of the only gap, 100 to 200, between a kernel and one launched by call 2."""

    def make(*calls, kernels=((50, 100, 1), (200, 250, 2)), overhead=()):
        columns = operations(*[(start, end, 0, P) for start, end, _ in kernels], demangledName=1, shortName=1)
        rows = dict(zip(("start", "end", "correlationId", "nameId"), map(list, zip(*calls, strict=True)), strict=True))
        tables = {
            KERNELS: {**columns, "correlationId": [launch for *_, launch in kernels]},
            CALLS: {**rows, "globalTid": [MAIN] * len(calls)},
        }
        if overhead:
            times = dict(zip(("start", "end"), map(list, zip(*overhead, strict=True)), strict=True))
            tables["PROFILER_OVERHEAD"] = {**times, "globalTid": [MAIN] * len(overhead), "nameId": [1] * len(overhead)}
        _, gaps, causes = idle(make_export(StringIds=NAMES, **tables))
        assert len(gaps) == 1
        return {cause: int(values[0]) for cause, values in causes.items() if values[0]}

    return make


FIRST = (40, 45, 1, LAUNCH)


def test_host_launch_and_queue_share_a_gap(causes_of):
    assert causes_of(FIRST, (150, 170, 2, LAUNCH)) == {"host": 50, "launch": 20, "queued": 30}


def test_all_issued_before_is_queued(causes_of):
    assert causes_of(FIRST, (60, 80, 2, LAUNCH)) == {"queued": 100}


def test_launch_begun_before_the_gap_counts_from_its_start(causes_of):
    assert causes_of(FIRST, (90, 130, 2, LAUNCH)) == {"launch": 30, "queued": 70}


def test_launch_that_ends_after_the_gap_counts_to_its_end(causes_of):
    assert causes_of(FIRST, (150, 300, 2, LAUNCH)) == {"host": 50, "launch": 50}


def test_synchronising_and_other_calls_before_the_launch_are_told_apart(causes_of):
    calls = (FIRST, (90, 120, 0, SYNC), (130, 140, 0, MALLOC), (150, 160, 2, LAUNCH))
    assert causes_of(*calls) == {"sync": 20, "api": 10, "host": 20, "launch": 10, "queued": 40}


def test_call_inside_a_synchronising_call_is_that_call(causes_of):
    calls = (FIRST, (100, 140, 0, SYNC), (110, 120, 0, MALLOC), (150, 200, 2, LAUNCH))
    assert causes_of(*calls) == {"sync": 40, "host": 10, "launch": 50}


def test_profiler_overhead_goes_first(causes_of):
    calls = (FIRST, (110, 140, 0, SYNC), (150, 170, 2, LAUNCH))
    # Overhead 130-160: 10 of the call to synchronise, 10 of the host, 10 of the launch.
    expected = {"profiler": 30, "sync": 20, "host": 10, "launch": 10, "queued": 30}
    assert causes_of(*calls, overhead=((130, 160),)) == expected


def test_between_nodes_of_one_graph_launch(causes_of):
    graph = ((50, 100, 1), (200, 250, 1))
    assert causes_of(FIRST, kernels=graph) == {"graph": 100}
    assert causes_of(FIRST, kernels=graph, overhead=((120, 130),)) == {"profiler": 10, "graph": 90}


def test_operation_without_a_launch_row_is_unknown(causes_of):
    assert causes_of(FIRST) == {"unknown": 100}


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_gaps_at_the_seams_of_pieces(at_once, make_export, monkeypatch):
    # The first operation outlasts the next two, ends with the fourth, and a gap of 5 follows; then one of 10.
    times = (0, 100), (10, 20), (30, 90), (40, 100), (105, 110), (120, 130)
    path = make_export(**{KERNELS: operations(*((*time, 0, P) for time in times), demangledName=1, shortName=1)})
    monkeypatch.setattr("recipes.events.idle._OPERATIONS_AT_ONCE", at_once)
    gaps = idle(path)[1]
    assert gaps.start_ns.tolist() == [100, 110] and gaps.end_ns.tolist() == [105, 120]
    assert gaps.before.tolist() == [3, 4] and gaps.after.tolist() == [4, 5]


def test_copies_fill_gaps(make_export):
    kernels = operations((0, 10, 0, P), (30, 40, 0, P), demangledName=1, shortName=1)
    path = make_export(**{KERNELS: kernels, "CUPTI_ACTIVITY_KIND_MEMCPY": operations((10, 30, 0, P), copyKind=1)})
    assert len(idle(path)[1]) == 0
