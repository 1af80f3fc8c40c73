"""minimize(): the smallest known feasible budget, with a lower bound."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from remat.backends.choice import BackendLike
from remat.problem import Objective, Problem
from remat.solving.least_known_budget import least_known_budget
from remat.solving.method import MethodLike
from remat.solving.result import Result
from remat.solving.solve import SolveArguments, solve

__all__ = ["least_known_budget", "minimize"]

if TYPE_CHECKING:
    from remat.graphs.io import GraphLike


def minimize(
    problem: Problem | GraphLike,
    method: MethodLike = "auto",
    backend: BackendLike | None = "cp-sat",
    **arguments: Unpack[SolveArguments],
) -> Result:
    """Find the smallest budget with a schedule, and a cheap schedule of that peak.

    Equivalent to :func:`remat.solve` with the objective ``least-peak`` and no budget; any method that supports the
    objective can be used. ``auto`` runs heuristics with ever smaller budgets, each from the schedule of least peak so
    far. It searches small graphs exhaustively, and orders without recomputation up to some two hundred ops. A solver
    minimises the peak in the model of retention intervals. The remaining time lowers the cost at the peak found. The
    bound comes from tensors that cannot be recomputed, from an exhaustive search, or from the solver if its model
    contains all schedules that the problem allows.

    Parameters
    ----------
    problem : Problem or graph
        Graph and rules; its budget is ignored. For a plain graph the reference order is kept, and ops may be computed
        any number of times.
    method : str, class or object
        As for :func:`remat.solve`: ``auto``, a formulation that can state the least peak (``retention-intervals``), or
        a heuristic, which runs with ever smaller budgets.
    backend : str, class, Backend or None
        Solver of the models; None, with ``auto``: no solver.
    **arguments
        As for :func:`remat.solve`. Without `stop` the search ends when nothing is left to try, with at most a minute
        for each endless part.

    Returns
    -------
    Result
        Always has a schedule, since the reference order is one; also after Ctrl-C.

    Raises
    ------
    ProblemError
        If an option is out of range, or the warm start is not a valid schedule.
    BackendError
        If the backend does not exist, or a claim contradicts a schedule.

    Examples
    --------
    >>> from remat import SolveOptions
    >>> from remat.graphs.families import unit_chain
    >>> found = minimize(unit_chain(4), stop=20, options=SolveOptions(threads=1))
    >>> found.peak, found.proved, found.cost, found.cost_proved
    (3, True, 15, True)
    """
    problem = replace(Problem.of(problem), budget=None, objective=Objective.LEAST_PEAK)
    return solve(problem, method, backend, **arguments)
