"""The same quantity in two recipes is the same number, on every bundled report.

What a recipe's tables say of themselves is in invariants.py. Here steps, edges, times, idle and exposed time, launches,
graphs and ranks of one recipe are held against another's. Cases that do not agree today are in KNOWN, with why.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

import pandas as pd
import pytest

from golden_runs import FLOOR, RECIPES, Inputs, Outcome, every_inputs, result, why_not
from invariants import OPTIONS
from llm_idle_gaps.device_steps import steps_of_devices

FAMILIES, IDLE, NCCL, CHECK = "llm_kernel_families", "llm_idle_gaps", "llm_nccl_sum", "llm_capture_check"
pytestmark = pytest.mark.slow
Books = dict[str, Outcome]
#: (check, inputs): why the recipes disagree there. Each is expected to fail, and must leave here when it does not.
KNOWN: dict[tuple[str, str], str] = {}
COMMUNICATION = "communication"
_DEVICE = ("report", "device")
_STEP, _PHASE = (*_DEVICE, "step"), (*_DEVICE, "phase")
# Columns of llm_kernel_families, and those of llm_nccl_sum that are the same.
_COMMUNICATION_COLUMNS = {"calls": "calls", "time_ns": "time_ns", "exclusive_ns": "exposed_ns"}
_CAUSES = ("profiler", "graph", "sync", "api", "host", "launch", "queued", "unknown")


def books(inputs: Inputs) -> Books:
    """All recipes on some inputs, with nothing told of batch or model: what these change is the floor's alone."""
    return {name: result(name, inputs, () if name == FLOOR else OPTIONS.get(name, ())) for name in RECIPES[:-1]}


def keyed(rows: Iterable[dict], keys: Iterable[str], *columns: str) -> dict[tuple, tuple]:
    """Values of columns by those of the keys, of which there is one row each."""
    pairs = [(tuple(row[key] for key in keys), tuple(row[name] for name in columns)) for row in rows]
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def summed(rows: Iterable[dict], keys: Iterable[str], column: str) -> dict[tuple, int]:
    """Sums of a column by the values of the keys, nothings left out."""
    sums: Counter = Counter()
    for row in rows:
        sums[tuple(row[key] for key in keys)] += row[column]
    return {key: value for key, value in sums.items() if value}


def floor_steps(of: Books) -> list[dict]:
    """The floor's steps with work; those without have no device."""
    return [row for row in of[FLOOR].rows("steps") if row["device"] is not None]


def nccl_steps(of: Books) -> list[dict]:
    return [row for row in of[NCCL].rows("step_communication") if row["step"] is not None]


def every_steps(of: Books) -> list[list[dict]]:
    return [floor_steps(of), of[IDLE].rows("step_idle"), nccl_steps(of), of[CHECK].rows("step_times")]


def same(values: Iterable[object]) -> None:
    first, *others = values
    for other in others:
        assert other == first


# The checks, each of one quantity.


def steps_phases_and_edges(of: Books) -> None:
    same(keyed(rows, _STEP, "rank", "phase", "edge", "duration_ns") for rows in every_steps(of))


def steps_by_phase(of: Books) -> None:
    same(Counter((row["report"], row["device"], row["phase"], row["edge"]) for row in rows) for rows in every_steps(of))


def starts_periods_and_batches(of: Books) -> None:
    columns = ("start_ns", "period_ns", "batch")
    same(keyed(rows, _STEP, *columns) for rows in (floor_steps(of), of[IDLE].rows("step_idle"),
                                                   of[CHECK].rows("step_times")))  # fmt: skip


def numbers_of_steps(of: Books) -> None:
    """In all, as the phase rules tell them too, and the whole ones."""
    steps, working = of[FLOOR].rows("steps"), floor_steps(of)
    rules = {row["report"]: row["phase_rule"] or "" for row in of[FAMILIES].rows("files")}
    for row in of[CHECK].rows("captures"):
        own = {(one["pid"], one["step"]) for one in steps if one["report"] == row["report"]}
        with_work, cut = ({one["step"] for one in rows if one["report"] == row["report"]}
                          for rows in (working, [one for one in working if one["edge"]]))  # fmt: skip
        told = [int(count.replace(",", "")) for count in re.findall(r"\(([\d,]+) steps\)", rules[row["report"]])]
        assert (row["steps"], row["whole_steps"]) == (len(own), len(with_work - cut))
        assert sum(told) == row["steps"]


def operations_of_steps(of: Books) -> None:
    same(keyed(rows, _STEP, "operations") for rows in (floor_steps(of), of[IDLE].rows("step_idle"),
                                                       of[CHECK].rows("step_times")))  # fmt: skip


def launches_of_steps(of: Books) -> None:
    same(keyed(rows, _STEP, "launches") for rows in (floor_steps(of), of[IDLE].rows("step_idle")))


def idle_of_steps(of: Books) -> None:
    same(keyed(rows, _STEP, "idle_ns") for rows in (floor_steps(of), of[IDLE].rows("step_idle")))


