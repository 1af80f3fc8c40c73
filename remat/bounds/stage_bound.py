"""Stage bound: lower bound on cost or time for a fixed order of first computes, tightened in steps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from remat.bounds.base import Bound
from remat.bounds.bound_search import BoundSearch
from remat.bounds.stage_programmes import StageProgrammes
from remat.bounds.stage_search import StageSearch
from remat.bounds.transfer_search import TransferSearch
from remat.problem import Problem
from remat.runtime.deadline import Deadline, OverdueError

#: Programmes of one problem that a later search resumes.
Programmes = StageProgrammes | TransferSearch


def stage_bound(
    problem: Problem,
    *,
    integer: bool = True,
    enough: int | None = None,
    deadline: float | Deadline | None = None,
    threads: int | None = None,
    memory_limit: int | None = None,
) -> Bound:
    """Return the last, and best, of :func:`stage_bounds`.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> stage_bound(Problem(unit_chain(8), 4)).value  # the optimum
    26
    """
    *_, last = stage_bounds(
        problem, integer=integer, enough=enough, deadline=deadline, threads=threads, memory_limit=memory_limit
    )
    return last


def stage_bounds(
    problem: Problem,
    *,
    integer: bool = True,
    enough: int | None = None,
    deadline: float | Deadline | None = None,
    threads: int | None = None,
    memory_limit: int | None = None,
    programmes: Programmes | None = None,
) -> Iterator[Bound]:
    """Yield increasing bounds on the objective for the reference order of first computes.

    They are optima of :class:`remat.bounds.stage_relaxation.StageRelaxation` with path cuts
    (:mod:`remat.bounds.path_cuts`), first of its linear relaxation, which are safe even if the solver errs, then of the
    integer programme. Steps at which a schedule that follows from the solution exceeds the budget become events of the
    next one (:class:`remat.bounds.stage_programmes.StageProgrammes`).

    On a machine with a host they bound the time of any schedule with this order of first computes, by
    :class:`remat.bounds.transfer_relaxation.TransferRelaxation`. Its first event is the same; steps at which the
    solution implies too much memory become events, too. Integer programmes follow, in which the device holds no part of
    a tensor: for the events of the best relaxation, with those that follow from the solution, then also for the steps
    after them, then for those before them. The last one has every step at which the reference order without
    recomputation exceeds the budget; up to 40 ops, one more has all steps.

    Parameters
    ----------
    integer : bool
        Solve integer programmes after the linear relaxations.
    enough : int, optional
        Cost (time) of a known schedule. The search stops when no schedule can be cheaper. Solutions of at least this
        cost are excluded from the programmes, which makes them far easier.
    deadline : float, Deadline or None
        Seconds for all bounds, or a deadline whose clock is running; without one, each integer programme has
        :data:`remat.bounds.bound_search.PATIENCE` seconds.
    memory_limit : int, optional
        Bytes that a linear programme may take. One that needs more than this, or more than is available, is skipped,
        and the bound's note gives the reason.
    programmes : StageProgrammes or, on a machine with a host, TransferSearch, optional
        Programmes of this problem to resume.

    Yields
    ------
    Bound
        Each better than the one before, except a last one that adds a note. The first is the base cost.
    """
    clock = Deadline.of(deadline)
    problem, _ = problem.relaxed
    search: BoundSearch
    if problem.can_move:
        limits = enough, clock, threads, memory_limit
        if isinstance(programmes, TransferSearch) and programmes.problem is problem:
            search = programmes.resumed(*limits)
        else:
            search = TransferSearch(problem, *limits)
    else:
        known = programmes if isinstance(programmes, StageProgrammes) else None
        search = StageSearch(problem, enough, clock, threads, memory_limit, known)
    yield search.best
    if problem.budget_bytes is None:
        return
    with contextlib.suppress(OverdueError):
        yield from search.go(integer)
    if search.best.note:
        yield search.best
