"""One-off events: the step that one hits stands for no other, and its time is a finding of its own."""

from __future__ import annotations

import shutil
import sqlite3

import pytest

from conftest import pack
from recipes.capture.capture import Capture
from recipes.capture.edges import REASONS
from recipes.capture.one_offs import CODE_LOADING, FIRST_COLLECTIVE, ONE_OFFS, PAUSE, OneOff
from recipes.events.gpu_work import Span
from recipes.report.report import open_export
from recipes.steps.phases import load_phase_rules
from test_gpu_work import KERNELS, P, operations
from test_steps import CALLS, MAIN, newest, ranges

RULES = load_phase_rules()
GEMM, ALL_REDUCE, LAUNCH, LOAD = 1, 2, 3, 4
NAMES = {"id": [GEMM, ALL_REDUCE, LAUNCH, LOAD],
         "value": ["gemm", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", "cudaLaunchKernel_v7000",
                   "cuLibraryLoadData"]}  # fmt: skip
PERIOD, COUNT = 1_000, 10


@pytest.fixture
def made(make_export):
    """Steps that begin `begins[n]` on the host, as ranges of 950 ns. Each launches kernels `(after, length, name)`, by
    the time after its begin: the `usual` ones unless `work` says otherwise for a step. `loads` are (start, end);
    `late` launches come just before their kernels."""

    def make(
        work=None,
        *,
        begins=None,
        loads=(),
        usual=((100, 100, GEMM), (210, 20, ALL_REDUCE)),
        texts=None,
        skip=0,
        late=False,
    ):
        begins = begins or [PERIOD * n for n in range(COUNT)]
        rows, calls = [], []
        for n, begin in enumerate(begins):
            for after, length, name in (work or {}).get(n, usual):
                rows.append((begin + after, begin + after + length, name, len(rows) + 1))
                called = begin + after - 5 if late else begin + 10 + len(calls) % 7
                calls.append((called, called + 2, MAIN, LAUNCH, len(rows)))
        calls += [(start, end, MAIN, LOAD, 10_000 + n) for n, (start, end) in enumerate(loads)]
        columns = operations(*[(start, end, 0, P) for start, end, *_ in rows])
        names = [row[2] for row in rows]
        columns |= {"demangledName": names, "shortName": names, "correlationId": [row[3] for row in rows]}
        keys = ("start", "end", "globalTid", "nameId", "correlationId")
        texts = texts or ["decode"] * len(begins)
        path = make_export(StringIds=NAMES, **{
            KERNELS: columns, CALLS: dict(zip(keys, map(list, zip(*calls, strict=True)), strict=True)),
            "NVTX_EVENTS": ranges(*((begin, begin + 950, MAIN, text, 59)
                                    for begin, text in zip(begins, texts, strict=True))),
        })  # fmt: skip
        return Capture(open_export(path), Span(), RULES, skip_steps=skip)

    return make


def reasons(capture):
    """The steps that do not count, with their reasons."""
    assert capture.edge.tolist() == [reason is not None for reason in capture.edge_reason]
    return {step: reason for step, reason in enumerate(capture.edge_reason) if reason}


def shifted(by: int, first: int, count: int = COUNT) -> list[int]:
    """Begins of steps, those from the first on later by so much."""
    return [PERIOD * n + by * (n >= first) for n in range(count)]


def test_like_steps_all_count(made):
    capture = made()
    assert (reasons(capture), capture.one_offs) == ({}, [])


def test_first_collective_that_waits_for_another_ranks_profiler(made):
    # 20 ns of all-reduce a step, 520 in the first: 500 of waiting, against steps of 130.
    capture = made({0: ((100, 100, GEMM), (210, 520, ALL_REDUCE))})
    assert reasons(capture) == {0: FIRST_COLLECTIVE}
    assert capture.one_offs == [OneOff(0, FIRST_COLLECTIVE, 210, 500)]