def idle_of_steps_by_cause(of: Books) -> None:
    parts = [row for row in of[FLOOR].rows("step_parts") if row["part"].startswith("idle_")]
    by_cause = summed(parts, (*_STEP, "part"), "time_ns")
    wanted = {(*(row[key] for key in _STEP), f"idle_{cause}"): row[f"{cause}_ns"]
              for row in of[IDLE].rows("step_idle") for cause in _CAUSES if row[f"{cause}_ns"]}  # fmt: skip
    assert by_cause == wanted


def exposed_communication_of_steps(of: Books) -> None:
    parts = [row for row in of[FLOOR].rows("step_parts") if row["part"] == "communication"]
    assert summed(parts, _STEP, "time_ns") == summed(nccl_steps(of), _STEP, "exposed_ns")


def communication_of_window(of: Books) -> None:
    """Calls, time and exposed time of each device."""
    families = [row for row in of[FAMILIES].rows("families") if (row["phase"], row["family"]) == ("all", COMMUNICATION)]
    kernels = [{**row, "calls": 1, "time_ns": row["duration_ns"]} for row in of[NCCL].rows("communication")]
    for told, column in _COMMUNICATION_COLUMNS.items():
        same([summed(families, _DEVICE, told), summed(kernels, _DEVICE, column),
              summed(of[NCCL].rows("collectives"), _DEVICE, column)])  # fmt: skip


def communication_of_phases(of: Books) -> None:
    """The same by phase, what is in no step included."""
    rows = [row for row in phase_rows(of[FAMILIES].rows("families")) if row["family"] == COMMUNICATION]
    for told, column in _COMMUNICATION_COLUMNS.items():
        same([summed(rows, _PHASE, told), summed(of[NCCL].rows("step_communication"), _PHASE, column),
              summed(of[NCCL].rows("collectives"), _PHASE, column)])  # fmt: skip


def phase_rows(rows: list[dict]) -> list[dict]:
    """Rows of phases; where there are none, the whole window is what lies in no step. No step has one name here."""
    parted = {(row["report"], row["device"]) for row in rows if row["phase"] != "all"}
    names = {"between_steps": "outside", "all": "outside"}
    return [{**row, "phase": names.get(row["phase"], row["phase"])} for row in rows
            if row["phase"] != "all" or (row["report"], row["device"]) not in parted]  # fmt: skip


def families_of_phases(of: Books) -> None:
    """Exclusive times by family: of whole phases, and of their steps added up."""
    phase_of = {key: phase for key, (phase,) in keyed(floor_steps(of), _STEP, "phase").items()}
    parts = [{**row, "phase": phase_of[row["report"], row["device"], row["step"]]}
             for row in of[FLOOR].rows("step_parts")
             if not row["part"].startswith("idle_") and row["part"] not in ("other_work", "between_steps")]  # fmt: skip
    families = [{**row, "part": row["family"]} for row in of[FAMILIES].rows("families")
                if row["phase"] not in ("all", "outside")]  # fmt: skip
    keys = (*_PHASE, "part")
    assert summed(parts, keys, "time_ns") == summed(families, keys, "exclusive_ns")


def gemm_time_of_phases(of: Books) -> None:
    rows = [row for row in of[FAMILIES].rows("families")
            if row["family"] == "gemm" and row["phase"] not in ("all", "outside")]  # fmt: skip
    assert summed(rows, _PHASE, "time_ns") == summed(of[CHECK].rows("step_times"), _PHASE, "gemm_ns")


def work_of_window(of: Books) -> None:
    """Operations and busy time of each device; operations, length and devices of each report."""
    families = [row for row in of[FAMILIES].rows("families") if row["phase"] == "all"]
    idle = [row for row in of[IDLE].rows("idle") if row["phase"] == "all"]
    assert summed(families, _DEVICE, "calls") == summed(idle, _DEVICE, "operations")
    assert summed(families, _DEVICE, "exclusive_ns") == summed(idle, _DEVICE, "busy_ns")
    captures = of[CHECK].rows("captures")
    assert summed(families, ("report",), "calls") == summed(captures, ("report",), "operations")
    devices = Counter(row["report"] for row in idle)
    assert {row["report"]: row["devices"] for row in captures if row["devices"]} == devices
    windows = [keyed(rows, ("report", "rank"), "window_ns") for rows in (captures, of[CHECK].rows("files"))]
    assert windows[0] == windows[1]


def operations_of_phases(of: Books) -> None:
    families, idle = of[FAMILIES].rows("families"), of[IDLE].rows("idle")
    parted = [{row["phase"] for row in rows} > {"all"} for rows in (families, idle)]
    assert parted[0] == parted[1]
    assert summed(phase_rows(families), _PHASE, "calls") == summed(phase_rows(idle), _PHASE, "operations")


def files(of: Books) -> None:
    """All that is told of the inputs but what limits each recipe's own numbers."""
    own = ("quality", "message")
    same([{name: value for name, value in row.items() if name not in own} for row in one.rows("files")]
         for one in of.values())  # fmt: skip


