"""Any table whatever: the books hold or one clear line says why not, for every recipe of the pack."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from generated import (
    COLUMNS,
    KERNEL,
    NASTY,
    RUNTIME,
    SAME_TYPES,
    WAYS,
    WORK,
    WRONG_TYPES,
    Export,
    Shape,
    as_type,
    build,
    global_pid,
    write_parquet,
    write_sqlite,
)
from invariants import Result, check_together, run_recipe, total
from oracle import busy_ns
from recipes.base.errors import PackError
from recipes.base.memory import sums
from recipes.base.pack import recipe_names
from recipes.events.gpu_work import read_gpu_work
from recipes.report import schema
from recipes.report.report import LONGEST_NAME, open_export

pytestmark = pytest.mark.slow

FAMILIES, IDLE, FLOOR, NCCL = "llm_kernel_families", "llm_idle_gaps", "llm_decode_floor", "llm_nccl_sum"
SHAPES = st.builds(
    Shape,
    seed=st.integers(0, 2**32),
    processes=st.integers(1, 3),
    threads=st.integers(1, 3),
    devices=st.sampled_from((1, 1, 2, 4)),
    streams=st.sampled_from((1, 3)),
    steps=st.sampled_from((4, 0, 1, 12)),
    operations=st.sampled_from((6, 0, 1, 9)),
    graphs=st.booleans(),
    ranges=st.booleans(),
    mapped=st.booleans(),
    # The session's start, long before it, and the clock of `nsys export --ts-normalize`.
    origin=st.sampled_from((0, -(10**9), 1_790_000_000 * 10**9)),
    spoilt=st.lists(st.sampled_from(sorted(WAYS)), max_size=2, unique=True).map(tuple),
    rate=st.sampled_from((0.1, 0.02, 0.3, 0.9)),
)


@pytest.fixture(autouse=True)
def no_catching(monkeypatch):
    """A fault of ours is an exception here, not a line of text."""
    monkeypatch.setenv("NSYS_LLM_RECIPES_DEBUG", "1")


def on_disk(export: Export, folder: Path, *, parquet: bool = False) -> Path:
    return write_parquet(export, folder / "made_pqtdir") if parquet else write_sqlite(export, folder / "made.sqlite")


def all_recipes(path: Path, folder: Path, *options: str) -> dict[str, Result]:
    return {name: run_recipe(name, [path], folder / f"out-{name}", *options) for name in recipe_names()}


@settings(max_examples=30, deadline=None, derandomize=True, database=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])  # fmt: skip
@given(shape=SHAPES, parquet=st.booleans(), span=st.sampled_from(("", "", "", "20000/", "/30000", "5000/90000")))
def test_books_hold_on_any_tables(shape, parquet, span, tmp_path_factory):
    folder = tmp_path_factory.mktemp("any")
    export = build(shape)
    path = on_disk(export, folder, parquet=parquet)
    results = all_recipes(path, folder, *(("--filter-time", span) if span else ()))
    if not results[FAMILIES].error and not results[IDLE].error:
        check_together(results[FAMILIES].tables, results[IDLE].tables)
    if not span and set(shape.spoilt) <= PLAIN_WAYS:
        check_plainly(export, results, mapped=shape.mapped)


#: Ways after which plain code still knows what the GPUs did.
PLAIN_WAYS = {"jitter", "no times", "zeros", "all at once", "unclosed", "payloads", "names", "shuffled", "twice"}


def check_plainly(export: Export, results: dict[str, Result], *, mapped: bool) -> None:
    """Operations, their time and each device's busy time by loops over the rows."""
    by_device: dict[object, list[tuple[int, int]]] = defaultdict(list)
    for table in WORK:
        names = ("start", "end", "deviceId", "globalPid")
        for start, end, device, pid in zip(*(export[table][name] for name in names), strict=True):
            if end >= start and (start, end) != (0, 0):
                by_device[device if mapped else (pid, device)].append((start, end))
    whole = [row for row in results[FAMILIES].tables["families"] if row["phase"] == "all"]
    work = [times for some in by_device.values() for times in some]
    assert total(whole, "calls") == len(work)
    assert total(whole, "time_ns") == sum(end - start for start, end in work)
    idle = [row for row in results[IDLE].tables["idle"] if row["phase"] == "all"]
    assert sorted((row["busy_ns"], row["window_ns"]) for row in idle) == sorted(
        (busy_ns(some), max(end for _, end in some) - min(start for start, _ in some)) for some in by_device.values()
    )


