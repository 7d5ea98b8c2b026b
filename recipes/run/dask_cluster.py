"""Reports spread over a Dask cluster whose workers find the pack where the user has it, or have it installed.

A report is analysed by a process that the worker starts (`recipes.run.remote`): what a worker has loaded already, an
older pack perhaps, does not matter, and the memory of one report is given back when it is done.

What Dask carries is pickled by value or is plain bytes: neither scheduler nor worker need import anything of ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from recipes import __version__
from recipes.base.errors import PackError
from recipes.base.pack import ROOT
from recipes.base.terminal import progress
from recipes.run.worker_processes import Lost, Result, Task

#: A report whose process failed is tried so many times more, on any worker.
_RETRIES = 2
#: So long a cluster may be without any worker when a run begins: one that never gets any must not hold it for ever.
_WORKER_S = 300
_DIED = (
    "every worker that tried it died, usually for lack of memory; use workers with more, or a shorter time range "
    "(--filter-time)"
)


@contextlib.contextmanager
def connect(options: Mapping[str, Any]) -> Iterator[Any]:
    """A client of the cluster that the options of Dask's Client tell. PackError when there is none."""
    try:
        from distributed import Client
    except ImportError:
        raise PackError(
            "--mode dask-futures needs Dask, which this Python lacks; pip install distributed, or --mode concurrent"
        ) from None
    try:
        client = Client(**options)
    except (OSError, asyncio.TimeoutError, TypeError, ValueError) as error:
        told = ", ".join(f"NSYS_DASK_{name.upper()}={value}" for name, value in options.items()) or "no NSYS_DASK_*"
        raise PackError(
            f"--mode dask-futures: no cluster could be reached ({told}: {' '.join(str(error).split())}); check that "
            "its scheduler runs, or use --mode concurrent"
        ) from None
    with client:
        yield client


def on_cluster(client: Any, lost: Lost, tasks: Sequence[Task]) -> Iterator[Result]:
    """What `analyse_report` makes of each task on the cluster's workers, as they come. A worker that dies loses none.

    PackError when the scheduler goes away, or a worker has no pack, or another one.
    """
    from distributed import KilledWorker, as_completed

    _wait_for_worker(client)
    call = _caller(str(ROOT), __version__, os.getcwd())
    futures = client.map(call, [pickle.dumps(task) for task in tasks], pure=False, retries=_RETRIES)
    of_future = dict(zip(futures, tasks, strict=True))
    del futures
    for future in as_completed(list(of_future)):
        task = of_future.pop(future)
        if future.status == "finished":
            yield pickle.loads(future.result())
        elif future.status == "error":
            error = future.exception()
            if isinstance(error, ImportError):
                raise PackError(str(error))
            yield lost(task, _DIED if isinstance(error, KilledWorker) else " ".join(str(error).split()))
        else:
            raise PackError("the Dask cluster disappeared during the run; check its scheduler, then run again")


def _wait_for_worker(client: Any) -> None:
    """PackError when no worker comes."""
    from distributed import TimeoutError as DaskTimeoutError

    progress("waiting for a Dask worker")
    try:
        client.wait_for_workers(1, timeout=_WORKER_S)
    except (DaskTimeoutError, asyncio.TimeoutError):
        raise PackError(
            f"--mode dask-futures: the cluster has had no worker for {_WORKER_S} s; check why its workers did not "
            "start, or use --mode concurrent"
        ) from None


# The same pack, with all that it needs, or status 3 and why not.
_START = """
import sys
sys.path[0], version = sys.argv[1:]
try:
    import recipes
    if recipes.__version__ != version:
        raise ImportError(f"its pack in {sys.path[0]} is {recipes.__version__}, not {version}")
    from recipes.run.remote import main
except ImportError as error:
    print(error, file=sys.stderr)
    sys.exit(3)
main()
"""


def _caller(pack: str, version: str, folder: str) -> Any:
    """What a worker runs: a pickled task in, a pickled outcome out. ImportError with what to do when it has not the
    pack of this version; RuntimeError with the reason when there is no outcome."""
    start = _START

    # Pickled by value, since it is no module's: all that it uses has to come with it.
    def call(task: bytes) -> bytes:
        import importlib.util
        import os
        import signal
        import subprocess
        import sys
        import tempfile

        wheel = importlib.util.find_spec("nsys_llm_recipes")
        roots = [pack, *(wheel.submodule_search_locations or [] if wheel else [])]
        root = next((root for root in roots if os.path.isdir(os.path.join(root, "recipes"))), pack)
        # Where paths mean the same as to the user, if that folder is here.
        where = folder if os.path.isdir(folder) else None
        pipe = subprocess.PIPE
        with tempfile.TemporaryFile() as said, subprocess.Popen(
            [sys.executable, "-c", start, root, version], stdin=pipe, stdout=pipe, stderr=said, cwd=where
        ) as child:  # fmt: skip
            assert child.stdin and child.stdout  # both are pipes
            try:
                child.stdin.write(task)
                # It stays open: the child ends when this worker is no more.
                child.stdin.flush()
            except BrokenPipeError:
                pass
            outcome = child.stdout.read()
            status = child.wait()
            said.seek(0)
            last = (said.read().decode(errors="replace").strip().splitlines() or ["without a word"])[-1]
        if status == 0:
            return outcome
        there = f"{os.uname().nodename} ({sys.executable})"
        if status == 3:
            raise ImportError(
                f"the Dask worker on {there} cannot run the pack: {last}; make {pack} available under the same path "
                f"there, on a shared file system, or pip install nsys-llm-recipes=={version} into its Python"
            )
        reason = "was killed, usually for lack of memory" if status == -signal.SIGKILL else f"failed: {last}"
        raise RuntimeError(f"its process on {there} {reason}")

    return call
