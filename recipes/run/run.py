"""One run of a recipe over any number of reports: the same under Nsight and without it.

A recipe is a module `<recipe>/analysis.py` (see `Recipe`). Each report is analysed by itself, possibly in another
process (`analyse_report`), which puts its tables on disk; they are read again piece by piece, joined, written and
summed up here (`run`), in an order that has nothing to do with which report was done first.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from recipes.base.errors import PackError
from recipes.base.memory import return_freed, share_heap
from recipes.base.pack import ROOT
from recipes.base.tables import FILES, Table
from recipes.base.terminal import cleared, ended_by_sigterm, fitted, plain, progress, text_width
from recipes.base.units import format_count
from recipes.capture.capture import Capture
from recipes.events.gpu_work import Span
from recipes.findings import quality
from recipes.nsight.export import Exporter
from recipes.report.facts import read_facts, session_start_ns
from recipes.report.report import Report
from recipes.report.search import REPORT_SUFFIXES
from recipes.run.inputs import Input, find_inputs, open_input, shown
from recipes.run.notebook import render
from recipes.run.options import Add, add_common_options, span_of
from recipes.run.outcomes import UNREADABLE, Outcome, Tables, collect, pieces
from recipes.run.outputs import choose_folder, output_folder, write_outputs
from recipes.run.recipe import Analysis, Combined, Recipe, Task, Told, load_recipe
from recipes.run.spill import Spill, spill_in
from recipes.steps.phases import load_phase_rules

#: Applies a function to each task, in any processes, and gives the results as they come. A second function makes the
#: result of a task that has none, for a reason in words.
MapTasks = Callable[[Callable[[Task], Outcome], Callable[[Task, str], Outcome], Sequence[Task]], Iterable[Outcome]]


#: The width of a terminal that does not report its own.
_TERMINAL_WIDTH = 120
#: So many reports with findings are named in the printed quality line.
_SHOWN_FINDINGS = 5
_MORE = "  llm_capture_check says more"


def add_options(recipe: Recipe, add: Add) -> None:
    """Adds the common options and the recipe's own."""
    add_common_options(add)
    recipe.add_options(add)


def run(
    recipe: Recipe,
    args: argparse.Namespace,
    *,
    map_tasks: MapTasks,
    find_exporter: Callable[[], Exporter | None],
    warn: Callable[[str], None],
    manifest: dict | None = None,
) -> Path:
    """Runs a recipe, prints its summary, and returns the output folder.

    `find_exporter` is asked only when there are reports to export; `warn` is told what does not stop the run, one
    line at a time. PackError when no input could be used (or,
    with --strict, when one could not), when an option cannot work or the output cannot be written.
    """
    started = datetime.now()
    share_heap()
    settings = recipe.settings(args)
    span_of(args)
    # A bad rule file is told before any work.
    load_phase_rules(args.phases)
    folder, warning = choose_folder(recipe.NAME, args.output, force=args.force_overwrite)
    if warning:
        warn(plain(warning))
    inputs = find_inputs(args.input)
    _check_rank_map(args.rank_map, inputs)
    with (
        ended_by_sigterm(),
        output_folder(folder, force=args.force_overwrite) as output,
        spill_in(output.part, wanted=len(inputs) > 1) as spill,
    ):
        if hasattr(recipe, "begin"):
            settings = recipe.begin(settings, folder)
        tasks = _tasks(recipe, inputs, args, settings, find_exporter, spill)
        arriving = map_tasks(analyse_report, lost_report, tasks)
        with cleared():
            outcomes = collect(arriving, len(tasks), spill, warn, strict=args.strict)
        by_name, made, told = _put_together(recipe, outcomes, spill, settings)
        # Only the first such line is the place of the quality line: names may hold anything.
        before, _, after = recipe.summarise(by_name, settings, told).partition("\n{quality}")
        summary = plain(f"{before}\n{_quality_line(outcomes, brief=recipe.TELLS_FINDINGS)}{after}", keep_lines=True)
        template = ROOT / recipe.NAME / "notebook.py"
        with cleared():
            progress("writing the tables")
            write_outputs(
                output.part,
                folder,
                recipe.NAME,
                {
                    **{table: pieces(table, outcomes, spill) for table in recipe.TABLES},
                    **{table: [rows] for table, rows in made.items()},
                },
                csv=args.csv,
                texts={
                    f"{recipe.NAME}.ipynb": render(template, recipe.notebook_tables(by_name), summary),
                    f"{folder.name}.nsys-analysis": _manifest(recipe, manifest or {}, inputs, started),
                },
            )
    print(fitted(summary, text_width(_TERMINAL_WIDTH)) if sys.stdout.isatty() else summary)
    return output.folder


