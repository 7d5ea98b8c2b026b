"""Reports spread over a Dask cluster whose workers need nothing of ours: the pack goes to them by itself.

A plugin puts the pack's files into each worker's own folder, now and when a worker comes later. A report is then
analysed by a process that the worker starts in them (`recipes.run.remote`): what a worker has loaded already, an older
pack perhaps, does not matter, and the memory of one report is given back when it is done.

What Dask carries is pickled by value or is plain bytes, since neither scheduler nor worker can import this module.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import pickle
import secrets
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from recipes.base.errors import PackError
from recipes.base.pack import ROOT, recipe_names
from recipes.base.terminal import progress
from recipes.run.worker_processes import Lost, Result, Task

#: A report whose process failed is tried so many times more, on any worker.
_RETRIES = 2
#: So long a cluster may be without any worker when a run begins.
_WORKER_S = 300
_DIED = (
    "every worker that tried it died, mostly for lack of memory; use workers with more, or a shorter time range "
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

    PackError when the scheduler goes away.
    """
    from distributed import KilledWorker, as_completed

    _wait_for_worker(client)
    name = f"nsys-llm-recipes-{secrets.token_hex(8)}"
    client.register_plugin(_unpacker(name, packed(ROOT)), name=name)
    try:
        payloads = [pickle.dumps(task) for task in tasks]
        futures = client.map(_caller(name, os.getcwd()), payloads, pure=False, retries=_RETRIES)
        of_future = dict(zip(futures, tasks, strict=True))
        del futures
        for future in as_completed(list(of_future)):
            task = of_future.pop(future)
            if future.status == "finished":
                yield pickle.loads(future.result())
            elif future.status == "error":
                error = future.exception()
                yield lost(task, _DIED if isinstance(error, KilledWorker) else " ".join(str(error).split()))
            else:
                raise PackError("the Dask cluster went away during the run; look at its scheduler, then run again")
    finally:
        with contextlib.suppress(Exception):
            client.unregister_worker_plugin(name)


def _wait_for_worker(client: Any) -> None:
    """PackError when no worker comes."""
    from distributed import TimeoutError as DaskTimeoutError

    progress("waiting for a Dask worker")
    try:
        client.wait_for_workers(1, timeout=_WORKER_S)
    except (DaskTimeoutError, asyncio.TimeoutError):
        raise PackError(
            f"--mode dask-futures: the cluster has had no worker for {_WORKER_S} s; look at why its workers did not "
            "start, or use --mode concurrent"
        ) from None


def packed(root: Path) -> bytes:
    """The pack's files as a zip archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        for folder in (root / "recipes", *(root / name for name in recipe_names())):
            for file in sorted(folder.rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    archive.write(file, file.relative_to(root))
    return buffer.getvalue()


def _unpacker(name: str, archive: bytes) -> Any:
    """A plugin that puts the pack into a folder of each worker's own, and takes it away again."""
    from distributed import WorkerPlugin

    class Unpacker(WorkerPlugin):
        # Pickled by value, since it is no module's: all that it uses has to come with it.
        def setup(self, worker):
            import io
            import os
            import zipfile

            with zipfile.ZipFile(io.BytesIO(archive)) as files:
                files.extractall(os.path.join(worker.local_directory, name))

        def teardown(self, worker):
            import os
            import shutil

            shutil.rmtree(os.path.join(worker.local_directory, name), ignore_errors=True)

    return Unpacker()


def _caller(name: str, folder: str) -> Any:
    """What a worker runs: a pickled task in, a pickled outcome out; RuntimeError with the reason when there is none."""

    def call(task: bytes) -> bytes:
        import os
        import signal
        import subprocess
        import sys
        import tempfile

        from distributed import get_worker

        pack = os.path.join(get_worker().local_directory, name)
        start = "import sys; sys.path[0] = sys.argv[1]; from recipes.run.remote import main; main()"
        # Where paths mean the same as to the user, if that folder is here.
        where = folder if os.path.isdir(folder) else None
        pipe = subprocess.PIPE
        with tempfile.TemporaryFile() as said, subprocess.Popen(
            [sys.executable, "-c", start, pack], stdin=pipe, stdout=pipe, stderr=said, cwd=where
        ) as child:  # fmt: skip
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
        reason = "was killed, mostly for lack of memory" if status == -signal.SIGKILL else f"failed: {last}"
        raise RuntimeError(f"its process on {os.uname().nodename} ({sys.executable}) {reason}")

    return call
