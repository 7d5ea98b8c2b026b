"""llm_capture_check: each broken capture is named as what it is, each good one passes, and each check by hand."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import FIXTURES, REPORTS, nsight, pack
from llm_capture_check.analysis import Settings, analyse
from llm_capture_check.report_set import combine
from recipes.base.tables import FILES
from recipes.capture.capture import Capture
from recipes.engines.engines import engines
from recipes.events.gpu_work import Span
from recipes.findings.diagnostics import judged
from recipes.findings.finding import SEVERITIES
from recipes.findings.remedies import remedy
from recipes.findings.unsteady import _change
from recipes.report.report import open_export
from recipes.steps.phases import load_phase_rules
from test_gpu_work import KERNELS, P, Q

RULES = load_phase_rules()
RUNTIME, GRAPH_LAUNCH = "CUPTI_ACTIVITY_KIND_RUNTIME", "cudaGraphLaunch_v10000"
#: What is wrong with the bundled reports that are not as they should be: checks of severity warn and error. All
#: others have none.
BROKEN = {
    "broken_no_cuda": {"cuda_not_traced"},
    "broken_parent_only": {"processes"},
    "broken_stop_inside": {"window_end"},
    "broken_ddp": {"no_records"},
    "broken_decode_graph_whole": {"no_records"},
    "broken_serving_trtllm": {"library_ranges"},
    "broken_startup": {"records_stop", "startup"},
    "startup": {"startup", "steps_share"},
    "decode_graph_whole": {"opaque_graphs"},
    "decode_no_nvtx": {"no_nvtx"},
}
#: 2023.4.4 does not say which GPU a process's device 0 is.
BROKEN_2023 = {"own_gpu": {"device_identity"}}


def analysed(path: Path, *, span: Span = Span(), step_time_ns: float | None = None):
    """The tables of an export, as lists of rows."""
    tables, *_ = analyse(Capture(open_export(path), span, RULES), Settings(step_time_ns))
    return {name: table.to_pylist() for name, table in tables.items()}


def found(path: Path, **options) -> dict[str, dict]:
    """What was found in an export, by check."""
    return {row["check"]: row for row in analysed(path, **options)["findings"] if row["observed"]}


def case(report: Path) -> str:
    return f"{report.parent.name}-{report.stem}"


@pytest.mark.parametrize("report", REPORTS, ids=case)
def test_bundled_reports_are_named_as_what_they_are(report, sqlite_of):
    tables = analysed(sqlite_of(report))
    bad = {row["check"] for row in tables["findings"] if row["severity"] != "info"}
    known = {**BROKEN, **(BROKEN_2023 if report.parent.name == "2023.4.4" else {})}
    assert bad == known.get(report.stem, set())
    for row in tables["findings"]:
        assert row["message"] and ((row["evidence"] and row["remedy"]) or not row["observed"]), row
    levels = [SEVERITIES.index(row["severity"]) for row in tables["findings"]]
    assert levels == sorted(levels, reverse=True)


@pytest.mark.parametrize("report", REPORTS, ids=case)
def test_inventory_as_plain_code_counts_it(report, sqlite_of):
    path = sqlite_of(report)
    tables = analysed(path)
    (capture,) = tables["captures"]
    with closing(sqlite3.connect(path)) as db:
        names = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}

        def rows(table, columns):
            return db.execute(f"SELECT {columns} FROM {table}").fetchall() if table in names else []

        work = [row for kind in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")
                for row in rows(f"CUPTI_ACTIVITY_KIND_{kind}", "globalPid, correlationId, start, end")]  # fmt: skip
        strings = dict(rows("StringIds", "id, value"))
        calls = [
            (tid >> 24 & 0xFFFFFF, correlation, start, tid, strings[name])
            for tid, correlation, start, name in rows(RUNTIME, "globalTid, correlationId, start, nameId")
        ]
    recorded = {(pid >> 24 & 0xFFFFFF, correlation) for pid, correlation, *_ in work}
    launching = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch", "cudaLaunchKernelExC", "cuLaunchKernelEx")
    launches = [call for call in calls if call[4].split("_v")[0] in launching]
    captures = [(call[2], call[3]) for call in calls if "StreamBeginCapture" in call[4]]
    ends = [(call[2], call[3]) for call in calls if "StreamEndCapture" in call[4]]
    lost = [call for call in launches if call[:2] not in recorded]
    pairs = [(begin, end, tid) for (begin, tid), (end, _) in zip(captures, ends, strict=True)]
    lost = [call for call in lost if not any(b <= call[2] < e for b, e, tid in pairs if tid == call[3])]
    assert capture["operations"] == len(work)
    assert capture["recorded_launches"] == sum(call[:2] in recorded for call in launches)
    assert capture["launches"] == capture["recorded_launches"] + len(lost)
    if work:
        assert capture["window_ns"] == max(row[3] for row in work) - min(row[2] for row in work)
    counts = Counter(pid >> 24 & 0xFFFFFF for pid, *_ in work)
    assert {row["pid"]: row["operations"] for row in tables["processes"] if row["operations"]} == dict(counts)
    assert sum(row["launches"] for row in tables["records"]) == capture["launches"]
    assert sum(row["recorded_launches"] for row in tables["records"]) == capture["recorded_launches"]
    assert sum(row["operations"] for row in tables["records"]) == capture["operations"]
    assert capture["whole_steps"] <= capture["steps"]
    assert capture["working_processes"] <= capture["cuda_processes"]


# Reports made by hand: steps are ranges `decode bs=4` of 1,000 ns, each with launches on one thread.


def made(make_export, steps, name="made.sqlite", **more):
    """An export of steps, each a list of kernels (start after the launch, length, name or None for no record)."""
    strings = ["cudaLaunchKernel_v7000", "decode bs=4", *dict.fromkeys(k[2] for step in steps for k in step if k[2])]
    ids = {text: number for number, text in enumerate(strings, 1)}
    kernels, calls, ranges = [], [], []
    clock, correlation = 1000, 0
    for step in steps:
        begin = clock
        for after, length, kernel in step:
            correlation += 1
            calls.append((clock, clock + 10, P + 1, correlation, 1))
            if kernel:
                kernels.append((clock + after, clock + after + length, 0, P, correlation, ids[kernel], ids[kernel]))
            clock += after + length + 20
        ranges.append((begin, clock, P + 1, 59, 2))
        clock += 50
    # The host waits for the GPU at last.
    calls.append((clock, clock + 10, P + 1, correlation + 1, 1 + len(strings)))
    columns = {
        KERNELS: ("start end deviceId globalPid correlationId demangledName shortName", kernels),
        RUNTIME: ("start end globalTid correlationId nameId", calls),
        "NVTX_EVENTS": ("start end globalTid eventType textId", ranges),
    }
    tables = {
        table: dict(zip(names.split(), map(list, zip(*rows, strict=True)), strict=True))
        for table, (names, rows) in columns.items() if rows
    }  # fmt: skip
    strings.append("cudaDeviceSynchronize_v3020")
    tables["StringIds"] = {"id": list(range(1, len(strings) + 1)), "value": strings}
    return make_export(name, **{**tables, **more})


def steady(count, length=1000, kernels=2):
    return [[(30, length // kernels, "gemm")] * kernels for _ in range(count)]


def test_steady_steps_have_no_finding(make_export):
    assert found(made(make_export, steady(12))) == {}


def test_few_steps_are_told(make_export):
    few, none = found(made(make_export, steady(9))), found(made(make_export, steady(2)))
    assert (few["steps_few"]["severity"], few["steps_few"]["evidence"]) == ("info", "9 whole steps")
    assert (none["steps_few"]["severity"], none["steps_few"]["evidence"]) == ("warn", "2 whole steps")


def test_records_that_stop_are_told_with_the_moment(make_export):
    # 20 steps of two launches; from the fifteenth on no kernel has a record.
    steps = [*steady(14), *([[(30, 500, None)] * 2] * 6)]
    row = found(made(make_export, steps))["records_stop"]
    assert row["message"] == "GPU records of process 100 stop while launches go on: none for the last 12"
    # A step takes 2 x (30 + 500 + 20) + 50 = 1,150 ns; the last launch with a record is the second of the fourteenth.
    assert f"{1000 + 13 * 1150 + 550:,} ns" in row["evidence"]
    assert "of 40 launches" in row["evidence"]


def test_records_lost_in_between_are_counted(make_export):
    steps = steady(14)
    steps[5] = [(30, 500, "gemm"), (30, 500, None)]
    row = found(made(make_export, steps))["lost_records"]
    assert row["evidence"] == "1 of 28 launches (3.6 %) of process 100"


def test_launches_into_a_graph_under_capture_are_not_lost(make_export):
    steps = steady(12)
    path = made(make_export, steps)
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO StringIds VALUES (90, 'cudaStreamBeginCapture'), (91, 'cudaStreamEndCapture_v1')")
        for start, correlation, name in ((100, 800, 90), (200, 801, 1), (300, 802, 1), (400, 803, 91)):
            db.execute(f"INSERT INTO {RUNTIME} VALUES ({start}, {start + 10}, {P + 1}, {correlation}, {name})")
        db.execute("INSERT INTO StringIds VALUES (92, 'layer 0')")
        db.execute(f"INSERT INTO NVTX_EVENTS VALUES (150, 350, {P + 1}, 59, 92)")
    db.close()
    assert set(found(path)) == {"capture_ranges"}
    row = found(path)["capture_ranges"]
    assert (row["severity"], row["evidence"]) == ("info", "`layer 0`")


def changed(path: Path, *statements: str) -> dict[str, dict]:
    """What is found in an export after SQL statements."""
    with sqlite3.connect(path) as db:
        for statement in statements:
            db.execute(statement)
    db.close()
    return found(path)


def test_records_and_launches_that_do_not_fit_are_told(make_export):
    def whole(name: str) -> Path:
        return made(make_export, steady(12), name=f"{name}.sqlite")

    # 12 steps of two launches with a kernel each.
    rows = changed(whole("twice"), f"INSERT INTO {KERNELS} SELECT * FROM {KERNELS} WHERE correlationId <= 6")
    assert rows["doubled_records"]["evidence"] == "6 of 30 kernel records (20.0 %)"
    assert "reused_ids" not in rows
    rows = changed(whole("reused"), f"UPDATE {KERNELS} SET correlationId = 5 WHERE correlationId = 6")
    assert rows["reused_ids"]["evidence"] == "2 of 24 kernels (8.3 %)"
    rows = changed(whole("rows"), f"DELETE FROM {RUNTIME} WHERE correlationId IN (7, 8, 9)")
    assert rows["missing_launches"]["evidence"] == "3 of 24 operations (12.5 %)"
    # The kernel begins 30 ns after the begin of its launch: shifted by 5,030 ns it is 5,000 ns ahead.
    shift = f"UPDATE {KERNELS} SET start = start - 5030, end = end - 5030 WHERE correlationId = 20"
    assert changed(whole("early"), shift)["work_before_launch"]["evidence"] == (
        "1 of 24 operations (4.2 %), by up to 5.00 us"
    )


def test_copy_calls_without_records_are_told(make_export):
    def copies(lost: int) -> Path:
        path = made(make_export, steady(12), name=f"{lost}.sqlite")
        calls = ", ".join(f"({1100 + n}, {1110 + n}, {P + 1}, {8000 + n}, 90)" for n in range(lost))
        with sqlite3.connect(path) as db:
            db.execute("INSERT INTO StringIds VALUES (90, 'cudaMemcpyAsync_v3020')")
            db.execute(f"INSERT INTO {RUNTIME} VALUES {calls}")
        db.close()
        return path

    assert found(copies(4))["lost_copies"]["evidence"] == "4 of 4 calls (100.0 %)"
    assert "lost_copies" not in found(copies(2))


def replayed(make_export, nodes: list[int], name: str) -> Path:
    """An export of graph launches, each with so many nodes of graph 3."""
    strings = {"id": [1, 2], "value": [GRAPH_LAUNCH, "gemm"]}
    rows = [
        (1000 * n + 10 * node + 50, n + 1, (3 << 32) + node) for n, count in enumerate(nodes) for node in range(count)
    ]
    work = {"start": [row[0] for row in rows], "end": [row[0] + 5 for row in rows], "deviceId": [0] * len(rows),
            "globalPid": [P] * len(rows), "correlationId": [row[1] for row in rows], "demangledName": [2] * len(rows),
            "shortName": [2] * len(rows), "graphNodeId": [row[2] for row in rows]}  # fmt: skip
    begins = [1000 * n for n in range(len(nodes))]
    calls = {"start": begins, "end": [begin + 20 for begin in begins], "globalTid": [P + 1] * len(nodes),
             "correlationId": [n + 1 for n in range(len(nodes))], "nameId": [1] * len(nodes)}  # fmt: skip
    return make_export(name, **{KERNELS: work, RUNTIME: calls, "StringIds": strings})


def test_replays_with_fewer_nodes_are_told_but_not_at_the_edges(make_export):
    # Of the eight inner replays one has 4 of 6 nodes and one 5; the first and the last are cut by the window.
    row = found(replayed(make_export, [2, 6, 6, 4, 6, 6, 5, 6, 6, 1], "short.sqlite"))["short_replays"]
    assert row["evidence"] == "2 of 8 replays (25.0 %), 3 nodes in all"
    assert "short_replays" not in found(replayed(make_export, [2, *[6] * 8, 1], "cut.sqlite"))


def test_steps_with_part_of_their_operations_are_told(make_export):
    steps = steady(12, kernels=10)
    steps[4] = steps[4][:6]
    row = found(made(make_export, steps))["steps_partial"]
    assert row["evidence"] == "1 step, of 10 operations as few as 6"
    # Where steps have all kinds of sizes, none is in part there.
    uneven = [[(30, 100, "gemm")] * (4 + n % 3 * 3) for n in range(12)]
    assert "steps_partial" not in found(made(make_export, uneven, name="uneven.sqlite"))


def test_window_that_begins_on_a_busy_gpu_is_told(make_export):
    path = made(make_export, steady(12))
    with sqlite3.connect(path) as db:
        # Launched before the window: work without a call.
        db.execute(f"INSERT INTO {KERNELS} VALUES (900, 990, 0, {P}, 7000, 3, 3)")
    db.close()
    assert found(path)["window_begin"]["evidence"] == "1 operation before the first launch"


def test_page_migrations_are_no_work_from_before_the_window(make_export):
    copies = {"start": [400, 600, 5000], "end": [500, 700, 5100], "deviceId": [0] * 3, "globalPid": [P] * 3,
              "copyKind": [12, 11, 12], "correlationId": [None] * 3}  # fmt: skip
    rows = found(made(make_export, steady(12), CUPTI_ACTIVITY_KIND_MEMCPY=copies))
    assert set(rows) == {"page_migrations"}
    assert rows["page_migrations"]["evidence"] == "3 page migrations (DtoH 2, HtoD 1), 300 ns in all"


def test_window_that_ends_on_a_busy_gpu_is_told(make_export):
    path = made(make_export, steady(12))
    with sqlite3.connect(path) as db:
        ((last,),) = db.execute(f"SELECT max(end) FROM {RUNTIME}")
        db.execute(f"UPDATE {KERNELS} SET end = {last + 70} WHERE correlationId = 24")
    db.close()
    row = found(path)["window_end"]
    assert row["evidence"] == "the last operation ends 70 ns after the last CUDA call of process 100"
    # All of the step's work is there.
    assert row["severity"] == "info"


def test_start_up_is_told_with_what_it_consists_of(make_export):
    steps = steady(12)
    path = made(make_export, steps)
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO StringIds VALUES (90, 'cuLibraryLoadData'), (91, 'cudaMalloc_v3020'), (92, 'init')")
        for start, correlation, name in ((10, 800, 90), (300, 801, 91)):
            db.execute(f"INSERT INTO {RUNTIME} VALUES ({start}, {start + 200}, {P + 1}, {correlation}, {name})")
        db.execute(f"INSERT INTO {RUNTIME} VALUES (550, 560, {P + 1}, 802, 1)")
        db.execute(f"INSERT INTO {KERNELS} VALUES (600, 2900, 0, {P}, 802, 92, 92)")
        db.execute(f"UPDATE {KERNELS} SET start = start + 2000, end = end + 2000 WHERE correlationId != 802")
        for table in (RUNTIME, "NVTX_EVENTS"):
            db.execute(f"UPDATE {table} SET start = start + 2000, end = end + 2000 WHERE start >= 1000")
    db.close()
    evidence = found(path)["startup"]["evidence"]
    assert "loading code 200 ns (1 call), allocating and freeing 200 ns (1 call)" in evidence
    # 2,300 ns of 2,300 + 12 x 1,000.
    assert "1 kernel that run only before the first step 2.30 us" in evidence
    # What it advises removes it.
    assert evidence.endswith("--filter-time 3000/")
    rows = analysed(path, span=Span(3000, None))
    assert [row["check"] for row in rows["findings"] if row["observed"]] == []
    (capture,) = rows["captures"]
    assert (capture["launches"], capture["recorded_launches"], capture["operations"]) == (24, 24, 24)
    assert [row["operations"] for row in rows["processes"]] == [24]


def test_prefill_before_the_steps_is_no_start_up(make_export):
    path = made(make_export, steady(12))
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO StringIds VALUES (90, 'prefill_attention')")
        db.execute(f"INSERT INTO {RUNTIME} VALUES (100, 110, {P + 1}, 800, 1)")
        db.execute(f"INSERT INTO {KERNELS} VALUES (200, 2500, 0, {P}, 800, 90, 90)")
        db.execute(f"UPDATE {KERNELS} SET start = start + 2000, end = end + 2000 WHERE correlationId != 800")
        for table in (RUNTIME, "NVTX_EVENTS"):
            db.execute(f"UPDATE {table} SET start = start + 2000, end = end + 2000 WHERE start >= 1000")
    db.close()
    row = found(path)["startup"]
    assert (row["severity"], row["message"]) == (
        "info",
        "work before the first step: a prefill that is no step, or warm-up",
    )
    # 2,300 ns of 2,300 + 12 x 1,000.
    assert row["evidence"] == "1 kernel that run only before the first step 2.30 us"


def test_second_process_that_still_starts_is_start_up(make_export):
    path = made(make_export, steady(12))
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO StringIds VALUES (90, 'cuLibraryLoadData')")
        # Another process loads code in the fifth step of 1,150 ns and launches at the end.
        db.execute(f"INSERT INTO {RUNTIME} VALUES (6000, 9000, {Q + 1}, 1, 90), (14000, 14010, {Q + 1}, 2, 1)")
        db.execute(f"INSERT INTO {KERNELS} VALUES (14100, 14200, 1, {Q}, 2, 3, 3)")
    db.close()
    rows = found(path)
    assert "loading code 3.00 us (1 call)" in rows["startup"]["evidence"]
    assert "; process 200 still starts while steps of others run" in rows["startup"]["evidence"]
    # The first step of 1,150 ns after 9,000 ns: steps begin at 1,000, then every 1,150 ns, the eighth at 9,050.
    assert rows["startup"]["evidence"].endswith("--filter-time 9050/")
    assert "setup_in_steps" not in rows
    # The same process itself does that while its steps run.
    same = made(make_export, steady(12), name="same.sqlite")
    with sqlite3.connect(same) as db:
        db.execute("INSERT INTO StringIds VALUES (90, 'cuLibraryLoadData')")
        db.execute(f"INSERT INTO {RUNTIME} VALUES (6000, 9000, {P + 1}, 900, 90)")
    db.close()
    assert {"setup_in_steps"} == set(found(same))


@pytest.mark.parametrize(
    ("lengths", "kind", "figures"),
    [
        ([1000, 1010, 990] * 4, "", ""),
        # Thirds: 1000 1010 1020 1030 and 1080 1090 1100 1110, medians 1015 and 1095 of 1055.
        ([1000 + 10 * n for n in range(12)], "drift", "1.01 us at the beginning, 1.09 us at the end (+8%), 12 steps"),
        ([1000, 1500] * 6, "two modes", "around 1.00 us and 1.50 us, 50% in the smaller group, 12 steps"),
        # One odd step in a hundred hides nothing.
        ([1000, 1500] * 50 + [10000], "two modes", "around 1.00 us and 1.50 us, 48% in the smaller group, 101 steps"),
        ([1000] * 20, "", ""),
        # One slow step is neither.
        ([1000] * 11 + [3000], "", ""),
        # An even spread is no two modes: it explains three quarters.
        ([1000, 1300, 1100, 1400, 1200, 1050, 1350, 1150, 1450, 1250], "", ""),
    ],
)
def test_changes_of_steps(lengths, kind, figures):
    said, _, evidence = _change(np.array(lengths))
    assert (said, evidence) == (kind, figures)


def test_clock_change_is_told_by_kernels_of_all_kinds(make_export):
    def steps(gemm: list[int], other: list[int]) -> list:
        pairs = zip(gemm * 6, other * 6, strict=True)
        return [[(30, a, "ampere_sgemm_128x64_nn"), (30, b, "elementwise_kernel")] for a, b in sorted(pairs)]

    rows = found(made(make_export, steps([800, 1000], [200, 250])))
    assert set(rows) == {"clock"}
    assert "GEMMs of decode at batch 4 steps two modes" in rows["clock"]["message"]
    assert rows["clock"]["evidence"].startswith("around 800 ns and 1.00 us, 50% in the smaller group, 12 steps")
    # Where one kind of kernel alone changes, that is not the clock: neither GEMMs nor others.
    assert set(found(made(make_export, steps([800, 1000], [200, 200]), name="gemms.sqlite"))) == {"unsteady"}
    assert set(found(made(make_export, steps([200, 200], [800, 1000]), name="others.sqlite"))) == {"unsteady"}


def test_slower_first_step_is_told(make_export):
    steps = steady(12)
    steps[0] = [(30, 2000, "gemm")] * 2
    # The first takes 2 x 2,000 + 50, the others 2 x 500 + 50.
    assert found(made(make_export, steps))["first_steps"]["evidence"] == (
        "4.05 us against 1.05 us, the median of 11 later ones"
    )


@pytest.mark.parametrize(
    ("step_time_ns", "severity", "ratio"), [(575, "warn", "2.00"), (1150, "info", "1.00"), (2300, "warn", "0.50")]
)
def test_step_time_without_the_profiler_is_compared(make_export, step_time_ns, severity, ratio):
    row = found(made(make_export, steady(12)), step_time_ns=step_time_ns)["slowdown"]
    assert row["severity"] == severity
    assert f"steps take {ratio} times" in row["message"]


def test_chance_is_no_change():
    """Of 1,000 groups of twelve steps with 10 % noise few are told; a drift of 15 % over twenty or more is."""
    random = np.random.default_rng(7)
    noise = random.normal(1e6, 1e5, (1000, 12))
    assert sum(bool(_change(row)[0]) for row in noise) <= 10
    for steps in (20, 50, 200):
        slower = random.normal(1e6, 2e4, (20, steps)) * np.linspace(1, 1.15, steps)
        assert all(_change(row)[0] == "drift" for row in slower)


def test_prompts_of_other_lengths_are_no_clock_change(make_export):
    steps = [[(30, length, "ampere_sgemm_128x64_nn")] for length in [800, 1600] * 6]
    path = made(make_export, steps)
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO StringIds VALUES (80, 'prefill bs=1 tokens=512'), (81, 'prefill bs=1 tokens=1024')")
        rows = db.execute("SELECT rowid FROM NVTX_EVENTS ORDER BY start").fetchall()
        for place, (row,) in enumerate(rows):
            db.execute(f"UPDATE NVTX_EVENTS SET textId = {80 + place % 2} WHERE rowid = {row}")
    db.close()
    assert not {"clock", "unsteady", "first_steps"} & set(found(path))


def test_process_that_was_not_followed_is_named(make_export):
    strings = {"id": [1, 2, 3, 90, 91, 92], "value": ["x", "y", "gemm", "cuda-EvtHandlr", "[NSys]", "CUPTI worker th"]}
    threads = {
        "nameId": [90, 91, 90, 90, 91, 92],
        # 200 began while 100 began threads: it has the first id of a process and its last one.
        "globalTid": [P + 101, P + 201, Q + 202, *[(300 << 24) + n for n in range(3)]],
    }
    processes = {"globalPid": [P, Q, 300 << 24], "pid": [100, 200, 300], "name": ["python", "python3.11", "rank 1"]}
    kernels = {"start": [10], "end": [20], "deviceId": [0], "globalPid": [P], "correlationId": [1],
               "demangledName": [3], "shortName": [3]}  # fmt: skip
    tables = {KERNELS: kernels, "ThreadNames": threads, "PROCESSES": processes, "StringIds": strings}
    row = found(make_export(**tables))["processes"]
    # 300 is traced by another Nsight, as the other ranks of a job are.
    assert row["message"] == "GPU work of 1 of 2 CUDA processes only"
    assert row["evidence"].startswith("process 200 (python3.11) not traced, as happens to processes forked")
    assert row["severity"] == "warn"
    other = {**tables, "PROCESSES": {**processes, "name": ["python", "someone_else", "rank 1"]}}
    assert found(make_export(**other))["processes"]["severity"] == "info"
    # A higher id alone is somebody else's python.
    later = {**tables, "ThreadNames": {**threads, "globalTid": [P + 101, P + 199, *threads["globalTid"][2:]]}}
    row = found(make_export(**later))["processes"]
    assert (row["severity"], row["evidence"]) == ("info", "process 200 (python3.11), maybe another job")
    mps = {**tables, "PROCESSES": {**processes, "name": ["python", "nvidia-cuda-mps-server", "rank 1"]}}
    assert "processes" not in found(make_export(**mps))
    of_one_rank = {"name": ["Hostname", "DeviceEnvironment"], "value": ["node1", "RANK=3;"]}
    assert found(make_export(**tables, TARGET_INFO_SYSTEM_ENV=of_one_rank))["processes"]["severity"] == "info"


#: What tells the processes apart: names of threads, of which the last is the driver's in a process with a context.
THREADS = {90: "[NSys]", 91: "CUPTI worker thread", 92: "cuda-EvtHandlr"}


def with_processes(path: Path, **names: tuple[str, list[int]]) -> Path:
    """An export with processes of such names and threads, `pid_100=(name, [ids of THREADS])`."""
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE ThreadNames (nameId, globalTid)")
        db.execute("CREATE TABLE PROCESSES (globalPid, pid, name)")
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", [*THREADS.items(), (93, "proof_test")])
        for key, (name, threads) in names.items():
            pid = int(key.removeprefix("pid_"))
            db.execute("INSERT INTO PROCESSES VALUES (?, ?, ?)", (pid << 24, pid, name))
            rows = [(93, (pid << 24) + pid), *((thread, (pid << 24) + pid + thread) for thread in threads)]
            db.executemany("INSERT INTO ThreadNames VALUES (?, ?)", rows)
    db.close()
    return path


def test_engine_is_not_that_of_somebody_else(make_export):
    path = with_processes(made(make_export, steady(12)), pid_100=("python", [90, 91, 92]), pid_9=("VLLM::Worker", [92]))
    assert analysed(path)["captures"][0]["engine"] is None
    own = made(make_export, steady(12), name="own.sqlite")
    own = with_processes(own, pid_100=("VLLM::Worker", [90, 91, 92]), pid_9=("sglang::schedul", [92]))
    assert analysed(own)["captures"][0]["engine"] == "vllm"


def test_process_that_worked_is_there_whatever_its_name(make_export):
    # Nsight 2020 to 2022 give the name before exec.
    path = with_processes(made(make_export, steady(12)), pid_100=("nsys-launcher", [90, 91, 92]))
    tables = analysed(path)
    assert [(row["pid"], row["name"], row["operations"]) for row in tables["processes"]] == [(100, "proof_test", 24)]
    assert tables["captures"][0]["working_processes"] == 1


def test_launcher_without_launches_is_no_fault_and_lost_work_is(make_export):
    names = {"pid_100": ("python", [90, 91, 92]), "pid_50": ("pt_elastic", [90, 92])}
    path = with_processes(made(make_export, steady(12)), **names)
    row = found(path)["idle_processes"]
    assert (row["severity"], row["evidence"]) == ("info", "process 50 (pt_elastic)")
    with sqlite3.connect(path) as db:
        rows = [(1100 + n, 1110 + n, (50 << 24) + 50, 9000 + n, 1) for n in range(3)]
        db.executemany(f"INSERT INTO {RUNTIME} VALUES (?, ?, ?, ?, ?)", rows)
    db.close()
    row = found(path)["idle_processes"]
    assert (row["severity"], row["evidence"]) == ("warn", "process 50 (pt_elastic): 3 launches")


def test_contexts_without_work_are_named(make_export):
    contexts = {"processId": [100, 100, 200], "deviceId": [0, 1, 1]}
    row = found(made(make_export, steady(12), TARGET_INFO_CUDA_CONTEXT_INFO=contexts))["contexts"]
    assert (row["severity"], row["evidence"]) == ("info", "process 100 on device 1")


@pytest.mark.parametrize(
    ("command", "where"),
    [(["python3", "-m", "sglang.launch_server"], "sglang"), (["/usr/bin/vllm", "serve"], "vllm"), (["python3"], None)],
)
def test_engine_is_told_and_its_command_shown_nowhere(make_export, tmp_path, command, where):
    pairs = [("PROCESS_0:COMMAND", command[0])]
    pairs += [(f"PROCESS_0:ARGUMENT_{n}", word) for n, word in enumerate([*command[1:], "--api-key=secret123"])]
    info = {"name": [name for name, _ in pairs], "value": [value for _, value in pairs]}
    path = made(make_export, [[(30, 500, "gemm")]] * 12, META_DATA_CAPTURE=info, NVTX_EVENTS={"start": [], "end": []})
    tables = analysed(path)
    assert tables["captures"][0]["engine"] == where
    told = {row["check"]: row["remedy"] for row in tables["findings"]}["no_nvtx"]
    assert told == remedy("no_nvtx", where or "*")
    assert (told == remedy("no_nvtx")) == (where is None)
    done = pack("run", "llm_capture_check", "--input", path, "--output", tmp_path / "out", "--csv")
    written = b"".join(file.read_bytes() for file in (tmp_path / "out").iterdir()) + done.stdout.encode()
    assert b"secret123" not in written


@pytest.mark.parametrize(
    ("severity", "text", "expected"),
    [
        (2, "Not all CUDA events might have been collected.", "info"),
        (2, "Wrong event order has been detected when adding events", "warn"),
        (1, "Couldn't allocate CUPTI buffer", "warn"),
        (3, "The driver says ERR_NVGPUCTRPERM", "warn"),
        (3, "GPU Metrics: insufficient privilege, ERR_NVGPUCTRPERM", "info"),
        (3, "perf_event_open: Operation not permitted", "info"),
        (3, "Something that nobody knows", "warn"),
        (2, "Something that nobody knows", "info"),
        (4, "Something that nobody knows", "info"),
        (3, "CUDA device 0: Unified Memory cannot be traced on devices that don't support peer-to-peer", "info"),
    ],
)
def test_diagnostics_count_by_what_they_mean(severity, text, expected):
    assert judged(severity, text) == expected


def test_nsight_s_own_reason_is_shown_where_there_is_no_work(make_export):
    text = "Installed CUDA driver version (13.3) is not supported by this build of Nsight Systems."
    said = {"timestamp": [0], "severity": [2], "text": [text]}
    assert "diagnostics" not in found(made(make_export, steady(12), DIAGNOSTIC_EVENT=said))
    nothing = [[(30, 500, None)] * 2] * 12
    row = found(made(make_export, nothing, name="nothing.sqlite", DIAGNOSTIC_EVENT=said))["diagnostics"]
    assert (row["severity"], row["message"]) == ("warn", f"Nsight says: {text}")


def test_copies_only_and_kernels_without_any_record_are_told(make_export):
    copies = {"start": [14900], "end": [15000], "deviceId": [0], "globalPid": [P], "copyKind": [1],
              "correlationId": [7000]}  # fmt: skip
    path = made(make_export, [[(30, 500, None)] * 2] * 12, CUPTI_ACTIVITY_KIND_MEMCPY=copies)
    rows = found(path)
    assert rows["no_kernels"]["evidence"] == "1 operation, 0 kernels"
    assert (rows["no_kernels"]["severity"], rows["lost_records"]["evidence"]) == ("warn", "24 launches")
    assert "none of the kernels that process 100 launched was recorded" in rows["lost_records"]["message"]


def test_launches_still_queued_at_the_end_are_no_stop(make_export):
    # The last 12 of 40 launches have no record: the GPU was that far behind when the window ended.
    steps = [*steady(14), *([[(30, 500, None)] * 2] * 6)]
    path = made(make_export, steps)
    with sqlite3.connect(path) as db:
        ((last,),) = db.execute(f"SELECT max(start) FROM {RUNTIME} WHERE nameId = 1")
        db.execute(f"UPDATE {KERNELS} SET end = {last + 5} WHERE correlationId = 28")
    db.close()
    rows = found(path)
    assert not {"records_stop", "lost_records"} & set(rows)


def test_alike_diagnostics_are_one_finding(make_export):
    texts = [
        "Wrong event order in stream 7 at 0x7f3a",
        "Wrong event order in stream 8 at 0x11",
        "Profiling has started.",
    ]
    texts += [f"Failed to allocate CUPTI buffer of {'x' * n} for /home/someone/secret" for n in range(1, 4)]
    table = {"timestamp": list(range(6)), "severity": [2, 2, 1, 3, 3, 3], "text": texts}
    row = found(made(make_export, steady(12), DIAGNOSTIC_EVENT=table))["diagnostics"]
    assert row["message"].startswith("Nsight says: Wrong event order in stream ... at ...; Failed to allocate CUPTI")
    assert row["message"].endswith("; and 1 more kinds")
    assert (row["severity"], row["evidence"]) == ("warn", "5 messages")
    assert "secret" not in row["message"]


def test_only_ranges_of_libraries_are_no_phases(make_export):
    ranges = {"start": [0, 1000, 2000], "end": [None, 1500, 2500], "globalTid": [P + 1] * 3, "domainId": [3, 3, 3],
              "eventType": [75, 59, 59], "text": ["NCCL", "ncclAllReduce", "ncclAllReduce"]}  # fmt: skip
    path = made(make_export, [[(30, 500, f"kernel {number}") for number in range(5)]], NVTX_EVENTS=ranges)
    row = found(path)["library_ranges"]
    assert (row["message"], row["evidence"]) == (
        "only NVTX ranges of libraries, so everything is one phase, `all`", "ranges: NCCL 2"
    )  # fmt: skip


def test_export_of_2021_is_told_as_old(make_export):
    path = made(make_export, steady(12), bare=True)
    assert found(path)["old_schema"]["evidence"] == "it does not tell the version of its schema"


def test_schema_beyond_what_was_tested_is_told(make_export):
    newer = {"name": ["EXPORT_SCHEMA_VERSION"], "value": ["4.1.0"]}
    older = {"name": ["EXPORT_SCHEMA_VERSION"], "value": ["2.1.0"]}
    assert found(made(make_export, steady(12), META_DATA_EXPORT=newer))["new_schema"]["evidence"] == "schema 4.1.0"
    assert found(made(make_export, steady(12), META_DATA_EXPORT=older))["old_schema"]["evidence"] == "schema 2.1.0"


# Sets of reports.


def together(*reports, **of_all) -> dict[str, dict]:
    """The findings about all reports together, of rows of the captures and files tables."""
    captures, files = [], []
    for number, given in enumerate(reports):
        row = {"report": f"r{number}", "rank": number, "session": f"s{number}", "world_size": None,
               "begin_utc_ns": 1000, "end_utc_ns": 2000, "window_ns": 1000, "operations": 5, "gpu_name": "NVIDIA H200",
               "nsys_version": "2025.3.2",
               "status": "ok", "path": f"/nowhere/r{number}.sqlite", **of_all, **given}  # fmt: skip
        captures.append(row)
        files.append({**dict.fromkeys(FILES.names), **{name: row[name] for name in row if name in FILES.names}})
    tables = {"captures": pa.Table.from_pylist(captures), "findings": _no_findings()}
    rows = combine(tables, pa.Table.from_pylist(files, FILES.schema()), None).tables["findings"].to_pylist()
    return {row["check"]: row for row in rows}


def _no_findings() -> pa.Table:
    from llm_capture_check.tables import FINDINGS

    return FINDINGS.empty()


def test_reports_of_one_job_have_no_finding():
    assert together({}, {}, {}) == {}


@pytest.mark.parametrize(
    ("reports", "check", "evidence"),
    [
        ([{}, {"rank": 3}], "missing_rank", "2 of at least 4: 1, 2"),
        ([{"world_size": 4}, {"world_size": 4}], "missing_rank", "2 of 4: 2, 3"),
        ([{"world_size": 512}, {}], "missing_rank", "510 of 512: 2, 3, 4, 5, 6, ..."),
        ([{"rank": 0}, {"rank": 0}, {"rank": 1}], "duplicate_rank", "r0, r1"),
        # A series of windows of one rank is no second run.
        (
            [{}, {"begin_utc_ns": 3000, "end_utc_ns": 4000, "rank": 0, "session": "s0"}, {"rank": 5}],
            "missing_rank",
            "4 of at least 6: 1, 2, 3, 4",
        ),
        ([{}, {"session": "s0", "rank": None}], "duplicate_report", "r0, r1"),
        ([{}, {"gpu_name": "NVIDIA A100"}], "other_gpu", "NVIDIA H200 (1), NVIDIA A100 (1)"),
        ([{}, {"nsys_version": "2024.1"}], "other_version", "2025.3.2 (1), 2024.1 (1)"),
        ([{}, {"begin_utc_ns": 2500, "end_utc_ns": 3500}], "other_window", "rank 1 begins 500 ns after rank 0 ended"),
        ([{}, {"window_ns": 1600, "end_utc_ns": 2600}], "other_window", "rank 1 1.60 us, rank 0 1.00 us"),
    ],
)
def test_reports_that_do_not_belong_together(reports, check, evidence):
    assert {name: row["evidence"] for name, row in together(*reports).items()} == {check: evidence}


def test_ranks_of_the_bundled_jobs_belong_together(tmp_path, sqlite_of):
    inputs = [sqlite_of(FIXTURES / "2025.3.1" / f"tp_graph_rank{rank}.nsys-rep") for rank in (0, 1)]
    done = pack("run", "llm_capture_check", "--input", *inputs, "--output", tmp_path / "out")
    assert done.stdout.startswith("Of 2 captures 2 can be trusted\nquality: ok")
    rows = pq.read_table(tmp_path / "out" / "findings.parquet").to_pylist()
    assert {row["severity"] for row in rows} == {"info"}
    assert None not in {row["report"] for row in rows}


@pytest.mark.slow
def test_same_report_twice_and_a_stale_export_are_told(graph_sqlite, tmp_path):
    for name in ("a", "b"):
        shutil.copy(graph_sqlite, tmp_path / f"{name}.sqlite")
    report = tmp_path / "a.nsys-rep"
    report.write_bytes(b"newer than its export")
    export = tmp_path / "a.sqlite"
    os.utime(export, (report.stat().st_mtime - 100,) * 2)
    done = pack("run", "llm_capture_check", "--input", export, tmp_path / "b.sqlite", "--output", tmp_path / "out")
    assert "warn  duplicate_report: the same capture is given 2 times" in done.stdout
    assert "warn  stale_export: a.sqlite is older than a.nsys-rep" in done.stdout


def test_input_that_cannot_be_read_is_a_finding(graph_sqlite, tmp_path):
    (tmp_path / "bad.sqlite").write_text("no database")
    done = pack(
        "run", "llm_capture_check", "--input", graph_sqlite, tmp_path / "bad.sqlite", "--output", tmp_path / "o"
    )
    assert done.returncode == 0
    rows = pq.read_table(tmp_path / "o" / "findings.parquet").to_pylist()
    assert [(row["report"], row["severity"]) for row in rows if row["check"] == "unreadable"] == [("bad", "error")]
    assert "1 cannot be used" in done.stdout


def test_options_that_cost_much_are_named_by_a_real_capture(nsys, tmp_path):
    command = [nsys, "profile", "-t", "nvtx,osrt", "-s", "none", "--cpuctxsw=none", "-o", tmp_path / "r", "true"]
    if subprocess.run(command, capture_output=True, check=False).returncode or not (tmp_path / "r.nsys-rep").exists():
        pytest.skip("this Nsight cannot capture here")
    done = nsight(nsys, "recipe", "llm_capture_check", "--input", tmp_path / "r.nsys-rep", "--output", tmp_path / "out")
    assert done.stdout.startswith("This capture cannot be used: no GPU work")
    assert "tracing_options" in done.stdout and "OS runtime calls (-t osrt)" in " ".join(done.stdout.split())


def test_every_engine_has_a_remedy_that_is_not_its_own():
    for name, engine in engines().items():
        for check in engine.remedies:
            assert remedy(check) and remedy(check) != remedy(check, name), check


# What reviewers met.


def test_opaque_share_is_of_all_gpus(make_export):
    graph = {"start": [0], "end": [100], "deviceId": [0], "globalPid": [P], "correlationId": [1]}
    kernels = {"start": [0], "end": [300], "deviceId": [1], "globalPid": [P], "correlationId": [2],
               "demangledName": [1], "shortName": [1]}  # fmt: skip
    row = found(make_export(CUPTI_ACTIVITY_KIND_GRAPH_TRACE=graph, **{KERNELS: kernels}))["opaque_graphs"]
    assert row["evidence"] == "25.0 % of the GPU's busy time"


def test_lost_graph_work_needs_an_export_that_tells_nodes(make_export):
    steps = steady(12)
    path = made(make_export, steps)
    with sqlite3.connect(path) as db:
        db.execute(f"UPDATE StringIds SET value = '{GRAPH_LAUNCH}' WHERE id = 1")
    db.close()
    assert "lost_graph_work" not in found(path)
    with sqlite3.connect(path) as db:
        db.execute(f"ALTER TABLE {KERNELS} ADD COLUMN graphNodeId")
    db.close()
    assert found(path)["lost_graph_work"]["severity"] == "warn"
    with sqlite3.connect(path) as db:
        db.execute(f"UPDATE {KERNELS} SET graphNodeId = 7")
    db.close()
    assert "lost_graph_work" not in found(path)


def test_export_of_chosen_tables_is_told(make_export):
    info = {"name": ["EXPORT_SCHEMA_VERSION", "EXPORT_PARAM_TABLES_TO_EXPORT"], "value": ["3.7.2", "NVTX_EVENTS"]}
    row = found(made(make_export, steady(12), META_DATA_EXPORT=info))["partial_export"]
    assert row["message"] == "the export was made without CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET"
    named = {**info, "value": ["3.7.2", "NVTX_EVENTS,CUPTI_ACTIVITY_KIND_MEMCPY,CUPTI_ACTIVITY_KIND_MEMSET"]}
    # They were asked for, and are empty.
    assert "partial_export" not in found(made(make_export, steady(12), META_DATA_EXPORT=named))


def test_report_without_calls_is_not_called_start_up(make_export):
    path = made(make_export, steady(12))
    with sqlite3.connect(path) as db:
        db.execute(f"DELETE FROM {RUNTIME}")
    db.close()
    rows = found(path)
    assert rows["no_api_calls"]["evidence"] == "24 operations, 0 CUDA calls"
    assert not {"steps_silent", "steps_share", "startup"} & set(rows)


def test_ranges_that_name_no_step_are_told(make_export):
    path = made(make_export, [[(30, 500, f"kernel {number}") for number in range(5)]])
    with sqlite3.connect(path) as db:
        db.execute("UPDATE StringIds SET value = 'attention' WHERE id = 2")
    db.close()
    assert found(path)["no_steps"]["evidence"] == "1 ranges, most often `attention`"


def test_records_of_one_process_of_two_that_stop(make_export):
    path = made(make_export, steady(20))
    with sqlite3.connect(path) as db:
        columns = "start, end, deviceId, ?, correlationId, demangledName, shortName"
        db.execute(f"INSERT INTO {KERNELS} SELECT {columns} FROM {KERNELS} WHERE correlationId <= 20", (Q,))
        db.execute(f"INSERT INTO {RUNTIME} SELECT start, end, ?, correlationId, nameId FROM {RUNTIME}", (Q + 1,))
    db.close()
    row = found(path)["records_stop"]
    assert row["message"] == "GPU records of process 200 stop while launches go on: none for the last 20"


def test_calls_with_call_stacks_count_once(make_export):
    path = made(make_export, steady(12))
    with sqlite3.connect(path) as db:
        # Each call once more under its other name.
        db.execute("INSERT INTO StringIds VALUES (70, 'cudaLaunchKernel')")
        db.execute(
            f"INSERT INTO {RUNTIME} SELECT start, end, globalTid, correlationId, 70 FROM {RUNTIME} WHERE nameId = 1"
        )
    db.close()
    assert analysed(path)["captures"][0]["launches"] == 24


def test_idle_and_failed_launches_while_a_graph_is_captured_are_no_loss(make_export):
    steps = steady(12)
    steps[5] = [(30, 500, "gemm"), (30, 500, None), (30, 500, "gemm")]
    path = made(make_export, steps)
    assert "lost_records" in found(path)
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO StringIds VALUES (90, 'cudaStreamBeginCapture'), (91, 'cudaStreamEndCapture')")
        # Another thread of the process captures meanwhile.
        ((at,),) = db.execute(f"SELECT start FROM {RUNTIME} WHERE correlationId = 12")
        for start, correlation, name in ((at - 5, 800, 90), (at + 15, 801, 91)):
            db.execute(f"INSERT INTO {RUNTIME} VALUES ({start}, {start + 2}, {P + 9}, {correlation}, {name})")
    db.close()
    assert "lost_records" not in found(path)


def test_quality_and_findings_agree_on_the_rank(make_export, tmp_path):
    strings = {"id": [1, 90, 91], "value": ["gemm", "cuda-EvtHandlr", "[NSys]"]}
    threads = {"nameId": [90, 91, 90], "globalTid": [P + 1, P + 2, Q + 1]}
    processes = {"globalPid": [P, Q], "pid": [100, 200], "name": ["python", "python"]}
    kernels = {"start": [10], "end": [20], "deviceId": [0], "globalPid": [P], "demangledName": [1], "shortName": [1]}
    path = make_export("run_rank3.sqlite", **{KERNELS: kernels}, ThreadNames=threads, PROCESSES=processes,
                       StringIds=strings)  # fmt: skip
    pack("run", "llm_capture_check", "--input", path, "--output", tmp_path / "out")
    rows = pq.read_table(tmp_path / "out" / "findings.parquet").to_pylist()
    assert {row["check"]: row["severity"] for row in rows}["processes"] == "info"


def test_output_fits_a_terminal(tmp_path, sqlite_of):
    path = sqlite_of(FIXTURES / "2025.3.1" / "startup.nsys-rep")
    done = pack("run", "llm_capture_check", "--input", path, "--output", tmp_path / "out")
    assert max(map(len, done.stdout.splitlines())) <= 120


@pytest.mark.parametrize(
    ("text", "told"),
    [("XlaCompile:#module=jit_step#", True), ("autotune attention", True), ("torch.compile warm-up", True),
     ("## Call CompiledFxGraph f3ab", False), ("compiler_params", False)],
)  # fmt: skip
def test_compilation_in_the_window_is_start_up(make_export, text, told):
    path = made(make_export, steady(12))
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO StringIds VALUES (95, ?)", (text,))
        # 500 ns of a window of some 14,000.
        db.execute(f"INSERT INTO NVTX_EVENTS VALUES (400, 900, {P + 7}, 59, 95)")
    db.close()
    rows = found(path)
    assert ("startup" in rows) == told
    assert not told or "compiling and tuning 500 ns (1 range)" in rows["startup"]["evidence"]
