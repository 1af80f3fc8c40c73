"""The linear relaxation of any formulation, as a bound on cost."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from remat.backends.base import SolveOptions
from remat.backends.highs import Highs
from remat.bounds.base import Bound
from remat.deadline import Deadline, OverdueError
from remat.formulations.base import Formulation
from remat.modeling.linear_form import LinearForm
from remat.problem import Objective, Problem
from remat.registry import load
from remat.runtime.resources import available_memory
from remat.scope import EVERY_SCHEDULE


def lp_relaxation(
    problem: Problem,
    formulation: str | type[Formulation] = "checkmate",
    *,
    algorithm: str = "simplex",
    deadline: float | Deadline | None = None,
    threads: int | None = None,
    memory_limit: int | None = None,
    options: Any = None,
    solver_options: Mapping[str, Any] | None = None,
) -> Bound:
    """The bound that the linear relaxation of a formulation gives.

    The value is computed from the dual solution with all its rounding errors taken off, and is then rounded up to the
    next whole cost. So it is a bound however the solver stopped: with the simplex method cut off by the deadline, the
    interior point method without crossover, or PDLP far from convergence it is merely a weaker one.

    Parameters
    ----------
    formulation : str or subclass of Formulation
        Any that can be lowered to linear rows.
    algorithm : {"simplex", "ipm", "pdlp"}
    deadline : float, Deadline or None
        Seconds for building and solving, or a deadline whose clock runs already.
    threads : int, optional
    memory_limit : int, optional
        Bytes that a linear programme may take. One that would take more, or more than there is, is not solved, and the
        bound says so in its note.
    options : optional
        Options of the formulation.
    solver_options : mapping, optional
        Options of HiGHS, untouched.

    Returns
    -------
    Bound
        Never below the cost of computing each op once. If the deadline comes before the model is built, that is all.

    Raises
    ------
    RematError
        If there is no such formulation, it cannot state the problem, or it cannot be expressed in linear rows.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> bound = lp_relaxation(Problem(unit_chain(8), 4))
    >>> bound.value, round(bound.relaxed, 6)
    (22, 22.0)
    """
    began = time.monotonic()
    clock = Deadline.of(deadline)
    kind = load("formulations", formulation) if isinstance(formulation, str) else formulation
    problem, shift = problem.relaxed
    base = problem.graph.base_cost
    name = f"the linear relaxation of {kind.name} ({algorithm})"
    scope = EVERY_SCHEDULE  # of the cost of computing each op once, which is all there is until the scope is known

    def weakest(note: str = "") -> Bound:
        return Bound(base, name, scope, base, seconds=time.monotonic() - began, note=note)

    call = SolveOptions(clock, threads, solver=dict(solver_options or {}))
    try:
        stated = kind(problem) if options is None else kind(problem, options)  # type: ignore[call-arg]
        stated.deadline = clock
        scope = stated.scope()
        size = stated.linear_estimate()
        why = "" if size is None else size.lacks_memory(available_memory(memory_limit), Highs.nonzero_bytes)
        if why:
            return weakest(f"its model has {size} and {why}")
        if size is not None and size.lacks_time(clock.remaining):
            return weakest()
        model = stated.build()
        form = model.overrides.get(LinearForm.name)
        found = Highs().relax(model if form is None else form().model, call, algorithm)
    except OverdueError:
        return weakest()
    value: int | None = base
    if found.infeasible:
        value = None
    elif found.bound is not None:
        bytes_more = shift if problem.objective is Objective.LEAST_PEAK else 0
        value = max(base, math.ceil(found.bound) - bytes_more)  # costs are whole numbers
    return Bound(
        value, name, scope, base, found.infeasible, found.bound, time.monotonic() - began, found.duals, found.versions
    )
