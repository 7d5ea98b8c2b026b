"""The bundled reports hold what fixtures/README.md says of them, and nothing of the machines that they came from."""

from __future__ import annotations

import csv
import itertools
import lzma
import re
import shutil
import sqlite3
import subprocess
from collections import Counter
from contextlib import closing
from functools import cache
from pathlib import Path

import pytest

from conftest import FIXTURES

pytestmark = pytest.mark.slow

OLD, NEW = "2023.4.4", "2025.3.1"
README = (FIXTURES / "README.md").read_text()
MAX_FILE_BYTES, MAX_ALL_BYTES = 2_000_000, 40_000_000

CUPTI = "CUPTI_ACTIVITY_KIND_"
COUNTED = (CUPTI + "KERNEL", CUPTI + "MEMCPY", CUPTI + "MEMSET", CUPTI + "GRAPH_TRACE", "NVTX_EVENTS")

#: What a report may tell of the environment it was captured in.
ALLOWED = re.compile(
    "PATH|HOME|LANG|LD_LIBRARY_PATH|LD_PRELOAD|PYTHON[A-Z]+|OMP_NUM_THREADS|(TORCHINDUCTOR|TRITON)_CACHE_DIR|PWD|OLDPWD|SHLVL|_"
    "|NCCL_NVLS_ENABLE|TORCH_SYMM_MEM_DISABLE_MULTICAST|NVSHMEM_DISABLE_NVLS|CUDA_VISIBLE_DEVICES|STOP|LIMIT_S"
    "|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE|NAME)|MASTER_(ADDR|PORT)|TORCHELASTIC_[A-Z_]+|TORCH_NCCL_[A-Z_]+"
    "|(CUDA|NVTX)_INJECTION64_PATH|NSYS_[A-Z_]+|QUADD_[A-Z_]+"
    "|CUPTI_PROFILE_MODE|TRACE_START_IMMEDIATELY|USE_AGENT_API|__GL_CONSTANT_FRAME_RATE_HINT"
)
PRIVATE = re.compile(r"/wor[k]/|/roo[t]\b|/home/|CONTAINER_")

#: They are older than the rule and keep the environment of the container they came from; the README says so.
OLDER = ("decode_eager", "decode_graph")


def table(first_column: str) -> list[list[str]]:
    """The rows of the README's table whose first column has this title."""
    lines = itertools.dropwhile(lambda line: not line.startswith(f"| {first_column} |"), README.splitlines())
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines)
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in list(rows)[2:]]


def counts() -> list[tuple[str, str, list[int]]]:
    """(version, report, rows of each table) of the README's first table."""
    found = []
    for name, version, *numbers, _ in table("report"):
        rows = [int(number.replace(",", "")) for number in numbers]
        found += [(each, name, rows) for each in ((OLD, NEW) if version == "both" else (version,))]
    return found


def ranges() -> list[tuple[str, str, int, int | None]]:
    """(report, range, number of ranges, operations in each) of the README's second table."""
    section = README.split("### Ranges")[1]
    lines = [line for line in section.split("###")[0].splitlines() if line.startswith("| `")]
    cells = [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]
    return [(name, text, int(number), int(inside) if inside else None) for name, text, number, inside in cells]


