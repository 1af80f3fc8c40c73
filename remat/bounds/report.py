"""All bounds that apply to a problem, and the best of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from remat.bounds.base import Bound, Measure
from remat.bounds.cut import cut_bound
from remat.bounds.interval import interval_bound
from remat.bounds.joint import joint_bound
from remat.bounds.lp import lp_relaxation
from remat.bounds.structural import structural_bound
from remat.formulations.base import Scope
from remat.problem import Problem
from remat.schedule import OrderRule
from remat.timing import Deadline


def bounds(
    problem: Problem,
    deadline: float | Deadline | None = None,
    *,
    threads: int | None = None,
    relaxations: Sequence[str] = (),
) -> list[Bound]:
    """Every bound that says something of the schedules of `problem`, cheapest first.

    The structural bound and the cut bound on the peak come first. Where there is a budget that the structural bound
    leaves open, the bounds on cost follow: for a fixed order both interval relaxations, for either order the joint
    bound. What is left of the time is shared out evenly among those still to come.

    Parameters
    ----------
    deadline : float, Deadline or None
        Seconds for all of them, or a deadline whose clock runs already.
    threads : int, optional
    relaxations : sequence of str
        Formulations whose linear relaxations are to be bounds, too; mind that those of staged formulations speak of
        staged schedules only.

    Returns
    -------
    list of Bound
        Each with its scope. Only the cut bound and such relaxations may have a narrower one than the problem.

    Raises
    ------
    RematError
        If a formulation in `relaxations` is not known, or cannot state the problem.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> for bound in bounds(Problem(unit_chain(8), 4)):
    ...     print(bound)
    peak ≥ 3 bytes for any order, any number of computes; by the structural bound
    peak ≥ 10 bytes, more than the budget, for any order, ≤ 1 computes per op; by the cut bound
    cost ≥ 23 (overhead 35.29 %) for fixed order, any number of computes; by the interval relaxation
    cost ≥ 23 (overhead 35.29 %) for fixed order, any number of computes; by the interval relaxation with requests
    cost ≥ 23 (overhead 35.29 %) for any order, any number of computes; by the joint bound
    """
    clock = deadline if isinstance(deadline, Deadline) else Deadline.after(deadline)
    first = structural_bound(problem)
    todo: list[Callable[..., Bound]] = [partial(cut_bound, problem)]
    if problem.budget_bytes is not None and not first.infeasible:
        if problem.order is OrderRule.FIXED:
            todo += [
                partial(interval_bound, problem, requests=False, threads=threads),
                partial(interval_bound, problem, threads=threads),
            ]
        todo.append(partial(joint_bound, problem, threads=threads))
        todo += [partial(lp_relaxation, problem, name, threads=threads) for name in relaxations]
    found = [first]
    for left, make in zip(range(len(todo), 0, -1), todo, strict=True):
        found.append(make(deadline=clock.earlier(clock.remaining / left)))
    return found


def best_bound(problem: Problem, deadline: float | Deadline | None = None, *, threads: int | None = None) -> Bound:
    """The best bound on the cost of the schedules of `problem`, or the proof that there are none.

    Returns
    -------
    Bound
        On cost, but for the proof by a bound on the peak that no schedule keeps the budget.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> best_bound(Problem(unit_chain(8), 5)).value, best_bound(Problem(unit_chain(8), 2)).infeasible
    (22, True)
    """
    base = problem.graph.base_cost
    best = Bound(base, "computing each op once", Scope(OrderRule.FREE, staged=False), base)
    for bound in bounds(problem, deadline, threads=threads):
        if not applies(bound, problem):
            continue
        if bound.infeasible:
            return bound
        if bound.measure is Measure.COST and (bound.value or 0) > (best.value or 0):
            best = bound
    return best


def applies(bound: Bound, problem: Problem) -> bool:
    """Whether every schedule that `problem` allows is in the scope of `bound`, which was found for it.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> problem = Problem(unit_chain(8))
    >>> applies(cut_bound(problem), problem), applies(structural_bound(problem), problem)
    (False, True)
    """
    scope, most = bound.scope, bound.scope.max_computes
    limits = problem.compute_limits
    return (
        (scope.order is OrderRule.FREE or problem.order is OrderRule.FIXED)
        and not scope.staged
        and (most is None or all(limit is not None and limit <= most for limit in limits))
    )
