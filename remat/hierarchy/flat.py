"""Flat heuristics: before anything is grouped, so that groups have something to beat; and from the best schedule on."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence

from remat.deadline import Deadline, OverdueError
from remat.errors import BackendError, ModelError, ProblemError
from remat.heuristics.base import Heuristic
from remat.heuristics.turns import Turns
from remat.registry import heuristics, make
from remat.solving.auto import LNS_OPS
from remat.solving.chain_starts import OPTIONS, chain_start, chain_starts
from remat.solving.method import HeuristicMethod, Method, MethodLike, make_method
from remat.solving.min_peak_search import MinPeakSearch
from remat.solving.session import Session

#: Share of the time left for each start, and while there is no schedule yet; for what those that were cut short get
#: once more.
START_SHARE, FIRST_SHARE, AGAIN_SHARE = 0.1, 0.2, 0.3
#: Shares for those that are worth more or less.
START_SHARES = {"drops": 0.2}
#: Seconds where there is no deadline.
NO_DEADLINE = 600.0
#: Heuristics that polish, by shares of the time.
POLISH_SHARES = {"annealing": 0.7, "lns": 0.3}
#: Seconds of a turn, and by how much it grows while turns bring nothing.
TURN, GROWTH = 5.0, 1.5


def starts(session: Session, methods: Sequence[MethodLike]) -> list[Heuristic]:
    """The heuristics among `methods` that apply to the problem, in their order.

    Those on chains of blocks are left out where there is no training step, and Rotor where the graph is too large for
    it (:mod:`remat.solving.chain_starts`).

    Examples
    --------
    >>> from remat.backends.base import SolveOptions
    >>> from remat.deadline import Deadline
    >>> from remat.graphs.layered import layered
    >>> from remat.problem import Problem
    >>> session = Session(Problem(layered(30), "90%"), SolveOptions(Deadline()), "")
    >>> [heuristic.name for heuristic in starts(session, ("block-checkpointing", "drops", "h-ilp"))]
    ['drops']
    """
    chains, found = chain_starts(session.problem), list[Heuristic]()
    for each in methods:
        if each in OPTIONS:
            found += [chain_start(each)] if each in chains else []
        elif isinstance(made := make_method(each), HeuristicMethod):
            found.append(made.heuristic)
    return found


def schedules(session: Session, methods: Sequence[MethodLike], answer: Callable[[Method, float], None]) -> None:
    """Ask each heuristic among `methods` for a schedule within the budget; where none has one, once more.

    Parameters
    ----------
    answer : callable
        Lets a method answer in a share of the time left.
    """
    asked = [HeuristicMethod(heuristic) for heuristic in starts(session, methods)]
    for method in asked:
        if not _over(session):
            share = START_SHARES.get(method.name, START_SHARE)
            answer(method, share if session.best is not None else max(share, FIRST_SHARE))
    for method in asked:
        if session.best is None and not _over(session):
            answer(method, AGAIN_SHARE)


def least_peaks(session: Session, methods: Sequence[MethodLike], search: MinPeakSearch) -> None:
    """Ask each heuristic among `methods` for less and less memory."""
    clock = session.call.deadline
    if any(each in OPTIONS for each in methods) and not _over(session):
        search.ask_chains()
    for heuristic in starts(session, [each for each in methods if each not in OPTIONS]):
        if not _over(session):
            share = START_SHARES.get(heuristic.name, START_SHARE)
            deadline = clock.share(share, NO_DEADLINE)
            with session.step(heuristic.name), contextlib.suppress(OverdueError, ProblemError):
                search.descend(heuristic.name, deadline, heuristic)


def _over(session: Session) -> bool:
    return session.enough or session.call.deadline.expired


def polish(session: Session, clock: Deadline) -> None:
    """Let annealing and large neighbourhood search go on from the best schedule until time is up.

    Those that are not registered are passed over, and neighbourhoods where there are too many ops for their models.
    Without a deadline it ends with the first turn that brings nothing.

    Examples
    --------
    >>> from remat.backends.base import SolveOptions
    >>> from remat.graphs.families import unit_chain
    >>> from remat.problem import Problem
    >>> from remat.schedule import Schedule
    >>> clock = Deadline.after(0)
    >>> session = Session(Problem(unit_chain(8), 7), SolveOptions(clock), "")
    >>> polish(session, clock)
    >>> session.steps
    []
    """
    num_ops, base = len(session.problem.graph.ops), session.problem.graph.base_cost
    kept = {name: make("heuristics", name) for name in POLISH_SHARES if name in heuristics()}
    if num_ops > LNS_OPS:
        kept.pop("lns", None)
    turns = Turns({name: POLISH_SHARES[name] for name in kept})
    number = 0
    while turns.arms and not (session.enough or clock.expired):
        name = turns.next()
        cost, began = session.cost, clock.elapsed
        deadline = clock.earlier(TURN * GROWTH ** turns.arms[name].idle)
        with session.step(name):
            try:
                best = None if session.best is None else session.best.schedule
                session.improve(kept[name], deadline, best, number, clock)
                number += 1  # another turn is another seed
            except (ProblemError, ModelError, BackendError) as error:
                session.note(f"{name} was left out: {error}")
                del turns.arms[name]
                continue
        gain = (cost or 2 * base) - (session.cost or 2 * base)
        turns.add(name, max(clock.elapsed - began, 0.01), max(0, gain))
        if math.isinf(clock.seconds) and turns.arms[name].idle:
            return
