"""What a report says of itself: versions, host, rank."""

from __future__ import annotations

import re
from dataclasses import dataclass

from recipes.report import schema
from recipes.report.report import Report

# What launchers set for each process of a job: torchrun, Open MPI, MPICH and Intel MPI, PMIx, Slurm.
_RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
_RANK_IN_NAME = re.compile(r"(?i)(?:^|[^a-z])rank[ _.=-]?(\d{1,9})(?!\d)")


@dataclass(frozen=True)
class Facts:
    """Facts of a report; texts are empty and the rank None where the report does not tell."""

    nsys_version: str
    schema_version: str
    tables_exported: str
    host: str
    rank: int | None
    rank_source: str


def read_facts(report: Report, label: str) -> Facts:
    """The facts of a report. Of the environment recorded in it, only the rank's variables are looked at."""
    export = dict(report.pairs(schema.EXPORT_INFO))
    system = dict(report.pairs(schema.SYSTEM_INFO))
    rank, source = _rank(report, system, label)
    return Facts(
        nsys_version=export.get("EXPORT_PRODUCT_VERSION", ""),
        schema_version=export.get("EXPORT_SCHEMA_VERSION", ""),
        tables_exported=export.get("EXPORT_PARAM_TABLES_TO_EXPORT", ""),
        host=system.get("Hostname", ""),
        rank=rank,
        rank_source=source,
    )


def rank_in_name(name: str) -> int | None:
    """The rank that a file's name tells: 3 of run_rank3; None when it tells none."""
    named = _RANK_IN_NAME.findall(name)
    return int(named[-1]) if named else None


def _rank(report: Report, system: dict[str, str], label: str) -> tuple[int | None, str]:
    environment = dict(part.partition("=")[::2] for part in system.get("DeviceEnvironment", "").split(";"))
    for name, value in report.pairs(schema.CAPTURE_INFO):
        if name.endswith("ENVIRONMENT_VARIABLE"):
            variable, _, text = value.partition("=")
            environment[variable] = text.strip('"')
    for variable in _RANK_VARIABLES:
        value = environment.get(variable, "")
        if value.isascii() and value.isdigit() and len(value) < 10:
            return int(value), f"environment {variable}"
    named = rank_in_name(label)
    if named is not None:
        return named, "file name"
    threads = report.read(schema.THREADS, ["name"])["name"].combine_chunks().dictionary.to_pylist()
    told = {rank for name in threads for rank in _RANK_IN_NAME.findall(name or "")}
    # Threads of several ranks, as in a report of a whole job, tell of none.
    return (int(told.pop()), "thread name") if len(told) == 1 else (None, "")
