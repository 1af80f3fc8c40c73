"""Drops: a fast heuristic with compiled kernels for graphs of any size."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, NamedTuple

import numpy as np

from remat.errors import ProblemError
from remat.graphs.arrays import first_computes, occurrences
from remat.heuristics.base import Heuristic, HeuristicRun
from remat.heuristics.drops.kernels import as_lists, kernels_of, runs_of
from remat.ordering.instance import OrderInstance
from remat.ordering.rules import ListOrder
from remat.problem import Problem
from remat.problem.op_sequence import LiveTables, allowed_computes, op_sequence, order_of, useful_schedule
from remat.runtime.arrays import Bool, Int
from remat.runtime.checked_options import Options, Range
from remat.runtime.compiled import KernelSet
from remat.runtime.deadline import Deadline, OverdueError, Slices
from remat.schedule import OrderRule, Schedule

if TYPE_CHECKING:
    from remat.heuristics.drops.stages_kernel import StagedSchedule, StageGraph


#: Most runs of one op.
MOST_RUNS = 32
#: Ops per call that looks for drops, and target seconds between two checks of the clock.
BATCH, CHECK_INTERVAL = 1_000, 0.05
#: Longest chains of recomputations for one drop, in each round of drops.
CHAINS = (8, 64, 512)
#: A drop is taken if its price is at most this multiple of the least possible price of the next one. Each drop makes
#: the others slightly more expensive, so among many similar ones it would otherwise trigger an evaluation of all.
SLACK, SLACK_OF_MANY = 1.000001, 1.03
#: Number of ops from which `SLACK_OF_MANY` applies.
MANY = 5_000
#: Leaning of a last descent, if no other keeps the budget: recompute inputs wherever holding them adds to the excess.
RECOMPUTE = 1e9


@dataclass(frozen=True)
class DropsOptions(Options):
    """Options of :class:`Drops`."""

    leanings: tuple[Annotated[float, Range(above=0)], ...] = (6.0, 2.0, 1.0, 20.0)
    """Price of holding an input for longer relative to recomputing it, in bytes of excess at the rate of the drop: high
    values recompute more. Each is tried, and the best schedule is returned."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.leanings:
            raise ProblemError("leanings must have at least one number", "option", "leanings")


def _example() -> None:
    from remat.graphs.families import unit_chain

    _descents(Problem(unit_chain(8), 7), HeuristicRun(), (1.0,), [])


#: Kernels of the descent.
KERNELS = KernelSet("drops", __name__, _example)


class _Unfinished(NamedTuple):
    """Descent that the deadline cut short above the budget."""

    problem: Problem
    order: Int
    leaning: float
    net: StageGraph
    state: StagedSchedule


