"""solve(): a problem and a method make a certified result."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from remat.backends.base import Backend, StopReason
from remat.deadline import Deadline
from remat.errors import ProblemError
from remat.formulations.base import Formulation
from remat.heuristics.base import Heuristic
from remat.interruption import interrupts
from remat.problem import Problem
from remat.registry import attempt, heuristics, load, make_backend
from remat.schedule import OrderRule, Schedule
from remat.solving.auto import AUTO, Auto
from remat.solving.backend_call import call_options
from remat.solving.incumbents import structural_peak
from remat.solving.model_method import ModelMethod
from remat.solving.progress import OnProgress
from remat.solving.result import Result
from remat.solving.session import Session
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
    deadline: float | Deadline | None = None,
    warm_start: Schedule | None = None,
    threads: int | None = None,
    seed: int = 0,
    relative_gap: float = 0.0,
    options: Any = None,
    solver_options: Mapping[str, Any] | None = None,
    on_progress: OnProgress | None = None,
    log: Callable[[str], None] | None = None,
    isolate: bool = False,
    memory_limit: int | str | None = None,
) -> Result:
    """Find the cheapest schedule that keeps the rules of `problem`.

    What needs no search is answered at once: a budget below the structural bound, and a budget that a schedule without
    recomputation keeps. Then the method has its turn:

    ``auto``
        Heuristics, bounds that hold for every schedule the problem allows, search, and the backend, in turns
        (:mod:`remat.solving.auto`); ends as soon as a schedule costs no more than the best bound.
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
    deadline : float, Deadline or None
        Seconds for everything, or a deadline whose clock runs already; None: as long as it takes.
    warm_start : Schedule, optional
        A valid schedule to start from; within the budget it is also the answer if nothing better is found. Where the
        formulation cannot express it, the result's message says so.
    threads : int or None
        None: as many as the machine has.
    seed : int
    relative_gap : float
        Stop when (objective − bound) / objective is at most this.
    options : optional
        Options of the formulation or heuristic; ``auto`` has none.
    solver_options : mapping, optional
        Passed to the solver untouched.
    on_progress : callable, optional
        Receives a :class:`remat.solving.progress.Progress` at every new phase, schedule and bound, from any thread.
    log : callable, optional
        Receives the solver's own log, line by line.
    isolate : bool
        Run the solver in a process of its own, which is killed if it misses the deadline; what it had found is kept.
    memory_limit : int or str, optional
        Bytes that this process may hold (``"4GiB"``); means `isolate`.

    Returns
    -------
    Result
        With the best schedule found, also after Ctrl-C or a crash of the solver.

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
    >>> solve(Problem(graph, "100%")).status.value
    'optimal'
    >>> solve(Problem(graph, 9)).message
    "no schedule exists: budget 9 bytes is below the 10 bytes that op 'b' needs; 10 bytes (100 %) are known to suffice"
    """
    begun = time.monotonic()
    if warm_start is not None and not isinstance(warm_start, Schedule):
        raise ProblemError(f"the warm start is a {type(warm_start).__name__}, not a Schedule")
    call = call_options(
        deadline, threads=threads, seed=seed, relative_gap=relative_gap, log=log, solver=solver_options,
        isolate=isolate, memory_limit=memory_limit,
    )  # fmt: skip
    name = method if isinstance(method, str) else method.name
    # An unknown name is an error even where no solver is needed; loading a name brings no solver along.
    is_heuristic = method in heuristics() if isinstance(method, str) else issubclass(method, Heuristic)
    if name == AUTO and options is not None:
        raise ProblemError(f"method {AUTO!r} takes no options; those of a formulation or heuristic go with its name")
    kind: Any = None if name == AUTO else _named("heuristics" if is_heuristic else "formulations", method)
    solver: Any = make_backend(backend) if isinstance(backend, str) and not is_heuristic else backend
    session = Session(problem, call, name, "" if is_heuristic else solver.full_name, on_progress, begun=begun)
    peak, where = structural_peak(problem)
    if problem.budget_bytes is not None and problem.budget_bytes < peak:
        session.infeasible = True
        session.proof = f": budget {problem.budget_bytes:,} bytes is below the {peak:,} bytes that {where}"
        return session.result()
    try:
        if not session.decided and warm_start is not None:
            session.note(take_warm_start(session.incumbents, warm_start))
        if session.decided:
            pass
        elif name == AUTO:
            Auto(session, solver, warm_start).run()
        elif is_heuristic:
            heuristic = attempt(lambda: kind(options), f"heuristic {name!r} cannot be made")
            session.improve(heuristic, call.deadline, warm_start)
            if call.deadline.expired:
                session.stop = StopReason.DEADLINE
        else:
            _begin(session, warm_start)
            if not session.decided:
                ModelMethod(session, kind, solver, options).run(warm_start)
    except KeyboardInterrupt:
        if session.best is None:
            raise
        session.stop = StopReason.INTERRUPTED
    return session.result()


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