def _put_together(
    recipe: Recipe, outcomes: list[Outcome], spill: Spill | None, settings: Any
) -> tuple[Tables, dict[Table, pa.Table], Told]:
    """All tables by name; those that are not made of the reports' one by one; and what analysis told beyond them."""
    files = FILES.sorted(FILES.build({name: [outcome.file[name] for outcome in outcomes] for name in FILES.names}))
    by_name = Tables({table.name: partial(pieces, table, outcomes, spill) for table in recipe.TABLES})
    by_name[FILES.name] = files
    combined = recipe.combine(by_name, files, settings) if recipe.COMBINED else Combined({})
    made = {
        FILES: files,
        **{
            table: table.sorted(combined.tables[table.name])
            for table in recipe.COMBINED
            if table.name in combined.tables
        },
    }
    by_name.update({table.name: rows for table, rows in made.items()})
    return by_name, made, Told({outcome.file["report"]: outcome.told for outcome in outcomes}, combined.told)


def _check_rank_map(ranks: dict[str, int], inputs: list[Input]) -> None:
    """PackError when the user's map of ranks names what is not among the inputs."""
    labels = [item.label for item in inputs]
    unknown = [name for name in ranks if name not in labels]
    if unknown:
        known = ", ".join(labels[:5])
        raise PackError(f"--rank-map: {unknown[0]} is not one of the inputs; their names are {known}")


def _tasks(
    recipe: Recipe,
    inputs: list[Input],
    args: argparse.Namespace,
    settings: Any,
    find_exporter: Callable[[], Exporter | None],
    spill: Spill | None,
) -> list[Task]:
    reports = any(item.path.name.endswith(REPORT_SUFFIXES) and not item.problem for item in inputs)
    exporter, span = find_exporter() if reports else None, span_of(args)
    clock_ns = _session_start_ns(inputs[0], exporter) if span != Span() and len(inputs) > 1 else None
    return [
        Task(
            item,
            number,
            len(inputs),
            recipe.NAME,
            settings,
            span,
            args.phases,
            exporter,
            clock_ns,
            args.skip_steps,
            args.rank_map.get(item.label),
            spill,
        )
        for number, item in enumerate(inputs, 1)
    ]


def _session_start_ns(item: Input, exporter: Exporter | None) -> int:
    """When the first of several reports has its zero: a time range is on its clock. PackError when it does not say."""
    start_ns = session_start_ns(open_input(item, exporter, progress)[0])
    if start_ns is None:
        raise PackError(
            f"{item.path}: does not say when its session started, so a time range cannot be applied to the other "
            "reports; analyse them one by one, or give --skip-steps N instead"
        )
    return start_ns


def _own_span(task: Task, report: Report) -> Span:
    """The time range on the report's own clock. PackError when that is not known."""
    if task.clock_ns is None:
        return task.span
    start_ns = session_start_ns(report)
    if start_ns is None:
        raise PackError(
            f"{task.item.path}: does not say when its session started, so the time range cannot be placed on its "
            "clock; analyse it separately"
        )
    later_ns = start_ns - task.clock_ns
    bounds = (task.span.start_ns, task.span.end_ns)
    return Span(*(None if bound is None else bound - later_ns for bound in bounds))


def lost_report(task: Task, reason: str) -> Outcome:
    """What becomes of a report whose worker gave no answer, for a reason in words."""
    return _unreadable(task, f"{task.item.path}: {reason}")


def analyse_report(task: Task) -> Outcome:
    """Analyses one report. Whatever is wrong with it becomes its status, never an exception."""
    label = task.item.label
    share_heap()
    # What the report before left behind, in a worker that has done others.
    return_freed()

    def announce(text: str) -> None:
        # Of many reports the run itself tells how many are done.
        if task.count == 1:
            progress(f"[{task.number}/{task.count}] {text}")

    announce(f"reading {label}")
    try:
        return _finished(task, *_analyse(task, announce))
    except PackError as error:
        # What is found deep inside does not know which report it is in.
        message = str(error) if str(task.item.path) in str(error) else f"{task.item.path}: {error}"
    except MemoryError:
        message = f"{task.item.path}: not enough memory; use --mode none or a shorter time range (--filter-time)"
    except Exception as error:  # noqa: BLE001: one odd report must not stop the others
        if os.environ.get("NSYS_LLM_RECIPES_DEBUG"):
            raise
        message = (
            f"{task.item.path}: unexpected {type(error).__name__} ({' '.join(str(error).split())}); please report it "
            "with the output of NSYS_LLM_RECIPES_DEBUG=1"
        )
    return _unreadable(task, message)


def _unreadable(task: Task, message: str) -> Outcome:
    return Outcome(task.number, _file_row(task, quality="bad", status=UNREADABLE, message=message))


def _finished(task: Task, found: Analysis, file: dict[str, Any], steps: str) -> Outcome:
    """The tables as they are written, report and rank in front and in order, put on disk if they are to."""
    recipe, tables = load_recipe(task.recipe), found.tables
    if hasattr(recipe, "publish"):
        try:
            tables = recipe.publish(tables, file, task)
        except PackError as error:
            return Outcome(task.number, file, failure=str(error))
    declared = {table.name: table for table in recipe.TABLES}
    made = {name: declared[name].sorted(_of_run(declared[name], rows, file)) for name, rows in tables.items()}
    return Outcome(
        task.number, file, task.spill.keep(task.number, made) if task.spill else made, steps, told=found.told
    )


