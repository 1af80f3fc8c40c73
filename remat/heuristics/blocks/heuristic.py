"""Block checkpointing as a heuristic: a kernel measures all plans, and the best one is certified."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

import numpy as np

from remat.heuristics.base import Best, Heuristic, HeuristicRun, rank
from remat.heuristics.blocks.plans import FAMILIES, Plan, first_backward_of, near
from remat.heuristics.drops import Drops, DropsOptions
from remat.heuristics.forward_blocks import all_cuts
from remat.problem import Problem
from remat.problem.op_sequence import allowed_computes, standing_buffers
from remat.problem.training_step import TrainingStep
from remat.runtime.arrays import Int
from remat.runtime.checked_options import Options, Positive
from remat.runtime.compiled import KernelSet
from remat.runtime.deadline import Deadline, OverdueError
from remat.schedule import Schedule

#: Stands for an unlimited number of computes.
OFTEN = 2**30
#: Share of the time for measuring plans; the rest is for the schedule of the best one.
SEARCH_SHARE = 0.8
#: Peaks, as shares of the budget, of the plans with which drops continue, and the leanings of these drops.
ABOVE, LEANINGS = (1.1, 1.25, 1.6, 2.0, 2.5, 3.0), (6.0,)


#: Position after the last op of each block.
Ends = tuple[int, ...]


@dataclass(frozen=True)
class BlockOptions(Options):
    """Options of :class:`BlockCheckpointing`."""

    blocks: Literal["auto", "modules", "names", "valleys", "articulation", "ops"] = "auto"
    """Source of blocks: ``modules`` (paths in the graph's ``meta["modules"]``), ``names`` (of the ops, split at
    punctuation and before numbers), ``valleys`` (positions where few bytes cross), ``articulation`` (points that
    everything passes through), ``ops`` (each is a block), or ``auto``: all that apply."""
    which: Literal["all", "every", "first", "nested"] = "all"
    """Plans: ``every`` (hold every k-th block boundary), ``first`` (the same for the first m blocks, all values of the
    others held), ``nested`` (segments whose parts are dropped again), or ``all``."""
    k: Positive | None = None
    """Blocks in a segment; None: every number is tried."""
    drops: bool = False
    """Continue with :class:`remat.heuristics.drops.Drops` from the best plan, and from some over the budget. This is
    cheaper than block checkpointing by hand."""


def _example() -> None:
    from remat.graphs.families import unit_chain

    Measure(TrainingStep.of(Problem(unit_chain(8), 7))).of(Plan(2, 6), np.array([2, 4, 6, 8]))


#: Kernel of the sequence of a plan.
KERNELS = KernelSet("block-checkpointing", __name__, _example)


@dataclass(frozen=True, order=True)
class Measured:
    """Cost and peak of a plan."""

    cost: int
    """Cost of its schedule."""
    peak: int
    """Peak of its schedule in bytes."""
    plan: Plan
    ends: Ends
    """Position after the last op of each block."""


class Measure:
    """Compute sequences of plans for one training step, with their peaks and costs.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> measure = Measure(TrainingStep.of(Problem(unit_chain(9))))
    >>> [measure.of(Plan(k, 9), np.arange(1, 10))[:2] for k in (1, 3)]
    [(19, 11), (25, 7)]
    """

    def __init__(self, step: TrainingStep) -> None:
        from remat.heuristics.blocks.sequence_kernel import SequenceTables

        self.step, problem = step, step.problem
        arrays = problem.graph.arrays
        standing, workspace = standing_buffers(problem)
        single = arrays.producers.counts == 1
        live = (single | standing) & ~arrays.is_input
        limits = allowed_computes(problem, OFTEN)
        again = np.zeros(len(arrays.size), dtype=np.int64)
        again[single] = limits[arrays.writes_of(single)[0]] - 1
        again[problem.kept] = 0
        rows: list[Int] = []
        for table in (arrays.op_inputs, arrays.op_outputs):
            wanted = table.where(live)
            _, entry = wanted.entries(arrays.order)
            rows += [np.concatenate([[0], np.cumsum(wanted.counts[arrays.order])]), wanted.indices[entry]]
        self.tables = SequenceTables(
            arrays.size.copy(), arrays.producers.counts.copy(), again, step.last_forward_reads,
            step.first_backward_reads, problem.kept & live, arrays.cost[arrays.order], workspace[arrays.order], *rows,
        )  # fmt: skip
        self.always = arrays.input_bytes + problem.constant_bytes
        self._latest: tuple[Ends | Int, Int, Int] | None = None

    def measured(self, plan: Plan, ends: Ends) -> Measured:
        """Return cost and peak of a plan for blocks that end before `ends`."""
        cost, peak, _ = self.of(plan, ends)
        return Measured(cost, peak, plan, ends)

    def of(self, plan: Plan, ends: Ends | Int) -> tuple[int, int, Int]:
        """Return cost and peak of a plan for blocks that end before `ends`, and its computes (op numbers)."""
        from remat.heuristics.blocks.sequence_kernel import SequenceRoom, sequence_of

        if self._latest is None or self._latest[0] is not ends:
            array = np.array(ends, dtype=np.int64)
            self._latest = ends, array, first_backward_of(self.step, array)
        events = plan.events(*self._latest[1:])
        _, low, high = events
        num_ops, num_tensors = len(self.tables.cost), len(self.tables.size)
        length = num_ops + int((high - low).sum()) + 2
        room = SequenceRoom(*(np.empty(size, dtype=np.int64) for size in (num_tensors, num_tensors, length, length)))
        found = np.zeros(3, dtype=np.int64)
        sequence_of(self.tables, room, events, self.always, 2 if plan.inner else 1, found)
        steps, peak, cost = found.tolist()
        order = self.step.problem.graph.arrays.order
        return cost, peak, order[room.steps[:steps][::-1]]


class BlockCheckpointing(Heuristic):
    """Block checkpointing: drop the values inside blocks of layers, and recompute a block before its backward pass.

    Practitioners do this by hand (``torch.utils.checkpoint``, ``jax.checkpoint`` with a policy, "full recomputation" of
    Megatron). The forward pass is a chain of *blocks*, for example layers of a transformer, and k consecutive blocks
    are a *segment*. Values that only the ops of a segment read are dropped in the forward pass, and those that their
    gradients need are recomputed together before them. It tries every k, and for every m segments for the first m
    blocks only, with the last ones held. It also tries segments whose parts are dropped again, which takes less memory
    and one more forward pass. The answer is the cheapest schedule that fits, or else the one of least peak.

    Only necessary ops are recomputed: none whose results are still live, and none without a reader. Tensors that reach
    beyond a segment (skip connections, masks, the output of an encoder) are held; so are kept tensors, buffers, and
    outputs of ops that cannot run again.

    Notes
    -----
    Chen et al., *Training Deep Nets with Sublinear Memory Cost* (2016), for the segments; Griewank and Walther,
    *Revolve* (2000), for parts that are dropped again (:mod:`remat.heuristics.checkpointing.griewank` has any depth).
    O(ops + links) per plan: about 5 ms for 100,000 ops.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> BlockCheckpointing().run(Problem(unit_chain(16), 9), HeuristicRun()).num_computes
    42
    """

    name = "block-checkpointing"
    options_type = BlockOptions
    kernels = (KERNELS,)

    def run(self, problem: Problem, run: HeuristicRun) -> Schedule | None:
        step = TrainingStep.of(problem)
        if not self.prepared(run.deadline):
            return None
        budget, measure = problem.budget_bytes, Measure(step)
        frontier = self._frontier(measure, run.deadline)
        best = self._refined(measure, _best(frontier, budget), budget, run.deadline)
        kept = Best(problem, run)
        schedule = self._schedule(measure, best)
        kept.offer(schedule)
        if kept.enough or not self.options.drops or budget is None:
            return schedule
        drops = Drops(DropsOptions(leanings=LEANINGS))
        plans, longest = [best, *_above(frontier, budget)], 0.0
        if math.isfinite(run.deadline.remaining) and not drops.compiled():
            plans = plans[:1]  # the interpreter takes long
        for plan in plans:
            if kept.enough or run.deadline.remaining <= longest:
                break
            began = run.deadline.elapsed
            other = drops.improved(problem, self._schedule(measure, plan), run.deadline)
            if other is not None:
                kept.offer(replace(other, source=self.name))
                longest = max(longest, run.deadline.elapsed - began)
        return kept.schedule

    def frontier(self, problem: Problem, deadline: Deadline | None = None) -> list[Measured]:
        """Return the plans that no other beats in both peak and cost, of all measured by the deadline.

        The budget is ignored.

        Returns
        -------
        list of Measured
            Ascending by peak, descending by cost.

        Raises
        ------
        ProblemError
            If the graph is not a training graph, or cannot be cut into blocks.

        Examples
        --------
        >>> from remat.graphs.families import unit_chain
        >>> options = BlockOptions(which="every")
        >>> [(found.peak, found.cost) for found in BlockCheckpointing(options).frontier(Problem(unit_chain(9)))]
        [(7, 23), (11, 19)]
        """
        return self._frontier(Measure(TrainingStep.of(problem)), Deadline() if deadline is None else deadline)

    def _frontier(self, measure: Measure, deadline: Deadline) -> list[Measured]:
        """Return the unbeaten plans of all families measured in time: at least one."""
        found: list[Measured] = []
        searching = deadline.share(SEARCH_SHARE)
        families = FAMILIES if self.options.which == "all" else [self.options.which]
        chains = [(*starts[1:], measure.step.num_forward) for starts in all_cuts(measure.step, self.options.blocks)]
        with suppress(OverdueError):
            for family, ends in product(families, chains):
                for plan in FAMILIES[family](len(ends), self.options.k):
                    if found:
                        searching.check()
                    found.append(measure.measured(plan, ends))
        return _unbeaten(found)

    def _refined(self, measure: Measure, best: Measured, budget: int | None, deadline: Deadline) -> Measured:
        """Return the best plan near `best`, in steps that are halved when none is better."""
        reach = 0.5
        if self.options.which != "all" or self.options.k is not None:
            return best
        searching = deadline.share(SEARCH_SHARE)
        while reach * max(best.plan.k, best.plan.dropped) >= 1 and not searching.expired:
            better = best
            for plan in near(best.plan, len(best.ends), reach):
                if not searching.expired:
                    better = _best([better, measure.measured(plan, best.ends)], budget)
            reach, best = reach if better is not best else reach / 2, better
        return best

    def _schedule(self, measure: Measure, found: Measured) -> Schedule:
        _, _, sequence = measure.of(found.plan, found.ends)
        return Schedule.of_computes(measure.step.problem.graph, sequence, source=self.name)


def _best(found: list[Measured], budget: int | None) -> Measured:
    """Return the cheapest plan that fits, or else the one of least peak."""
    return min(found, key=lambda one: (*rank(budget is None or one.peak <= budget, one.cost, one.peak), one.plan))


def _above(frontier: list[Measured], budget: int) -> list[Measured]:
    """Return for each share in :data:`ABOVE` the plan over the budget that is highest within that share of it."""
    found = [[one for one in frontier if budget < one.peak <= share * budget] for share in ABOVE]
    return list(dict.fromkeys(some[-1] for some in found if some))


def _unbeaten(found: list[Measured]) -> list[Measured]:
    """Return the plans that no other beats in both peak and cost, by rising peak; the first of equal ones."""
    best: list[Measured] = []
    for one in sorted(found, key=lambda one: (one.peak, one.cost)):
        if not best or one.cost < best[-1].cost:
            best.append(one)
    return best
