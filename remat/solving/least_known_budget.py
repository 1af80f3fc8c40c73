"""Short search for a budget that suffices, to report when a budget is refused."""

from __future__ import annotations

from dataclasses import replace

from remat.problem import Objective, Problem
from remat.runtime.deadline import Deadline
from remat.runtime.interruption import interrupted
from remat.runtime.solve_options import SolveOptions
from remat.solving.incumbents import Certified
from remat.solving.min_peak_search import MinPeakSearch
from remat.solving.session import Session
from remat.solving.stop import stopping


def least_known_budget(problem: Problem, deadline: float | Deadline | None = 2.0, seed: int = 0) -> Certified:
    """Return a schedule with a low peak, found by heuristics alone, to report when a budget is refused.

    Parameters
    ----------
    problem : Problem
        Its budget is ignored.
    deadline : float, Deadline or None
        A second or two suffice for some hundreds of ops.
    seed : int

    Returns
    -------
    Certified
        The schedule, its certificate (whose `peak` is a sufficient budget) and its source.

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
