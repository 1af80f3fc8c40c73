"""Checkpointing and offloading of chains of blocks (POFO)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from remat.heuristics.base import Heuristic, HeuristicRun
from remat.heuristics.pofo.programme import OffloadProgramme
from remat.heuristics.rotor import dynamic_programme
from remat.heuristics.rotor.blocks import Reads
from remat.heuristics.rotor.heuristic import RotorOptions, Table, ways_to_cut
from remat.heuristics.transfers.kernels import KERNELS
from remat.heuristics.transfers.state import State, Value
from remat.problem import Problem
from remat.problem.training_step import TrainingStep
from remat.runtime.arrays import Bool, Int
from remat.runtime.checked_options import Options, Range
from remat.runtime.deadline import OverdueError
from remat.schedule import Schedule

#: Prices of link time, relative to time of the device, from free links to none.
PRICES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 1e6)
#: Memory of plans relative to the budget: the programme overestimates what they hold.
SHARES = (0.8, 0.9, 1.0, 1.05, 1.1, 1.2)


@dataclass(frozen=True)
class PofoOptions(Options):
    """Options of :class:`Pofo`."""

    blocks: Annotated[int, Range(1, 300)] = 60
    """Most blocks of a chain; longer chains are cut more coarsely."""
    slots: Annotated[int, Range(2, 100_000)] = 300
    """Number of slots into which memory is divided."""


class Pofo(Heuristic):
    """POFO: cut a training step into a chain of blocks, which are kept, moved to the host, or run again.

    The dynamic programme (:class:`~remat.heuristics.pofo.programme.OffloadProgramme`) chooses for each block of the
    first pass: an option of Rotor, or no saved values; and where what is saved stays. It prices link time, so stalls
    are not part of it. Each plan becomes a program with transfers on their own links
    (:mod:`remat.heuristics.transfers.program_kernel`), whose time is exact. The best of several prices and amounts of
    memory is the answer.

    It finds plans of its class only: what is moved is decided in the first pass, each value is moved once, and
    recomputations nest as in :class:`~remat.heuristics.rotor.Rotor`. The graph must be a training step.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from remat.graphs.families import unit_chain
    >>> problem = Problem(replace(unit_chain(8), cost_unit="us"), 5, machine="rate=1MB/s")
    >>> problem.validate(Pofo().run(problem, HeuristicRun())).time <= 20
    True
    """

    name = "pofo"
    options_type = PofoOptions
    moves: ClassVar[bool] = True
    kernels = (KERNELS, dynamic_programme.KERNELS)

    def run(self, problem: Problem, run: HeuristicRun) -> Schedule | None:
        step = TrainingStep.of(problem)
        if problem.budget_bytes is None:
            return Schedule.reference(problem.graph)
        if not self.prepared(run.deadline):
            return None
        search = _Search(problem, run)
        with suppress(OverdueError):
            search.go(step, self.options)
        return search.best


class _Search:
    """Best plan so far."""

    def __init__(self, problem: Problem, run: HeuristicRun) -> None:
        self.problem, self.call = problem, run
        self.state = State(problem)
        self.value: Value | None = None
        self.best: Schedule | None = None

    def go(self, step: TrainingStep, options: PofoOptions) -> None:
        """Try the ways to cut, from fine to coarse, each with all prices and amounts of memory."""
        reads = Reads.of(step)
        cuts = ways_to_cut(reads, options.blocks)
        ways = [level for level, places in enumerate(cuts) if len(places) <= options.blocks]
        for level in ways[:2]:
            table = Table.of(reads, cuts, level, RotorOptions(options.blocks, options.slots), self.call.deadline)
            for price in self.prices():
                programme = OffloadProgramme(table.programme, price)
                most = len(table.programme.costs) - 1
                for slots in sorted({most, *(min(most, int(share * table.slots)) for share in SHARES)}):
                    self.call.deadline.check()
                    steps, moved = programme.plan(slots)
                    if steps:
                        blocks = np.isin(table.blocks.block_of, moved)
                        self.consider(table.blocks.sequence(table.chain, steps), blocks, step)

    def prices(self) -> list[float]:
        """Return prices in cost units per byte; without a link that of no transfer."""
        machine, sizes = self.problem.machine, self.problem.graph.arrays.size
        largest = int(sizes.argmax())
        if machine is None or not machine.can_move:
            return [PRICES[-1] * self.problem.graph.base_cost]
        write, read = (times[largest] or 0 for times in machine.transfer_times(self.problem.graph))
        each = (max(write, read) if machine.full_duplex else write + read) / max(1, int(sizes[largest]))
        return [price * each for price in PRICES]

    def consider(self, sequence: Int, moved: Bool, step: TrainingStep) -> None:
        """Evaluate a sequence of computes that moves values of the marked ops."""
        self.state.take(*choices_of(self.problem, sequence, moved, step))
        value = self.state.evaluate()
        if self.value is None or value < self.value:
            schedule = self.state.schedule(Pofo.name)
            if not value.excess and not self.problem.validate(schedule).accepted:
                return
            self.value, self.best = value, schedule
            if not value.excess and self.call.report(schedule):
                raise OverdueError("the search may stop")


def choices_of(problem: Problem, sequence: Int, moved: Bool, step: TrainingStep) -> tuple[Int, Int, Int, Int]:
    """Return recomputed ops and fetched tensors, each with its stage.

    Values that the marked ops made in the first pass are fetched for their first read in the backward pass, unless they
    are computed again before.
    """
    arrays = problem.graph.arrays
    inputs, outputs = arrays.op_inputs.shared_lists(), arrays.op_outputs.shared_lists()
    single, position = (arrays.producers.counts == 1).tolist(), arrays.position.tolist()
    waiting: set[int] = set()  # moved values that nothing has read or made since
    runs: list[tuple[int, int]] = []
    fetches: list[tuple[int, int]] = []
    stage, turned = 0, False
    for op in sequence.tolist():
        turned = turned or position[op] >= step.first_backward
        first = position[op] == stage
        if turned:
            wanted = waiting.intersection(inputs[op])
            fetches += [(tensor, stage) for tensor in sorted(wanted)]
            waiting -= wanted
        if first and not turned and moved[op]:
            waiting.update(tensor for tensor in outputs[op] if single[tensor] and position[op] < step.num_forward)
        elif not first:
            waiting.difference_update(outputs[op])
            runs.append((op, stage))
        stage += first
    columns = [np.array(pairs, dtype=np.int64).reshape(-1, 2).T for pairs in (runs, fetches)]
    return columns[0][0], columns[0][1], columns[1][0], columns[1][1]
