"""solve(): from a problem and a method to a certified result."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, TypedDict

from remat.backends.base import Backend
from remat.backends.choice import BackendLike, as_backend
from remat.bounds.peak_bounds import structural_bound
from remat.errors import ProblemError
from remat.graphs import ComputeGraph
from remat.graphs.io import as_graph
from remat.problem import Problem
from remat.runtime.interruption import interrupts
from remat.runtime.solve_options import DEFAULT_OPTIONS, STARTS, SolveOptions, StopReason
from remat.runtime.text import short
from remat.schedule import Schedule
from remat.schedule.io import read_schedule
from remat.solving.auto import AUTO
from remat.solving.conclusion import concluded
from remat.solving.least_known_budget import sufficient_budget
from remat.solving.method import FormulationMethod, Method, MethodLike, make_method, require_backend, split_backend
from remat.solving.progress import OnProgress
from remat.solving.reduced import answer
from remat.solving.result import Result
from remat.solving.session import Session
from remat.solving.stop import Stop, stopping
from remat.solving.warm_start import take_warm_start

if TYPE_CHECKING:
    from remat.graphs.io import GraphLike
    from remat.schedule.io import ScheduleLike


class SolveArguments(TypedDict, total=False):
    """Keywords of :func:`solve` that other functions pass on."""

    stop: Stop
    warm_start: ScheduleLike | None
    options: SolveOptions
    method_options: Any
    on_progress: OnProgress | None


@interrupts()
def solve(  # noqa: PLR0913 - the front door: every argument visible
    problem: Problem | GraphLike,
    method: MethodLike = AUTO,
    backend: BackendLike | None = "cp-sat",
    *,
    budget: str | int | float | None = None,
    stop: Stop = None,
    warm_start: ScheduleLike | None = None,
    options: SolveOptions = DEFAULT_OPTIONS,
    method_options: Any = None,
    on_progress: OnProgress | None = None,
) -> Result:
    """Find the best schedule within the rules of `problem`: the cheapest, or the one with the least peak.

    Two cases are answered without a search: a budget below the structural bound, and a budget that the reference order
    without recomputation fits (except with ``start="alone"``). Otherwise the method runs:

    ``auto``
        Heuristics, bounds that hold for every schedule the problem allows, search, and the backend, in turns
        (:mod:`remat.solving.auto`). It ends when a schedule meets the best bound, or is within
        `options.relative_gap` (default 0.0001 %) of it.
    a formulation
        The backend solves its model. If no start within the budget is known, its preliminary model finds one first.
    a heuristic
        It runs alone.

    Every schedule found is validated and priced independently.

    Parameters
    ----------
    problem : Problem or graph
        For a plain graph (also a file, the name of a zoo graph, or a networkx graph), `budget` is needed.
    method : str, class or object
        ``auto``, the name of a registered formulation, heuristic or method; a class of these, registered or not; or an
        object of a heuristic or method.
    backend : str, class or Backend
        Name of a registered backend, a class or an object, for methods that solve models.
    budget : str, int or float, optional
        Budget for a plain graph, as for :class:`remat.problem.Problem`.
    stop : float, Deadline, StoppingCriterion or None
        Seconds for everything, a running deadline, or a criterion of :mod:`remat.solving.stop`; None: no limit.
    warm_start : Schedule or path, optional
        A valid schedule to start from, or its file. Within the budget it is also the answer if nothing better is found.
        If the formulation cannot express it, the result's message says so.
    options : SolveOptions
        Threads, seed, gap, isolation and others, for all parts of the solve.
    method_options : optional
        Options of the method, an object of its class's `options_type`.
    on_progress : callable, optional
        Receives a :class:`remat.solving.progress.Progress` at every new phase, schedule and bound, from any thread.

    Returns
    -------
    Result
        Has the best schedule found, also after Ctrl-C or a crash of the solver. The status is ``optimal`` only if the
        cost is proved least; within the gap it is ``feasible``, stopped by ``gap``.

    Raises
    ------
    RematError
        If a name is not registered; a ProblemError if options are out of range, the warm start is not a valid schedule
        of the graph, or the formulation cannot state the problem.
    BackendError
        If the backend is not available, fails before finding anything, or its answer contradicts the schedule.
    KeyboardInterrupt
        If Ctrl-C is pressed before there is any schedule, except while the solver runs.

    Examples
    --------
    >>> from remat import GraphBuilder, Problem, solve
    >>> b = GraphBuilder("pair")
    >>> _ = b.op("a", size=4, cost=1), b.op("b", inputs=["a"], size=6, cost=1)
    >>> graph = b.build()
    >>> solve(Problem(graph, "100%"), stop=10).status.value
    'optimal'
    >>> solve(Problem(graph, 9)).message
    "no schedule exists: budget 9 bytes is below the 10 bytes that op 'b' needs; 10 bytes (100 %) are known to suffice"
    """
    begun = time.monotonic()
    call, criterion = stopping(stop, options)
    problem = _question(problem, budget)
    warm_start = _first_schedule(warm_start, call, problem.graph)
    # Unknown names are errors even if no solver is needed; loading a name imports no solver.
    chosen, own_backend = split_backend(method)
    answerer = make_method(chosen, method_options)
    if own_backend is not None:
        require_backend(answerer, method)
    backend = own_backend or backend
    _check_objective(problem, answerer)
    solver = _solver(answerer, backend, call, problem.objective.is_memory)
    session = Session(
        problem, call, answerer.name, "" if solver is None else solver.full_name, on_progress, criterion,
        solver=solver, warm_start=warm_start, begun=begun,
    )  # fmt: skip
    least = structural_bound(problem)
    if least.infeasible:
        where = f"op {least.cause!r} needs" if least.cause else "the tensors alive at the end need"
        session.infeasible = True
        session.proof = f": budget {problem.budget_bytes:,} bytes is below the {least.value:,} bytes that {where}"
        written = problem.budget
        if isinstance(written, str) and written.isdecimal() and int(written) <= 100 < problem.reference_peak:
            session.proof += f" (a number without a unit is bytes; did you mean {written}%?)"
        return _result(session)
    try:
        if not session.decided and warm_start is not None:
            session.note(take_warm_start(session.incumbents, warm_start))
        # Skip methods whose turn starts after the deadline: loading kernels alone takes a second.
        late = call.deadline.expired and not session.asks_peak
        if late and not session.enough:
            session.stop = StopReason.DEADLINE
        elif not session.enough:
            answer(session, answerer)
    except KeyboardInterrupt:
        if session.best is None:
            raise
        session.stop = StopReason.INTERRUPTED
    return _result(session)


def _result(session: Session) -> Result:
    """Return the result of a session; without a schedule, search for a budget that suffices first."""
    return concluded(session, sufficient_budget(session) if session.best is None else None)


def _question(problem: Problem | GraphLike, budget: str | int | float | None) -> Problem:
    """Return a problem as it is, or that of a graph with a budget; raise ProblemError if one lacks or is too many."""
    if isinstance(problem, Problem):
        if budget is not None:
            raise ProblemError(f"budget {short(budget)}: the problem has its own; give one of them", "no-problem")
        return problem
    graph = as_graph(problem)
    if budget is None:
        raise ProblemError(
            f"graph {graph.name!r} has no budget: write solve(graph, budget='80%'), or minimize(graph)", "no-problem"
        )
    return Problem(graph, budget)


def _check_objective(problem: Problem, method: Method) -> None:
    asked = problem.objective if method.moves else problem.one_memory.objective
    if asked not in method.objectives:
        raise ProblemError(
            f"method {method.name!r} does not search for the {str(asked).replace('-', ' ')}; use 'auto', "
            "'retention-intervals' or a heuristic"
            + ("" if asked.is_memory else f"; `remat order` uses {method.name!r}"),
            "no-peak",
        )


def _solver(method: Method, backend: Any, call: SolveOptions, asks_peak: bool) -> Backend | None:
    """Return the backend object, or None for a method without one, which refuses options that need a backend."""
    if backend is None and asks_peak and not isinstance(method, FormulationMethod):  # heuristics and search alone
        return None
    if method.needs_backend:
        return as_backend(backend)
    if call.solver:
        raise ProblemError(
            f"method {method.name!r} uses no solver, so option {next(iter(call.solver))!r} does not apply", "unused"
        )
    return None


def _first_schedule(warm_start: ScheduleLike | None, call: SolveOptions, graph: ComputeGraph) -> Schedule | None:
    """Return the schedule to start from, given as the warm start or as ``options.start``."""
    if isinstance(warm_start, str | os.PathLike):
        warm_start = read_schedule(warm_start, graph)
    if warm_start is None and call.start not in STARTS:
        warm_start = call.start
    elif warm_start is not None and call.start not in (*STARTS, warm_start):
        raise ProblemError("there is a warm start, and options.start is another schedule")
    if warm_start is not None and not isinstance(warm_start, Schedule):
        raise ProblemError(f"the warm start is a {type(warm_start).__name__}, not a Schedule", "no-schedule")
    return warm_start
