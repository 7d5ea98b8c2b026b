"""Steps: which work is whose, on real captures and on small tables made by hand."""

from __future__ import annotations

import csv
import io
import shutil
from pathlib import Path

import numpy as np
import pytest

from conftest import FIXTURES, REPORTS, nsight
from llm_idle_gaps.analysis import Settings as IdleSettings
from llm_idle_gaps.analysis import analyse as idle_gaps
from recipes.capture.capture import ALL, Capture
from recipes.events.gpu_work import Span
from recipes.report.report import open_export
from recipes.steps.attribution import NO_LAUNCH, OUTSIDE
from recipes.steps.phases import load_phase_rules
from recipes.steps.projection import NONE, project
from test_gpu_work import KERNELS, P, Q, operations

RULES = load_phase_rules()
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"


def read(path: Path, span: Span = Span()):
    return Capture(open_export(path), span, RULES)


def newest(name: str) -> Path:
    return FIXTURES / "2025.3.1" / f"{name}.nsys-rep"


def counts(capture):
    """Operations per step."""
    step = capture.attribution.step
    return np.bincount(step[step >= 0], minlength=len(capture.steps)).tolist()


# The numbers of operations are those of fixtures/README.md.
@pytest.mark.parametrize(
    ("name", "phases", "expected"),
    [
        ("decode_batches_eager", ["decode"], [681] * 4 + [649] * 4 + [616] * 4),
        ("decode_batches_graph", ["decode"], [681] * 4 + [649] * 4 + [616] * 4),
        ("training_foreach", ["backward", "forward", "optimizer"], [85, 180, 736] * 4),
        ("ranges", ["step"], [167] * 16),
        ("tp_eager", ["decode"], [194] * 10),
        ("shared_gpu", ["decode"], [89] * 10),
        ("own_gpu", ["decode"], [89] * 10),
        ("startup", ["decode"], [88] * 5),
    ],
)
def test_steps_have_their_operations(name, phases, expected, sqlite_of):
    capture = read(sqlite_of(newest(name)))
    assert capture.steps.phases == phases
    assert counts(capture) == expected
    assert not capture.steps.inferred


@pytest.mark.parametrize("name", ["serving_vllm", "serving_vllm_detailed", "serving_trtllm"])
def test_engines_tell_their_phases(name, sqlite_of):
    capture = read(sqlite_of(newest(name)))
    phases = [meaning.phase for meaning in capture.steps.meanings]
    assert {phase: phases.count(phase) for phase in phases} == {"prefill": 2, "mixed": 2, "decode": 12}
    decode = [meaning for meaning in capture.steps.meanings if meaning.phase == "decode"]
    assert {meaning.batch for meaning in decode} == {16}
    if name == "serving_vllm_detailed":
        assert all(meaning.kv_tokens > 16 * 500 for meaning in decode)


def test_backward_pass_has_its_kernels_that_nsights_projection_loses(sqlite_of, nsys, tmp_path):
    path = sqlite_of(newest("training_foreach"))
    capture = read(path)
    projection = project(capture.work, capture.attribution.step, capture.steps)
    ours = [int(duration) for duration, step in zip(projection.duration_ns, projection.step, strict=True)
            if capture.steps.texts[step] == "backward"]  # fmt: skip
    theirs = [
        int(row["Projected Duration (ns)"]) for row in projected(nsys, path, tmp_path) if row["Name"] == "backward"
    ]
    assert len(ours) == len(theirs) == 4
    assert max(theirs) < 1_000
    assert min(ours) > 15_000_000
    assert capture.attributed_by_way["other thread"] > 0.3


def projected(nsys, path: Path, tmp_path: Path) -> list[dict[str, str]]:
    """Nsight's own projection of NVTX ranges."""
    copy = shutil.copy(path, tmp_path / "copy.sqlite")
    done = nsight(nsys, "stats", "--quiet", "--report", "nvtx_gpu_proj_trace", "--format", "csv", copy)
    lines = done.stdout.splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("Name,"))
    return list(csv.DictReader(io.StringIO("\n".join(lines[head:]))))


