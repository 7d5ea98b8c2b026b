"""Reports spread over processes of this machine. A process that dies costs at most the report it was at."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")
#: What becomes of a task that has no result, for a reason in words.
Lost = Callable[[Task, str], Result]

#: How often a worker looks whether its parent is still there.
_LOOK_S = 1.0
_KILLED = (
    "its worker process was killed twice, usually for lack of memory; use a machine with more, or a shorter time range "
    "(--filter-time)"
)


def one_by_one(function: Callable[[Task], Result], lost: Lost, tasks: Sequence[Task]) -> Iterator[Result]:
    """Results in this process, in order."""
    return map(function, tasks)


def in_processes(
    function: Callable[[Task], Result], lost: Lost, tasks: Sequence[Task], workers: int
) -> Iterator[Result]:
    """Results of so many processes, as they come.

    When one dies, all go with it: the tasks they were at are done again, each alone in a process, and those that kill
    theirs once more are lost.
    """
    waiting = deque(tasks)
    while waiting:
        for task in (yield from _until_one_dies(function, waiting, workers)):
            try:
                with _pool(1) as pool:
                    yield pool.submit(function, task).result()
            except BrokenProcessPool:
                yield lost(task, _KILLED)


def _until_one_dies(
    function: Callable[[Task], Result], waiting: deque[Task], workers: int
) -> Generator[Result, None, list[Task]]:
    """Takes tasks from those waiting and gives their results; returns the tasks under way when a process died."""
    running: dict = {}
    died = False
    with _pool(workers) as pool, _ended_with(pool):
        while (waiting or running) and not died:
            try:
                # No more than can run: who is under way is then known, and few results wait to be fetched.
                while waiting and len(running) < workers:
                    running[pool.submit(function, waiting[0])] = waiting[0]
                    waiting.popleft()
            except BrokenProcessPool:
                died = True
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                if isinstance(future.exception(), BrokenProcessPool):
                    died = True
                else:
                    del running[future]
                    yield future.result()
    return list(running.values())


@contextlib.contextmanager
def _ended_with(pool: ProcessPoolExecutor) -> Iterator[None]:
    """Ends the pool's processes when the block is left by an error: what they are at is wanted by nobody."""
    try:
        yield
    except BaseException:
        for process in list((getattr(pool, "_processes", None) or {}).values()):
            process.terminate()
        raise


def _pool(workers: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(workers, initializer=_end_quietly)


def _end_quietly() -> None:
    # Ctrl-C reaches the workers too; what is to be said is the parent's to say.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()


def _end_with_parent(parent: int) -> None:
    """Ends this process when its parent is no more: a killed one cannot say so, and a report can be large."""
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)


def cores() -> int:
    """The cores that this process may use: a job's share of its machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