@pytest.mark.parametrize(
    "work",
    [
        # Nine times the usual is jitter; so is a tenth of a step, whatever it was before.
        {0: ((100, 100, GEMM), (210, 180, ALL_REDUCE))},
        {n: ((100, 1_000, GEMM), (1_110, 90 if n == 0 else 1, ALL_REDUCE)) for n in range(COUNT)},
        # A rank that is late in every third step is late for a reason of its own.
        dict.fromkeys(range(0, COUNT, 3), ((100, 100, GEMM), (210, 520, ALL_REDUCE))),
        # Not the first one: somebody waited for something else.
        {4: ((100, 100, GEMM), (210, 520, ALL_REDUCE))},
    ],
    ids=["not far", "not much", "often", "later"],
)
def test_waiting_in_a_collective_that_is_no_profiler_start(made, work):
    assert FIRST_COLLECTIVE not in reasons(made(work)).values()


def test_first_collective_is_that_of_the_window_not_of_the_phase(made):
    """Prefill comes first: what decode waits in its own first collective is not the profiler's."""
    texts = ["prefill"] * 3 + ["decode"] * 7
    long = {3: ((100, 100, GEMM), (210, 520, ALL_REDUCE))}
    assert reasons(made(long, texts=texts)) == {}
    capture = made({0: ((100, 100, GEMM), (210, 520, ALL_REDUCE))}, texts=texts)
    assert reasons(capture) == {0: FIRST_COLLECTIVE}


def test_code_loading_that_makes_a_step_longer(made):
    # The host loads code for 50 ns; the step is 80 longer than the 130 of the others.
    work = {2: ((100, 100, GEMM), (290, 20, ALL_REDUCE))}
    capture = made(work, loads=[(2_030, 2_080)])
    assert capture.one_offs == [OneOff(2, CODE_LOADING, 2_000, 50)]
    # Without effect on the GPU, and where most steps load, it tells nothing of a step.
    assert reasons(made(loads=[(2_030, 2_080)])) == {}
    everywhere = [(PERIOD * n + 30, PERIOD * n + 80) for n in range(COUNT)]
    assert reasons(made(dict.fromkeys(range(5), work[2]), loads=everywhere)) == {}


def test_two_calls_at_once_load_code_once(made):
    work = {2: ((100, 100, GEMM), (270, 20, ALL_REDUCE))}
    # 12 ns, told twice: less than a tenth of the 130 of a step.
    assert reasons(made(work, loads=[(2_030, 2_042), (2_030, 2_042)])) == {}


def test_pause_in_a_step(made):
    # The usual gap is 10 ns, here 310: 300 more, where a step takes 130.
    capture = made({6: ((100, 100, GEMM), (510, 20, ALL_REDUCE))})
    assert reasons(capture) == {6: PAUSE}
    assert capture.one_offs == [OneOff(6, PAUSE, 6_200, 300)]


def test_pause_behind_a_step(made):
    # From the end of step 3 to step 4 there are 870 ns like everywhere, and 2,000 more.
    capture = made(begins=shifted(2_000, 4))
    assert capture.one_offs == [OneOff(3, PAUSE, 3_230, 2_000)]


@pytest.mark.parametrize(
    "work",
    [
        # Longer work is no pause; two of ten steps are how the program runs; half a step more is variance.
        {6: ((100, 400, GEMM), (510, 20, ALL_REDUCE))},
        dict.fromkeys((2, 6), ((100, 100, GEMM), (510, 20, ALL_REDUCE))),
        {6: ((100, 100, GEMM), (270, 20, ALL_REDUCE))},
    ],
    ids=["work", "twice", "short"],
)
def test_what_is_no_pause(made, work):
    assert reasons(made(work)) == {}


def test_steps_that_vary_have_no_pauses(made):
    """Gaps of 10, 70, 130 ... 550: the last is the longest, and no surprise."""
    work = {n: ((100, 100, GEMM), (210 + 60 * n, 20, ALL_REDUCE)) for n in range(COUNT)}
    assert reasons(made(work)) == {}