def quality(of: Books) -> None:
    """Of the recipes that look at the numbers alike; that of llm_capture_check, which looks closer, is never better."""
    levels = ["ok", "warn", "bad"]
    by_recipe = {name: [levels.index(row["quality"]) for row in one.rows("files")] for name, one in of.items()}
    closer = by_recipe.pop(CHECK)
    same(by_recipe.values())
    assert all(one >= other for one, other in zip(closer, by_recipe[IDLE], strict=True))


def missing_ranks_of_one_report(of: Books) -> None:
    """Of a job of which one rank is given, all others are missing, as llm_capture_check's table tells."""
    captures = of[CHECK].rows("captures")
    if len(captures) == 1 and captures[0]["rank"] is not None and of[NCCL].rows("communication"):
        told = re.search(r"(\d+) ranks? (?:is|are) missing", of[NCCL].text)
        assert (int(told[1]) if told else 0) == (captures[0]["world_size"] or 1) - 1


def graphs_as_printed(of: Books) -> None:
    """What the floor's findings say of CUDA graphs is among what llm_idle_gaps says of them."""
    floor = {state_of(text) for text in of[FLOOR].text.splitlines() if "CUDA graphs" in text} - {None}
    idle = {state_of(part) for part in of[IDLE].text.split("\n")[0].split("; ") if "CUDA graphs" in part}
    assert floor <= idle, (floor, idle)


def graphs_of_steps(of: Books) -> None:
    """Of the steps that llm_idle_gaps tells about, on each device, the floor's table says the same."""
    tables = of[IDLE].tables
    idle, phases = tables["idle"].to_pandas(), of[FLOOR].tables["phases"].to_pandas()
    if idle.empty or phases.empty:
        return
    named = phases["phase"] + phases["batch"].map(lambda batch: "" if pd.isna(batch) else f" bs={batch:.0f}")
    names = named.where(named.str.endswith("step"), named + " step")
    for one in steps_of_devices(tables["step_idle"].to_pandas(), idle, tables["gaps"].to_pandas()):
        if one.steps:
            mine = phases[(phases["report"] == one.report) & (phases["device"] == one.device) & (names == one.name)]
            assert mine["graphs"].tolist() == [one.launched.graphs], (one.report, one.device, one.name)


def state_of(text: str) -> str | None:
    """on, partly on, off, whole (traced as a whole), or unknown; None where the text is not about that."""
    if "traced as a whole" in text:
        return "whole"
    if "nothing is said" in text:
        return "unknown"
    found = re.search(r"CUDA graphs are (on|partly on|off)\b", text)
    return found and found[1]


CHECKS = (
    steps_phases_and_edges, steps_by_phase, starts_periods_and_batches, numbers_of_steps, operations_of_steps,
    launches_of_steps, idle_of_steps, idle_of_steps_by_cause, exposed_communication_of_steps, communication_of_window,
    communication_of_phases, families_of_phases, gemm_time_of_phases, work_of_window,
    operations_of_phases, files, quality, missing_ranks_of_one_report, graphs_as_printed, graphs_of_steps,
)  # fmt: skip


def cases() -> list:
    """Each check on each inputs, side by side for one inputs; those of KNOWN fail."""
    found = []
    for inputs in every_inputs():
        for check in CHECKS:
            reason = KNOWN.get((check.__name__, inputs.name))
            marks = [pytest.mark.xfail(reason=reason, strict=True, raises=AssertionError)] if reason else []
            found.append(pytest.param(check, inputs, marks=marks, id=f"{check.__name__}-{inputs.name}"))
    return found


@pytest.mark.parametrize(("check", "inputs"), cases())
def test_recipes_agree(check, inputs: Inputs):
    reason = why_not(inputs)
    if reason:
        pytest.skip(reason)
    check(books(inputs))


#: Ranks that the reports of a job's ranks 0 and 1 are given, and how many are missing then.
RANKS = {"as_told": (None, 0), "with_gap": ((0, 3), 2), "without_first": ((2, 3), 2)}


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("inputs", [one for one in every_inputs() if len(one.reports) > 1], ids=lambda one: one.name)
def test_missing_ranks(inputs: Inputs, ranks: str):
    """llm_nccl_sum misses as many ranks as llm_capture_check."""
    reason = why_not(inputs)
    if reason:
        pytest.skip(reason)
    given, missing = RANKS[ranks]
    pairs = zip((report.stem for report in inputs.reports), given or (), strict=False)
    options = tuple(word for name, rank in pairs for word in ("--rank-map", f"{name}={rank}"))
    found = [
        finding for finding in result(CHECK, inputs, options).rows("findings") if finding["check"] == "missing_rank"
    ]
    told = re.findall(r"(\d+) ranks? (?:is|are) missing", result(NCCL, inputs, options).text)
    assert [int(finding["evidence"].split(" of ")[0]) for finding in found] == [missing] * bool(missing)
    assert [int(count) for count in told] == [missing] * bool(missing)


def test_known_cases_are_cases():
    names = {(check.__name__, inputs.name) for check in CHECKS for inputs in every_inputs()}
    assert set(KNOWN) - names == set()
