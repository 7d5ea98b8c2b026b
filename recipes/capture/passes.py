"""Passes over the API calls of a report: whose work is whose, and with it the launches and a survey of all calls."""

from __future__ import annotations

from dataclasses import dataclass

from recipes.base.memory import return_freed
from recipes.events.api_calls import ApiReader
from recipes.events.api_survey import ApiSurvey, SurveyTaker
from recipes.events.gpu_work import GpuWork, Span
from recipes.events.launch_ids import LaunchIds
from recipes.events.launches import Launches, LaunchTable
from recipes.report.report import Report
from recipes.steps.attribution import Attribution, Attributor
from recipes.steps.steps import Steps


@dataclass(frozen=True)
class Called:
    """What one pass over the API calls tells."""

    attribution: Attribution
    launches: Launches
    survey: ApiSurvey


def attribute(report: Report, work: GpuWork, steps: Steps) -> Attribution:
    """Whose work is whose, alone: it takes the least memory. PackError when the report's export is damaged."""
    ids = LaunchIds(report, work)
    reader, attributor = ApiReader(report, ids), Attributor(ids, steps)
    for calls in reader.pieces(ends=False):
        attributor.take(calls)
    attribution = attributor.attribution(reader.captures)
    return_freed()
    return attribution


def read_calls(report: Report, work: GpuWork, steps: Steps, span: Span) -> Called:
    """All that one pass can tell. The survey is of a time range, all else of the whole report. PackError when the
    report's export is damaged."""
    ids = LaunchIds(report, work)
    reader, attributor = ApiReader(report, ids), Attributor(ids, steps)
    table, survey = LaunchTable(report, ids), SurveyTaker(report, span)
    for calls in reader.pieces(ends=True):
        attributor.take(calls)
        survey.take(calls)
        table.take(calls)
    called = Called(attributor.attribution(reader.captures), table.launches(), survey.survey(reader, ids.work_end_ns))
    return_freed()
    return called
