"""The batch of each step: what its range tells, or what the user says."""

from __future__ import annotations

from dataclasses import replace

from recipes.steps.phases import COMPUTE_PHASES, DECODE_PHASES
from recipes.steps.steps import Steps


def with_batch(steps: Steps, batch: int | None) -> tuple[Steps, list[str]]:
    """The steps with the user's batch, and what there is to say of it.

    It counts instead of what the ranges tell. Only where the steps of a phase tell several batches do these stay: one
    number cannot be true of all, and batches are never mixed.
    """
    if batch is None:
        return steps, []
    meanings, remarks = list(steps.meanings), []
    for phase in (*DECODE_PHASES, *COMPUTE_PHASES):
        mine = [number for number, meaning in enumerate(meanings) if meaning.phase == phase]
        told = sorted({of for number in mine if (of := meanings[number].batch) is not None})
        if len(told) > 1:
            which = ", ".join(map(str, told))
            remarks.append(f"{phase}: the ranges tell batches {which}; --batch {batch} is not taken for all of them")
            continue
        if told and told != [batch]:
            remarks.append(f"{phase}: --batch {batch} counts, though the ranges tell {told[0]}")
        for number in mine:
            meanings[number] = replace(meanings[number], batch=batch)
    return replace(steps, meanings=meanings), remarks