class Drops(Heuristic):
    """Repeated best drops of a staged schedule, for graphs of any size.

    A *drop* ends an instance at its last read before some stage and recomputes it there. Inputs of the recomputation
    are held for longer where memory allows. Otherwise they are held or recomputed as well, whichever is cheaper at the
    rate at which the drop itself turns cost into bytes.

    Starting from the reference order, it takes the drop with the least cost per byte of excess removed, summed over all
    stages, until nothing exceeds the budget. A drop that turns out not to reduce the excess is reverted.
    Candidates wait on a heap, keyed by their least possible price, and are evaluated again at their turn. At the end,
    recomputations that the budget does not need are taken back, the costliest first.

    In a free order, descents also use the order of the start and one by list scheduling. A start that is staged in the
    order gives one more descent: drops remove its excess, and unnecessary recomputations are taken back.

    A descent that the deadline cuts short above the budget is resumed by the next run of the same object on the same
    problem.

    :class:`remat.heuristics.greedy.Greedy` evaluates these drops in the interpreter; here a drop takes some
    microseconds, and 100,000 ops take some seconds. Recomputations may be in any stage, and of any depth. The result is
    staged. Accumulation buffers are held from the first contribution to the last read.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> from remat.schedule import simulate
    >>> problem = Problem(unit_chain(8), 7)
    >>> schedule = Drops().run(problem, HeuristicRun())
    >>> simulate(problem.graph, schedule).peak
    7
    """

    name = "drops"
    options_type = DropsOptions

    kernels = (KERNELS,)

    def __init__(self, options: DropsOptions | None = None) -> None:
        super().__init__(options)
        self._unfinished: list[_Unfinished] = []
        """At most one descent, which the next run of this object on the same problem resumes."""

    def run(self, problem: Problem, run: HeuristicRun) -> Schedule | None:
        if problem.budget_bytes is None:
            return Schedule.reference(problem.graph)
        if not self.prepared(run.deadline):
            return None
        return _descents(problem, run, self.options.leanings, self._unfinished)

    def improved(self, problem: Problem, start: Schedule, deadline: Deadline) -> Schedule | None:
        """Return one descent from `start` in the reference order, perhaps over the budget; None: `start` is not staged.

        The interpreter runs it if the kernels are not compiled, with the same result.

        Examples
        --------
        >>> from remat.graphs.families import unit_chain
        >>> from remat.heuristics.checkpointing.chen import ChenSqrt
        >>> problem = Problem(unit_chain(16), 9)
        >>> start = ChenSqrt().run(problem, HeuristicRun())
        >>> start.num_computes, Drops().improved(problem, start, Deadline()).num_computes
        (45, 42)
        """
        order = problem.graph.arrays.order.copy()
        again = recomputations(problem, order, start)
        compiled = self.compiled()
        if again is None or (compiled and not self.prepared(deadline)):
            return None
        net, state = tables(problem, order, again, compiled=compiled)
        descend(net, state, self.options.leanings[0], deadline)
        return useful_schedule(problem, sequence(net, state), self.name)


def _descents(
    problem: Problem, run: HeuristicRun, leanings: tuple[float, ...], unfinished: list[_Unfinished]
) -> Schedule | None:
    """Return the best schedule of several descents; resume that in `unfinished`, and keep there one cut short."""
    from remat.heuristics.drops.stages_kernel import EXCESS

    best: tuple[int, int] | None = None
    schedule = None
    for order in orders(problem, run.start, run.deadline):
        again = None if run.start is None else recomputations(problem, order, run.start)
        ways: list[tuple[float, tuple[Int, Int] | None]] = [(leaning, None) for leaning in leanings]
        if again is not None and len(again[0]):
            ways.insert(0, (leanings[0], again))
        for leaning, begin in [*ways, (RECOMPUTE, None)]:
            if leaning == RECOMPUTE and best is not None and best[0] == 0:
                break
            net, state = _resumed(problem, order, leaning, begin, unfinished) or tables(problem, order, begin)
            descend(net, state, leaning, run.deadline)
            if run.deadline.expired and state.number[EXCESS] > 0 and begin is None:
                unfinished[:] = [_Unfinished(problem, order, leaning, net, state)]
            rank = int(state.number[EXCESS]), int(net.cost @ state.times)
            if best is None or rank < best:
                best = rank
                schedule = useful_schedule(problem, sequence(net, state), Drops.name)
                if rank[0] == 0 and run.report(schedule):
                    return schedule
            if run.deadline.expired or best == (0, problem.graph.base_cost):
                return schedule
    return schedule


def _resumed(
    problem: Problem, order: Int, leaning: float, begin: tuple[Int, Int] | None, unfinished: list[_Unfinished]
) -> tuple[StageGraph, StagedSchedule] | None:
    """Take the unfinished descent out of its list if it is this one; None: it is not."""
    for each in unfinished:
        if begin is None and each.problem is problem and each.leaning == leaning and np.array_equal(each.order, order):
            unfinished.clear()
            return each.net, each.state
    return None


def orders(problem: Problem, start: Schedule | None, deadline: Deadline) -> list[Int]:
    """Return orders to descend from: the reference order; in a free order, also those of the start and list scheduling.

    List scheduling is omitted if it misses the deadline.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> [order.tolist() for order in orders(Problem(unit_chain(2), 4), None, Deadline())]
    [[0, 1, 2, 3, 4]]
    """
    found = given_orders(problem, start)
    if problem.order is OrderRule.FREE:
        with contextlib.suppress(OverdueError):
            instance = OrderInstance.of(problem)
            found.append(instance.ops[ListOrder().order(instance, deadline)])
    return found


