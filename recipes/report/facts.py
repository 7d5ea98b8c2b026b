"""What a report says of itself: versions, host, rank."""

from __future__ import annotations

import re
from dataclasses import dataclass

from recipes.report import schema
from recipes.report.report import Report

# What launchers set for each process of a job, its rank and how many there are: torchrun, Open MPI, MPICH and Intel
# MPI, PMIx, Slurm.
_RANK_VARIABLES = {
    "RANK": "WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK": "PMI_SIZE",
    "PMIX_RANK": "",
    "SLURM_PROCID": "SLURM_NTASKS",
}
_RANK_IN_NAME = re.compile(r"(?i)(?:^|[^a-z])rank[ _.=-]?(\d{1,9})(?!\d)")


@dataclass(frozen=True)
class Facts:
    """Facts of a report; texts are empty, the rank and the number of ranks None where the report does not tell."""

    nsys_version: str
    schema_version: str
    tables_exported: str
    host: str
    rank: int | None
    rank_source: str
    world_size: int | None = None


def read_facts(report: Report, label: str) -> Facts:
    """The facts of a report. Of the environment recorded in it, only the rank's variables are looked at."""
    export = dict(report.pairs(schema.EXPORT_INFO))
    system = dict(report.pairs(schema.SYSTEM_INFO))
    environment = _environment(report, system)
    rank, source = _rank(report, environment, label)
    return Facts(
        nsys_version=export.get("EXPORT_PRODUCT_VERSION", ""),
        schema_version=export.get("EXPORT_SCHEMA_VERSION", ""),
        tables_exported=export.get("EXPORT_PARAM_TABLES_TO_EXPORT", ""),
        host=system.get("Hostname", ""),
        rank=rank,
        rank_source=source,
        world_size=_number(environment, _RANK_VARIABLES.get(source.removeprefix("environment "), "")),
    )


def session_start_ns(report: Report) -> int | None:
    """When the report's clock was zero, in ns since 1970; None where the report does not tell."""
    starts_ns = report.read(schema.SESSION, ["utc_epoch_ns"])["utc_epoch_ns"].to_pylist()
    return next((start_ns for start_ns in starts_ns if start_ns is not None), None)


def rank_in_name(name: str) -> int | None:
    """The rank that a file's name tells: 3 of run_rank3; None when it tells none."""
    named = _RANK_IN_NAME.findall(name)
    return int(named[-1]) if named else None


def _environment(report: Report, system: dict[str, str]) -> dict[str, str]:
    environment = dict(part.partition("=")[::2] for part in system.get("DeviceEnvironment", "").split(";"))
    for name, value in report.pairs(schema.CAPTURE_INFO):
        if name.endswith("ENVIRONMENT_VARIABLE"):
            variable, _, text = value.partition("=")
            environment[variable] = text.strip('"')
    return environment


def _number(environment: dict[str, str], variable: str) -> int | None:
    value = environment.get(variable, "")
    return int(value) if value.isascii() and value.isdigit() and len(value) < 10 else None


def _rank(report: Report, environment: dict[str, str], label: str) -> tuple[int | None, str]:
    for variable in _RANK_VARIABLES:
        rank = _number(environment, variable)
        if rank is not None:
            return rank, f"environment {variable}"
    named = rank_in_name(label)
    if named is not None:
        return named, "file name"
    threads = report.read(schema.THREADS, ["name"])["name"].combine_chunks().dictionary.to_pylist()
    told = {rank for name in threads for rank in _RANK_IN_NAME.findall(name or "")}
    # Threads of several ranks, as in a report of a whole job, tell of none.
    return (int(told.pop()), "thread name") if len(told) == 1 else (None, "")