def plain_export(**shape: object) -> Export:
    """One that is right, of a report that claims no rank, so that many go together."""
    export = build(Shape(seed=3, steps=3, operations=4, graphs=True, **shape))
    export["META_DATA_CAPTURE"] = {name: [] for name in export["META_DATA_CAPTURE"]}
    return export


def cells_of(name: str) -> list[tuple[str, str]]:
    """A recipe's share of all columns: reading them is common to all recipes, so each column is spoilt for one."""
    cells = [(table, column) for table, columns in COLUMNS.items() for column in columns]
    return cells[recipe_names().index(name) :: len(recipe_names())]


@pytest.mark.parametrize("name", recipe_names())
def test_whatever_is_missing_the_rest_is_analysed(name, tmp_path):
    """Without each table, without the rows of each, and without each column; and with all."""
    poor = tmp_path / "poor"
    poor.mkdir()
    write_sqlite(plain_export(), poor / "whole.sqlite")
    for table, columns in plain_export().items():
        export = plain_export()
        del export[table]
        write_sqlite(export, poor / f"no-{table}.sqlite")
        export[table] = {column: [] for column in columns}
        write_sqlite(export, poor / f"empty-{table}.sqlite")
    for table, column in cells_of(name):
        export = plain_export()
        del export[table][column]
        write_sqlite(export, poor / f"no-{table}-{column}.sqlite")
    result = run_recipe(name, [poor], tmp_path / "out")
    assert result.error is None
    refused = {row["report"]: row["message"] for row in result.tables["files"] if row["status"] == "unreadable"}
    # Nothing tells an export from another file then.
    assert set(refused) == {"no-META_DATA_EXPORT"}
    assert "not a whole Nsight export" in refused["no-META_DATA_EXPORT"]


@pytest.mark.parametrize("name", recipe_names())
def test_types_of_columns_are_taken_or_told(name, tmp_path):
    """A column in a type that says the same, and in one that it should not have."""
    export = plain_export()
    for number, (table, column) in enumerate([(KERNEL, "start"), *cells_of(name)]):
        for way, kinds in (("same", SAME_TYPES), ("wrong", WRONG_TYPES)):
            array = as_type(kinds[number % len(kinds)], column, export[table][column])
            (tmp_path / way).mkdir(exist_ok=True)
            folder = tmp_path / way / f"{table}-{column}_pqtdir"
            if not folder.exists():
                write_parquet(export, folder, {(table, column): array})
    write_parquet(export, tmp_path / "wrong" / "good_pqtdir")
    same = run_recipe(name, [tmp_path / "same"], tmp_path / "out-same")
    assert {row["status"] for row in same.tables["files"]} == {"ok"}
    wrong = run_recipe(name, [tmp_path / "wrong"], tmp_path / "out-wrong")
    refused = {row["report"]: row["message"] for row in wrong.tables["files"] if row["status"] == "unreadable"}
    assert "good" not in refused
    assert f"{KERNEL}-start_pqtdir: {KERNEL}.start holds double instead of whole numbers" in refused[f"{KERNEL}-start"]
    for report, message in refused.items():
        assert f"{report.replace('-', '.')} holds " in message
        assert "instead of " in message


def kernels(*times: tuple[int | None, int | None], export: Export | None = None) -> Export:
    """An export (a plain one unless given) with these kernels and no other GPU work, each with a launch at 0."""
    made = export or plain_export()
    for table in WORK:
        made[table] = {name: [] for name in made[table]}
    rows = {"start": [start for start, _ in times], "end": [end for _, end in times], "globalPid": global_pid(0),
            "deviceId": 0, "contextId": 1, "streamId": 7, "correlationId": 1, "demangledName": 1,
            "shortName": 1}  # fmt: skip
    made[KERNEL] = {
        name: value if isinstance(value := rows.get(name), list) else [value] * len(times) for name in made[KERNEL]
    }
    return made


def test_kernel_without_a_start_did_not_start_at_zero(tmp_path):
    work = read_gpu_work(open_export(on_disk(kernels((None, 10), (5, 9)), tmp_path)))
    assert work.start_ns.tolist() == [5]
    assert work.dropped == 1