def given_orders(problem: Problem, start: Schedule | None) -> list[Int]:
    """Return the reference order, and in a free order that of the start."""
    found = [problem.graph.arrays.order.copy()]
    if problem.order is OrderRule.FREE and start is not None:
        found.insert(0, order_of(problem, start))
    return found


def recomputations(problem: Problem, order: Int, start: Schedule) -> tuple[Int, Int] | None:
    """Return ops and stages of the recomputations of a schedule; None if it is not staged in that order.

    Also None if an accumulation buffer is filled again, or an op is computed more than :data:`MOST_RUNS` times.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> problem = Problem(unit_chain(2), 4)
    >>> steps = [("compute", op) for op in ("f0", "f1", "loss", "f0", "f1", "g1", "g0")]
    >>> found = recomputations(problem, problem.graph.arrays.order, Schedule.from_steps(steps))
    >>> [each.tolist() for each in found]
    [[0, 1], [3, 3]]
    """
    try:
        given = op_sequence(problem, start)
    except ProblemError:
        return None
    at = np.argsort(order)[given]
    first = first_computes(at)
    stage: Int = np.cumsum(first) - first
    again = np.flatnonzero(~first)
    same: Bool = np.diff(stage) == 0
    if not np.array_equal(at[first], np.arange(len(order))) or (np.diff(at)[same] <= 0).any():
        return None
    limits = np.array([MOST_RUNS if limit is None else limit for limit in problem.compute_limits])
    if (np.bincount(given, minlength=len(order)) > np.minimum(limits, MOST_RUNS)).any():
        return None
    return given[again], stage[again]