def _of_run(table: Table, rows: pa.Table, file: dict[str, Any]) -> pa.Table:
    keys = {
        "report": pa.repeat(pa.scalar(file["report"], pa.string()), len(rows)).dictionary_encode(),
        "rank": pa.repeat(pa.scalar(file["rank"], pa.int64()), len(rows)),
    }
    return table.build({**keys, **{name: rows[name] for name in rows.column_names}})


def _analyse(task: Task, announce: Callable[[str], None]) -> tuple[Analysis, dict[str, Any], str]:
    """What the recipe finds in the report, its row of FILES, and how its steps were found."""
    report, remark = open_input(task.item, task.exporter, announce)
    announce(f"analysing {task.item.label}")
    facts = read_facts(report, task.item.label)
    if task.rank is not None:
        facts = replace(facts, rank=task.rank, rank_source="--rank-map")
    recipe = load_recipe(task.recipe)
    capture = Capture(report, _own_span(task, report), load_phase_rules(task.phases), facts, skip_steps=task.skip_steps)
    # What the recipe asks for first decides how the report is read; the checks take what is there.
    found = recipe.analyse(capture, task.settings)
    work, verdict = capture.work, quality.judge(capture)
    # A report of several processes has no rank of its own.
    ranked = (len(work.devices.pids) <= 1 or task.rank is not None) and facts.rank is not None
    row = _file_row(
        task,
        host=facts.host or None,
        rank=facts.rank if ranked else None,
        rank_source=facts.rank_source if ranked else None,
        pids=",".join(map(str, work.devices.pids)),
        gpu_name=",".join(dict.fromkeys(name for name in work.devices.gpu_names if name)),
        nsys_version=facts.nsys_version,
        schema_version=facts.schema_version,
        kernels=quality.kernel_count(work),
        window_ns=quality.window_ns(work),
        phase_rule=capture.phase_rule(),
        attributed_share=capture.attributed_share(),
        quality="warn" if found.remarks and verdict.quality == "ok" else verdict.quality,
        status=verdict.status,
        message="; ".join(text for text in (verdict.message, *found.remarks, remark) if text),
    )
    return found, row, capture.coverage()


def _file_row(task: Task, **known: Any) -> dict[str, Any]:
    path = shown(task.item.path.absolute())
    return {**dict.fromkeys(FILES.names), "report": task.item.label, "path": path, **known}


def _quality_line(outcomes: list[Outcome], *, brief: bool) -> str:
    """`quality: ok` with what was read, or what limits the reports, worst first, unless it is to be brief."""
    rows = [outcome.file for outcome in outcomes if outcome.file["status"] != UNREADABLE]
    unreadable = len(outcomes) - len(rows)
    levels = ["bad", "warn", "ok"]
    worst = min([row["quality"] for row in rows] + ["warn"] * bool(unreadable), key=levels.index)
    kernels = sum(row["kernels"] for row in rows)
    read = f"{format_count(len(rows), 'report')}, {format_count(kernels, 'kernel')}"
    if unreadable:
        read += f"; {format_count(unreadable, 'input')} could not be read"
    line = f"quality: {worst} ({read})"
    told = {outcome.steps for outcome in outcomes if outcome.steps}
    steps = [f"steps: {text}" for text in told]
    if len(told) > 1:
        found = sum(row["phase_rule"] is not None for row in rows)
        steps = [f"steps: found in {found} of {format_count(len(rows), 'report')}; files.parquet says how"]
    limited = sorted(
        (row for row in rows if row["message"] and not brief), key=lambda row: levels.index(row["quality"])
    )
    steps = [_MORE, *steps] if limited else steps
    if len(outcomes) == 1:
        return "\n".join([": ".join([line, *(row["message"] for row in limited)]), *steps])
    shown = [f"  {row['report']}: {row['message']}" for row in limited[:_SHOWN_FINDINGS]]
    if len(limited) > _SHOWN_FINDINGS:
        shown.append(f"  and {len(limited) - _SHOWN_FINDINGS} more reports: see files.parquet")
    return "\n".join([line, *shown, *steps])


def _manifest(recipe: Recipe, base: dict, inputs: list[Input], started: datetime) -> str:
    """What Nsight's own recipes write into their .nsys-analysis file, which makes the output open in Nsight."""
    own = {
        "RecipeJsonVersion": "1.2.0",
        "RecipeRuntimeVersion": "2.0.0",
        "RecipeName": recipe.NAME,
        "StartTime": str(started),
    }
    manifest = {
        **own,
        **base,
        "EndTime": str(datetime.now()),
        "InputFiles": [shown(item.path) for item in inputs],
        "Outputs": {f"{recipe.NAME}.ipynb": "Notebook"},
    }
    return json.dumps(manifest, indent=4)
