"""What a user can get wrong ends in one line, stops nothing that is good, and never becomes a number."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from conftest import FIXTURES, ROOT, nsight, pack
from test_gpu_work import KERNELS, operations

GRAPH = FIXTURES / "decode_graph.nsys-rep"


@pytest.fixture
def bad(tmp_path):
    """A folder with a good report and everything that can be wrong with one."""
    folder = tmp_path / "bad"
    folder.mkdir()
    shutil.copy(GRAPH, folder / "good.nsys-rep")
    (folder / "cut.nsys-rep").write_bytes(GRAPH.read_bytes()[:200_000])
    (folder / "text.nsys-rep").write_text("hello\n")
    (folder / "empty.nsys-rep").write_text("")
    (folder / "other.sqlite").write_text("hello\n")
    return folder


@pytest.fixture(params=["nsys", "pack"])
def families(request, nsys, tmp_path):
    """Runs the recipe inside Nsight, and without."""

    def run(*arguments, **environment):
        arguments = ["--output", tmp_path / "out", *arguments]
        if request.param == "nsys":
            return nsight(nsys, "recipe", "llm_kernel_families", *arguments, **environment)
        return pack("run", "llm_kernel_families", *arguments, **environment)

    return run


def one_line_error(done: subprocess.CompletedProcess[str], expected: str) -> None:
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert "Traceback" not in said
    errors = [line for line in said.splitlines() if line.startswith("ERROR: ")]
    assert len(errors) == 1, said
    assert expected in errors[0]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cut.nsys-rep", "damaged, cut off"),
        ("text.nsys-rep", "not an Nsight report"),
        ("empty.nsys-rep", "is empty"),
        ("none.nsys-rep", "does not exist"),
        ("nothing_here", "holds no reports"),
    ],
)
def test_single_bad_input_is_one_line_and_fails(name, expected, families, bad, tmp_path):
    (bad / "nothing_here").mkdir()
    one_line_error(families("--input", bad / name), expected)
    assert not (tmp_path / "out").exists()


def test_good_report_is_analysed_beside_bad_ones(families, bad, tmp_path):
    done = families("--input", bad, tmp_path / "none.nsys-rep")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("WARNING: ") == 5
    assert "quality: warn (1 report, 5,215 kernels; 5 inputs could not be read)" in done.stdout
    files = pq.read_table(tmp_path / "out" / "files.parquet").to_pandas().set_index("report")
    assert files["status"].to_dict() == {
        "good": "ok", "cut": "unreadable", "text": "unreadable", "empty": "unreadable", "other": "unreadable",
        "none": "unreadable",
    }  # fmt: skip
    assert set(pq.read_table(tmp_path / "out" / "families.parquet")["report"].to_pylist()) == {"good"}


def test_strict_fails_when_any_input_is_bad(families, bad):
    done = families("--input", bad / "good.nsys-rep", bad / "empty.nsys-rep", "--strict")
    one_line_error(done, "is empty")


def test_all_bad_inputs_are_named(families, bad):
    done = families("--input", bad / "cut.nsys-rep", bad / "empty.nsys-rep")
    said = done.stdout + done.stderr
    assert done.returncode == 1
    assert [word in said for word in ("cut.nsys-rep", "empty.nsys-rep")] == [True, True]


def test_report_without_kernels_gives_empty_tables(make_export, tmp_path):
    done = pack("run", "llm_kernel_families", "--input", make_export(), "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "No GPU work was found" in done.stdout
    assert "quality: bad" in done.stdout
    assert "was not traced" in done.stdout
    tables = {name: pq.read_table(tmp_path / "out" / f"{name}.parquet") for name in ("files", "families", "kernels")}
    assert [len(table) for table in tables.values()] == [1, 0, 0]
    assert tables["files"]["status"].to_pylist() == ["empty"]


def test_graphs_traced_as_a_whole_are_said(make_export, tmp_path):
    graphs = operations((0, 90, 0, 7 << 24))
    kernels = operations((90, 100, 0, 7 << 24), demangledName=1, shortName=1)
    path = make_export(CUPTI_ACTIVITY_KIND_GRAPH_TRACE=graphs, **{KERNELS: kernels})
    done = pack("run", "llm_kernel_families", "--input", path, "--output", tmp_path / "out")
    assert "quality: warn" in done.stdout
    assert "traced as a whole: kernels in them are not seen (90.0 % of the GPU's busy time)" in done.stdout
    assert "--cuda-graph-trace=node" in done.stdout


def test_graph_work_that_was_not_recorded_is_said(make_export, tmp_path):
    # What Nsight 2023.4 makes of a capture with --cuda-graph-trace=graph: launches without any work.
    strings = {"id": [1, 2], "value": ["gemm", "cudaGraphLaunch_v10000"]}
    calls = {"start": [1], "end": [2], "globalTid": [7 << 24], "correlationId": [5], "nameId": [2]}
    kernels = operations((90, 100, 0, 7 << 24), demangledName=1, shortName=1, graphNodeId=None)
    path = make_export(StringIds=strings, CUPTI_ACTIVITY_KIND_RUNTIME=calls, **{KERNELS: kernels})
    done = pack("run", "llm_kernel_families", "--input", path, "--output", tmp_path / "out")
    assert "graphs were launched but their work was not recorded" in done.stdout


def test_unwritable_output_is_told(families, tmp_path):
    (tmp_path / "file").write_text("")
    one_line_error(families("--input", GRAPH, "--output", tmp_path / "file" / "out"), "cannot be written")


def test_existing_output_is_left_alone(families, tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    done = families("--input", GRAPH, "--output", tmp_path / "out", "--force-overwrite")
    one_line_error(done, "not overwritten")
    assert (tmp_path / "out" / "mine.txt").read_text() == "mine"


def test_existing_output_without_force_goes_elsewhere(nsys, tmp_path):
    (tmp_path / "out").mkdir()
    done = nsight(nsys, "recipe", "llm_kernel_families", "--input", GRAPH, "--output", "out", cwd=tmp_path,
                  NSYS_RECIPE_PATH=str(ROOT))  # fmt: skip
    assert done.returncode == 0
    assert "WARNING: out exists, so the output goes to llm_kernel_families-1; use --force-overwrite" in done.stdout
    assert (tmp_path / "llm_kernel_families-1" / "families.parquet").exists()
    assert not list((tmp_path / "out").iterdir())


def test_bad_rule_file_is_told_before_the_work(families, tmp_path):
    rules = tmp_path / "rules.tsv"
    rules.write_text("pattern\tfamily\n(\tgemm\n")
    one_line_error(families("--input", GRAPH, "--families", rules), "rules.tsv:2")


def test_missing_nsight_is_told(tmp_path):
    done = pack("run", "llm_kernel_families", "--input", GRAPH, "--output", tmp_path / "out",
                NSYS_LLM_RECIPES_NSYS="/nowhere/nsys")  # fmt: skip
    one_line_error(done, "/nowhere/nsys")


def test_nsight_that_fails_is_told(tmp_path):
    nsys = tmp_path / "nsys"
    nsys.write_text(
        "#!/bin/sh\n[ \"$1\" = --version ] && echo 'NVIDIA Nsight Systems version 2024.5.1.1-0' && exit\nexit 9\n"
    )
    nsys.chmod(0o755)
    report = shutil.copy(GRAPH, tmp_path / "r.nsys-rep")
    done = pack(
        "run", "llm_kernel_families", "--input", report, "--output", tmp_path / "out", NSYS_LLM_RECIPES_NSYS=str(nsys)
    )
    one_line_error(done, str(report))


def test_readonly_report_folder_works(families, tmp_path):
    folder = tmp_path / "readonly"
    folder.mkdir()
    shutil.copy(GRAPH, folder)
    folder.chmod(0o555)
    try:
        done = families("--input", folder)
        assert done.returncode == 0, done.stderr
        assert os.listdir(folder) == [GRAPH.name]
    finally:
        folder.chmod(0o755)


def test_full_disk_for_the_output_is_told(graph_sqlite, tmp_path):
    # A limit on file sizes fails writes as a full disk does.
    limited = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
        "from recipes.__main__ import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", limited, "run", "llm_kernel_families", "--input", graph_sqlite, "--output",
         tmp_path / "out"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    one_line_error(done, "cannot be written")
    assert os.listdir(tmp_path) == []


def test_names_cannot_steer_the_terminal(make_export, tmp_path):
    strings = {"id": [1], "value": ["evil\x1b[2Jname\u202e"]}
    kernels = operations((90, 100, 0, 7 << 24), demangledName=1, shortName=1, graphNodeId=None)
    path = make_export(StringIds=strings, **{KERNELS: kernels})
    done = pack("run", "llm_kernel_families", "--input", path, "--output", tmp_path / "out")
    assert "evil\\x1b[2Jname\\u202e" in done.stdout
    assert "\x1b" not in done.stdout


def test_environment_of_the_capture_reaches_no_output(nsys, tmp_path):
    done = nsight(nsys, "recipe", "llm_kernel_families", "--input", GRAPH, "--csv", "--output", tmp_path / "out")
    written = b"".join(file.read_bytes() for file in (tmp_path / "out").iterdir()) + done.stdout.encode()
    for secret in (b"LD_LIBRARY_PATH", b"NV_LIBNCCL", b"CONTAINER_NAME"):
        assert secret not in written


def test_progress_is_quiet_in_logs(families, tmp_path):
    done = families("--input", GRAPH)
    assert done.returncode == 0
    assert done.stderr == ""
    assert "\r" not in done.stdout


def test_unexpected_fault_names_the_report(tmp_path, make_export, monkeypatch):
    from recipes.events.gpu_work import Span
    from recipes.run import run
    from recipes.run.inputs import find_inputs

    (item,) = find_inputs([str(make_export())])
    monkeypatch.setattr(run, "Capture", lambda *_, **__: 1 / 0)
    outcome = run.analyse_report(run.Task(item, 1, 1, "llm_kernel_families", None, Span(), None, None))
    assert outcome.file["status"] == "unreadable"
    assert "ZeroDivisionError" in outcome.file["message"]
    assert str(Path(item.path)) in outcome.file["message"]
