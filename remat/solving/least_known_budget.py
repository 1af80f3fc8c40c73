"""Budgets that are known to suffice, to report when a budget is refused."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from remat.errors import BackendError, ProblemError
from remat.problem import Objective, Problem
from remat.problem.scope import covers
from remat.registry import load
from remat.runtime.deadline import Deadline
from remat.runtime.interruption import interrupted
from remat.runtime.solve_options import SolveOptions, StopReason
from remat.solving.incumbents import Certified, Incumbents, SufficientBudget
from remat.solving.min_peak_search import MinPeakSearch
from remat.solving.session import Session
from remat.solving.stop import stopping

#: Seconds of the search for a low peak when a budget is refused: before the deadline, and after it.
LEAST_SECONDS, LATE_SECONDS = 1.0, 0.2
#: Ops up to which it runs after the deadline: reading a larger graph alone takes seconds.
LEAST_OPS = 3000
#: Heuristics that price sufficient budgets, seconds for each, and minimum seconds left (loading takes some).
PRICED_BY, PRICE_SECONDS, PRICED_ABOVE = ("greedy", "drops"), 0.1, 2.0


def least_known_budget(problem: Problem, deadline: float | Deadline | None = 2.0, seed: int = 0) -> Certified:
    """Return a schedule with a low peak, found by heuristics alone.

    Parameters
    ----------
    problem : Problem
        Its budget and machine are ignored.
    deadline : float, Deadline or None
        A second or two suffice for some hundreds of ops.
    seed : int

    Returns
    -------
    Certified
        The schedule, its certificate (whose `peak` is a sufficient budget) and its source.

    Raises
    ------
    KeyboardInterrupt
        At Ctrl-C.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> least_known_budget(Problem(unit_chain(6), 2)).certificate.peak < unit_chain(6).reference_peak
    True
    """
    call, _ = stopping(deadline, SolveOptions(threads=1, seed=seed))
    session = Session(replace(problem.one_memory, budget=None, objective=Objective.LEAST_PEAK), call, "auto")
    MinPeakSearch(session, quick=True).run()
    if interrupted():
        raise KeyboardInterrupt
    assert session.incumbents.least_peak is not None
    return session.incumbents.least_peak


def sufficient_budget(session: Session) -> SufficientBudget | None:
    """Search briefly for a budget that suffices, for a session without an answer.

    Returns None if the search finds an answer, which the session then keeps.

    Raises
    ------
    BackendError
        If it finds a schedule although none should exist.
    """
    assert session.incumbents.least_peak is not None
    lowest = session.incumbents.least_peak
    num_ops, deadline = len(session.problem.graph.ops), session.call.deadline
    stopped = interrupted() or session.stop is StopReason.INTERRUPTED
    if not (stopped or (deadline.expired and num_ops > LEAST_OPS)):
        seconds = min(LEAST_SECONDS, max(LATE_SECONDS, deadline.remaining))
        found = least_known_budget(session.problem, seconds, session.call.seed)
        # A schedule of a method other than the requested one is not an answer.
        other = session.incumbents if session.any_method else Incumbents(session.problem)
        fits = other.add(found.schedule, found.source).fits
        if fits and session.infeasible and covers(session.scope, session.problem):
            raise BackendError(
                f"it is claimed that no schedule exists{session.proof}, but {found.source} found one", "refuted"
            )
        if session.best is not None:
            session.report_progress()
            return None
        lowest = min(lowest, found, key=lambda each: each.by_peak)
    known = SufficientBudget(lowest, session.problem.reference_peak)
    late = deadline.remaining < PRICED_ABOVE or interrupted()
    if late or num_ops > LEAST_OPS or not known.whole or not lowest.certificate.overhead:
        return known
    budgets = [lowest.certificate.peak, *([] if known.next_ten >= 100 else [known.whole * known.next_ten // 100])]
    return replace(known, prices=tuple(_price(session, budget, lowest) for budget in budgets))


def _price(session: Session, budget: int, lowest: Certified) -> float:
    """Return the extra cost, in %, of the cheapest schedule within a budget that quick heuristics find."""
    problem = replace(session.problem.one_memory, budget=budget, objective=Objective.LEAST_COST)
    quick = Session(problem, session.call, "auto")
    quick.add(lowest.schedule, lowest.source)
    for name in PRICED_BY:
        with contextlib.suppress(ProblemError):
            quick.improve(load("heuristics", name)(), session.call.deadline.earlier(PRICE_SECONDS))
    assert quick.best is not None
    return quick.best.certificate.overhead or 0.0