def test_few_steps_tell_no_event(made):
    work = {0: ((100, 100, GEMM), (210, 520, ALL_REDUCE))}
    assert reasons(made(work, begins=[0, 1_000])) == {}
    pause = {1: ((100, 100, GEMM), (510, 20, ALL_REDUCE))}
    assert reasons(made(pause, begins=shifted(0, 0, 4))) == {}
    assert reasons(made(pause, begins=shifted(0, 0, 5))) == {1: PAUSE}


def test_skipped_steps_are_the_first_of_each_process(made):
    capture = made({0: ((100, 100, GEMM), (210, 520, ALL_REDUCE))}, skip=2)
    assert reasons(capture) == dict.fromkeys((0, 1), "--skip-steps")
    assert capture.one_offs == []
    sizes = {phase: len(range(len(capture.work))[rows]) if isinstance(rows, slice) else int(rows.sum())
             for phase, rows in capture.phases()}  # fmt: skip
    assert sizes == {"all": 20, "decode": 16, "outside": 4}


def test_all_recipes_give_the_same_reasons(made, tmp_path):
    made({0: ((100, 100, GEMM), (210, 520, ALL_REDUCE)), 6: ((100, 100, GEMM), (510, 20, ALL_REDUCE))})
    expected = [FIRST_COLLECTIVE, *[None] * 5, PAUSE, *[None] * 3]
    for recipe, table in (("llm_decode_floor", "steps"), ("llm_idle_gaps", "step_idle"),
                          ("llm_nccl_sum", "step_communication"), ("llm_capture_check", "step_times")):  # fmt: skip
        rows, _ = outcome(tmp_path / recipe, recipe, table, tmp_path / "made.sqlite")
        assert [row["edge_reason"] for row in rows] == expected
        assert [row["edge"] for row in rows] == [reason is not None for reason in expected]


def outcome(folder, recipe, table, *arguments):
    """Rows of a table, and what is printed."""
    import pyarrow.parquet as pq

    done = pack("run", recipe, "--input", *arguments, "--output", folder)
    assert done.returncode == 0, done.stderr
    return pq.read_table(folder / f"{table}.parquet").to_pylist(), done.stdout


