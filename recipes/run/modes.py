"""The modes in which reports are analysed, named and set as Nsight's own: `--mode`, NSYS_CONCURRENT_*, NSYS_DASK_*."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from recipes.base.errors import PackError
from recipes.run import worker_processes as workers
from recipes.run.worker_processes import Lost, Result, Task, one_by_one

MODES = ("none", "concurrent", "dask-futures")
_WORKERS = "NSYS_CONCURRENT_MAX_WORKERS"
_DASK = "NSYS_DASK_"


def concurrently(function: Callable[[Task], Result], lost: Lost, tasks: Sequence[Task]) -> Iterator[Result]:
    """Results of as many processes as there are cores to use, or as NSYS_CONCURRENT_MAX_WORKERS says, as they come.

    PackError when that is no number.
    """
    chosen = os.environ.get(_WORKERS, "")
    if chosen and not (chosen.isdecimal() and int(chosen)):
        raise PackError(f"{_WORKERS} is {chosen!r}; set it to a number of processes, 1 or more")
    count = min(len(tasks), int(chosen or 0) or workers.cores())
    return one_by_one(function, lost, tasks) if count < 2 else workers.in_processes(function, lost, tasks, count)


def on_dask(function: Callable[[Task], Result], lost: Lost, tasks: Sequence[Task]) -> Iterator[Result]:
    """Results of the workers of a Dask cluster, as they come: the one that NSYS_DASK_* names, else one of this machine.

    PackError when there is no Dask or the cluster cannot be reached.
    """
    # Loading it takes time that most runs have no use for.
    from recipes.run import dask_cluster as cluster

    with cluster.connect(dask_options(os.environ)) as client:
        yield from cluster.on_cluster(client, lost, tasks)


def dask_options(environ: dict[str, str] | os._Environ) -> dict[str, Any]:
    """The arguments of Dask's Client: NSYS_DASK_N_WORKERS=4 is n_workers=4."""
    return {
        name[len(_DASK) :].lower(): _value(text) for name, text in environ.items() if name.upper().startswith(_DASK)
    }


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return {"true": True, "false": False, "none": None}.get(text.lower(), text)