@pytest.mark.parametrize("time", [2**63 - 1, 2**62, 2**60, -(2**60)])
def test_kernel_that_lies_years_away_is_left_out_and_told(time, tmp_path):
    times = [(5, 9), (11, 20), (30, 40), tuple(sorted((time, time // 2)))]
    path = on_disk(kernels(*times), tmp_path)
    assert read_gpu_work(open_export(path)).end_ns.tolist() == [9, 20, 40]
    result = run_recipe(FAMILIES, [path], tmp_path / "out")
    assert "GPU records without usable times were left out (1 of 4 records)" in result.tables["files"][0]["message"]


def test_clock_that_counts_from_1970_changes_nothing(tmp_path):
    """`nsys export --ts-normalize` adds the time of day to all times; here on more threads than 2^63 ns hold."""
    origin = 1_790_000_000 * 10**9
    found = []
    for name, begin in (("zero", 0), ("clock", origin)):
        export = build(Shape(seed=5, threads=16, steps=9, operations=9, origin=begin))
        path = write_sqlite(export, tmp_path / f"{name}.sqlite")
        tables = run_recipe(IDLE, [path], tmp_path / name).tables
        found.append(
            [{key: row[key] for key in row if key not in ("report", "start_ns")} for row in tables["step_idle"]]
        )
    assert found[0] == found[1]
    assert any(row["sync_ns"] or row["host_ns"] for row in found[0])


def test_host_times_that_lie_years_apart_are_told(tmp_path):
    export = build(Shape(seed=5, threads=16, steps=3))
    export[RUNTIME]["end"][0] = 2**60
    result = run_recipe(IDLE, [on_disk(export, tmp_path)], tmp_path / "out")
    assert "made.sqlite: host times lie 13,344 days apart" in result.error


def test_call_without_id_or_start_launched_nothing(tmp_path):
    export = kernels((5_000, 9_000), (20_000, 30_000))
    export[KERNEL]["correlationId"] = [None, 0]
    export[RUNTIME] = {"start": [1000, None], "end": [2000, 2000], "globalTid": [global_pid(0) + 1000] * 2,
                       "correlationId": [None, 0], "nameId": [1, 1], "returnValue": [0, 0]}  # fmt: skip
    tables = run_recipe(IDLE, [on_disk(export, tmp_path)], tmp_path / "out").tables
    (row,) = (row for row in tables["idle"] if row["phase"] == "all")
    assert (row["operations"], row["launched"], row["unknown_ns"]) == (2, 0, 11_000)


def test_steps_that_took_no_time_have_a_picture(tmp_path):
    """Those that count are not of the first phase by name, which has none that do."""
    export = kernels((50, 50), (250, 250))
    export[KERNEL]["correlationId"] = [1, 2]
    tid = [global_pid(0) + 1000] * 4
    calls = {"start": [10, 210], "end": [20, 220], "globalTid": tid[:2], "correlationId": [1, 2], "nameId": [1, 1]}
    export[RUNTIME] = {name: calls.get(name, [0, 0]) for name in export[RUNTIME]}
    ranges = {"start": [0, 200, 400, 600], "end": [100, 300, 500, 700], "eventType": [59] * 4, "globalTid": tid,
              "domainId": [0] * 4, "text": ["forward", "forward", "backward", "backward"]}  # fmt: skip
    export["NVTX_EVENTS"] = {name: ranges.get(name, [None] * 4) for name in export["NVTX_EVENTS"]}
    export["PROFILER_OVERHEAD"] = {name: [] for name in export["PROFILER_OVERHEAD"]}
    tables = run_recipe(IDLE, [on_disk(export, tmp_path)], tmp_path / "out").tables
    assert [(row["phase"], row["edge"], row["duration_ns"]) for row in tables["step_idle"]] == [
        ("forward", False, 0)
    ] * 2


def test_work_that_took_no_time_has_no_share(tmp_path):
    tables = run_recipe(FAMILIES, [on_disk(kernels((5, 5), (7, 7)), tmp_path)], tmp_path / "out").tables
    assert [row["share"] for row in tables["families"] if row["phase"] == "all"] == [0.0]


def test_cut_step_has_no_more_launches_than_operations(tmp_path):
    path = on_disk(build(Shape(seed=8, steps=3, operations=9)), tmp_path)
    end = sorted(read_gpu_work(open_export(path)).start_ns.tolist())[4]
    tables = run_recipe(FLOOR, [path], tmp_path / "out", "--filter-time", f"/{end}").tables
    assert any(0 < row["operations"] < 9 for row in tables["steps"])


def test_profiler_overhead_without_times_is_passed_over(tmp_path):
    export = plain_export()
    export["PROFILER_OVERHEAD"]["start"] = [None] * len(export["PROFILER_OVERHEAD"]["start"])
    assert run_recipe(FLOOR, [on_disk(export, tmp_path)], tmp_path / "out").error is None


def test_payload_that_is_deep_or_no_text_is_passed_over(tmp_path):
    export = plain_export()
    told = [row for row, text in enumerate(export["NVTX_EVENTS"]["jsonText"]) if text]
    for row, text in zip(told, ["[" * 100_000, '{"NCCL communicator ID": "\\ud800", "Bytes": true}'], strict=False):
        export["NVTX_EVENTS"]["jsonText"][row] = text
    assert run_recipe(NCCL, [on_disk(export, tmp_path)], tmp_path / "out").error is None


def test_fraction_in_a_column_of_whole_numbers_is_told(tmp_path):
    export = plain_export()
    export[KERNEL]["start"][0] = 1.5
    with pytest.raises(PackError, match=r"start in CUPTI_ACTIVITY_KIND_KERNEL holds other than whole numbers"):
        open_export(on_disk(export, tmp_path)).read(schema.KERNELS, ["start_ns"])


def test_table_whose_name_is_no_text_is_passed_over(tmp_path):
    path = on_disk(plain_export(), tmp_path)
    db = sqlite3.connect(path)
    db.execute('CREATE TABLE "odd" (a)')
    db.commit()
    db.close()
    path.write_bytes(path.read_bytes().replace(b"odd", b"o\xffd"))
    assert len(open_export(path).read(schema.KERNELS))


def test_enormous_names_are_cut_where_they_repeat(tmp_path):
    export = kernels((5, 9), (11, 12))
    export["StringIds"]["id"] += [901, 902]
    export["StringIds"]["value"] += ["gemm " + "é" * 10**6, "flash_fwd " + "x" * (LONGEST_NAME - 10)]
    export[KERNEL]["demangledName"] = export[KERNEL]["shortName"] = [901, 902]
    tables = run_recipe(FAMILIES, [on_disk(export, tmp_path)], tmp_path / "out").tables
    names = sorted({row["name"] for row in tables["kernels"]}, key=len)
    assert [len(name) for name in names] == [LONGEST_NAME, LONGEST_NAME + len(" [cut]")]
    assert names[1].endswith("é [cut]")


def test_pushes_without_pops_take_no_time(tmp_path):
    """A hundred thousand ranges inside each other: neither a pass nor a path for each level."""
    export = build(Shape(seed=3, steps=4, operations=6, ranges=False))
    events, count = export["NVTX_EVENTS"], 100_000
    inside = {"start": range(count), "end": [None] * count, "eventType": [59] * count, "domainId": [0] * count,
              "text": [f"push {'abc'[number % 3]}" for number in range(count)],
              "globalTid": [global_pid(0) + 1000] * count}  # fmt: skip
    steps = {"start": [-9, -5], "end": [-6, 10**9], "eventType": [59] * 2, "text": ["step 1", "step 2"],
             "domainId": [0] * 2, "globalTid": [global_pid(0) + 1000] * 2}  # fmt: skip
    for name in events:
        events[name] = [*steps.get(name, [None] * 2), *inside.get(name, [None] * count)]
    tables = run_recipe(FLOOR, [on_disk(export, tmp_path)], tmp_path / "out").tables
    assert tables["layers"]
    assert all(row["layer"].count("push") <= 100 for row in tables["layers"])


@pytest.mark.parametrize("parquet", [False, True])
def test_names_that_hurt_are_shown_harmlessly(parquet, tmp_path):
    export = plain_export()
    strings = export["StringIds"]
    for number, name in enumerate(NASTY):
        strings["id"].append(1000 + number)
        strings["value"].append(name)
    for column in ("demangledName", "shortName"):
        count = len(export[KERNEL][column])
        export[KERNEL][column] = [1000 + row % len(NASTY) for row in range(count)]
    for row in range(len(export["NVTX_EVENTS"]["text"])):
        export["NVTX_EVENTS"]["text"][row] = f"step {row} {NASTY[4]}" if row % 3 else NASTY[row % len(NASTY)]
    path = on_disk(export, tmp_path, parquet=parquet)
    for name, result in all_recipes(path, tmp_path).items():
        assert result.error is None, name


def test_sums_are_exact_beyond_what_doubles_hold():
    values = np.array([2**53 + 1, 2**53 + 1, 3], dtype=np.int64)
    assert sums(np.array([0, 0, 1]), values, 2).tolist() == [2**54 + 2, 3]


def test_other_numbers_than_whole_ones_are_no_ids(tmp_path):
    array = pa.array([1.0] * len(plain_export()[RUNTIME]["nameId"]))
    path = write_parquet(plain_export(), tmp_path / "x_pqtdir", {(RUNTIME, "nameId"): array})
    with pytest.raises(PackError, match="nameId holds double instead of whole numbers"):
        open_export(path).read(schema.API_CALLS, ["name"])