@pytest.fixture
def late_pair(sqlite_of, tmp_path):
    """The healthy pair of tp_graph, as if the profiler of rank 1 had started 60 ms after that of rank 0."""
    paths = [shutil.copy(sqlite_of(newest(f"tp_graph_rank{rank}")), tmp_path / f"pair_rank{rank}.sqlite")
             for rank in (0, 1)]  # fmt: skip
    with sqlite3.connect(paths[0]) as db:
        ((first, ),) = db.execute(f"SELECT min(k.start) FROM {KERNELS} k JOIN StringIds s ON s.id = k.demangledName "
                                  "WHERE s.value LIKE 'nccl%'").fetchall()  # fmt: skip
        for table in (KERNELS, CALLS, "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET", "NVTX_EVENTS",
                      "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "PROFILER_OVERHEAD"):  # fmt: skip
            if db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", [table]).fetchall():
                # Ends first: where begins are moved, they no longer tell what they were.
                db.execute(f"UPDATE {table} SET end = end + 60000000 WHERE end > {first}")
                db.execute(f"UPDATE {table} SET start = start + 60000000 WHERE start > {first}")
    db.close()
    return paths


def test_healthy_pair_whose_profilers_start_apart(late_pair, tmp_path):
    rows, said = outcome(tmp_path / "out", "llm_nccl_sum", "step_communication", *late_pair)
    edges = {(row["rank"], row["step"]): row["edge_reason"] for row in rows if row["edge"]}
    assert edges == {(0, 0): FIRST_COLLECTIVE}
    whole = [row for row in rows if not row["edge"] and row["step"] is not None]
    share = sum(row["exposed_ns"] for row in whole) / sum(row["duration_ns"] for row in whole)
    assert f"{share * 100:.1f} % of the steps" in said.splitlines()[0]
    assert share < 0.2
    assert "too high" not in said


def idle_findings(folder, path):
    done = pack("run", "llm_idle_gaps", "--input", path, "--output", folder, "--min-gap", "1ns")
    assert done.returncode == 0, done.stderr
    return done.stdout.split("largest gaps")[1]


GAPS = tuple((100 + 20 * n, 10, GEMM) for n in range(20))


def test_many_gaps_between_launches_are_what_graphs_take_away(made, tmp_path):
    made(dict.fromkeys(range(COUNT), GAPS), late=True)
    said = idle_findings(tmp_path / "out", tmp_path / "made.sqlite")
    # 19 gaps a step: of each 5 ns pass before the launch, and 2 in it.
    assert "with graphs on, at most these 133 ns per decode step could be recovered" in said
    assert "One gap holds" not in said


def test_one_gap_a_step_leads_and_graphs_do_not(made, tmp_path):
    """Half of the kernels come 400 ns later: 400 + 10 of 590 ns idle are one gap."""
    work = tuple((after + 400 * (after >= 300), length, name) for after, length, name in GAPS)
    made(dict.fromkeys(range(COUNT), work), late=True)
    said = idle_findings(tmp_path / "out", tmp_path / "made.sqlite")
    assert "One gap holds 410 ns of the 590 ns idle per decode step (medians): host, in no CUDA call" in said
    assert "with graphs on" not in said


def test_busy_gpu_gains_nothing_from_graphs(made, tmp_path):
    made(dict.fromkeys(range(COUNT), tuple((100 + 20 * n, 19, GEMM) for n in range(20))), late=True)
    # 19 of 399 ns idle.
    assert "with graphs on" not in idle_findings(tmp_path / "out", tmp_path / "made.sqlite")


def test_one_off_is_a_finding_of_its_own_and_recovers_nothing(made, tmp_path):
    made({0: ((100, 100, GEMM), (210, 520, ALL_REDUCE))})
    rows, _ = outcome(tmp_path / "check", "llm_capture_check", "findings", tmp_path / "made.sqlite")
    told = [row for row in rows if row["check"] == "one_off"]
    assert [(row["severity"], row["recoverable_ns"]) for row in told] == [("info", None)]
    assert told[0]["message"].startswith("step 0 waited 500 ns in its first collective: another rank's profiler")
    assert not [row for row in rows if row["check"] == "steps_cut" and row["observed"]]
    done = pack("run", "llm_idle_gaps", "--input", tmp_path / "made.sqlite", "--output", tmp_path / "idle")
    # 10 of 130 ns, whatever the first step is, which is 500 ns longer.
    assert "; whole decode steps 7.7 % (median)" in done.stdout.splitlines()[0]
    assert "left out of everything here: step 0 (first collective) by 500 ns" in done.stdout


def test_operator_ranges_are_named(make_export, tmp_path):
    """Ten steps of 20 operators with a launch each; without operators the same says nothing."""
    for operators, expected in ((True, ["200 ranges of PyTorch operators for 200 launch calls"]), (False, [])):
        rows = [(begin, begin + 950, MAIN, "decode", 59) for begin in range(0, 10_000, PERIOD)]
        starts = [begin + 40 * n for begin in range(0, 10_000, PERIOD) for n in range(20)]
        if operators:
            rows += [(start, start + 20, MAIN, f"aten::mm, seq = {n}, op_id = 7", 59) for n, start in enumerate(starts)]
        columns = operations(*[(start + 10, start + 15, 0, P) for start in starts], demangledName=1, shortName=1)
        ids = list(range(1, 201))
        make_export(StringIds=NAMES, **{
            KERNELS: {**columns, "correlationId": ids}, "NVTX_EVENTS": ranges(*rows),
            CALLS: {"start": [start + 2 for start in starts], "end": [start + 4 for start in starts],
                    "globalTid": [MAIN] * 200, "nameId": [LAUNCH] * 200, "correlationId": ids},
        })  # fmt: skip
        found, _ = outcome(tmp_path / str(operators), "llm_capture_check", "findings", tmp_path / "made.sqlite")
        assert [row["evidence"] for row in found if row["check"] == "operator_ranges"] == expected


def test_reasons_are_distinct():
    assert len(set(REASONS)) == len(REASONS)
    assert set(ONE_OFFS) < set(REASONS)
