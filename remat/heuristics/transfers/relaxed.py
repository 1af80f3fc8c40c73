"""Choices that follow from solutions of relaxations: of the one behind the transfer bound, and of one memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from remat.bounds.implied_memory import needed_from, regained, uses, variable_values
from remat.bounds.link_room import LinkRoom
from remat.bounds.stage_programmes import StageProgrammes
from remat.bounds.stage_relaxation import StageRelaxation
from remat.problem import Problem
from remat.runtime.arrays import Float, Int
from remat.runtime.solve_options import SolveOptions
from remat.schedule import Schedule

#: Parts of what the links can save by which one memory is larger, in an order that covers them early. Llama at 35 % is
#: best at 0.3 over 3 GB/s and at 0.6 over PCIe 4.
ROOM_PARTS = (0.0, 0.6, 0.3, 0.2, 0.4, 1.0, 0.1, 0.8)


class Rounded(NamedTuple):
    """Recomputations of ops and fetches of tensors, with their stages of the search."""

    ops: Int
    op_stages: Int
    tensors: Int
    tensor_stages: Int


def rounded(relaxation: StageRelaxation, values: Float, least: float) -> Rounded:
    """Return the recomputations and fetches whose parts in a solution are at least `least`.

    The relaxation says only between which events they are. Each is placed at the first use there: that of a tensor
    itself, or of something that is recomputed from it. Of a tensor that is in part recomputed and in part fetched, the
    larger part counts, with the sum of both.

    Parameters
    ----------
    values : float64 array
        Solution of the built model, whole or fractional.
    least : float
        From 0 to 1; high values recompute and fetch less.
    """
    arrays = relaxation.problem.graph.arrays
    n = len(arrays.cost)
    found: list[tuple[Int, Int, Int, Int]] = []
    for stage in relaxation.stages:
        low, high = stage.since + 1, min(stage.until, n - 1)
        used, _ = uses(relaxation, low, high)
        again, read, _ = regained(relaxation, stage, values)
        needed = needed_from(relaxation, stage, values, used)
        both = again + read >= least
        fetched = np.flatnonzero(both & (read >= again) & (read > 0) & (needed < n))
        asked = np.full(n, n)
        writes = both & (again > read)
        edges = writes[arrays.producers.rows]
        np.minimum.at(asked, arrays.producers.indices[edges], needed[arrays.producers.rows[edges]])
        ops = np.flatnonzero((asked < n) & (variable_values(stage.again, values) > 0))
        found.append((ops, asked[ops], fetched, needed[fetched]))
    return Rounded(*(np.concatenate(part).astype(np.int64) for part in zip(*found, strict=True)))


def in_larger_memories(problem: Problem, below: int, call: SolveOptions) -> Iterator[Schedule]:
    """Yield schedules that only recompute, and leave parts of :class:`LinkRoom` above the budget to moves.

    Each follows from the stage relaxation in one memory with the main peak as its only event, which takes 0.1 s on 570
    ops. Other peaks may exceed the budget by more.

    Parameters
    ----------
    problem : Problem
        With a budget and a machine with limited rates.
    below : int
        Time to undercut.

    Raises
    ------
    OverdueError
        At the deadline.
    """
    link = LinkRoom.of(problem, below)
    for part in ROOM_PARTS:
        programmes = StageProgrammes(problem.one_memory)
        programmes.link = link._replace(room=(part * link.room).astype(np.int64))
        found = programmes.relax(programmes.build(call.deadline), call)
        values, _ = programmes.solve(found, call, exact=False)
        if values is not None:
            yield programmes.schedules(values)[0]
