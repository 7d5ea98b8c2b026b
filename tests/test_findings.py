"""Findings: the table of checks and its functions, severities, what could not be looked at, a check added by hand."""

from __future__ import annotations

import ast
import sqlite3
from pathlib import Path

import pytest

from conftest import ROOT
from llm_capture_check.analysis import Settings, analyse
from recipes.capture.capture import Capture
from recipes.events.gpu_work import Span
from recipes.findings import check_table, quality, registry
from recipes.findings.check_table import checks
from recipes.findings.engine import ANY
from recipes.findings.finding import ERROR, INFO, SEVERITIES, WARN, Finding, most_recoverable
from recipes.findings.registry import STAGES, cannot_tell, function_of, in_order, make, without_effects
from recipes.findings.remedies import remedy
from recipes.findings.subject import Subject
from recipes.report.report import open_export
from recipes.steps.phases import load_phase_rules
from test_gpu_work import KERNELS
from test_llm_capture_check import RUNTIME, analysed, found, made, steady

#: Where functions that look for something are.
MODULES = [*ROOT.glob("recipes/findings/*.py"), *ROOT.glob("llm_*/findings.py"), *ROOT.glob("llm_*/report_set.py")]
#: What makes a finding, and the place of the id among its arguments.
MAKERS = {"make": 0, "found": 0, "cannot_tell": 0, "_found": 1, "_unlike": 2}


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def check_functions(source: str) -> set[str]:
    """The public functions of a module that give findings."""
    return {
        node.name
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.returns and ast.unparse(node.returns) == "Iterator[Finding]"
        if not node.name.startswith("_")
    }


