"""Linear relaxation of any formulation, as a bound on cost."""

from __future__ import annotations

import math
import time
from typing import Any

from remat.backends.highs import Highs
from remat.bounds.base import Bound
from remat.formulations.base import Formulation
from remat.modeling.alternatives import LinearForm
from remat.problem import Problem
from remat.problem.scope import EVERY_SCHEDULE
from remat.registry import load
from remat.runtime.deadline import Deadline, OverdueError
from remat.runtime.resources import available_memory
from remat.runtime.solve_options import SolveOptions


def lp_relaxation(
    problem: Problem,
    formulation: str | type[Formulation] = "checkmate",
    *,
    algorithm: str = "simplex",
    deadline: float | Deadline | None = None,
    threads: int | None = None,
    memory_limit: int | None = None,
    options: Any = None,
) -> Bound:
    """Return the bound of the linear relaxation of a formulation.

    The value is computed from the dual solution, less all rounding errors, then rounded up to the next whole cost. It
    is therefore a bound for any dual solution. A simplex method stopped at the deadline, an interior point method
    without crossover, or PDLP far from convergence only weakens it.

    Parameters
    ----------
    formulation : str or subclass of Formulation
        Any formulation that can be lowered to linear rows.
    algorithm : {"simplex", "ipm", "pdlp"}
    deadline : float, Deadline or None
        Seconds for building and solving, or a deadline whose clock is running.
    memory_limit : int, optional
        Bytes that a linear programme may take. One that needs more than this, or more than is available, is skipped,
        and the bound's note gives the reason.
    options : optional
        Options of the formulation.

    Returns
    -------
    Bound
        At least the cost of computing each op once, and exactly that if the deadline expires before the model is built.

    Raises
    ------
    RematError
        If the formulation does not exist, cannot state the problem, or cannot be lowered to linear rows.

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
    base = least = problem.graph.base_cost
    name = f"the linear relaxation of {kind.name} ({algorithm})"
    scope = EVERY_SCHEDULE  # until the formulation names its scope, the only bound is the cost of computing ops once

    def weakest(note: str = "") -> Bound:
        return Bound(least, name, scope, base, seconds=time.monotonic() - began, note=note)

    call = SolveOptions(clock, threads)
    try:
        stated = kind(problem) if options is None else kind(problem, options)  # type: ignore[call-arg]
        stated.deadline = clock
        scope, least = stated.scope(), stated.objective.base(problem.graph)
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
    value: int | None = least
    if found.infeasible:
        value = None
    elif found.bound is not None:
        bytes_more = shift if stated.objective.is_memory else 0
        value = max(least, math.ceil(found.bound) - bytes_more)  # the objective is a whole number
    return Bound(
        value, name, scope, base, found.infeasible, found.bound, time.monotonic() - began, found.duals, found.versions
    )
