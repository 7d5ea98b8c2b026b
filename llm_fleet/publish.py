"""One report's tables on their way into the dataset, in the process that read the report."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from llm_fleet.dataset import open_dataset
from llm_fleet.settings import FleetSettings
from llm_fleet.tables import ABOUT, DATASET_VERSION, PUBLISHED, REPORTS, TAGS, in_dataset, tables_of_reports
from recipes import __version__
from recipes.base.tables import FILES, TYPES, Table
from recipes.capture.capture import Capture
from recipes.report import schema
from recipes.report.facts import read_facts
from recipes.run.inputs import Input, shown
from recipes.run.recipe import Task

#: What the analysis leaves for the publishing beside the recipes' tables: never written as it is.
FACTS = "fleet_facts"
#: The last so many characters of a report's name are in its key, to be read by people; its digest tells keys apart.
_SLUG = 60


def facts(capture: Capture) -> pa.Table:
    """What the dataset wants to know of a report that no table tells: its devices, its own rank, when it was taken."""
    devices, told = capture.work.devices, read_facts(capture.report, "")
    # Of a report of several processes too, which has no rank of its own.
    sure = told.rank_source.startswith("environment")
    epoch_ns = capture.report.read(schema.SESSION, ["utc_epoch_ns"])["utc_epoch_ns"].to_pylist()
    return pa.table({
        "captured_ns": pa.array([epoch_ns[0] if epoch_ns else None], pa.int64()),
        "job_rank": pa.array([told.rank if sure else None], pa.int64()),
        "devices": pa.array([devices.numbers], pa.list_(pa.int64())),
        "gpu_names": pa.array([devices.gpu_names], pa.list_(pa.string())),
        "gpu_uuids": pa.array([devices.gpu_uuids], pa.list_(pa.string())),
    })  # fmt: skip


@dataclass(frozen=True)
class About:
    """The values of ABOUT for one report; of each device (by number) its GPU's name and UUID."""

    values: dict[str, Any]
    gpus: dict[int, tuple[str, str]]

    def columns(self, rows: pa.Table) -> dict[str, Any]:
        """The columns of ABOUT for some rows of the report."""
        scalars = {column.name: pa.scalar(self.values[column.name], TYPES[column.type]) for column in ABOUT}
        columns: dict[str, Any] = {name: pa.repeat(scalar, len(rows)) for name, scalar in scalars.items()}
        if "device" in rows.column_names:
            device = rows["device"].combine_chunks().dictionary_encode()
            known = [self.gpus.get(number, ("", "")) for number in device.dictionary.to_pylist()]
            for place, name in enumerate(("gpu_name", "gpu_uuid")):
                texts = pa.array([values[place] or None for values in known], pa.string())
                columns[name] = texts.take(device.indices)
        return columns


_ABOUT_NAMES = {column.name for column in ABOUT}


def publish(tables: dict[str, pa.Table], file: dict[str, Any], task: Task) -> dict[str, pa.Table]:
    """Puts a report's tables into the dataset, and says so in place of them.

    What could not be read never comes here: rows of an earlier good capture stay then. PackError when the dataset
    cannot be written.
    """
    settings: FleetSettings = task.settings
    about = _about(tables[FACTS], file, task.item, settings)
    rows = _tables(tables, file, settings)
    version = _digest(about, rows)
    about.values["version"] = version
    run, key = settings.run, about.values["report_key"]
    dataset = open_dataset(settings.dataset)
    dataset.begin()
    before = dataset.version_of(run, key)
    change = "new" if before is None else "replaced"
    if before == version:
        change = "repaired" if dataset.lacks(run, key, version, [table.name for table, _ in rows]) else "unchanged"
    if change != "unchanged":
        dataset.commit(run, key, version, lambda: (_complete(table, own, about) for table, own in rows))
    row = {"run_name": run, "report_key": key, "version": version, "change": change, "dataset": settings.shown}
    return {PUBLISHED.name: PUBLISHED.of_report({name: [value] for name, value in row.items()})}


def _about(told: pa.Table, file: dict[str, Any], item: Input, settings: FleetSettings) -> About:
    found = {name: column[0] for name, column in told.to_pydict().items()}
    name, rank = report_name(item), found["job_rank"]
    if file["rank_source"] == "--rank-map":
        rank = file["rank"]
    uuids = [uuid for uuid in found["gpu_uuids"] if uuid]
    values = {
        **{column.name: file.get(column.name) for column in ABOUT},
        "run_name": settings.run,
        "report": name,
        "report_key": report_key(name, rank, file["host"]),
        "captured": utc(found["captured_ns"]),
        "captured_ns": found["captured_ns"],
        "gpu_uuid": ",".join(uuids) or None,
        "pack_version": __version__,
        "dataset_version": DATASET_VERSION,
    }
    gpus = zip(found["gpu_names"], found["gpu_uuids"], strict=True)
    return About(values, dict(zip(found["devices"], gpus, strict=True)))


