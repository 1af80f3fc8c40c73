"""Drops on compiled code: a start for graphs of any size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from remat.formulations.sequence import standing_buffers, useful_schedule
from remat.heuristics.base import Heuristic, Run
from remat.problem import Problem
from remat.schedule import OrderRule, Schedule
from remat.timing import Deadline

if TYPE_CHECKING:
    from remat.heuristics.drops_kernel import Net, State

Int = NDArray[np.int64]

#: Most runs of one op.
MOST_RUNS = 32
#: Candidates that are looked at between two looks at the clock.
BATCH = 1_000
#: Longest chains of recomputations for one drop, in each round of drops.
CHAINS = (8, 64, 512)


class Drops(Heuristic):
    """Takes the best drops of a staged schedule, one after the other, for graphs of any size.

    A *drop* ends an instance at its last read before some stage and recomputes it there. What the recomputation reads
    is held for longer where memory allows, and otherwise held or recomputed as well, whichever is cheaper at the rate
    at which the drop itself turns cost into bytes. From the reference order on, the drop with the least cost for the
    bytes of excess that it removes, summed over all stages, is taken until nothing exceeds the budget; whether it does
    what was expected is checked by its exact effect, and if not it is taken back. The candidates wait on a heap under
    what they would cost at best, and are looked at again when their turn comes. At the end recomputations are taken
    back, the dearest first, where the schedule fits without them.

    What :class:`remat.heuristics.greedy.Greedy` does with a simulation for each drop, this does with some
    microseconds: 100,000 ops take a minute or so. Its drops are recomputed in any stage, and as deep as needed. The
    result is staged. Accumulation buffers are held from the first contribution to the last read.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> from remat.schedule import simulate
    >>> problem = Problem(unit_chain(8), 7)
    >>> schedule = Drops().run(problem, Run())
    >>> simulate(problem.graph, schedule).peak
    7
    """

    name = "drops"

    def prepare(self) -> None:
        """Compile: some seconds once on a machine, then it is read from numba's cache."""
        from remat.graphs.families import unit_chain

        self.run(Problem(unit_chain(8), 4, OrderRule.FREE), Run())

    def run(self, problem: Problem, run: Run) -> Schedule | None:
        if problem.budget_bytes is None:
            return Schedule.reference(problem.graph)
        from remat.heuristics import drops_kernel

        arrays = problem.graph.arrays
        net, state = tables(problem, arrays.order)
        descent(net, state, run.deadline)
        return useful_schedule(problem, drops_kernel.sequence(net, state), self.name)


def descent(net: Net, state: State, deadline: Deadline) -> None:
    """Drop until nothing exceeds the budget, and take back what turns out not to be needed."""
    from remat.heuristics import drops_kernel as kernel
    from remat.heuristics import drops_search as search

    for chain in CHAINS:
        found = np.empty(chain, dtype=np.int64)
        while state.number[kernel.EXCESS] > 0 and not deadline.expired:
            room = 2 * len(net.readers) + int(state.count.sum()) + 100_000
            keys, items = np.empty(room), np.empty(room, dtype=np.int64)
            left, taken = search.candidates(net, state, keys, items), 0
            while left and state.number[kernel.EXCESS] > 0 and not deadline.expired:
                left, more = search.descend(net, state, keys, items, left, found, BATCH)
                taken += more
            if not taken:
                break
    if state.number[kernel.EXCESS] == 0:
        pairs = [
            (op, s)
            for op in np.flatnonzero(state.count > 1).tolist()
            for s in state.runs[op, 1 : state.count[op]].tolist()
        ]
        pairs.sort(key=lambda p: (-int(net.cost[p[0]]), p))
        table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        for part in range(0, len(table), BATCH):
            if deadline.expired:
                break
            search.prune(net, state, table[part : part + BATCH, 0].copy(), table[part : part + BATCH, 1].copy())


def tables(problem: Problem, order: Int) -> tuple[Net, State]:
    """The problem and the schedule without recomputations in a topological order, for the compiled functions."""
    from remat.heuristics.drops_kernel import BLOCK, Net, State, start

    assert problem.budget_bytes is not None
    arrays = problem.graph.arrays
    buffers, workspace = standing_buffers(problem)
    single = arrays.producers.counts == 1
    live = single | buffers
    num_ops, num_tensors = len(arrays.cost), len(arrays.size)
    position = np.empty(num_ops, dtype=np.int64)
    position[order] = np.arange(num_ops)
    writer = np.full(num_tensors, -1, dtype=np.int64)
    rows = arrays.producers.rows
    writer[rows[single[rows]]] = arrays.producers.indices[single[rows]]
    begin = np.full(num_tensors, num_ops, dtype=np.int64)
    shared = buffers[rows]
    np.minimum.at(begin, rows[shared], position[arrays.producers.indices[shared]])
    begin[begin == num_ops] = -1
    limit = np.array([MOST_RUNS if c is None else min(c, MOST_RUNS) for c in problem.compute_limits], dtype=np.int64)
    into = arrays.op_outputs.indices
    limit[arrays.op_outputs.rows[(arrays.producers.counts > 1)[into]]] = 1
    in_ptr, inputs = _only(arrays.op_inputs.rows, arrays.op_inputs.indices, live, num_ops)
    out_ptr, outputs = _only(arrays.op_outputs.rows, into, live, num_ops)
    net = Net(
        arrays.size.copy(), arrays.cost.copy(), workspace, in_ptr, inputs, out_ptr, outputs, writer, begin,
        arrays.consumers.indptr.copy(), arrays.consumers.indices.copy(), problem.kept & live, limit, order.copy(),
        position,
    )  # fmt: skip
    blocks = -(-(num_ops + 2) // BLOCK)
    room = 8 * num_ops + 1024
    runs = np.zeros((num_ops, MOST_RUNS), dtype=np.int32)
    runs[:, 0] = position
    budget = problem.budget_bytes - arrays.input_bytes - problem.constant_bytes
    following = np.arange(1, room + 1, dtype=np.int64)
    following[-1] = -1
    state = State(
        runs, np.ones(num_ops, dtype=np.int64), np.zeros(num_ops + 2, dtype=np.int64),
        np.zeros(blocks, dtype=np.int64), np.zeros(blocks, dtype=np.int64), np.zeros(blocks, dtype=np.int64),
        np.zeros(num_ops + 2, dtype=np.int64), np.full(num_ops + 2, -1, dtype=np.int64), np.empty(room, dtype=np.int64),
        following, np.array([budget, 0, 0, 0], dtype=np.int64), np.empty(num_tensors, dtype=np.int64),
        np.zeros(num_ops, dtype=np.int64), np.zeros(num_tensors, dtype=np.int64),
    )  # fmt: skip
    start(net, state)
    return net, state


def _only(rows: Int, columns: Int, wanted: NDArray[np.bool_], num_rows: int) -> tuple[Int, Int]:
    """Compressed rows of the entries whose column is wanted."""
    keep = wanted[columns]
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows[keep], minlength=num_rows))])
    return indptr.astype(np.int64), columns[keep]
