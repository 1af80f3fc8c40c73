"""Flat search from the best schedule of the groups, in turns."""

from __future__ import annotations

import math

from remat.deadline import Deadline
from remat.errors import BackendError, ModelError, ProblemError
from remat.heuristics.turns import Turns
from remat.registry import heuristics, make
from remat.solving.auto import LNS_OPS
from remat.solving.session import Session

#: Who polishes, by shares of the time.
SHARES = {"annealing": 0.7, "lns": 0.3}
#: Seconds of a turn, and by how much it grows while turns bring nothing.
TURN, GROWTH = 5.0, 1.5


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
    kept = {name: make("heuristics", name) for name in SHARES if name in heuristics()}
    if num_ops > LNS_OPS:
        kept.pop("lns", None)
    turns = Turns({name: SHARES[name] for name in kept})
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
