"""Rotor: optimal checkpointing of chains of blocks, with several options of each."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from remat.heuristics.base import Best, Heuristic, HeuristicRun, rank
from remat.heuristics.drops.heuristic import Drops, DropsOptions
from remat.heuristics.forward_blocks import levels
from remat.heuristics.rotor import dynamic_programme
from remat.heuristics.rotor.block_options import chain_of
from remat.heuristics.rotor.blocks import Blocks, Reads
from remat.heuristics.rotor.dynamic_programme import Chain, Programme
from remat.problem import Problem
from remat.problem.op_sequence import useful_schedule
from remat.problem.training_step import TrainingStep
from remat.runtime.arrays import Int
from remat.runtime.checked_options import Options, Range
from remat.runtime.deadline import Deadline, OverdueError
from remat.schedule import Schedule

Rank = tuple[bool, int, int]

#: Memory of the programme as a multiple of the available budget: it overestimates the memory of plans.
MOST = 1.25
#: Largest number of blocks of a way to cut, as a share of that of the next finer way.
LEAST_STEP = 0.8
#: Number of ops from which the search tries fewer schedules.
MANY = 1_500
#: Each for few ops and for many. First the least number of ways to cut, the most promising by their programmes first.
#: Then the memory beyond the budget, as a share of it, of the plans that drops shorten, and leanings of these drops.
LEVELS = 4, 2
EXCESSES = (0.0, 0.02, 0.05, 0.1, 0.2), (0.0, 0.03, 0.1)
LEANINGS = (2.0, 6.0), (6.0,)
#: Most blocks if nothing fits with fewer.
RESCUE = 250
#: Number of ops above which only the finest way to cut is tried.
LARGE = 10_000


@dataclass(frozen=True)
class RotorOptions(Options):
    """Options of :class:`Rotor`."""

    blocks: Annotated[int, Range(1, 300)] = 100
    """Most blocks of a chain; longer chains are cut more coarsely, and options of blocks save inner cuts. Time grows
    with the third power of the blocks."""
    slots: Annotated[int, Range(2, 100_000)] = 500
    """Number of slots into which memory is divided; sizes are rounded up to slots."""
    polish: bool = True
    """Bring schedules within the budget by drops, and take back unnecessary recomputations."""


class Rotor(Heuristic):
    """Rotor: cut a training step into a chain of blocks and find the best persistent schedule for it.

    The dynamic programme (:class:`remat.heuristics.rotor.dynamic_programme.Programme`) chooses for each block: it runs
    forward without saving, or by one of several options (:class:`remat.heuristics.rotor.block_options.Maker`). An
    option saves part of what the block's backward part reads. Choices nest, so a block may run many times when memory
    is scarce. One table has the answers for all amounts of memory.

    The graph need not be a chain. Tensors that cross several blocks (masks, the output of an encoder, skips) count
    while a block that reads them is ahead; gradients count until they are complete. Plans are expanded to ops, frees
    are implied, and the schedule is simulated. Since the programme overestimates memory, the search finds the most
    slots whose schedule fits the budget. Drops then polish that schedule and some over the budget.

    The forward part is cut at several levels, from single ops to few large blocks. Each level is a separate chain, and
    the best schedule is the answer; if none fits, the one of least peak.

    Notes
    -----
    Beaumont et al., "Optimal checkpointing for heterogeneous chains: how to train deep neural networks with limited
    memory" (Inria RR-9302, 2019); with options of each block as in Rockmate (Zhao et al., ICML 2023). On a chain of
    equal ops it is REVOLVE (Griewank and Walther 2000).

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> from remat.schedule import simulate
    >>> problem = Problem(unit_chain(8), 7)
    >>> schedule = Rotor().run(problem, HeuristicRun())
    >>> simulate(problem.graph, schedule).peak, simulate(problem.graph, schedule).cost
    (7, 20)
    """

    name = "rotor"
    options_type = RotorOptions
    kernels = (*Drops.kernels, dynamic_programme.KERNELS)

    def run(self, problem: Problem, run: HeuristicRun) -> Schedule | None:
        step = TrainingStep.of(problem)
        if problem.budget_bytes is None:
            return Schedule.reference(problem.graph)
        if not self.prepared(run.deadline):
            return None
        search = _Search(problem, run, self.options)
        with suppress(OverdueError):
            search.run(step)
        return search.best.schedule


@dataclass(frozen=True, eq=False)
class Table:
    """One way to cut the training step, its chain and the solved programme."""

    blocks: Blocks
    chain: Chain
    programme: Programme
    slots: int
    """Number of slots in the budget."""

    @classmethod
    def of(cls, reads: Reads, cuts: list[Int], level: int, options: RotorOptions, deadline: Deadline) -> Table:
        """Cut at one of the levels and solve the programme.

        Raise OverdueError at the deadline.
        """
        problem = reads.step.problem
        assert problem.budget_bytes is not None
        blocks = Blocks(reads, cuts[level], tuple(cuts[:level]))
        chain = chain_of(blocks, deadline)
        budget = max(1, problem.budget_bytes - reads.held)
        most = int(MOST * budget) + 1
        while True:
            unit = _unit(chain, -(-most // options.slots))
            programme = Programme.solve(chain, most // unit + 1, unit, deadline)
            if len(programme.steps_in_cost) or most >= MOST * problem.reference_peak:
                return cls(blocks, chain, programme, budget // unit)
            most *= 2  # needed for the schedule of least peak

    def schedule(self, slots: int) -> Schedule:
        """Return the schedule of the programme's plan with this number of slots."""
        sequence = self.blocks.sequence(self.chain, self.programme.plan(slots))
        return Schedule.of_computes(self.blocks.reads.step.problem.graph, sequence, source=Rotor.name)


