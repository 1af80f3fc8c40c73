"""order(): the order of least peak, each op computed once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from remat.backends.choice import BackendLike
from remat.problem import Objective, Problem
from remat.schedule import OrderRule
from remat.solving.method import MethodLike
from remat.solving.result import Result
from remat.solving.solve import SolveArguments, solve

if TYPE_CHECKING:
    from remat.graphs.io import GraphLike


def order(
    problem: Problem | GraphLike,
    method: MethodLike = "auto",
    backend: BackendLike | None = "cp-sat",
    **arguments: Unpack[SolveArguments],
) -> Result:
    """Find the order of least peak in which each op is computed once.

    Equivalent to :func:`remat.solve` with the objective ``least-peak``, a free order and one compute per op.

    Parameters
    ----------
    problem : Problem or graph
        Tensors to keep, constant memory, and the budget as an upper limit, if any; its order rule, limits of computes
        and objective are ignored.
    method : str, class or object
        As for :func:`remat.solve`: ``auto``, ``serenity`` or another order search (:mod:`remat.ordering`), a
        formulation that can state the least peak, or a heuristic.
    backend, **arguments
        As for :func:`remat.solve`.

    Returns
    -------
    Result
        Without a budget it always has a schedule, since the reference order is one; also after Ctrl-C.

    Raises
    ------
    RematError
        As :func:`remat.solve`.

    Examples
    --------
    >>> from remat import GraphBuilder
    >>> b = GraphBuilder("two branches")
    >>> _ = b.op("a", size=2), b.op("b", inputs=["a"], size=9), b.op("c", inputs=["a"], size=9)
    >>> _ = b.op("d", inputs=["b"], size=1), b.op("e", inputs=["c"], size=1), b.op("f", inputs=["d", "e"], size=1)
    >>> found = order(b.build(), "serenity")
    >>> found.problem.reference_peak, found.peak, found.proved
    (20, 12, True)
    """
    problem = replace(Problem.of(problem), order=OrderRule.FREE, max_computes=1, objective=Objective.LEAST_PEAK)
    return solve(problem, method, backend, **arguments)
