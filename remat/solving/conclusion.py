"""Result of a session."""

from __future__ import annotations

import time
from dataclasses import replace

from remat.errors import BackendError
from remat.problem.scope import EVERY_SCHEDULE, covers
from remat.runtime.interruption import interrupted
from remat.runtime.solve_options import Status, StopReason
from remat.schedule.certificate import Certificate
from remat.schedule.validate import validate
from remat.solving.incumbents import Certified, SufficientBudget
from remat.solving.result import Result
from remat.solving.session import NOT_COMPILED, Session


def concluded(session: Session, sufficient: SufficientBudget | None = None) -> Result:
    """Return the result of a session, after validating the best schedule once more.

    `sufficient`: reported if there is no schedule; default: the least known peak of the session.
    """
    best, lowest = session.best, session.incumbents.least_peak
    assert lowest is not None  # the reference order is always known
    _note_stop(session)
    certificate = None if best is None else _certified(session, best)
    status = _settle(session, certificate)
    if best is None:
        over, sufficient = lowest, sufficient or SufficientBudget(lowest, session.problem.reference_peak)
        least = sufficient.found.certificate.peak
        session.notes.insert(0, f"{_why_none(session)}; {sufficient}")
    else:
        over, least = None, lowest.certificate.peak
    if status in (Status.OPTIMAL, Status.INFEASIBLE):
        session.notes = [note for note in session.notes if not note.endswith(NOT_COMPILED)]
    session.timings["total"] = time.monotonic() - session.begun
    return Result(
        problem=session.problem,
        schedule=None if best is None else best.schedule,
        certificate=certificate,
        status=status,
        stop=session.stop,
        bound=session.bound,
        scope=session.scope,
        least_feasible_budget=least,
        least_peak_schedule=None if over is None else over.schedule,
        least_peak_certificate=None if over is None else over.certificate,
        incumbents=tuple(session.points),
        steps=tuple(session.steps),
        timings=session.timings,
        variables=None if session.size is None else session.size[0],
        constraints=None if session.size is None else session.size[1],
        bound_kind=session.bound_kind,
        bound_cause=session.bound_cause,
        cost_bound=session.cost_bound if session.asks_peak else None,
        states=session.states,
        method=session.method,
        backend=session.backend,
        source="" if best is None else best.source,
        seed=session.call.seed,
        threads=session.call.threads,
        versions=session.versions,
        message="; ".join(session.notes),
    )


def _note_stop(session: Session) -> None:
    """Set the reason for which the search ended, if it ended from outside."""
    if interrupted() and not session.enough:
        session.stop = StopReason.INTERRUPTED
    if session.reached is not None and session.stop is not StopReason.INTERRUPTED:
        session.stop = session.reached.reason


def _certified(session: Session, best: Certified) -> Certificate:
    """Validate the best schedule once more; raise BackendError if its verdict has changed."""
    rules, objective = session.problem.rules, session.problem.objective
    if session.asks_peak:
        rules = replace(rules, budget=best.certificate.peak)
    certificate = validate(session.problem.graph, best.schedule, rules)
    if not certificate.accepted or objective.rank(certificate) != objective.rank(best.certificate):
        raise BackendError(f"the schedule of {best.source} changed its verdict: {certificate.first}")
    return certificate


def _settle(session: Session, certificate: Certificate | None) -> Status:
    """Adjust bound, scope and reason to stop to the certificate of the best schedule, and return the status."""
    if certificate is None:
        return Status.INFEASIBLE if session.infeasible else Status.UNKNOWN
    value = session.problem.objective.value(certificate)
    session.bound = min(session.bound, value)
    if value == session.least_bound:
        session.scope = EVERY_SCHEDULE
    if session.bound == value:
        session.stop = StopReason.FINISHED
        return Status.OPTIMAL
    if session.near and session.stop in (StopReason.FINISHED, StopReason.EXHAUSTED):
        session.stop = StopReason.GAP
    return Status.FEASIBLE


def _why_none(session: Session) -> str:
    if session.infeasible:
        if covers(session.scope, session.problem):
            return f"no schedule exists{session.proof}"
        return f"no schedule exists within {session.scope}{session.proof}, which says nothing of schedules beyond that"
    if session.stop in (StopReason.FINISHED, StopReason.EXHAUSTED):
        return f"{session.method} found no schedule within the budget, which proves nothing"
    when = {StopReason.DEADLINE: "in time", StopReason.INTERRUPTED: "before the interruption"}
    return f"no schedule was found {when.get(session.stop, 'before the solver gave up')}, and none is ruled out"
