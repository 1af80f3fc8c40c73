"""Closing sentences of commands: the result in plain words, with no more than it proves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from remat.runtime.solve_options import Status, StopReason
from remat.runtime.text import counted
from remat.schedule import OrderRule, Verdict
from remat.schedule.certificate import Rule, overhead_percent

if TYPE_CHECKING:
    from remat.allocation import Allocation
    from remat.deploy import Deployment
    from remat.experiments.contestant import Contestant
    from remat.experiments.frontier_result import Frontier
    from remat.experiments.max_batch_result import BatchResult
    from remat.experiments.runs import Run
    from remat.problem.scope import Scope
    from remat.schedule import Certificate
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
    moved, resource = found.transfers, problem.objective.resource
    moves = moved is not None and moved.offloads > 0
    if moves or found.recomputations:
        host = f" and {moved.host_peak:,} on the host" if moved is not None and moves else ""
        more = "" if result.overhead is None else f" for {result.overhead:.3g} % more {resource}"
        more = more if result.overhead else f" at no extra {resource}"
        return f"Fits in {size:,} bytes{host}{more}."
    before = problem.reference_peak
    if result.asks_peak and found.peak < before:
        saved = f"{100 * (1 - found.peak / before):.3g} %"
        return f"Fits in {size:,} bytes without recomputation, {saved} less than the reference order."
    return f"Fits in {size:,} bytes without recomputation."


def _claim(result: Result) -> str:
    """Return what is known about other schedules."""
    which, gap = _of(result.scope), result.gap
    comparative = result.problem.objective.comparative
    better = "needs less memory" if result.asks_peak else f"is {comparative}"
    if gap is None:
        return "How far it is from the best schedule is not known."
    if gap <= 0:
        return f"No schedule{which} {better}."
    share = f"{100 * gap:.3g} %"
    least = f"needs {share} less memory" if result.asks_peak else f"is {share} {comparative}"
    if result.proved:
        return f"No schedule{which} {least} or more."
    stopped = {
        StopReason.DEADLINE: " The time limit ended the search; more time may find a better one.",
        StopReason.INTERRUPTED: " The search was interrupted; more time may find a better one.",
    }.get(result.stop, "")
    amount = f"need at most {share} less memory" if result.asks_peak else f"be at most {share} {comparative}"
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


def closing_certificate(found: Certificate) -> str:
    """Return what the certificate of a schedule means."""
    if found.verdict is Verdict.INVALID:
        return "The schedule is not valid; `remat view` marks every fault."
    need, limit = f"needs {found.peak:,} bytes", "the budget"
    more = "" if found.overhead is None else f" for {found.overhead:.3g} % more compute"
    more = more if found.recomputations else " without recomputation"
    if found.transfers is not None and found.transfers.offloads:
        need, limit = f"{need} and {found.transfers.host_peak:,} on the host", "there are"
        longer = None if found.time is None else overhead_percent(found.time, found.base_cost)
        more = more if longer is None else f" for {longer:.3g} % more time"
    if found.verdict is Verdict.VALID:
        return f"The schedule is valid and {need}{more}."
    if found.first is not None and found.first.rule is Rule.TIME_LIMIT:
        return f"The schedule can be executed but takes longer than the time limit; it {need}{more}."
    return f"The schedule can be executed but {need}{more}, more than {limit}."


def closing_comparison(runs: Sequence[Run]) -> str:
    """Return the best method at one budget, and what is proved there."""
    where = "" if runs[0].budget is None else f"At {runs[0].budget}, "
    results = [(run.method.label, run.result) for run in runs if run.result is not None]
    found = [
        (result.problem.objective.rank(result.certificate), label, result)
        for label, result in results
        if result.certificate is not None
    ]
    if not found:
        proofs = [label for label, result in results if result.status is Status.INFEASIBLE]
        known = f"{proofs[0]} proved that there is none" if proofs else "none is ruled out"
        return _capital(f"{where}no method found a schedule, and {known}.")
    _, label, best = min(found, key=lambda one: one[0])
    objective = best.problem.objective
    word = "needs least memory" if best.asks_peak else f"is {objective.superlative}"
    size = f": {best.peak:,} bytes" if best.asks_peak else f": {best.overhead or 0:.3g} % more {objective.resource}"
    proof = f" No schedule{_of(best.scope)} is better." if best.proved and not best.gap else ""
    return _capital(f"{where}{label} {word}{size}.{proof}")


def closing_frontier(found: Frontier) -> str:
    """Return the smallest budget with a schedule, and its price; for chosen budgets, how well the curve is known."""
    if found.least is not None:
        return " ".join(_curve(found, method) for method in found.methods)
    fits = [cell for cell in found.cells.values() if cell.value is not None]
    if not fits:
        return "No method found a schedule at any of these budgets."
    least = min(cell.budget for cell in fits)
    best = min((cell for cell in fits if cell.budget == least), key=lambda cell: cell.value or 0)
    overhead = best.row["overhead_percent"]
    price = "" if overhead is None else f" for {overhead:.3g} % more {found.problem.objective.resource}"
    below = " No method found a schedule for a smaller one." if least > min(found.budgets) else ""
    return f"The smallest of these budgets with a schedule is {least:,} bytes, by {best.method}{price}.{below}"


def _curve(found: Frontier, method: Contestant) -> str:
    """Return how many steps of a curve are proved, and the mean distance of schedules and bounds."""
    cells, base = found.of(method), found.problem.objective.base(found.problem.graph)
    proved = sum(map(found.proved, cells))
    gap, name = found.mean_gap(method), f"{method.label}: " if len(found.methods) > 1 else ""
    mean = ""
    if gap is not None:
        size = f"{100 * gap / base:.3g} points of overhead" if base else f"{gap:.4g}"
        mean = f"; from the least to the largest budget, schedules are {size} above the bounds on average"
    return f"{name}{proved} of {counted(len(cells), 'budget')} are proved{mean}."


def closing_batch(answers: Sequence[BatchResult]) -> str:
    """Return the largest batch of a network, and its price."""
    best = max(answers, key=lambda answer: answer.batch)
    if best.certificate is None:
        return f"{best.family.name}: no method found a schedule, even for one sample."
    times = f", {best.batch / best.plain:.3g} times as many as without recomputation" if best.plain else ""
    more = "" if best.certificate.overhead is None else f" for {best.certificate.overhead:.3g} % more compute"
    return f"{best.family.name} fits with {best.batch:,} samples{times},{more}.".replace(",.", ".")


def closing_allocation(found: Allocation) -> str:
    """Return what addresses mean for the memory."""
    if found.addresses is None:
        return "No addresses exist." if found.impossible else "No addresses were found, and none are ruled out."
    fits = f"The buffers fit in {found.addresses.arena:,} bytes"
    if not found.problem.open_memories:
        return f"{fits}, within the capacity."
    if found.proved:
        return f"{fits}. No arena is smaller."
    return f"{fits}. No arena is smaller than {found.bound:,} bytes."


def closing_deployment(found: Deployment) -> str:
    """Return what a deployed model needs, and what is proved."""
    end = "No order needs less." if found.proved else f"No order needs less than {found.bound:,} bytes."
    if found.after >= found.before:
        return f"The model needs {found.before:,} bytes, and no better order was found. {end}"
    saved = 100 * (1 - found.after / found.before)
    return f"The model needs {found.after:,} instead of {found.before:,} bytes, {saved:.3g} % less. {end}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
