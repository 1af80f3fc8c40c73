"""Kusumoto's lower sets as a heuristic: schedules from chains of lower sets, and the budgets to plan for."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from remat.heuristics.checkpointing.base import Checkpointing
from remat.heuristics.lower_sets.dynamic_programme import (
    Chain,
    ForwardGraph,
    Programme,
    all_lower_sets,
    ancestor_closures,
)
from remat.heuristics.retention import inputs_by_position, missing_inputs
from remat.problem import Problem
from remat.problem.op_sequence import useful_schedule
from remat.problem.training_step import TrainingStep
from remat.runtime.arrays import Bool, Int
from remat.runtime.checked_options import Options, Positive, Range
from remat.schedule import Schedule

#: Planned budgets: evenly spaced, then by bisection on whether the time-centric schedule fits.
SPACED, BISECTED = 8, 10
#: Chains per budget, from the time-centric to the memory-centric one.
CHAINS = 5


@dataclass(frozen=True)
class LowerSetsOptions(Options):
    """Options of :class:`LowerSets`."""

    sets: Annotated[int, Range(3)] = 600
    """Largest number of lower sets: all lower sets if there are no more, otherwise ancestor closures."""
    levels: Positive = 200
    """Number of distinct costs of recomputation."""


class LowerSets(Checkpointing):
    """Kusumoto's lower sets: a dynamic programme over chains of lower sets decides which values are stored.

    Kusumoto et al., *A Graph Theoretic Framework of Recomputation Algorithms for Memory-Efficient Backpropagation*
    (NeurIPS 2019). A lower set of the forward graph is closed under inputs. A chain of them cuts the forward pass into
    segments, and the *boundary* of each set is stored: the ops that are read outside it. The backward pass recomputes
    each segment from stored values. The programme (:class:`.Programme`) is exact over all lower sets if these are few,
    and otherwise uses ancestor closures, one for each op. It uses sizes and costs; every forward op runs at most twice.

    The paper estimates the memory of a segment (forward and backward values of the segment at once), so several budgets
    are planned for. Each has the time-centric chain, which recomputes least, the memory-centric one, which recomputes
    most, and some between. Of a segment, only values needed so far are recomputed; the last segment is still held. The
    answer is the cheapest schedule that fits.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> from remat.heuristics import HeuristicRun
    >>> LowerSets().run(Problem(unit_chain(16), 9), HeuristicRun()).num_computes
    42
    """

    name = "lower-sets"
    options_type = LowerSetsOptions
    table_bytes = 0

    def candidates(self, problem: Problem) -> Iterator[Schedule]:
        step = TrainingStep.of(problem)
        reads = inputs_by_position(problem)
        yield Schedule.of_computes(problem.graph, problem.graph.arrays.order, source=self.name)
        if self.fitted:
            return
        graph = ForwardGraph(step)
        sets = all_lower_sets(graph, self.options.sets, self.deadline)
        if sets is None:
            sets = ancestor_closures(graph, self.options.sets, self.deadline)
        programme = Programme(graph, sets, self.options.levels, self.deadline)
        least, most = programme.least(), programme.most
        seen: set[Chain] = set()
        fits, over = least, most

        def of_budget(budget: int) -> Generator[Schedule, None, bool]:
            """Yield schedules of the chains for a budget; return whether a new time-centric one fits."""
            fitted = False
            for number, chain in enumerate(programme.chains(budget, CHAINS)):
                if chain not in seen:
                    seen.add(chain)
                    sequence = problem.graph.arrays.order[sequence_with(step, reads, stored_by(programme, chain))]
                    yield useful_schedule(problem, sequence, self.name, self.deadline)
                    fitted |= self.fitted and not number
            return fitted

        for k in range(SPACED):
            budget = least + (most - least) * k // SPACED
            if (yield from of_budget(budget)):
                fits = budget
            else:
                over = min(over, max(budget, fits + 1))
        for _ in range(BISECTED):
            if (middle := (fits + over) // 2) <= fits:
                break
            if (yield from of_budget(middle)):
                fits = middle
            else:
                over = middle


def stored_by(programme: Programme, chain: Chain) -> Bool:
    """Return a mask of forward ops that are not recomputed: all boundaries, and the last segment."""
    stored: Bool = np.any(programme.rims[list(chain)], axis=0)
    before_last = chain[-2] if len(chain) > 1 else 0
    return stored | ~programme.sets[before_last]


def sequence_with(step: TrainingStep, reads: list[list[int]], stored: Bool) -> Int:
    """Return forward and loss in order, then the backward pass, each op after its missing inputs.

    By position in the reference order, as `reads` (:func:`remat.heuristics.retention.inputs_by_position`).
    """
    there = {*np.flatnonzero(stored).tolist(), *range(len(stored), len(reads))}
    sequence = list(range(step.first_backward))
    for op in range(step.first_backward, len(reads)):
        again = missing_inputs(op, reads, there)
        there.update(again)
        sequence += [*again, op]
    return np.array(sequence, dtype=np.int64)
