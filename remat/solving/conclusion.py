"""Result of a session."""

from __future__ import annotations

import time
from dataclasses import replace

from remat.errors import BackendError
from remat.problem.scope import EVERY_SCHEDULE, covers
from remat.runtime.interruption import interrupted
from remat.runtime.solve_options import Status, StopReason
from remat.schedule.validate import validate
from remat.solving.incumbents import SufficientBudget
from remat.solving.result import Result
from remat.solving.session import NOT_COMPILED, Session


def concluded(session: Session, sufficient: SufficientBudget | None = None) -> Result:
    """Return the result of a session, after validating the best schedule once more.

    `sufficient`: reported if there is no schedule; default: the least known peak of the session.
    """
    if interrupted() and not session.enough:
        session.stop = StopReason.INTERRUPTED
    if session.reached is not None and session.stop is not StopReason.INTERRUPTED:
        session.stop = session.reached.reason
    best, objective = session.best, session.problem.objective
    status = Status.INFEASIBLE if session.infeasible else Status.UNKNOWN
    schedule = certificate = over = None
    lowest = session.incumbents.least_peak
    assert lowest is not None  # the reference order is always known
    least = lowest.certificate.peak
    if best is not None:
        schedule = best.schedule
        rules = session.problem.rules
        if session.asks_peak:
            rules = replace(rules, budget=best.certificate.peak)
        certificate = validate(session.problem.graph, schedule, rules)
        if not certificate.accepted or objective.rank(certificate) != objective.rank(best.certificate):
            raise BackendError(f"the schedule of {best.source} changed its verdict: {certificate.first}")
        value = objective.value(certificate)
        session.bound = min(session.bound, value)
        status = Status.OPTIMAL if session.bound == value else Status.FEASIBLE
        if status is Status.OPTIMAL:
            session.stop = StopReason.FINISHED
        elif session.near and session.stop in (StopReason.FINISHED, StopReason.EXHAUSTED):
            session.stop = StopReason.GAP
        if value == session.least_bound:
            session.scope = EVERY_SCHEDULE
    else:
        over, sufficient = lowest, sufficient or SufficientBudget(lowest, session.problem.reference_peak)
        least = sufficient.found.certificate.peak
        session.notes.insert(0, f"{_why_none(session)}; {sufficient}")
    if status in (Status.OPTIMAL, Status.INFEASIBLE):
        session.notes = [note for note in session.notes if not note.endswith(NOT_COMPILED)]
    session.timings["total"] = time.monotonic() - session.begun
    return Result(
        problem=session.problem,
        schedule=schedule,
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


def _why_none(session: Session) -> str:
    if session.infeasible:
        if covers(session.scope, session.problem):
            return f"no schedule exists{session.proof}"
        return f"no schedule exists within {session.scope}{session.proof}, which says nothing of schedules beyond that"
    if session.stop in (StopReason.FINISHED, StopReason.EXHAUSTED):
        return f"{session.method} found no schedule within the budget, which proves nothing"
    when = {StopReason.DEADLINE: "in time", StopReason.INTERRUPTED: "before the interruption"}
    return f"no schedule was found {when.get(session.stop, 'before the solver gave up')}, and none is ruled out"
