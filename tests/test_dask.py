"""Reports on a real Dask cluster: scheduler and workers as processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from conftest import FIXTURES, ROOT, nsight, pack
from recipes import __version__
from recipes.base.errors import PackError
from recipes.base.pack import recipe_names
from recipes.run import dask_cluster, local, run
from recipes.run.modes import dask_options
from recipes.run.spill import Spill, spill_in

pytestmark = pytest.mark.nsight

pytest.importorskip("distributed")

REPORTS = [FIXTURES / name for name in ("decode_eager.nsys-rep", "decode_graph.nsys-rep")]
TIMEOUT_S = 60


def wait_for(what: Callable[[], object], why: str) -> None:
    until = time.monotonic() + TIMEOUT_S
    while not what():
        assert time.monotonic() < until, why
        time.sleep(0.05)


@dataclass
class Cluster:
    """A scheduler and workers on the loopback, started in a folder of their own with none of our variables."""

    folder: Path
    processes: list[subprocess.Popen] = field(default_factory=list)

    @property
    def address_file(self) -> Path:
        return self.folder / "scheduler.json"

    def start(self, kind: str, *arguments: str, **environment: str) -> subprocess.Popen:
        place = self.folder / f"{kind}{len(self.processes)}"
        place.mkdir()
        bare = {"PATH": "/usr/bin:/bin", "HOME": str(self.folder), "XDG_CACHE_HOME": str(self.folder / "cache")}
        with (place / "log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", f"distributed.cli.dask_{kind}", "--scheduler-file", self.address_file,
                 "--no-dashboard", *arguments],
                cwd=place, stdout=log, stderr=log,
                env={**bare, **environment},
            )  # fmt: skip
        self.processes.append(process)
        return process

    def start_worker(self, **environment: str) -> subprocess.Popen:
        place = str(self.folder / f"local{len(self.processes)}")
        return self.start("worker", "--nthreads", "1", "--no-nanny", "--local-directory", place, **environment)

    def address(self) -> str:
        return json.loads(self.address_file.read_text())["address"]


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster without workers."""
    made = Cluster(tmp_path / "cluster")
    made.folder.mkdir()
    try:
        made.start("scheduler", "--host", "127.0.0.1", "--port", "0")
        wait_for(made.address_file.exists, "the scheduler did not start")
        yield made
    finally:
        for process in made.processes:
            process.kill()
            process.wait()


@pytest.fixture
def cluster(scheduler: Cluster) -> Cluster:
    """A cluster of two workers."""
    scheduler.start_worker()
    scheduler.start_worker()
    return scheduler


@pytest.fixture
def reports(tmp_path: Path, graph_sqlite: Path) -> Path:
    """A folder of reports: real ones under several names, and one that cannot be read."""
    folder = tmp_path / "reports"
    for number in range(6):
        place = folder / f"node{number % 2}" / f"rank{number}"
        place.mkdir(parents=True)
        (place / "r.sqlite").hardlink_to(graph_sqlite)
    for report in REPORTS:
        (folder / report.name).symlink_to(report)
    (folder / "bad.nsys-rep").write_text("no report")
    return folder


def outputs(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.suffix in (".parquet", ".csv", ".ipynb")}


def expected(reports: Path, output: Path) -> tuple[dict[str, bytes], str]:
    done = pack("run", "llm_idle_gaps", "--mode", "none", "--csv", "--input", reports, "--output", output)
    assert done.returncode == 0, done.stderr
    return outputs(output), done.stdout.partition("Generated")[0]


@pytest.mark.parametrize("inside", [True, False], ids=["nsys", "pack"])
def test_bare_workers_write_the_same_bytes(inside, scheduler, reports, nsys, tmp_path):
    wanted, said = expected(reports, tmp_path / "none")
    # What Nsight sends to workers itself needs Nsight's own package there.
    needed = {"PYTHONPATH": str(nsys.parent / "python" / "packages")} if inside else {}
    for _ in range(2):
        scheduler.start_worker(**needed)
    arguments = ["llm_idle_gaps", "--mode", "dask-futures", "--csv", "--input", reports, "--output", tmp_path / "dask"]
    if inside:
        # Nsight 2023.4.4 takes any text in NSYS_DASK_* for a truth value; Dask's own variable works everywhere.
        done = nsight(nsys, "recipe", *arguments, DASK_SCHEDULER_ADDRESS=scheduler.address())
    else:
        done = pack("run", *arguments, NSYS_DASK_SCHEDULER_FILE=str(scheduler.address_file))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("WARNING: ") == 1
    assert outputs(tmp_path / "dask") == wanted
    assert said.strip() in done.stdout


def test_paths_mean_what_they_mean_to_the_user(cluster, reports, tmp_path):
    (tmp_path / "rules.tsv").write_text("pattern\tfamily\nelementwise\tssm\n")
    done = pack("run", "llm_kernel_families", "--mode", "dask-futures", "--input", "reports/node*/**/*.sqlite",
                "--families", "rules.tsv", "--output", "out", cwd=tmp_path,
                NSYS_DASK_ADDRESS=cluster.address())  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "quality: ok (6 reports, " in done.stdout
    assert "ssm" in pq.read_table(tmp_path / "out" / "families.parquet")["family"].to_pylist()


