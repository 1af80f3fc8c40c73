"""The result that a session makes in the end."""

from __future__ import annotations

import time
from dataclasses import replace

from remat.backends.base import Status, StopReason
from remat.errors import BackendError
from remat.interruption import interrupted
from remat.schedule.validate import validate
from remat.scope import EVERY_SCHEDULE, covers
from remat.solving.incumbents import Incumbents
from remat.solving.min_peak import least_known_budget
from remat.solving.result import Result
from remat.solving.session import NOT_COMPILED, Session

#: Seconds in which a low peak is looked for when a budget is refused, and where time is over.
LEAST_SECONDS, LATE_SECONDS = 1.0, 0.2
#: Ops up to which it is looked for even where time is over: beyond, one look at the graph takes seconds.
LEAST_OPS = 3000


def concluded(session: Session) -> Result:
    """Return everything that a session knows, with the best schedule validated once more."""
    if interrupted() and not session.enough:
        session.stop = StopReason.INTERRUPTED
    if session.reached is not None and session.stop is not StopReason.INTERRUPTED:
        session.stop = session.reached.reason
    lowest = _look_for_least(session) if session.best is None else None
    best, base = session.best, session.problem.graph.base_cost
    status = Status.INFEASIBLE if session.infeasible else Status.UNKNOWN
    schedule = certificate = over = None
    assert session.incumbents.least_peak is not None
    least = session.incumbents.least_peak.certificate.peak
    if best is not None:
        schedule = best.schedule
        rules = session.problem.rules
        if session.asks_peak:
            rules = replace(rules, budget=best.certificate.peak)
        certificate = validate(session.problem.graph, schedule, rules)
        if not certificate.accepted or certificate.cost != best.certificate.cost:
            raise BackendError(f"the schedule of {best.source} changed its verdict: {certificate.first}")
        value = session.problem.value(certificate)
        session.bound = min(session.bound, value)
        status = Status.OPTIMAL if session.bound == value else Status.FEASIBLE
        if status is Status.OPTIMAL:
            session.stop = StopReason.FINISHED
        elif session.near and session.stop in (StopReason.FINISHED, StopReason.EXHAUSTED):
            session.stop = StopReason.GAP
        if certificate.cost == base:
            session.cost_bound = base
            session.scope = session.scope if session.asks_peak else EVERY_SCHEDULE
    else:
        assert lowest is not None
        over, least = session.incumbents.least_peak, lowest
        session.notes.insert(0, f"{_why_none(session)}; {_suffices(session, least)}")
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


def _look_for_least(session: Session) -> int:
    """The least peak that is known, after a short look for a lower one."""
    assert session.incumbents.least_peak is not None
    known = session.incumbents.least_peak.certificate.peak
    if session.stop is StopReason.INTERRUPTED:
        return known
    if session.call.deadline.expired and len(session.problem.graph.ops) > LEAST_OPS:
        return known
    seconds = min(LEAST_SECONDS, max(LATE_SECONDS, session.call.deadline.remaining))
    found = least_known_budget(session.problem, seconds, session.call.seed)
    # A schedule by another method than the one that was asked is no answer.
    other = session.incumbents if session.any_method else Incumbents(session.problem)
    if other.see(found.schedule, found.source).fits and session.infeasible and covers(session.scope, session.problem):
        raise BackendError(
            f"it is claimed that no schedule exists{session.proof}, but {found.source} found one", "refuted"
        )
    return min(known, found.certificate.peak)


def _suffices(session: Session, peak: int) -> str:
    """Name a budget that suffices; its share, rounded up, is one as well."""
    whole = session.problem.reference_peak
    share = f" ({-(-10_000 * peak // whole) / 100:.12g} %)" if whole else ""
    return f"{peak:,} bytes{share} are known to suffice"
