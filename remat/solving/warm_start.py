"""Starting points of a search: known schedules that a formulation can express."""

from __future__ import annotations

from dataclasses import replace

from remat.backends.results import Values
from remat.errors import BackendError, ProblemError
from remat.formulations.base import Formulation
from remat.schedule import Schedule
from remat.solving.incumbents import Certified, Incumbents


def expressed(formulation: Formulation, seen: Certified) -> Values | None:
    """Return the model's values for a schedule; None if the formulation cannot express it."""
    graph, schedule = formulation.problem.graph, seen.schedule
    if (
        graph.digest != schedule.graph_digest == seen.certificate.graph_digest
    ):  # the graphs differ only in outputs in place
        schedule = replace(schedule, graph_digest=graph.digest)
    try:
        return formulation.encode(schedule)
    except ProblemError:
        return None


def best_hint(
    formulation: Formulation, incumbents: Incumbents, reference: Certified, given: Certified | None = None
) -> Values | None:
    """Return values of the best schedule that the formulation can express, those within the budget first.

    `given` is used if the formulation cannot express the best schedule.
    """
    for seen in (incumbents.best, given, incumbents.least_peak, reference):
        if seen is not None and (values := expressed(formulation, seen)) is not None:
            return values
    return None


def take_warm_start(incumbents: Incumbents, schedule: Schedule) -> str:
    """Add a warm start to the incumbents, also with frees moved to the last uses.

    Return a remark if both variants are over budget; empty otherwise. Raise ProblemError if it is not a valid schedule.
    """
    try:
        seen = incumbents.add(schedule, "the warm start")
    except BackendError as error:
        raise ProblemError(str(error), "invalid-schedule") from None
    if schedule.has_frees:
        seen = incumbents.add(schedule.without_frees(), "the warm start, freed at last use")
    return "" if seen.fits else f"the warm start is over the budget (peak {seen.certificate.peak:,} bytes)"


def why_no_hint(formulation: Formulation, schedule: Schedule) -> str:
    """Return a remark if the formulation cannot express a warm start; empty otherwise."""
    try:
        formulation.encode(schedule)
    except ProblemError as error:
        return f"the warm start is no hint for {formulation.name}: {error}"
    return ""
