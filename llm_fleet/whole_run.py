"""What the reports of a run tell together: worked out from the dataset, so that they may come one by one."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from llm_fleet.dataset import ALL_REPORTS, Dataset, run_version
from llm_fleet.parts import parts, told
from llm_fleet.settings import FleetSettings
from llm_fleet.tables import ABOUT, DATASET_VERSION, EVENTS, RUNS, in_dataset
from recipes import __version__
from recipes.base.errors import PackError
from recipes.base.tables import FILES, Table
from recipes.base.units import format_count
from recipes.run.outcomes import Tables
from recipes.run.recipe import Recipe

#: Above so many rows the reports of a run are not analysed together: it would take many GB of memory.
MOST_ROWS = 5_000_000
# How often reports of the same run that others bring meanwhile are waited for.
_TURNS = 5
_KEY_AND_DEVICE = pa.schema([("report", pa.string()), ("device", pa.int64())])
_GPUS = pa.schema(
    [("report_key", pa.string()), ("device", pa.int64()), ("gpu_name", pa.string()), ("gpu_uuid", pa.string())]
)


def complete_run(dataset: Dataset, published: pa.Table, settings: FleetSettings) -> None:
    """Adds the tables over all reports of the run, and removes what a run before may have left of these reports.

    PackError when the dataset cannot be read or written.
    """
    run = settings.run
    for _ in range(_TURNS):
        reports = dataset.reports(run)
        version = run_version(reports["version"].to_pylist())
        made = _tables(dataset, reports, version, settings)
        dataset.commit(run, ALL_REPORTS, version, partial(iter, made))
        # Another process may have added a report to the run: then these tables do not count.
        if run_version(dataset.reports(run)["version"].to_pylist()) == version:
            break
    dataset.sweep(run, {*published["report_key"].to_pylist(), ALL_REPORTS})


def _tables(dataset: Dataset, reports: pa.Table, version: str, settings: FleetSettings) -> list[tuple[Table, pa.Table]]:
    """The tables over all reports of a run, and last the row that makes them count."""
    found: list[tuple[Table, pa.Table]] = []
    messages = []
    own = {"version": version, "pack_version": __version__, "dataset_version": DATASET_VERSION}
    for name, recipe in parts().items():
        kept = [table for table in recipe.COMBINED if settings.events or table.name not in EVENTS]
        empty: list[tuple[Table, pa.Table]] = [(table, table.schema().empty_table()) for table in map(in_dataset, kept)]
        try:
            given, gpus = _given(dataset, reports, recipe) if kept else (Tables({}), _GPUS.empty_table())
            rows = recipe.combine(given, _files(reports), settings.parts[name]).tables if kept else {}
        except Exception as error:  # noqa: BLE001: one recipe must not take the others' tables away
            messages.append(f"{name}: {told(error)}")
            found += empty
            continue
        for table, _ in empty:
            added = _without(rows[table.name], given.get(table.name))
            found.append((table, _whole(table, added, rows, reports, gpus, own)))
    ranks = len(reports["rank"].drop_null().unique())
    row = {
        **own,
        "run_name": settings.run,
        "reports": len(reports),
        "ranks": ranks or None,
        "tables": ",".join(table.name for table, _ in found),
        "message": "; ".join(messages),
    }
    return [*found, (RUNS, RUNS.build({name: [value] for name, value in row.items()}))]


def _given(dataset: Dataset, reports: pa.Table, recipe: Recipe) -> tuple[Tables, pa.Table]:
    """A recipe's tables of all reports of a run, a report being called by its key; and the GPUs of their devices."""
    wanted = {table: in_dataset(table) for table in recipe.TABLES}
    rows = sum(dataset.count(table, reports) for table in wanted.values())
    if rows > MOST_ROWS:
        raise PackError(
            f"{format_count(rows, 'row')} in {format_count(len(reports), 'report')} are too many to analyse "
            f"together; run {recipe.NAME} on some of the reports"
        )
    tables, gpus = Tables({}), [_GPUS.empty_table()]
    for table, kept in wanted.items():
        read = dataset.read(kept, reports)
        columns = {name: read["report_key" if name == "report" else name] for name in table.names}
        tables[table.name] = table.sorted(table.build(columns))
        if "device" in table.names:
            gpus.append(read.select(_GPUS.names).group_by(_GPUS.names).aggregate([]).select(_GPUS.names).cast(_GPUS))
    return tables, pa.concat_tables(gpus)


def _files(reports: pa.Table) -> pa.Table:
    return FILES.build({name: reports["report_key" if name == "report" else name] for name in FILES.names})


def _without(rows: pa.Table, given: pa.Table | None) -> pa.Table:
    """The rows of a small table that are not among those of the reports, which the dataset has already."""
    if given is None or not len(given):
        return rows
    known = Counter(zip(*given.to_pydict().values(), strict=True))
    new = []
    for row in zip(*rows.select(given.column_names).to_pydict().values(), strict=True):
        known[row] -= 1
        new.append(known[row] < 0)
    return rows.filter(pa.array(new, pa.bool_()))


def _whole(
    table: Table, own: pa.Table, all_own: dict[str, pa.Table], reports: pa.Table, gpus: pa.Table, fixed: dict[str, Any]
) -> pa.Table:
    """A combined table as the dataset has it: with the columns of ABOUT of the report that a row is of."""
    key, device = _key_and_device(own, all_own)
    at = pc.index_in(key, value_set=reports["report_key"].combine_chunks())
    columns = {column.name: reports[column.name].take(at) for column in ABOUT}
    if device is not None:
        place = _place(key, device)
        among = pc.index_in(
            place, value_set=_place(gpus["report_key"].combine_chunks(), gpus["device"].combine_chunks())
        )
        columns |= {name: gpus[name].take(among) for name in ("gpu_name", "gpu_uuid")}
    columns |= {name: own[name] for name in own.column_names if name != "report"}
    fixed = {**fixed, "run_name": reports["run_name"][0].as_py()}
    columns |= {name: [value] * len(own) for name, value in fixed.items()}
    return table.sorted(table.build({name: columns[name] for name in table.names}))


def _key_and_device(own: pa.Table, all_own: dict[str, pa.Table]) -> tuple[pa.Array, pa.Array | None]:
    """The report key and the device of each row; null where a row is of no report."""
    if "report" in own.column_names:
        device = own["device"].combine_chunks() if "device" in own.column_names else None
        return own["report"].cast(pa.string()).combine_chunks(), device
    for other in all_own.values():
        # A table with one row per rank tells where a rank is.
        told = {"rank", "report", "device"} <= set(other.column_names) and len(other) == len(other["rank"].unique())
        if told and "rank" in own.column_names:
            at = pc.index_in(own["rank"].combine_chunks(), value_set=other["rank"].combine_chunks())
            whole = other.select(["report", "device"]).cast(_KEY_AND_DEVICE).combine_chunks()
            return tuple(whole[name].take(at).combine_chunks() for name in ("report", "device"))
    return pa.nulls(len(own), pa.string()), None


def _place(key: pa.Array, device: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(key, device.cast(pa.string()), " ")
