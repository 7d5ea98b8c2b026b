"""One report in a process of its own on a worker of a cluster: a pickled task on standard input, its outcome back."""

from __future__ import annotations

import os
import pickle
import sys
import threading
from dataclasses import replace

from recipes.base.errors import PackError
from recipes.nsight.export import Exporter
from recipes.run.local import find_exporter
from recipes.run.run import analyse_report


def main() -> None:
    """Analyses the report. Ends when the worker does."""
    answer = os.fdopen(os.dup(1), "wb")
    # What anything prints must not get into the answer.
    os.dup2(2, 1)
    task = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_worker, daemon=True).start()
    outcome = analyse_report(replace(task, exporter=_here(task.exporter)))
    with answer:
        pickle.dump(outcome, answer)


def _end_with_worker() -> None:
    # Not through sys.stdin, whose lock would be held when this process ends.
    while os.read(0, 1):
        pass
    os._exit(1)


def _here(exporter: Exporter | None) -> Exporter | None:
    """The same Nsight Systems where this machine has it, else the newest one here."""
    if exporter is None or exporter.nsys.is_file():
        return exporter
    try:
        return find_exporter()
    except PackError:
        return None
