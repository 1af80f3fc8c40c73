"""Closing sentences of commands: the result in plain words, with no more than it proves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remat.runtime.solve_options import Status, StopReason
from remat.schedule import OrderRule

if TYPE_CHECKING:
    from remat.problem.scope import Scope
    from remat.solving.result import Result


def closing(result: Result) -> str:
    """Return what a result means: whether it fits, at which price, and what is proved about others.

    Examples
    --------
    >>> from remat import Problem, solve
    >>> from remat.graphs.families import unit_chain
    >>> print(closing(solve(Problem(unit_chain(4), 5))))
    Fits in 5 bytes for 11.1 % more compute. No schedule in this order is cheaper.
    """
    if result.certificate is None:
        return _without_schedule(result)
    return " ".join([_answer(result), _claim(result)])


def _answer(result: Result) -> str:
    problem, found = result.problem, result.certificate
    assert found is not None
    size = found.peak if result.asks_peak or problem.budget_bytes is None else problem.budget_bytes
    if found.recomputations:
        more = "" if result.overhead is None else f" for {result.overhead:.3g} % more compute"
        more = more if result.overhead else " at no extra compute"
        return f"Fits in {size:,} bytes{more}."
    before = problem.reference_peak
    if result.asks_peak and found.peak < before:
        saved = f"{100 * (1 - found.peak / before):.3g} %"
        return f"Fits in {size:,} bytes without recomputation, {saved} less than the reference order."
    return f"Fits in {size:,} bytes without recomputation."


def _claim(result: Result) -> str:
    """Return what is known about other schedules."""
    which, gap = _of(result.scope), result.gap
    better = "needs less memory" if result.asks_peak else "is cheaper"
    if gap is None:
        return "How far it is from the best schedule is not known."
    if gap <= 0:
        return f"No schedule{which} {better}."
    share = f"{100 * gap:.3g} %"
    least = f"needs {share} less memory" if result.asks_peak else f"is {share} cheaper"
    if result.proved:
        return f"No schedule{which} {least} or more."
    stopped = {
        StopReason.DEADLINE: " The time limit ended the search; more time may find a better one.",
        StopReason.INTERRUPTED: " The search was interrupted; more time may find a better one.",
    }.get(result.stop, "")
    amount = f"need at most {share} less memory" if result.asks_peak else f"be at most {share} cheaper"
    return f"Another schedule{which} could {amount}.{stopped}"


def _without_schedule(result: Result) -> str:
    budget, least = result.problem.budget_bytes, result.least_feasible_budget
    size = "the rules" if budget is None else f"{budget:,} bytes"
    if result.status is Status.INFEASIBLE:
        start = f"No schedule{_of(result.scope)} fits in {size}."
    else:
        start = f"No schedule that fits in {size} was found, and none is ruled out."
    known = f" The smallest budget known to suffice: {least:,} bytes."
    return start if budget is None or least <= budget else start + known


def _of(scope: Scope) -> str:
    """Return the words for the schedules of a scope, after a blank; none for every schedule."""
    if scope.staged or scope.notes:
        return f" of the kind searched ({scope})"
    order = " in this order" if scope.order is OrderRule.FIXED else ""
    if scope.max_computes is None:
        return order
    if scope.max_computes == 1:
        return f"{order} without recomputation"
    return f"{order} with at most {scope.max_computes} computes per op"