def ways_to_cut(reads: Reads, most_blocks: int) -> list[Int]:
    """Return ways to cut the forward part, from fine to coarse; the last ones have at most `most_blocks` blocks.

    They are the levels of :func:`remat.heuristics.forward_blocks.levels`. After the last level with too many blocks,
    every k-th of its cuts makes one more way, so that blocks are alike.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> reads = Reads.of(TrainingStep.of(Problem(unit_chain(6))))
    >>> [cuts.tolist() for cuts in ways_to_cut(reads, 8)]
    [[0, 1, 2, 3, 4, 5], [0, 2, 4], [0, 3]]
    """
    found: list[Int] = []
    for cuts in levels(reads.step.crossing(reads.size)[: reads.step.num_forward - 1]):
        if found and len(found[-1]) > most_blocks >= len(cuts):
            found.append(found[-1][:: -(-len(found[-1]) // most_blocks)])
        if not found or len(cuts) <= LEAST_STEP * len(found[-1]):
            found.append(cuts)
    if not found or len(found[-1]) > most_blocks:
        found.append(np.zeros(1, dtype=np.int64))
    return found


def _unit(chain: Chain, unit: int) -> int:
    """Return the bytes of a slot, near `unit`: the most common size between blocks is a multiple, so not rounded up."""
    first = np.arange(chain.num_blocks - 1)
    passed, times = np.unique(chain.between[first, first + 1, first + 1], return_counts=True)
    if not len(passed):
        return unit
    usual = int(passed[times.argmax()])
    parts = round(usual / unit)
    return -(-usual // parts) if parts else unit


class _Search:
    """Best schedule so far, and the search over levels."""

    def __init__(self, problem: Problem, run: HeuristicRun, options: RotorOptions) -> None:
        self.problem, self.on, self.options = problem, run, options
        self.many = len(problem.graph.ops) >= MANY
        self.best = Best(problem, run)

    def run(self, step: TrainingStep) -> None:
        """Try all levels, the most promising first.

        Raise OverdueError at the deadline, or when the search may stop.
        """
        limit = 1 if len(self.problem.graph.ops) > LARGE else LEVELS[self.many]
        for tried, table in enumerate(self._tables(Reads.of(step))):
            if tried >= limit and not self.best.rank[0]:
                break
            self._search(table)

    def _tables(self, reads: Reads) -> Iterator[Table]:
        """Yield the levels, the most promising first, or the finest with many ops; then those with more blocks."""
        cuts = ways_to_cut(reads, self.options.blocks)
        ways = [level for level, places in enumerate(cuts) if len(places) <= self.options.blocks]
        made = (Table.of(reads, cuts, level, self.options, self.on.deadline) for level in ways)
        if len(self.problem.graph.ops) > LARGE:
            yield from made
            return
        yield from sorted(made, key=lambda table: table.programme.costs[: table.slots + 1][-1])
        for level in range(min(ways, default=0) - 1, -1, -1):
            if self.best.rank[0] and len(cuts[level]) <= RESCUE:
                yield Table.of(reads, cuts, level, self.options, self.on.deadline)

    def _search(self, table: Table) -> None:
        """Find the most slots whose schedule fits; polish it, and some schedules with more slots, by drops."""
        steps = table.programme.steps_in_cost
        if not len(steps):
            return
        seen: dict[int, tuple[Rank, Schedule]] = {}

        def evaluate(number: int) -> Rank:
            if number not in seen:
                schedule = table.schedule(int(steps[number]))
                seen[number] = self._simulate(schedule), schedule
                self._check_stop()
            return seen[number][0]

        first = max(0, bisect_left(range(len(steps)), True, key=lambda number: evaluate(number)[0]) - 1)
        if not self.options.polish:
            return
        wanted = np.searchsorted(steps, [(1 + more) * steps[first] for more in EXCESSES[self.many]], side="right") - 1
        for number in np.unique(wanted).tolist():
            found = evaluate(number)
            if found[0] and not self.best.rank[0] and found[2] >= self.best.rank[1]:
                continue  # over the budget, and already costlier than the best that fits
            leanings = LEANINGS[self.many]
            for leaning in leanings if found[0] else leanings[:1]:
                better = Drops(DropsOptions((leaning,))).improved(self.problem, seen[number][1], self.on.deadline)
                if better is not None:
                    self._simulate(better)
                self._check_stop()

    def _check_stop(self) -> None:
        """Raise OverdueError if the deadline has passed or the search may stop."""
        if self.best.enough:
            raise OverdueError("the search may stop")
        self.on.deadline.check()

    def _simulate(self, schedule: Schedule) -> Rank:
        budget, found = self.problem.budget_bytes, self.problem.simulate(schedule)
        assert budget is not None
        this = rank(not found.violations and found.peak <= budget, found.cost, found.peak)
        if this < self.best.rank:
            useful = useful_schedule(self.problem, schedule.targets, Rotor.name)
            self.best.offer(useful if len(useful) < len(schedule) else schedule)
        return this