def test_workers_that_die_lose_no_report_and_later_ones_take_over(cluster, reports, tmp_path):
    wanted, _ = expected(reports, tmp_path / "none")
    output = tmp_path / "dask"
    with subprocess.Popen(
        [sys.executable, "-m", "recipes", "run", "llm_idle_gaps", "--mode", "dask-futures", "--csv", "--input", reports,
         "--output", output],
        cwd=ROOT, env={**os.environ, "NSYS_DASK_ADDRESS": cluster.address()}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as run:  # fmt: skip
        wait_for(lambda: list(tmp_path.glob(".dask.part-*/.tables-*/*.arrow")), "no report was done")
        workers = cluster.processes[1:]
        analysing = [child for worker in workers for child in psutil.Process(worker.pid).children()]
        for worker in workers:
            worker.kill()
        assert analysing, "nothing was under way"
        assert run.poll() is None
        cluster.start_worker()
        _, warned = run.communicate(timeout=TIMEOUT_S)
    assert run.returncode == 0, warned
    assert warned.count("WARNING: ") == 1
    assert outputs(output) == wanted
    # What the dead workers had started ended with them.
    wait_for(lambda: not any(map(alive, analysing)), "processes of dead workers go on")


def alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def test_workers_without_the_folder_send_their_tables(cluster, reports, tmp_path, monkeypatch, capsys):
    wanted, _ = expected(reports, tmp_path / "none")

    @contextlib.contextmanager
    def of_another_machine(folder, *, wanted):
        with spill_in(folder, wanted=wanted) as spill:
            yield Spill(spill.folder, "another machine's")

    monkeypatch.setattr(run, "spill_in", of_another_machine)
    monkeypatch.setenv("NSYS_DASK_ADDRESS", cluster.address())
    arguments = ["--mode", "dask-futures", "--csv", "--input", str(reports), "--output", str(tmp_path / "dask")]
    assert local.run_locally("llm_idle_gaps", arguments, "run") == 0
    assert outputs(tmp_path / "dask") == wanted


def test_cluster_that_is_not_there_is_one_line(graph_sqlite, tmp_path):
    done = pack("run", "llm_idle_gaps", "--mode", "dask-futures", "--input", graph_sqlite, "--output", tmp_path / "out",
                NSYS_DASK_ADDRESS="tcp://127.0.0.1:9", NSYS_DASK_TIMEOUT="1")  # fmt: skip
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "no cluster could be reached (NSYS_DASK_ADDRESS=tcp://127.0.0.1:9" in done.stderr.splitlines()[-1]


def test_variables_are_the_arguments_of_the_client():
    environ = {"NSYS_DASK_N_WORKERS": "4", "nsys_dask_timeout": "2.5", "NSYS_DASK_ADDRESS": "tcp://a:1",
               "NSYS_DASK_PROCESSES": "False", "DASK_OTHER": "1"}  # fmt: skip
    assert dask_options(environ) == {"n_workers": 4, "timeout": 2.5, "address": "tcp://a:1", "processes": False}


def test_cluster_without_workers_ends_the_run(scheduler, monkeypatch):
    monkeypatch.setattr(dask_cluster, "_WORKER_S", 1)
    without = pytest.raises(PackError, match="the cluster has had no worker for 1 s")
    with dask_cluster.connect({"scheduler_file": str(scheduler.address_file)}) as client, without:
        list(dask_cluster.on_cluster(client, lambda task, reason: None, ["task"]))


@pytest.mark.parametrize(
    ("pack", "version", "why"),
    [("/nowhere", __version__, "No module named 'recipes'"), (str(ROOT), "9.9", f"is {__version__}, not 9.9")],
)
def test_worker_without_this_pack_says_what_to_do(pack, version, why, tmp_path):
    with pytest.raises(ImportError) as error:
        dask_cluster._caller(pack, version, str(tmp_path))(b"")
    assert why in str(error.value)
    assert (
        f"make {pack} available under the same path there, on a shared file system, or "
        f"pip install nsys-llm-recipes=={version}"
    ) in str(error.value)


def elsewhere(monkeypatch, cluster, reports, tmp_path):
    """A run on workers that do not see the user's checkout."""
    monkeypatch.setattr(dask_cluster, "ROOT", tmp_path / "checkout")
    monkeypatch.setenv("NSYS_DASK_ADDRESS", cluster.address())
    arguments = ["--mode", "dask-futures", "--csv", "--input", str(reports), "--output", str(tmp_path / "dask")]
    return local.run_locally("llm_idle_gaps", arguments, "run")


def test_workers_without_the_pack_end_the_run_in_one_line(cluster, reports, tmp_path, monkeypatch):
    with pytest.raises(PackError, match=r"^the Dask worker on .* cannot run the pack: No module named"):
        elsewhere(monkeypatch, cluster, reports, tmp_path)
    assert not (tmp_path / "dask").exists()


def test_workers_may_have_the_pack_installed(scheduler, reports, tmp_path, monkeypatch, capsys):
    wanted, _ = expected(reports, tmp_path / "none")
    wheel = tmp_path / "site" / "nsys_llm_recipes"
    wheel.mkdir(parents=True)
    (wheel / "__init__.py").touch()
    for name in ("recipes", *recipe_names()):
        (wheel / name).symlink_to(ROOT / name)
    scheduler.start_worker(PYTHONPATH=str(wheel.parent))
    assert elsewhere(monkeypatch, scheduler, reports, tmp_path) == 0
    assert outputs(tmp_path / "dask") == wanted


def test_cluster_of_this_machine_needs_nothing(reports, tmp_path):
    """From any folder."""
    wanted, said = expected(reports, tmp_path / "none")
    done = pack("run", "llm_idle_gaps", "--mode", "dask-futures", "--csv", "--input", reports, "--output", "dask",
                cwd=tmp_path, NSYS_DASK_N_WORKERS="2", NSYS_DASK_THREADS_PER_WORKER="1")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert outputs(tmp_path / "dask") == wanted
    assert said.strip() in done.stdout
