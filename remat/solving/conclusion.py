"""Result of a session."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace

from remat.errors import BackendError, ProblemError
from remat.problem import Objective
from remat.problem.scope import EVERY_SCHEDULE, covers
from remat.registry import load
from remat.runtime.interruption import interrupted
from remat.runtime.status import Status, StopReason
from remat.schedule.validate import validate
from remat.solving.incumbents import Certified, Incumbents
from remat.solving.least_known_budget import least_known_budget
from remat.solving.result import Result
from remat.solving.session import NOT_COMPILED, Session

#: Seconds of the search for a low peak when a budget is refused, and after the deadline.
LEAST_SECONDS, LATE_SECONDS = 1.0, 0.2
#: Ops up to which it runs after the deadline: beyond, reading the graph alone takes seconds.
LEAST_OPS = 3000
#: Heuristics that price sufficient budgets, seconds for each, and minimum seconds left (loading takes some).
PRICED_BY, PRICE_SECONDS, PRICED_ABOVE = ("greedy", "drops"), 0.1, 2.0


def concluded(session: Session) -> Result:
    """Return the result of a session, after validating the best schedule once more."""
    if interrupted() and not session.enough:
        session.stop = StopReason.INTERRUPTED
    if session.reached is not None and session.stop is not StopReason.INTERRUPTED:
        session.stop = session.reached.reason
    lowest = _search_least(session) if session.best is None else None
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
        over, least = session.incumbents.least_peak, lowest.certificate.peak
        session.notes.insert(0, f"{_why_none(session)}; {_suffices(session, lowest)}")
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


def _search_least(session: Session) -> Certified:
    """Return the least known peak, after a short search for a lower one."""
    assert session.incumbents.least_peak is not None
    known = session.incumbents.least_peak
    if session.stop is StopReason.INTERRUPTED:
        return known
    if session.call.deadline.expired and len(session.problem.graph.ops) > LEAST_OPS:
        return known
    seconds = min(LEAST_SECONDS, max(LATE_SECONDS, session.call.deadline.remaining))
    found = least_known_budget(session.problem, seconds, session.call.seed)
    # A schedule of a method other than the requested one is no answer.
    other = session.incumbents if session.any_method else Incumbents(session.problem)
    if other.add(found.schedule, found.source).fits and session.infeasible and covers(session.scope, session.problem):
        raise BackendError(
            f"it is claimed that no schedule exists{session.proof}, but {found.source} found one", "refuted"
        )
    return min(known, found, key=lambda each: each.by_peak)


def _suffices(session: Session, lowest: Certified) -> str:
    """Describe a sufficient budget, with prices of it and of the next ten percent; its share is rounded up."""
    peak, whole = lowest.certificate.peak, session.problem.reference_peak
    if not whole:
        return f"{peak:,} bytes are known to suffice"
    share = -(-10_000 * peak // whole) / 100
    text, ten = f"{peak:,} bytes ({share:.12g} %) are known to suffice", 10 * (int(share) // 10 + 1)
    late = session.call.deadline.remaining < PRICED_ABOVE or interrupted()
    if late or len(session.problem.graph.ops) > LEAST_OPS or not lowest.certificate.overhead:
        return text
    text += f" at +{_price(session, peak, lowest):.3g} % cost"
    return text if ten >= 100 else f"{text}, {ten} % at +{_price(session, whole * ten // 100, lowest):.3g} %"


def _price(session: Session, budget: int, lowest: Certified) -> float:
    """Return the extra cost, in %, of the cheapest schedule within a budget that quick heuristics find."""
    quick = Session(replace(session.problem, budget=budget, objective=Objective.LEAST_COST), session.call, "auto")
    quick.add(lowest.schedule, lowest.source)
    for name in PRICED_BY:
        with contextlib.suppress(ProblemError):
            quick.improve(load("heuristics", name)(), session.call.deadline.earlier(PRICE_SECONDS))
    assert quick.best is not None
    return quick.best.certificate.overhead or 0.0