@pytest.fixture(scope="session")
def export(request, tmp_path_factory):
    """Returns the SQLite export of a report: unpacked, or made by the Nsight of this machine."""
    folder = tmp_path_factory.mktemp("exports")

    @cache
    def make(version: str, name: str) -> Path:
        path = folder / f"{version}-{name}.sqlite"
        packed = FIXTURES / version / f"{name}.sqlite.xz"
        if packed.is_file():
            path.write_bytes(lzma.decompress(packed.read_bytes()))
            return path
        # A copy: Nsight would leave its files beside the report.
        report = shutil.copy(FIXTURES / version / f"{name}.nsys-rep", folder / f"{version}-{name}.nsys-rep")
        nsys = request.getfixturevalue("nsys")
        command = [
            nsys,
            "export",
            "--type",
            "sqlite",
            "--lazy",
            "false",
            "--force-overwrite",
            "true",
            "-o",
            path,
            report,
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return path

    return make


def query(path: Path, statement: str, *values) -> list[tuple]:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
        return database.execute(statement, values).fetchall()


def tables_of(path: Path) -> set[str]:
    return {name for (name,) in query(path, "SELECT name FROM sqlite_master WHERE type = 'table'")}


def row_count(path: Path, name: str) -> int:
    return query(path, f"SELECT count(*) FROM {name}")[0][0] if name in tables_of(path) else 0


def nvtx(path: Path, pattern: str) -> list[tuple]:
    """(text, start, end, thread) of the ranges whose whole text matches."""
    statement = (
        "SELECT coalesce(text, value) AS name, start, end, globalTid FROM NVTX_EVENTS"
        " LEFT JOIN StringIds ON id = textId WHERE eventType IN (59, 60) ORDER BY start"
    )
    return [row for row in query(path, statement) if row[0] and re.fullmatch(pattern, row[0])]


def operations(path: Path) -> Counter:
    """Number of device operations of each (process, correlation id)."""
    found: Counter = Counter()
    for name in (name for name in COUNTED[:4] if name in tables_of(path)):
        found.update(query(path, f"SELECT globalPid / 0x1000000, correlationId FROM {name}"))
    return found


def inside(path: Path, span: tuple, operations_of: Counter) -> int:
    """Operations launched inside a range, on its thread."""
    _, start, end, thread = span
    statement = f"SELECT correlationId FROM {CUPTI}RUNTIME WHERE globalTid = ? AND start >= ? AND start < ?"
    if f"{CUPTI}RUNTIME" not in tables_of(path):
        return 0
    return sum(operations_of[thread // 0x1000000, call] for (call,) in query(path, statement, thread, start, end))


def versions_of(name: str) -> list[str]:
    return [version for version, report, _ in counts() if report == name]


@pytest.mark.parametrize(
    ("version", "name", "expected"), counts(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_report_holds_what_the_readme_counts(version, name, expected, export):
    path = export(version, name)
    assert [row_count(path, table_name) for table_name in COUNTED] == expected


@pytest.mark.parametrize(("name", "text", "number", "inside_each"), ranges())
def test_ranges_hold_what_the_readme_says(name, text, number, inside_each, export):
    pattern = r"\d+".join(map(re.escape, re.split(r"\bN\b", text)))
    for version in versions_of(name):
        path = export(version, name)
        spans = nvtx(path, pattern)
        assert len(spans) == number
        if inside_each is not None:
            launched = operations(path)
            assert {inside(path, span, launched) for span in spans} == {inside_each}


def test_every_report_is_in_the_readme():
    here = {(path.parent.name, path.name.removesuffix(".nsys-rep")) for path in FIXTURES.glob("2*/*.nsys-rep")}
    assert here == {(version, name) for version, name, _ in counts()}
    exports = {path.name.removesuffix(".sqlite.xz") for path in (FIXTURES / NEW).glob("*.sqlite.xz")}
    assert exports == {name for version, name, _ in counts() if version == NEW}


def test_training_launches_its_backward_pass_from_another_thread(export):
    for version in versions_of("training_fused"):
        path = export(version, "training_fused")
        [(main,)] = query(path, "SELECT DISTINCT globalTid FROM NVTX_EVENTS")
        threads = Counter(thread for (thread,) in query(path, f"SELECT globalTid FROM {CUPTI}RUNTIME"))
        assert main in threads
        assert len(threads) == 2


def test_generate_ranges_end_on_another_thread_than_they_start(export):
    for version in versions_of("ranges"):
        statement = "SELECT globalTid, endGlobalTid FROM NVTX_EVENTS WHERE eventType = 60"
        threads = set(query(export(version, "ranges"), statement))
        assert len(threads) == 1
        assert all(start != end for start, end in threads)


def test_each_process_of_own_gpu_calls_its_gpu_device_0(export):
    for version in versions_of("own_gpu"):
        statement = f"SELECT globalPid, deviceId, count(*) FROM {CUPTI}KERNEL GROUP BY 1, 2"
        assert [row[1:] for row in query(export(version, "own_gpu"), statement)] == [(0, 430), (0, 430)]
    gpu_of_device_0 = "SELECT gpuId FROM TARGET_INFO_CUDA_DEVICE WHERE cudaId = 0 AND pid IN (SELECT DISTINCT"
    gpus = query(export(NEW, "own_gpu"), f"{gpu_of_device_0} globalPid / 0x1000000 % 0x1000000 FROM {CUPTI}KERNEL)")
    assert sorted(gpus) == [(0,), (1,)]


def test_slow_rank_waits_least(export):
    for version in versions_of("tp_slow"):
        statement = (
            f"SELECT deviceId, sum(end - start) FROM {CUPTI}KERNEL JOIN StringIds ON id = shortName"
            " WHERE value LIKE 'ncclDevKernel_AllReduce%' GROUP BY 1"
        )
        waits = dict(query(export(version, "tp_slow"), statement))
        assert waits[0] > 2 * waits[1]


def test_nccl_message_sizes_are_in_the_new_exports(export):
    statement = (
        "SELECT DISTINCT jsonText LIKE '%\"Message size [bytes]\":131072%' FROM NVTX_EVENTS"
        " JOIN StringIds ON id = textId WHERE value = 'ncclAllReduce'"
    )
    assert query(export(NEW, "tp_eager"), statement) == [(1,)]


def test_profiler_stops_inside_the_last_step(export):
    for version in versions_of("broken_stop_inside"):
        path = export(version, "broken_stop_inside")
        launched = operations(path)
        assert [inside(path, span, launched) for span in nvtx(path, r"step \d+")] == [169] * 4 + [83]


def environment_names(path: Path) -> set[str]:
    """Names of all environment variables that an export holds."""
    captured = query(path, "SELECT value FROM META_DATA_CAPTURE WHERE name LIKE '%ENVIRONMENT_VARIABLE%'")
    system = query(path, "SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'DeviceEnvironment'")
    processes = query(path, "SELECT value FROM StringIds WHERE instr(value, char(0)) AND value LIKE '%=%'")
    blocks = [value for (value,) in captured]
    blocks += [part for (value,) in system for part in value.split(";")]
    blocks += [part for (value,) in processes for part in value.split("\0")]
    return {block.split("=")[0] for block in blocks if "=" in block}


def texts(path: Path) -> set[str]:
    """All texts of an export."""
    found = set()
    for name in tables_of(path):
        for row in query(path, f'SELECT * FROM "{name}"'):
            found.update(value for value in row if isinstance(value, str))
    return found


@pytest.mark.parametrize(("version", "name"), [(version, name) for version, name, _ in counts()])
def test_report_tells_nothing_of_its_machine(version, name, export, tmp_path_factory):
    path = export(version, name)
    assert [text for text in environment_names(path) if not ALLOWED.fullmatch(text)] == []
    # The test's own copy may lie anywhere: the exporter writes where it was.
    own = str(tmp_path_factory.getbasetemp())
    assert [text for text in texts(path) if PRIVATE.search(text) and own not in text] == []


@pytest.mark.parametrize(
    "path", sorted(FIXTURES.rglob("*.nsys-rep")), ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_report_bytes_tell_nothing_of_its_machine(path):
    if path.stem in OLDER and path.parent == FIXTURES:
        pytest.skip("older than the rule")
    assert not re.search(PRIVATE.pattern.encode(), path.read_bytes())


def test_fixtures_are_small():
    files = [path for path in FIXTURES.rglob("*") if path.is_file()]
    bundled = [path for path in files if path.suffix in (".xz", ".csv") or path.name.endswith(".nsys-rep")]
    assert [path.name for path in bundled if path.stat().st_size > MAX_FILE_BYTES] == []
    assert sum(path.stat().st_size for path in bundled) < MAX_ALL_BYTES


def test_ncu_csv_holds_the_gemms_of_the_readme():
    with (FIXTURES / "ncu" / "decode_gemms.csv").open(newline="") as file:
        kernels = list(csv.DictReader(file))[1:]
    times = [float(kernel["gpu__time_duration.sum"]) for kernel in kernels]
    assert times == [17.184, 58.752, 31.328, 3.52]
    assert all(f"{time:.3f}" in README for time in times)


def test_capture_programs_are_in_the_driver():
    driver = (FIXTURES / "capture" / "capture.sh").read_text()
    shared = {"common", "model", "distributed", "count", "check_framework"}
    programs = {path.stem for path in (FIXTURES / "capture").glob("*.py")} - shared
    assert [name for name in programs if f"{name}.py" not in driver] == []
