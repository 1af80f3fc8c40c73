"""Rotor: optimal checkpointing of chains of blocks, with several options of each."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from remat.deadline import Deadline, OverdueError
from remat.formulations.sequence import useful_schedule
from remat.heuristics.base import Best, Heuristic, HeuristicRun, rank
from remat.heuristics.checkpointing.step import TrainingStep
from remat.heuristics.cuts import levels
from remat.heuristics.drops.heuristic import Drops, DropsOptions
from remat.heuristics.rotor import programme
from remat.heuristics.rotor.blocks import Blocks
from remat.heuristics.rotor.chain import Chain
from remat.heuristics.rotor.programme import Programme
from remat.heuristics.rotor.reads import Reads
from remat.problem import Problem
from remat.runtime.arrays import Int
from remat.runtime.options import Options, Range
from remat.schedule import Schedule

Rank = tuple[bool, int, int]

#: The programme is allowed this share of the budget that is there: it over-estimates what plans hold.
MOST = 1.25
#: A way to cut has at most this share of the blocks of the finer one.
LEAST_STEP = 0.8
#: Ops from which on less is tried.
MANY = 1_500
#: Each for few ops and for many: least number of ways to cut, the most promising by their programmes first; memory
#: beyond the budget, as a share of it, of the plans that drops then shorten; and weights of memory for these drops.
LEVELS = 4, 2
EXCESSES = (0.0, 0.02, 0.05, 0.1, 0.2), (0.0, 0.03, 0.1)
LEANINGS = (2.0, 6.0), (6.0,)
#: Most blocks where nothing fits with fewer.
RESCUE = 250
#: Ops from which on one way is enough, the finest one.
LARGE = 10_000


@dataclass(frozen=True)
class RotorOptions(Options):
    """Options of :class:`Rotor`.

    Attributes
    ----------
    blocks : int
        Most blocks of a chain; longer chains are cut more coarsely, and options of blocks save inner cuts. Time grows
        with its third power.
    slots : int
        Into how many slots the memory is divided; what is held is rounded up to them.
    polish : bool
        Whether drops bring schedules within the budget, and recomputations are taken back that are not needed.
    """

    blocks: Annotated[int, Range(1, 300)] = 100
    slots: Annotated[int, Range(2, 100_000)] = 500
    polish: bool = True


class Rotor(Heuristic):
    """Cuts a training step into a chain of blocks and finds the best persistent schedule for it.

    The dynamic programme (:class:`remat.heuristics.rotor.programme.Programme`) decides for each block whether it is run
    forward without saving anything, or with one of several options that save part of what its backward part reads
    (:class:`remat.heuristics.rotor.options.Maker`); nested, so that a block may run many times where memory is scarce.
    The table answers for all amounts of memory at once.

    The chain need not be one: what passes by blocks for long (masks, the output of an encoder, skips) is counted while
    a block that reads it is ahead, and so are gradients until they are complete. Plans are expanded to ops, frees are
    implied, and the schedule is simulated. Since the programme over-estimates, the most slots are looked for whose
    schedule fits in the budget. Drops then polish that one and some of those that are over the budget.

    The forward part is cut at several levels, from single ops to few large blocks; each level is a chain of its own,
    and the best schedule counts. Where nothing fits, it is the schedule of least peak.

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
    kernels = (*Drops.kernels, programme.KERNELS)

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
    """One way to cut the training step, its chain and the programme's answers for it."""

    blocks: Blocks
    chain: Chain
    programme: Programme
    slots: int
    """As many as there are within the budget."""

    @classmethod
    def of(cls, reads: Reads, cuts: list[Int], level: int, options: RotorOptions, deadline: Deadline) -> Table:
        """For one of the levels.

        Raises
        ------
        OverdueError
            At the deadline.
        """
        problem = reads.step.problem
        assert problem.budget_bytes is not None
        blocks = Blocks(reads, cuts[level], tuple(cuts[:level]))
        chain = blocks.chain(deadline)
        budget = max(1, problem.budget_bytes - reads.held)
        most = int(MOST * budget) + 1
        while True:
            unit = _unit(chain, -(-most // options.slots))
            programme = Programme.solve(chain, most // unit + 1, unit, deadline)
            if len(programme.steps_in_cost) or most >= MOST * problem.reference_peak:
                return cls(blocks, chain, programme, budget // unit)
            most *= 2  # the schedule of least peak is wanted then

    def schedule(self, slots: int) -> Schedule:
        """What the programme says with so many slots."""
        sequence = self.blocks.sequence(self.chain, self.programme.plan(slots))
        return Schedule.of_computes(self.blocks.reads.step.problem.graph, sequence, source=Rotor.name)


def ways_to_cut(reads: Reads, most_blocks: int) -> list[Int]:
    """Return ways to cut the forward part, from fine to coarse; the last ones have at most `most_blocks` blocks.

    They are the levels of :func:`remat.heuristics.cuts.levels`. Where there are too many blocks, every k-th cut of the
    last such level makes another one, so that blocks are alike.

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
    """Bytes in a slot, near to `unit`: what blocks mostly pass on is a whole number of them, and so not rounded up."""
    first = np.arange(chain.num_blocks - 1)
    passed, times = np.unique(chain.between[first, first + 1, first + 1], return_counts=True)
    if not len(passed):
        return unit
    usual = int(passed[times.argmax()])
    parts = round(usual / unit)
    return -(-usual // parts) if parts else unit


class _Search:
    """The best schedule so far, and what is still to be tried."""

    def __init__(self, problem: Problem, run: HeuristicRun, options: RotorOptions) -> None:
        self.problem, self.on, self.options = problem, run, options
        self.many = len(problem.graph.ops) >= MANY
        self.best = Best(problem, run)

    def run(self, step: TrainingStep) -> None:
        """Try all levels, the most promising first.

        Raises
        ------
        OverdueError
            At the deadline, or when it is enough.
        """
        limit = 1 if len(self.problem.graph.ops) > LARGE else LEVELS[self.many]
        for tried, table in enumerate(self._tables(Reads.of(step))):
            if tried >= limit and not self.best.rank[0]:
                break
            self._search(table)

    def _tables(self, reads: Reads) -> Iterator[Table]:
        """Yield the levels, the most promising first; of many ops the finest first; then those with more blocks."""
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
        """Find the most slots whose schedule fits, and polish that schedule and some with more slots by drops."""
        steps = table.programme.steps_in_cost
        if not len(steps):
            return
        seen: dict[int, tuple[Rank, Schedule]] = {}

        def look(number: int) -> Rank:
            if number not in seen:
                schedule = table.schedule(int(steps[number]))
                seen[number] = self._simulate(schedule), schedule
                self._go_on()
            return seen[number][0]

        first = max(0, bisect_left(range(len(steps)), True, key=lambda number: look(number)[0]) - 1)
        if not self.options.polish:
            return
        wanted = np.searchsorted(steps, [(1 + more) * steps[first] for more in EXCESSES[self.many]], side="right") - 1
        for number in np.unique(wanted).tolist():
            found = look(number)
            if found[0] and not self.best.rank[0] and found[2] >= self.best.rank[1]:
                continue  # over the budget, and costs more already than what fits
            leanings = LEANINGS[self.many]
            for leaning in leanings if found[0] else leanings[:1]:
                better = Drops(DropsOptions((leaning,))).mended(self.problem, seen[number][1], self.on.deadline)
                if better is not None:
                    self._simulate(better)
                self._go_on()

    def _go_on(self) -> None:
        """Look at the clock, and whether somebody has said that it is enough."""
        if self.best.enough:
            raise OverdueError("it is enough")
        self.on.deadline.check()

    def _simulate(self, schedule: Schedule) -> Rank:
        budget, found = self.problem.budget_bytes, self.problem.simulate(schedule)
        assert budget is not None
        this = rank(not found.violations and found.peak <= budget, found.cost, found.peak)
        if this < self.best.rank:
            useful = useful_schedule(self.problem, schedule.targets, Rotor.name)
            self.best.offer(useful if len(useful) < len(schedule) else schedule)
        return this
