"""minimize(): the smallest budget for which a schedule is known, and a bound below which there is none."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from remat.backends.base import DEFAULT_OPTIONS, SolveOptions
from remat.backends.choice import BackendLike
from remat.deadline import Deadline
from remat.graphs import ComputeGraph
from remat.interruption import interrupted
from remat.problem import Objective, Problem
from remat.schedule import Schedule
from remat.solving.incumbents import Certified
from remat.solving.min_peak_search import MinPeakSearch
from remat.solving.progress import OnProgress
from remat.solving.session import Session
from remat.solving.stop import Stop, stopping

if TYPE_CHECKING:
    from remat.solving.method import MethodLike
    from remat.solving.result import Result


def minimize(
    problem: Problem | ComputeGraph,
    method: MethodLike = "auto",
    backend: BackendLike | None = "cp-sat",
    *,
    stop: Stop = None,
    warm_start: Schedule | None = None,
    options: SolveOptions = DEFAULT_OPTIONS,
    method_options: Any = None,
    on_progress: OnProgress | None = None,
) -> Result:
    """Find the smallest budget for which there is a schedule, and among schedules of that peak a cheap one.

    It is :func:`remat.solve` for the objective ``least-peak`` without a budget, and any method that can state it will
    do. With ``auto``, heuristics are asked for less and less memory, each time starting from the schedule with the
    least peak so far; small graphs are searched exhaustively; orders without recomputation up to some two hundred ops;
    and a solver minimises the peak in the model of retention intervals. The time that is left goes into a
    lower cost at the peak found. The bound is that of what cannot be made again, or comes from an exhaustive search, or
    from the solver where its model holds all schedules that the problem allows.

    Parameters
    ----------
    problem : Problem or ComputeGraph
        Graph and rules; its budget is not looked at. A graph alone: its reference order is kept, and ops may be
        computed any number of times.
    method : str, class or object
        As for :func:`remat.solve`: ``auto``, a formulation that can state the least peak (``retention-intervals``), or
        a heuristic, which is asked for less and less.
    backend : str, class, Backend or None
        For the models; None, with ``auto``: no solver.
    stop : float, Deadline, StoppingCriterion or None
        As for :func:`remat.solve`; None: until there is nothing more to try, with at most a minute for each way of
        searching that has no end of its own.
    warm_start : Schedule, optional
        A valid schedule to start from.
    options : SolveOptions
        Threads, seed and the like, as for :func:`remat.solve`.
    method_options : optional
        Of the method.
    on_progress : callable, optional
        Receives a :class:`remat.solving.progress.Progress` at every new phase, schedule and bound.

    Returns
    -------
    Result
        Always with a schedule, since the reference order is one; also after Ctrl-C.

    Raises
    ------
    ProblemError
        For an option out of range, or a start that is not a valid schedule.
    BackendError
        If there is no such backend, or what is claimed contradicts a schedule.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> found = minimize(unit_chain(4), stop=20, options=SolveOptions(threads=1))
    >>> found.peak, found.proved, found.cost, found.cost_proved
    (3, True, 15, True)
    """
    from remat.solving.solve import solve

    if isinstance(problem, ComputeGraph):
        problem = Problem(problem, objective=Objective.LEAST_PEAK)
    elif isinstance(problem, Problem):
        problem = replace(problem, budget=None, objective=Objective.LEAST_PEAK)
    return solve(
        problem, method, backend, stop=stop, warm_start=warm_start, options=options, method_options=method_options,
        on_progress=on_progress,
    )  # fmt: skip


def least_known_budget(problem: Problem, deadline: float | Deadline | None = 2.0, seed: int = 0) -> Certified:
    """A schedule with a low peak, by heuristics alone: what to say when a budget is refused.

    Parameters
    ----------
    problem : Problem
        Its budget is not looked at.
    deadline : float, Deadline or None
        A second or two are enough for some hundreds of ops.
    seed : int

    Returns
    -------
    Certified
        The schedule, its certificate (whose `peak` is a budget that suffices), and who made it.

    Raises
    ------
    KeyboardInterrupt
        At Ctrl-C.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> least_known_budget(Problem(unit_chain(6), 2)).certificate.peak < unit_chain(6).reference_peak
    True
    """
    call, _ = stopping(deadline, SolveOptions(threads=1, seed=seed))
    session = Session(replace(problem, budget=None, objective=Objective.LEAST_PEAK), call, "auto")
    MinPeakSearch(session, quick=True).run()
    if interrupted():
        raise KeyboardInterrupt
    assert session.incumbents.least_peak is not None
    return session.incumbents.least_peak