@pytest.mark.parametrize(
    "report",
    [*(FIXTURES / f"{name}.nsys-rep" for name in ("decode_eager", "decode_graph")),
     *(newest(name) for name in ("decode_batches_eager", "decode_batches_graph", "serving_vllm", "layers",
                                 "tp_graph_rank0"))],
    ids=lambda path: path.stem,
)  # fmt: skip
def test_projection_equals_nsights_to_the_nanosecond(report, sqlite_of, nsys, tmp_path):
    path = sqlite_of(report)
    capture = read(path)
    projection = project(capture.work, capture.attribution.step, capture.steps)
    ours = sorted(
        (capture.steps.texts[step], int(start), int(duration))
        for step, start, duration in zip(projection.step, projection.start_ns, projection.duration_ns, strict=True)
    )
    texts = set(capture.steps.texts)
    theirs = sorted(
        (row["Name"], int(row["Projected Start (ns)"]), int(row["Projected Duration (ns)"]))
        for row in projected(nsys, path, tmp_path)
        if row["Name"] in texts
    )
    assert ours == theirs
    assert len(ours) == len(capture.steps)


@pytest.mark.parametrize("report", REPORTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_operation_is_somewhere_once(report, sqlite_of):
    capture = read(sqlite_of(report))
    step = capture.attribution.step
    assert len(step) == len(capture.work)
    assert ((step >= NO_LAUNCH) & (step < max(len(capture.steps), 0) + (len(capture.steps) == 0))).all()
    selected = [np.arange(len(step))[rows] for phase, rows in capture.phases() if phase != ALL]
    if len(capture.steps):
        assert sorted(np.concatenate(selected).tolist()) == list(range(len(step)))
        shares = capture.attributed_by_way
        if shares is not None:
            assert 0 <= sum(shares.values()) <= 1 + 1e-12
        # One launch a step at least, and no more than it has operations.
        used = np.array(counts(capture)) > 0
        assert (capture.attribution.launches[used] >= 1).all()
        assert (capture.attribution.launches <= np.array(counts(capture))).all()


def test_steps_are_inferred_without_ranges(sqlite_of):
    with_ranges = read(sqlite_of(newest("decode_batches_graph")))
    without = read(sqlite_of(newest("decode_no_nvtx")))
    assert without.steps.inferred
    assert without.phase_rule() == "inferred (4 steps)"
    # The same decode at batch 16: as many operations and, within 1 %, the same time.
    assert counts(without) == [649] * 4
    durations = project(without.work, without.attribution.step, without.steps).duration_ns
    same = [meaning.batch == 16 for meaning in with_ranges.steps.meanings]
    projection = project(with_ranges.work, with_ranges.attribution.step, with_ranges.steps)
    expected = projection.duration_ns[np.array(same)[projection.step]]
    assert np.median(durations) == pytest.approx(np.median(expected), rel=0.01)


@pytest.mark.parametrize("name", ["decode_eager", "decode_graph"])
def test_inferred_steps_are_those_of_the_ranges(name, exporter):
    from recipes.nsight.export import export
    from recipes.steps.inference import infer_steps

    capture = read(export(FIXTURES / f"{name}.nsys-rep", exporter))
    steps, attribution = infer_steps(capture.report, capture.work)
    assert len(steps) == len(capture.steps) == 5
    ours = project(capture.work, attribution.step, steps).duration_ns
    theirs = project(capture.work, capture.attribution.step, capture.steps).duration_ns
    assert np.median(ours) == pytest.approx(np.median(theirs), rel=0.01)


def test_profiler_stop_inside_a_step_makes_it_an_edge(sqlite_of):
    capture = read(sqlite_of(newest("broken_stop_inside")))
    edge = capture.edge
    assert edge.tolist() == [False] * 4 + [True]


def test_good_captures_have_no_edges(sqlite_of):
    for name in ("decode_batches_eager", "decode_batches_graph", "serving_vllm", "training_fused"):
        capture = read(sqlite_of(newest(name)))
        assert not capture.edge.any(), name


MAIN, AUTOGRAD, LOADER = (P + thread for thread in (1, 2, 3))


def calls(*rows):
    """API calls of (start, end, thread, correlation id)."""
    names = ("start", "end", "globalTid", "correlationId")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    return {**columns, "nameId": [2] * len(rows)}


def kernels(*rows):
    """Kernels of (start, end, process, correlation id) on device 0."""
    columns = operations(*[(start, end, 0, pid) for start, end, pid, _ in rows], demangledName=1, shortName=1)
    return {**columns, "correlationId": [row[3] for row in rows]}


def ranges(*rows):
    """Ranges of (start, end, thread, text, type)."""
    names = ("start", "end", "globalTid", "text", "eventType")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    return {**columns, "textId": [None] * len(rows), "domainId": [0] * len(rows)}


@pytest.fixture
def made(make_export):
    def make(kernel_rows, call_rows, range_rows, span=Span()):
        path = make_export(
            StringIds={"id": [1, 2], "value": ["gemm", "cudaLaunchKernel_v7000"]},
            **{KERNELS: kernels(*kernel_rows), CALLS: calls(*call_rows), "NVTX_EVENTS": ranges(*range_rows)},
        )
        return read(path, span)

    return make


STEPS = [(0, 100, MAIN, "step 0", 59), (200, 300, MAIN, "step 1", 59)]


def test_launch_decides_not_the_kernel_time(made):
    # Launched at 90 in step 0, run at 250 while step 1 is open.
    capture = made([(250, 260, P, 1)], [(90, 95, MAIN, 1)], STEPS)
    assert capture.attribution.step.tolist() == [0]


def test_range_is_half_open(made):
    capture = made([(400, 401, P, 1), (402, 403, P, 2)], [(0, 5, MAIN, 1), (100, 105, MAIN, 2)], STEPS)
    assert capture.attribution.step.tolist() == [0, OUTSIDE]


def test_other_threads_of_the_process_belong_to_the_open_step(made):
    capture = made([(50, 60, P, 1), (150, 160, P, 2)], [(40, 45, AUTOGRAD, 1), (140, 145, AUTOGRAD, 2)], STEPS)
    assert capture.attribution.step.tolist() == [0, OUTSIDE]
    assert capture.attribution.way.tolist() == [1, -1]


def test_thread_with_steps_of_its_own_is_left_to_them(made):
    both = [*STEPS, (0, 30, AUTOGRAD, "step 7", 59), (60, 90, AUTOGRAD, "step 8", 59)]
    capture = made([(50, 60, P, 1)], [(40, 45, AUTOGRAD, 1)], both)
    assert capture.attribution.step.tolist() == [OUTSIDE]


def test_other_processes_steal_nothing(made):
    capture = made([(50, 60, Q, 1)], [(40, 45, Q + 1, 1)], STEPS)
    assert capture.attribution.step.tolist() == [OUTSIDE]


def test_same_correlation_id_in_two_processes_is_two_launches(made):
    capture = made([(50, 60, P, 1), (50, 60, Q, 1)], [(40, 45, MAIN, 1), (240, 245, Q + 1, 1)],
                   [*STEPS, (230, 260, Q + 1, "step 0", 59), (270, 280, Q + 1, "step 1", 59)])  # fmt: skip
    texts = [capture.steps.texts[step] for step in capture.attribution.step]
    assert texts == ["step 0", "step 0"]
    assert len(set(capture.attribution.step.tolist())) == 2


def test_graph_replay_is_one_launch_with_many_operations(made):
    capture = made([(50, 60, P, 1), (61, 70, P, 1), (71, 72, P, 1)], [(40, 45, MAIN, 1)], STEPS)
    assert capture.attribution.step.tolist() == [0, 0, 0]
    assert capture.attribution.launches.tolist() == [1, 0]


def test_outermost_matching_range_is_the_step(made):
    nested = [*STEPS, (20, 80, MAIN, "step 99", 59)]
    capture = made([(50, 60, P, 1)], [(40, 45, MAIN, 1)], nested)
    assert capture.steps.texts == ["step 0", "step 1"]
    assert capture.attribution.step.tolist() == [0]


def test_start_end_ranges_match_by_time(made):
    timed = [(0, 100, MAIN, "step 0", 60), (80, 200, MAIN, "step 1", 60)]
    launches = [(50, 55, AUTOGRAD, 1), (90, 95, AUTOGRAD, 2), (150, 155, MAIN, 3)]
    capture = made([(300, 301, P, 1), (302, 303, P, 2), (304, 305, P, 3)], launches, timed)
    # Where two are open, the one that started last.
    assert capture.attribution.step.tolist() == [0, 1, 1]
    assert set(capture.attribution.way.tolist()) == {2}


def test_loader_with_ranges_of_its_own_is_no_part_of_a_timed_step(made):
    timed = [(0, 100, MAIN, "step 0", 60), (110, 200, MAIN, "step 1", 60), (40, 60, LOADER, "load batch", 59)]
    capture = made([(300, 301, P, 1)], [(50, 55, LOADER, 1)], timed)
    assert capture.attribution.step.tolist() == [OUTSIDE]


def test_workers_with_start_end_ranges_have_their_own_steps(make_export):
    # Two threads, each with a GPU of its own: 12 steps of 1,000 us, the second worker's 400 us later; in the middle of
    # each its launch, of work as long as the step.
    rows = [(worker, 1_000_000 * number + 400_000 * worker) for number in range(12) for worker in (0, 1)]
    events = [(start, start + 999_000, P + 1 + worker, f"{('prefill', 'decode')[worker]} bs={worker + 1}", 60)
              for worker, start in rows]  # fmt: skip
    launched = [(start + 500_000, start + 505_000, P + 1 + worker, n) for n, (worker, start) in enumerate(rows)]
    work = operations(*[(start + 500_000, start + 1_500_000, worker, P) for worker, start in rows],
                      demangledName=1, shortName=1)  # fmt: skip
    path = make_export(
        StringIds={"id": [1, 2], "value": ["gemm", "cudaLaunchKernel_v7000"]},
        **{KERNELS: {**work, "correlationId": list(range(24))}, CALLS: calls(*launched)},
        NVTX_EVENTS=ranges(*events),
    )
    capture = read(path)
    entries = capture.projection
    assert len(entries) == 24
    assert entries.duration_ns.tolist() == [1_000_000] * 24
    meanings = [capture.steps.meanings[step] for step in entries.step]
    told = [(device, one.phase, one.batch) for device, one in zip(entries.device.tolist(), meanings, strict=True)]
    assert told == [(0, "prefill", 1)] * 12 + [(1, "decode", 2)] * 12
    assert set(capture.attribution.way.tolist()) == {2}


def test_worker_between_its_start_end_ranges_is_in_no_step(made):
    timed = [(0, 100, MAIN, "step 0", 60), (200, 300, MAIN, "step 1", 60), (50, 400, AUTOGRAD, "step 0", 60)]
    capture = made([(500, 510, P, 1), (520, 530, P, 2)], [(150, 155, MAIN, 1), (160, 165, LOADER, 2)], timed)
    # A thread without steps is any's that is open.
    assert capture.attribution.step.tolist() == [OUTSIDE, 1]


def test_step_inside_another_threads_start_end_range_is_one(made):
    timed = [(0, 300, MAIN, "step 0", 60), (100, 200, AUTOGRAD, "step 0", 60), (120, 130, AUTOGRAD, "step 9", 60)]
    capture = made([(500, 510, P, 1), (520, 530, P, 2)], [(150, 155, MAIN, 1), (125, 127, AUTOGRAD, 2)], timed)
    assert capture.steps.texts == ["step 0", "step 0"]
    assert capture.attribution.step.tolist() == [0, 1]


def test_operation_without_a_launch_is_kept_and_counted(made):
    capture = made([(50, 60, P, 1), (70, 80, P, 2)], [(40, 45, MAIN, 1)], STEPS)
    assert capture.attribution.step.tolist() == [0, NO_LAUNCH]


def test_rules_tell_the_steps_of_all_processes_in_the_time_range(made):
    # Both processes have two steps of one rule, Q's two a second later.
    named = [(start + later, start + later + 50, process + 1, f"step {start}", 59)
             for process, later in ((P, 0), (Q, 1000)) for start in (0, 100)]  # fmt: skip
    launches = [(start + 10, start + 15, thread, n) for n, (start, _, thread, *_) in enumerate(named)]
    work = [(start + 10, start + 40, thread - 1, n) for start, _, thread, n in launches]
    whole = made(work, launches, named)
    (rule,) = set(whole.steps.rules.values())
    assert whole.phase_rule() == f"{rule} (4 steps)"
    assert whole.coverage().startswith(f"{rule} (4 steps); of GPU time")
    assert Capture(whole.report, Span(110, 1060), RULES).phase_rule() == f"{rule} (2 steps)"


def test_launch_without_an_operation_marks_its_step(made):
    capture = made(
        [(50, 60, P, 1), (250, 260, P, 3)], [(40, 45, MAIN, 1), (60, 65, MAIN, 2), (240, 245, MAIN, 3)], STEPS
    )
    assert capture.attribution.lost.tolist() == [1, 0]
    edge = capture.edge
    assert edge.tolist() == [True, False]


def test_range_that_was_never_closed_is_an_edge(made):
    open_ended = [(0, 100, MAIN, "step 0", 59), (200, None, MAIN, "step 1", 59)]
    capture = made([(50, 60, P, 1), (250, 260, P, 2)], [(40, 45, MAIN, 1), (240, 245, MAIN, 2)], open_ended)
    assert capture.attribution.step.tolist() == [0, 1]
    assert capture.edge.tolist() == [False, True]


def test_period_runs_to_the_next_step_on_the_device(made):
    capture = made([(50, 90, P, 1), (250, 260, P, 2)], [(40, 45, MAIN, 1), (240, 245, MAIN, 2)], STEPS)
    projection = project(capture.work, capture.attribution.step, capture.steps)
    assert projection.duration_ns.tolist() == [40, 10]
    assert projection.period_ns.tolist() == [200, NONE]


def test_a_period_never_spans_a_step_whose_work_was_lost(made):
    # Four decode steps of which the second one's launch (id 9) left no record.
    named = [(100 * n, 100 * n + 50, MAIN, "decode bs=4", 59) for n in range(4)]
    launches = [(100 * n + 5, 100 * n + 8, MAIN, 9 if n == 1 else n) for n in range(4)]
    capture = made([(100 * n + 10, 100 * n + 30, P, n) for n in (0, 2, 3)], launches, named)
    assert capture.projection.step.tolist() == [0, 2, 3]
    assert capture.projection.period_ns.tolist() == [NONE, 100, NONE]
    assert capture.projection.itl_ns.tolist() == [NONE, 100, NONE]


def test_inter_token_latency_runs_to_the_next_decode_step_of_the_engine(made):
    # Three decode steps of 100 each with a prefill of 2,000 before the last; another thread's engine decodes between.
    named = [(0, 20, MAIN, "decode bs=4", 59), (50, 70, AUTOGRAD, "decode bs=1", 59),
             (100, 120, MAIN, "decode bs=3", 59), (200, 220, MAIN, "prefill bs=1", 59),
             (350, 370, AUTOGRAD, "decode bs=1", 59), (2200, 2220, MAIN, "decode bs=4", 59)]  # fmt: skip
    launches = [(start, start + 5, thread, n) for n, (start, _, thread, *_) in enumerate(named)]
    capture = made([(start + 10, start + 20, P, n) for n, (start, *_) in enumerate(named)], launches, named)
    projection = capture.projection
    assert projection.start_ns.tolist() == [10, 60, 110, 210, 360, 2210]
    # The plain period: to the next step of the process, whatever it does.
    assert projection.period_ns.tolist() == [50, 50, 100, 150, 1850, NONE]
    assert projection.itl_ns.tolist() == [100, 300, 2100, NONE, NONE, NONE]


def test_step_on_several_gpus_ends_with_its_last_and_begins_with_its_first(make_export):
    # A pipeline of two stages: each step 100 on GPU 0, then 100 on GPU 1, then 30 until the next step.
    starts = [0, 230, 460]
    events = [(start, start + 50, MAIN, f"step {number}", 59) for number, start in enumerate(starts)]
    launched = [(start + 1 + stage, start + 2 + stage, MAIN, 2 * number + stage)
                for number, start in enumerate(starts) for stage in (0, 1)]  # fmt: skip
    work = operations(*[(start + 100 * stage + 10, start + 100 * stage + 110, stage, P)
                        for start in starts for stage in (0, 1)], demangledName=1, shortName=1)  # fmt: skip
    path = make_export(
        StringIds={"id": [1, 2], "value": ["gemm", "cudaLaunchKernel_v7000"]},
        **{KERNELS: {**work, "correlationId": list(range(6))}, CALLS: calls(*launched)},
        NVTX_EVENTS=ranges(*events),
    )
    projection = read(path).projection
    assert projection.device.tolist() == [0, 0, 0, 1, 1, 1]
    assert projection.period_ns.tolist() == [230, 230, NONE] * 2
    assert projection.between_ns.tolist() == [30, 30, NONE] * 2
    # GPU 0 is idle for 130 after each step, of which the step takes 100 on GPU 1.
    told = idle_gaps(read(path), IdleSettings()).tables["step_idle"].to_pandas()
    assert told["idle_after_ns"].fillna(NONE).tolist() == [30, 30, NONE] * 2


def test_marks_and_domains_are_no_ranges(made):
    events = [*STEPS, (10, None, MAIN, "step 5", 34), (0, None, MAIN, "my domain", 75), (0, None, MAIN, "worker", 39)]
    capture = made([(50, 60, P, 1)], [(40, 45, MAIN, 1)], events)
    assert capture.steps.texts == ["step 0", "step 1"]


def test_counters_of_emit_nvtx_are_cut_off(made):
    named = [
        (0, 100, MAIN, "ProfilerStep#0, seq = 4, op_id = 17", 59),
        (200, 300, MAIN, "ProfilerStep#1, op_id = 18", 59),
    ]
    capture = made([(50, 60, P, 1)], [(40, 45, MAIN, 1)], named)
    assert capture.steps.texts == ["ProfilerStep#0", "ProfilerStep#1"]


def test_one_matching_range_is_no_rule(made):
    capture = made([(50, 60, P, 1)], [(40, 45, MAIN, 1)], [STEPS[0]])
    assert len(capture.steps) == 0
    assert capture.phase_rule() is None
    assert [phase for phase, _ in capture.phases()] == [ALL]


def test_time_range_marks_the_steps_that_it_cuts(exporter):
    from recipes.nsight.export import export

    path = export(FIXTURES / "decode_graph.nsys-rep", exporter)
    whole = read(path)
    capture = Capture(open_export(path), Span(20_000_000, 35_000_000), RULES)
    assert len(capture.work) < len(whole.work)
    assert capture.within.tolist() == [False, True, True, True, False]
    assert capture.cut.tolist() == [False, True, False, True, False]
    assert capture.edge.tolist() == [True, True, False, True, True]
    assert counts(capture)[2] == 1042


@pytest.mark.parametrize("steps", [1, 2])
def test_layers_are_not_taken_for_steps(steps, make_export):
    # Too few steps to infer, each of 32 layers of 11 kernels and 20 kernels around them.
    one = [*range(20, 26), *(number for _ in range(32) for number in range(1, 12)), *range(30, 44)]
    names = [name for step in range(steps) for name in one]
    starts = [1000 + 6 * n + 500 * (n // len(one)) for n in range(len(names))]
    columns = kernels(*((start, start + 5, P, n) for n, start in enumerate(starts)))
    strings = {"id": list(range(1, 50)), "value": [f"kernel_{number}" for number in range(1, 50)]}
    path = make_export(StringIds=strings, **{KERNELS: {**columns, "demangledName": names, "shortName": names}})
    assert len(read(path).steps) == 0


def test_inference_keeps_its_place_behind_an_odd_operation(make_export):
    # Twenty steps of ten operations and a pause; the eighth has one operation more.
    rows, time, launch = [], 1000, 0
    for step in range(20):
        for number in range(10 + (step == 7)):
            rows.append((time, time + 5, min(number, 9) if number < 10 else 4, launch))
            time, launch = time + 6, launch + 1
        time += 500
    columns = kernels(*[(start, end, P, correlation) for start, end, _, correlation in rows])
    names = [number + 1 for *_, number, _ in rows]
    strings = {"id": list(range(1, 11)), "value": [f"kernel_{number}" for number in range(10)]}
    path = make_export(StringIds=strings, **{KERNELS: {**columns, "demangledName": names, "shortName": names}})
    capture = read(path)
    assert capture.steps.inferred
    sizes = counts(capture)
    assert sizes.count(10) >= 18
    durations = project(capture.work, capture.attribution.step, capture.steps).duration_ns
    assert durations.max() < 100
    assert capture.edge.tolist() == [size != 10 for size in sizes]


def test_an_empty_step_outside_the_time_range_is_not_in_it(made):
    # Three steps of which the last two have no work; the range ends before the third.
    named = [
        (0, 100, MAIN, "decode bs=4", 59),
        (200, 300, MAIN, "decode bs=4", 59),
        (900, 950, MAIN, "decode bs=4", 59),
    ]
    capture = made([(50, 60, P, 1)], [(40, 45, MAIN, 1)], named, Span(0, 500))
    assert capture.within.tolist() == [True, True, False]
    assert capture.phase_rule() == "inference (2 steps)"