def ids_made(source: str) -> set[str]:
    """The ids that stand in the calls that make findings."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    made_by = [(call.args, MAKERS.get(getattr(call.func, "attr", getattr(call.func, "id", "")))) for call in calls]
    ids = [args[place] for args, place in made_by if place is not None]
    return {node.value for node in ids if isinstance(node, ast.Constant)}


def unlisted(source: str, module: str, known: set[str], functions: set[str]) -> set[str]:
    """Ids and functions of a module that the table lacks."""
    return (ids_made(source) - known) | {
        name for name in check_functions(source) if f"{module}:{name}" not in functions
    }


def test_every_row_has_its_functions_and_they_make_it():
    sources = {name_of(path): path.read_text() for path in MODULES}
    for check in checks().values():
        assert set(check.functions) <= set(STAGES) and check.functions, check.id
        assert check.severity in SEVERITIES and check.needs in ("", registry.WORK, registry.NO_WORK), check.id
        assert check.explained_by <= set(checks()), check.id
        for name in check.functions.values():
            assert callable(function_of(name))
            module, _, function = name.partition(":")
            assert function in check_functions(sources[module]), name
            constants = {node.value for node in ast.walk(ast.parse(sources[module])) if isinstance(node, ast.Constant)}
            assert check.id in constants, f"{name} never finds {check.id}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_every_function_and_id_has_a_row(path):
    functions = {name for check in checks().values() for name in check.functions.values()}
    assert unlisted(path.read_text(), name_of(path), set(checks()), functions) == set()


def test_a_function_or_an_id_without_a_row_is_seen():
    source = 'def extra(subject) -> Iterator[Finding]:\n    yield subject.found("no_row", "text")\n'
    assert unlisted(source, "m", {"a"}, {"m:other"}) == {"extra", "no_row"}
    assert unlisted(source, "m", {"no_row"}, {"m:extra"}) == set()


def test_every_finding_about_a_capture_has_a_remedy():
    for check in checks().values():
        if check.id != "unreadable" and not {"idle", "floor"} & set(check.functions):
            assert check.remedy.strip(), check.id
    assert remedy("processes", "vllm").startswith("export VLLM")
    assert remedy("processes", "pytorch") == remedy("processes")
    with pytest.raises(KeyError):
        remedy("no_such_check", ANY)


def test_severity_is_the_row_s_unless_the_check_decides():
    assert make("dropped", "m").severity == WARN
    assert make("dropped", "m", severity=INFO).severity == INFO
    assert make("no_gpu_work", "m").severity == ERROR
    with pytest.raises(KeyError):
        make("no_such_check", "m")


def test_texts_of_a_finding_are_plain_lines():
    finding = make("dropped", "a\x1b[31mb", "c\nd", remedy="do it")
    assert finding.line == "a\\x1b[31mb (c\\nd); do it"


def test_effects_go_when_their_cause_is_told():
    silent, share, lost = (make(check, "m") for check in ("steps_silent", "steps_share", "lost_records"))
    stop, calls = make("records_stop", "m"), make("no_api_calls", "m")
    assert without_effects([silent, share, lost]) == [silent, share, lost]
    assert without_effects([silent, share, lost, calls]) == [lost, calls]
    assert without_effects([stop, silent, lost]) == [stop]
    # What could not be looked at explains nothing.
    doubt = cannot_tell("records_stop", "why")
    assert without_effects([doubt, lost]) == [doubt, lost]


def test_the_worst_come_first_and_causes_before_effects():
    findings = [make(check, "m") for check in ("steps_few", "dropped", "no_gpu_work", "processes")]
    assert [finding.id for finding in in_order(findings)] == ["no_gpu_work", "processes", "dropped", "steps_few"]


def test_could_not_look_is_neither_found_nor_nothing():
    doubt = cannot_tell("overhead", "the export has no such times")
    assert (doubt.observed, doubt.severity, doubt.remedy) == (False, INFO, "")
    assert doubt.message == "cannot tell: the export has no such times"
    told = make("overhead", "m")
    assert without_effects([doubt, told]) == [told]


def doubts(path: Path) -> set[str]:
    return {row["check"] for row in analysed(path)["findings"] if not row["observed"]}


#: What a whole report has, beside work, calls and ranges.
WHOLE = {
    "ThreadNames": {"nameId": [1], "globalTid": [1]},
    "PROFILER_OVERHEAD": {"start": [], "end": [], "nameId": [], "globalTid": []},
    "DIAGNOSTIC_EVENT": {"timestamp": [], "severity": [], "text": []},
    "META_DATA_CAPTURE": {"name": ["PROCESS_0:COLLECT_CUDA_TRACE"], "value": ["true"]},
}


def test_each_thing_that_a_report_lacks_is_one_doubt(make_export):
    path = made(make_export, steady(14), **WHOLE)
    assert doubts(path) == set()
    lacking = {"ThreadNames": "processes", "PROFILER_OVERHEAD": "overhead", "DIAGNOSTIC_EVENT": "diagnostics",
               "META_DATA_CAPTURE": "tracing_options"}  # fmt: skip
    for table, check in lacking.items():
        kept = {name: columns for name, columns in WHOLE.items() if name != table}
        assert doubts(made(make_export, steady(14), **kept)) == {check}, table
    assert doubts(made(make_export, steady(6), **WHOLE)) == {"unsteady"}


def test_without_calls_lost_records_cannot_be_told(make_export):
    path = made(make_export, steady(14), **WHOLE)
    with sqlite3.connect(path) as db:
        db.execute(f"DELETE FROM {RUNTIME}")
    db.close()
    assert {"lost_records", "startup", "window_begin", "window_end"} <= doubts(path)
    assert not {"lost_records", "records_stop", "startup"} & set(found(path))


def test_numbers_stand_beside_the_words(make_export):
    steps = steady(14)
    steps[5] = [(30, 500, "gemm"), (30, 500, None), (30, 500, "gemm")]
    path = made(make_export, steps)
    (lost,) = [one for one in registry.find(registry.CAPTURE, subject_of(path)) if one.id == "lost_records"]
    assert dict(lost.numbers) == {"lost": 1, "launches": 29}
    assert lost.evidence.startswith("1 of 29 launches")


def subject_of(path: Path) -> Subject:
    return Subject(Capture(open_export(path), Span(), load_phase_rules()))


def test_quality_is_worked_out_once_a_capture(make_export, monkeypatch):
    path = made(make_export, steady(14))
    runs: list[str] = []
    real = registry.find

    def counted(stage, *arguments, **options):
        runs.append(stage)
        return real(stage, *arguments, **options)

    monkeypatch.setattr("recipes.findings.subject.find", counted)
    subject = subject_of(path)
    first = subject.quality_findings
    assert subject.quality_findings is first and runs == ["quality"]
    assert Subject(subject.capture, 5.0).quality_findings is first and runs == ["quality"]


def numbered(check: str, recoverable_ns: float | None, idle_ns: float = 0, *, observed: bool = True) -> Finding:
    return Finding(check, INFO, "m", numbers={"idle_ns": idle_ns}, recoverable_ns=recoverable_ns, observed=observed)


def test_numbered_findings_are_the_most_recoverable():
    given = [numbered("a", None, 90), numbered("b", 5, 5), numbered("c", 7, 7), numbered("d", 9, observed=False),
             numbered("e", None), numbered("f", 7, 8), numbered("g", None)]  # fmt: skip
    assert [finding.id for finding in most_recoverable(given)] == ["f", "c", "b", "a", "e"]


DEMO = """
def long_kernel(subject):
    work = subject.capture.work
    longest_ns = int((work.end_ns - work.start_ns).max())
    if longest_ns > 400:
        yield subject.found("long_kernel", "a kernel is long", f"{longest_ns} ns", numbers={"longest_ns": longest_ns})
"""
ROW = "long_kernel\twarn\twork\tquality\tdemo_check:long_kernel\t\tmake it short\n"


def test_a_check_is_one_function_and_one_row(make_export, tmp_path, monkeypatch):
    path = made(make_export, steady(14))
    assert "long_kernel" not in found(path)
    table = tmp_path / "findings.tsv"
    table.write_text(check_table.FILE.read_text() + ROW)
    (tmp_path / "demo_check.py").write_text(DEMO)
    monkeypatch.syspath_prepend(tmp_path)
    subject = subject_of(path)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(check_table, "FILE", table)
            checks.cache_clear()
            line = quality.judge(subject.capture).message
            rows = analyse(subject.capture, Settings())[0]["findings"].to_pylist()
    finally:
        checks.cache_clear()
    assert "a kernel is long (500 ns); make it short" in line
    (row,) = [row for row in rows if row["check"] == "long_kernel"]
    assert (row["severity"], row["remedy"], row["observed"]) == ("warn", "make it short", True)
    assert "long_kernel" not in checks()


def test_report_without_work_runs_what_needs_none(make_export):
    path = make_export(**{KERNELS: {"start": [], "end": [], "deviceId": [], "globalPid": []}})
    ids = {finding.id for finding in subject_of(path).quality_findings}
    assert "no_gpu_work" in ids
    assert not ids & {check.id for check in checks().values() if check.needs == registry.WORK}
