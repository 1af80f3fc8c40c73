"""solve(): a problem and a method make a certified result."""

from __future__ import annotations

import time
from typing import Any

from remat.backends.base import DEFAULT_OPTIONS, Backend, SolveOptions, StopReason
from remat.errors import ProblemError
from remat.formulations.base import Formulation
from remat.heuristics.base import Heuristic
from remat.interruption import interrupts
from remat.problem import Problem
from remat.registry import attempt, heuristics, load, make_backend
from remat.schedule import OrderRule, Schedule
from remat.solving.auto import AUTO, Auto
from remat.solving.incumbents import structural_peak
from remat.solving.model_method import ModelMethod
from remat.solving.progress import OnProgress
from remat.solving.result import Result
from remat.solving.session import Session
from remat.solving.stop import Stop, stopping
from remat.solving.warm_start import take_warm_start

#: The heuristic that starts a solver, where it is registered.
START_HEURISTICS = {OrderRule.FIXED: "greedy", OrderRule.FREE: "annealing"}
#: Shares of the time left in which the start heuristic must be loaded, and in which it may run then.
PREPARE_SHARE, START_SHARE = 0.4, 0.1
#: Most seconds of the start heuristic for each op.
START_SECONDS = 0.02


@interrupts()
def solve(
    problem: Problem,
    method: str | type[Formulation] | type[Heuristic] = AUTO,
    backend: str | Backend = "cp-sat",
    *,
    stop: Stop = None,
    warm_start: Schedule | None = None,
    options: SolveOptions = DEFAULT_OPTIONS,
    method_options: Any = None,
    on_progress: OnProgress | None = None,
) -> Result:
    """Find the cheapest schedule that keeps the rules of `problem`.

    What needs no search is answered at once: a budget below the structural bound, and a budget that a schedule without
    recomputation keeps. Then the method has its turn:

    ``auto``
        Heuristics, bounds that hold for every schedule the problem allows, search, and the backend, in turns
        (:mod:`remat.solving.auto`); ends as soon as a schedule costs no more than the best bound, or is within
        `options.relative_gap` (0.0001 % unless told otherwise) of it.
    a formulation
        Its model is built and solved by the backend; where no start within the budget is known, its preliminary model
        looks for one first.
    a heuristic
        It runs alone.

    Every schedule on the way is validated and priced by itself.

    Parameters
    ----------
    problem : Problem
    method : str or subclass of Formulation or Heuristic
        ``auto``, the name of a registered formulation or heuristic, or one itself.
    backend : str or Backend
        Name of a registered backend, or a backend itself; not used by heuristics.
    stop : float, Deadline, StoppingCriterion or None
        Seconds for everything, a deadline whose clock runs already, or a criterion of :mod:`remat.solving.stop`; None:
        as long as it takes.
    warm_start : Schedule, optional
        A valid schedule to start from; within the budget it is also the answer if nothing better is found. Where the
        formulation cannot express it, the result's message says so.
    options : SolveOptions
        Threads, seed, gap, isolation and the like, the same for whatever solves a part of it.
    method_options : optional
        Options of the formulation or heuristic; ``auto`` has none.
    on_progress : callable, optional
        Receives a :class:`remat.solving.progress.Progress` at every new phase, schedule and bound, from any thread.

    Returns
    -------
    Result
        With the best schedule found, also after Ctrl-C or a crash of the solver. Its status is ``optimal`` only where
        the schedule costs what is proved to be the least; within the gap it is ``feasible``, stopped by ``gap``.

    Raises
    ------
    RematError
        For a name that is not registered; a ProblemError for options out of range, a warm start that is not a valid
        schedule of the graph, or a problem that the formulation cannot state.
    BackendError
        If the backend is not available, fails with nothing found, or its answer is not what the schedule shows.
    KeyboardInterrupt
        If Ctrl-C comes before there is any schedule, and not while the solver runs.

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
    warm_start = _first_schedule(warm_start, call)
    name = method if isinstance(method, str) else method.name
    # An unknown name is an error even where no solver is needed; loading a name brings no solver along.
    is_heuristic = method in heuristics() if isinstance(method, str) else issubclass(method, Heuristic)
    if name == AUTO and method_options is not None:
        raise ProblemError(f"method {AUTO!r} takes no options; those of a formulation or heuristic go with its name")
    kind: Any = None if name == AUTO else _named("heuristics" if is_heuristic else "formulations", method)
    solver: Any = make_backend(backend) if isinstance(backend, str) and not is_heuristic else backend
    session = Session(
        problem, call, name, "" if is_heuristic else solver.full_name, on_progress, criterion, begun=begun
    )  # fmt: skip
    peak, where = structural_peak(problem)
    if problem.budget_bytes is not None and problem.budget_bytes < peak:
        session.infeasible = True
        session.proof = f": budget {problem.budget_bytes:,} bytes is below the {peak:,} bytes that {where}"
        return session.result()
    try:
        if not session.decided and warm_start is not None:
            session.note(take_warm_start(session.incumbents, warm_start))
        if session.enough:
            pass
        elif name == AUTO:
            Auto(session, solver, warm_start).run()
            session.conclude()
        elif is_heuristic:
            heuristic = attempt(lambda: kind(method_options), f"heuristic {name!r} cannot be made")
            session.improve(heuristic, call.deadline, warm_start)
            session.conclude()
        else:
            if call.start != "none":
                _begin(session, warm_start)
            if not session.enough:
                ModelMethod(session, kind, solver, method_options).run(warm_start)
    except KeyboardInterrupt:
        if session.best is None:
            raise
        session.stop = StopReason.INTERRUPTED
    return session.result()


def _first_schedule(warm_start: Schedule | None, call: SolveOptions) -> Schedule | None:
    """The schedule to start from, wherever it is given."""
    if warm_start is None and call.start not in ("auto", "none"):
        warm_start = call.start
    elif warm_start is not None and call.start not in ("auto", "none", warm_start):
        raise ProblemError("there is a warm start, and options.start is another schedule")
    if warm_start is not None and not isinstance(warm_start, Schedule):
        raise ProblemError(f"the warm start is a {type(warm_start).__name__}, not a Schedule")
    return warm_start


def _begin(session: Session, warm_start: Schedule | None) -> None:
    """Have a heuristic make a start for a solver."""
    name, deadline = START_HEURISTICS.get(OrderRule(session.problem.order), ""), session.call.deadline
    if name not in heuristics():
        return
    heuristic: Heuristic = load("heuristics", name)()
    if heuristic.prepared(PREPARE_SHARE * deadline.remaining):
        most = START_SECONDS * len(session.problem.graph.ops)
        session.improve(heuristic, deadline.earlier(min(most, START_SHARE * deadline.remaining)), warm_start)


def _named(group: str, what: Any) -> Any:
    """What is registered under a name; anything else as it is."""
    return load(group, what) if isinstance(what, str) else what
