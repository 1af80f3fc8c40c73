"""Bound on the peak of schedules with any number of computes, from tensors that must be live together."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

from remat.bounds.base import Bound, bound_on_peak
from remat.bounds.live_set_game import LiveSetGame, Stage
from remat.bounds.peak_bounds import structural_bound
from remat.problem import Problem
from remat.problem.scope import EVERY_SCHEDULE
from remat.runtime.deadline import Deadline
from remat.schedule import Schedule

#: Ops of the largest graph: each set takes a bit per tensor.
MOST_OPS = 5_000
#: Sets evaluated for each op, in rounds: refutations are often short, and most sets of others are vain.
ROUNDS = 30, 300, 3_000, 30_000
#: Computes of the longest schedule that is built.
MOST_COMPUTES = 200_000


def live_set_bound(problem: Problem, *, deadline: float | Deadline | None = None) -> Bound:
    """Return a bound on the peak of every schedule, from the tensors that must be live together.

    Let the tensors ``S`` be live together, for example the inputs of an op. One of them was written last, by op ``w``.
    At that step, ``S`` and the inputs and outputs of ``w`` were in memory; right before it, the inputs of ``w`` and the
    tensors of ``S`` that ``w`` does not write were live. So the peak is at least the least, over all such sequences of
    sets down to the empty one, of the largest memory of a step. The bound is the largest such value over all ops, and
    over the tensors to keep.

    It is exact up to two relaxations: one contribution completes an accumulation buffer, and limits of computes are
    ignored. Sets are explored while memory stays within the best bound so far; if none is left, the bound rises to the
    least memory beyond it. Beyond the last of :data:`ROUNDS`, the bound so far stands.

    Parameters
    ----------
    deadline : float, Deadline or None
        At the deadline, the best value so far is the bound. It is at least the structural bound, which is the result
        for graphs of more than :data:`MOST_OPS` ops and for problems with a host memory.

    Returns
    -------
    Bound
        On the peak; `infeasible` if it exceeds the budget.

    Examples
    --------
    A product of two tensors: one stays live while the other is computed from a large tensor.

    >>> from remat.graphs import GraphBuilder
    >>> b = GraphBuilder("product")
    >>> for side in "ab":
    ...     _ = b.op(f"large_{side}", size=10)
    ...     _ = b.op(f"small_{side}", inputs=[f"large_{side}"], size=3)
    >>> _ = b.op("product", inputs=["small_a", "small_b"], size=1)
    >>> problem = Problem(b.build())
    >>> structural_bound(problem).value, live_set_bound(problem).value
    (13, 16)
    """
    return live_set_search(problem, deadline=deadline)[0]


def live_set_search(problem: Problem, *, deadline: float | Deadline | None = None) -> tuple[Bound, Schedule | None]:
    """Return :func:`live_set_bound`, and a schedule close to it if the search decided all ops and may recompute all.

    The schedule computes the inputs of each op, in the reference order, by the steps that the search found, from what
    is still live or from nothing. So its peak exceeds the bound by no more than the tensors to keep. It may be very
    expensive; beyond :data:`MOST_COMPUTES` it is None.
    """
    began, clock, first = time.monotonic(), Deadline.of(deadline), structural_bound(problem)
    if problem.can_move or len(problem.graph.ops) > MOST_OPS:
        return first, None
    game = LiveSetGame(problem)
    bound, cause = (first.value or 0) - problem.constant_bytes, ""
    graph, arrays = problem.graph, problem.graph.arrays
    end = len(graph.ops)
    goals = [(end, game.kept), *((op, game.reads[op]) for op in np.argsort(-arrays.op_bytes, kind="stable").tolist())]
    stages: dict[int, tuple[Stage, ...]] = {}
    for most in ROUNDS:
        for op, goal in goals:
            if clock.expired:
                break
            if op in stages:
                continue
            found = game.least(goal, bound, most, clock)
            if found.peak > bound:
                bound, cause = found.peak, graph.op_names[op] if op < end else ""
            if found.stages is not None:
                stages[op] = found.stages
    bound += problem.constant_bytes
    schedule = _schedule(problem, game, stages) if stages.keys() >= set(range(end)) else None
    if bound == first.value:
        return first, schedule
    return bound_on_peak(problem, bound, "the live set bound", EVERY_SCHEDULE, cause=cause, began=began), schedule


def _schedule(problem: Problem, game: LiveSetGame, stages: Mapping[int, tuple[Stage, ...]]) -> Schedule | None:
    """Return the schedule that computes the inputs of each op by its stages, then the op.

    What is to be kept stays live from its last compute. None if some op may not run that often, or a tensor has several
    writers.
    """
    graph, arrays = problem.graph, problem.graph.arrays
    if any(limit is not None for limit in problem.compute_limits) or any(len(each) > 1 for each in game.writers):
        return None
    computes: list[int] = []
    live = 0
    for op in arrays.order.tolist():
        if game.reads[op] & ~live:
            start = max(place for place, stage in enumerate(stages[op]) if not stage.live & ~live)
            computes += [each for stage in stages[op][start:] for each in stage.ops]
        computes.append(op)
        live = game.reads[op] | game.writes[op]
        if len(computes) > MOST_COMPUTES:
            return None
    return Schedule.of_computes(graph, computes, source="live set search")