def report_name(item: Input) -> str:
    """What a report is called in the dataset, whatever the other inputs are: its folder and its name without ending.

    Only of inputs that this would not tell apart the name has more in front.
    """
    return item.label if "/" in item.label else f"{shown(item.path.absolute().parent.name)}/{item.label}"


def report_key(name: str, rank: int | None, host: str | None) -> str:
    """One word for a report: the same for another capture of the same thing. It has no dot, and no case to fold.

    `rank` is that which the job or the user gave: it may run on another host the next time. One that a name tells may
    be counted on each host from 0, so without one (None) hosts tell reports of one name apart.
    """
    slug = re.sub(r"[^a-z0-9_]+", "-", name.lower()).strip("-")[-_SLUG:].lstrip("-")
    digest = hashlib.sha256(json.dumps([name, host if rank is None else rank]).encode()).hexdigest()[:12]
    return f"{slug or 'report'}-{digest}"


def utc(epoch_ns: int | None) -> str | None:
    """A time in ns since 1970 as text that sorts: 2026-11-30T01:34:37Z. None for none, or one that no clock shows."""
    if epoch_ns is None:
        return None
    try:
        moment = datetime.fromtimestamp(epoch_ns // 10**9, timezone.utc)
    except (TypeError, ValueError, OverflowError, OSError):
        return None
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def _tables(tables: dict[str, pa.Table], file: dict[str, Any], settings: FleetSettings) -> list[tuple[Table, pa.Table]]:
    """The tables of the dataset with the columns that are the report's own; the one that makes them count last."""
    own = [(in_dataset(table), tables[table.name]) for table in tables_of_reports(events=settings.events)]
    tags = dict(settings.tags)
    rows = pa.table({"tag": pa.array(tags.keys(), pa.string()), "value": pa.array(tags.values(), pa.string())})
    types = {column.name: TYPES[column.type] for column in FILES.columns if column.name not in _ABOUT_NAMES}
    told = {name: pa.array([file[name]], kind) for name, kind in types.items()}
    told["model"] = pa.array([settings.model or tags.get("model")], pa.string())
    told["world_size"] = tables["captures"]["world_size"] if len(tables["captures"]) else pa.nulls(1, pa.int64())
    names = ",".join(table.name for table, _ in (*own, (TAGS, rows)))
    report = pa.table({**told, "tags": [json.dumps(tags, sort_keys=True)], "tables": [names]})
    return [*own, (TAGS, rows), (REPORTS, report)]


def _complete(table: Table, rows: pa.Table, about: About) -> tuple[Table, pa.Table]:
    return table, table.sorted(table.build({**about.columns(rows), **{name: rows[name] for name in rows.column_names}}))


# The same capture has the same version wherever it lies and whatever it is called.
_PLACES = ("run_name", "report", "report_key", "version", "path")


def _digest(about: About, tables: Iterable[tuple[Table, pa.Table]]) -> str:
    """What stands for the content of a report's rows: equal when they are."""
    state = hashlib.sha256()
    told = {name: value for name, value in about.values.items() if name not in _PLACES}
    state.update(json.dumps([told, sorted(about.gpus.items())], sort_keys=True).encode())
    for table, rows in tables:
        state.update(json.dumps([table.name, len(rows)]).encode())
        for name in sorted(set(rows.column_names).difference(_PLACES)):
            state.update(name.encode())
            for part in _content(rows[name]):
                state.update(part)
    return state.hexdigest()[:16]


def _content(column: pa.ChunkedArray) -> Iterable[Any]:
    """Bytes that are equal when the values are, however they are held."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    whole: Any = column.combine_chunks()
    yield np.packbits(whole.is_valid().to_numpy(zero_copy_only=False))
    if pa.types.is_string(whole.type):
        coded = whole.dictionary_encode()
        yield json.dumps(coded.dictionary.to_pylist()).encode()
        whole = coded.indices
    values = pc.fill_null(whole, 0 if whole.type != pa.bool_() else False).to_numpy(zero_copy_only=False)
    yield np.ascontiguousarray(values).view(np.uint8)