def descend(net: StageGraph, state: StagedSchedule, leaning: float, deadline: Deadline) -> None:
    """Drop until nothing exceeds the budget, then take back unnecessary recomputations.

    The tables are arrays, or lists, for which the interpreter runs the kernels.
    """
    from remat.heuristics.drops.search_kernel import DropHeap
    from remat.heuristics.drops.stages_kernel import EXCESS

    code, number, num_ops = kernels_of(state), state.number, len(net.cost)
    slack = SLACK if num_ops < MANY else SLACK_OF_MANY
    slices = Slices(code.batch, 100 * code.batch, CHECK_INTERVAL)
    nothing = code.room(0, int), code.room(0, int)
    for chain in CHAINS:
        slices.amount = max(1, min(slices.amount, code.batch * CHAINS[0] // chain))  # long chains take longer
        while number[EXCESS] > 0 and not deadline.expired:
            reads = np.asarray(state.times)[np.asarray(net.readers, dtype=np.int64)].sum()
            room = 2 * len(net.readers) + int(np.sum(state.times)) + 100_000
            heap = DropHeap(code.room(room, float), code.room(room, int), code.room(chain, int))
            over, uses = code.room(num_ops + 2, int), code.room(int(reads) + len(net.size), int)
            left = taken = 0
            for first in range(0, num_ops, BATCH):
                last = min(first + BATCH, num_ops)
                left = code.candidates(net, state, heap, left, (first, last), over, uses)
            while left and number[EXCESS] > 0 and not deadline.expired:
                with slices:
                    left, more = code.change_many(net, state, heap, left, slices.amount, (leaning, slack), nothing)
                taken += more
            if not taken:
                break
    if number[EXCESS] == 0:
        take_back(net, state, deadline)


def take_back(net: StageGraph, state: StagedSchedule, deadline: Deadline) -> None:
    """Take back recomputations that the budget does not need, the costliest first."""
    from remat.heuristics.drops.search_kernel import DropHeap

    code = kernels_of(state)
    slices = Slices(code.batch, 100 * code.batch, CHECK_INTERVAL)
    ops, stages = runs_of(state)
    again = stages != np.asarray(net.position)[ops]
    ops, stages = ops[again], stages[again]
    costliest = np.lexsort((stages, ops, -np.asarray(net.cost)[ops]))
    nothing = DropHeap(code.room(0, float), code.room(0, int), code.room(0, int))
    part = 0
    while part < len(costliest) and not deadline.expired:
        some = costliest[part : part + slices.amount]
        part += len(some)
        with slices:
            code.change_many(net, state, nothing, 0, 0, (1.0, 1.0), (ops[some], stages[some]))


def sequence(net: StageGraph, state: StagedSchedule) -> Int:
    """Return the computes of the schedule, by op: in each stage recomputations by position, then the stage's own op."""
    ops, stages = runs_of(state)
    return ops[np.lexsort((np.asarray(net.position)[ops], stages))]


def tables(
    problem: Problem, order: Int, again: tuple[Int, Int] | None = None, *, compiled: bool = True
) -> tuple[StageGraph, StagedSchedule]:
    """Return the arrays of a problem, and of a schedule in a topological order, for kernels, `compiled` or not.

    `order`, shape (ops,): order of the first computes. `again`: recomputations: ops and stages (from 0), as
    :func:`recomputations` returns them.
    """
    net, state = _arrays(problem, order, again)
    if not compiled:
        net, state = as_lists(net, state)
    kernels_of(state).start(net, state)
    return net, state


def _arrays(problem: Problem, order: Int, again: tuple[Int, Int] | None = None) -> tuple[StageGraph, StagedSchedule]:
    """Return the same arrays without the memory of the stages."""
    from remat.heuristics.drops.stages_kernel import BLOCK, StagedSchedule, StageGraph

    assert problem.budget_bytes is not None
    arrays = problem.graph.arrays
    at = LiveTables.of(problem)
    reads, writes = at.reads, at.writes
    num_ops, num_tensors = len(arrays.cost), len(arrays.size)
    position = np.argsort(order)
    begin = np.where(at.live & (at.writer < 0), arrays.producers.lowest(position, num_ops), -1)
    limit = allowed_computes(problem, MOST_RUNS)
    net = StageGraph(
        arrays.size.copy(), arrays.cost.copy(), at.workspace,
        reads.indptr, reads.indices, writes.indptr, writes.indices, at.writer, begin,
        arrays.consumers.indptr.copy(), arrays.consumers.indices.copy(), problem.kept & at.live, limit,
        order.copy(), position,
    )  # fmt: skip
    degree = int((np.diff(net.in_ptr) + np.diff(net.out_ptr)).max(initial=0))
    blocks = -(-(num_ops + 2) // BLOCK)
    extra = 0 if again is None else len(again[0])
    room = 8 * num_ops + extra + 1024
    runs = np.zeros((num_ops, MOST_RUNS), dtype=np.int32)
    runs[:, 0] = position
    times, first = np.ones(num_ops, dtype=np.int64), np.full(num_ops + 2, -1, dtype=np.int64)
    node_op = np.empty(room, dtype=np.int64)
    budget = problem.budget_bytes - arrays.input_bytes - problem.constant_bytes
    following = np.arange(1, room + 1, dtype=np.int64)
    following[-1] = -1
    if again is not None:
        by = np.lexsort((position[again[0]], again[1]))
        ops, stages = again[0][by], again[1][by]
        node_op[:extra] = ops
        starts = np.flatnonzero(np.diff(stages, prepend=-1))
        first[stages[starts]] = starts
        following[np.append(starts[1:], extra) - 1] = -1
        runs[ops, 1 + occurrences(ops)] = stages
        times += np.bincount(ops, minlength=num_ops)
    state = StagedSchedule(
        runs, times, np.zeros(num_ops + 2, dtype=np.int64),
        np.zeros(blocks, dtype=np.int64), np.zeros(blocks, dtype=np.int64), np.zeros(blocks, dtype=np.int64),
        np.zeros(num_ops + 2, dtype=np.int64), first, node_op, following,
        np.array([budget, 0, extra, 0, room - extra], dtype=np.int64), np.empty(num_tensors, dtype=np.int64),
        np.zeros(num_ops, dtype=np.int64), np.zeros(num_tensors, dtype=np.int64),
        *(np.zeros(degree, dtype=np.int64) for _ in range(3)),
    )  # fmt: skip
    return net, state
