"""Simulated annealing of order and recomputation together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from remat.errors import ProblemError
from remat.formulations.sequence import standing_buffers, useful_schedule
from remat.graphs import GraphBuilder
from remat.heuristics.base import Heuristic, Run
from remat.problem import Problem
from remat.schedule import OrderRule, Schedule
from remat.timing import Deadline

if TYPE_CHECKING:
    from remat.heuristics.annealing_kernel import State

Int = NDArray[np.int64]

#: Most runs of one op that the search keeps track of.
MOST_RUNS = 24
#: Moves of all restarts for each op, where nothing else ends the search.
MOVES_PER_OP = 20_000
#: Moves between two looks at the clock, which are also the steps of cooling.
BATCH = 5_000


@dataclass(frozen=True)
class AnnealingOptions:
    """Options of :class:`Annealing`.

    Attributes
    ----------
    moves : int or None
        Moves of all restarts together. None: until the deadline, and 20,000 for each op where there is none.
    first_moves : int
        Moves of the first restart; each restart has twice as many as the one before.
    heat, cold : float
        First and last temperature, as shares of the base cost.
    area : float
        Weight of the mean memory held, as a share of that of memory above the budget: it prefers short lives where the
        peak alone does not change.
    again : float
        Probability that an input which is not there at a recomputation is recomputed as well, and not held for longer.
    """

    moves: int | None = None
    first_moves: int = 250_000
    heat: float = 1e-2
    cold: float = 1e-6
    area: float = 0.2
    again: float = 0.5

    def __post_init__(self) -> None:
        if not (
            (self.moves is None or self.moves >= 1)
            and self.first_moves >= 1
            and 0 < self.cold <= self.heat
            and 0 <= self.again <= 1
        ):
            raise ProblemError(f"options of annealing are out of range: {self}")


class Annealing(Heuristic):
    """Simulated annealing on the sequence of computes, order and recomputation together.

    After FastSA (Imanishi et al., NeurIPS 2023), written anew from its description. A state is an array of slots that
    hold an op or nothing; a move shifts a run of an op, recomputes an op shortly before a read (with a random part of
    those ancestors that would have to be held for it), or takes a recomputation back. The energy is cost, plus a
    penalty for the peak above the budget whose weight follows how often the budget is met, plus a small weight on the
    mean memory held. Peaks come from a segment tree, so that a move costs O(d log T) for an op with d tensors.

    Restarts double in length, and every second one starts at a tenth of the heat, with a quarter of the weight on the
    mean: hot ones find other orders, cool ones make the most of the given one. Without a deadline the same seed walks
    the same way. With the fixed order first computations stay in the reference order, and recomputations may be
    anywhere. Ops that write accumulation buffers are not recomputed.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> from remat.schedule import simulate
    >>> problem = Problem(unit_chain(8), 5)
    >>> schedule = Annealing(AnnealingOptions(moves=100_000)).run(problem, Run(seed=1))
    >>> simulate(problem.graph, schedule).peak
    5
    """

    name = "annealing"
    options_type = AnnealingOptions

    def prepare(self) -> None:
        """Compile the moves: some seconds once on a machine, then they are read from numba's cache."""
        graph = GraphBuilder("pair")
        graph.op("a", size=2)
        graph.op("b", inputs=["a"], size=1)
        _Search(Problem(graph.build(), 2, OrderRule.FREE), self.options).restart(1, Deadline(), (0, 0))

    def run(self, problem: Problem, run: Run) -> Schedule | None:
        deadline, seed = run.deadline, run.seed
        if problem.budget_bytes is None:
            return Schedule.reference(problem.graph)
        search = _Search(problem, self.options)
        moves, left, restart = self.options.first_moves, self._moves(problem, deadline), 0
        best: tuple[int, Int] | None = None
        rate = math.inf  # moves per second of the last restart
        while left > 0 and not deadline.expired:
            # The last restart is as long as there is time for, so that it cools down before the deadline.
            length, began = int(min(moves, left, max(BATCH, 0.9 * rate * deadline.remaining))), deadline.elapsed
            found = search.restart(length, deadline, (seed, restart))
            rate = length / max(1e-9, deadline.elapsed - began) if math.isfinite(deadline.seconds) else math.inf
            if found is not None and (best is None or found[0] < best[0]):
                best = found
            if best is not None and best[0] == problem.graph.base_cost:
                break
            left, moves, restart = left - moves, 2 * moves, restart + 1
        return None if best is None else useful_schedule(problem, best[1], self.name)

    def _moves(self, problem: Problem, deadline: Deadline) -> float:
        """Moves of all restarts together."""
        if self.options.moves is not None:
            return self.options.moves
        return math.inf if math.isfinite(deadline.seconds) else MOVES_PER_OP * len(problem.graph.ops)


class _Search:
    """The arrays of one problem, and restarts on them."""

    def __init__(self, problem: Problem, options: AnnealingOptions) -> None:
        from remat.heuristics.annealing_kernel import Net

        assert problem.budget_bytes is not None
        self.problem, self.options = problem, options
        self.fixed = problem.order is OrderRule.FIXED
        arrays = problem.graph.arrays
        buffers, workspace = standing_buffers(problem)
        live = (arrays.producers.counts == 1) | buffers  # neither graph inputs nor buffers that nobody reads
        num_ops = len(arrays.cost)
        self.budget = problem.budget_bytes - arrays.input_bytes - problem.constant_bytes
        limit = np.array([MOST_RUNS if c is None else min(c, MOST_RUNS) for c in problem.compute_limits])
        into = arrays.op_outputs.indices
        limit[arrays.op_outputs.rows[buffers[into]]] = 1
        in_ptr, inputs = _only(arrays.op_inputs.rows, arrays.op_inputs.indices, live, num_ops)
        out_ptr, outputs = _only(arrays.op_outputs.rows, into, live, num_ops)
        self.net = Net(
            arrays.size, arrays.cost, workspace, in_ptr, inputs, out_ptr, outputs,
            arrays.producers.indptr, arrays.producers.indices, arrays.consumers.indptr, arrays.consumers.indices,
            arrays.op_predecessors.indptr, arrays.op_predecessors.indices,
            arrays.op_successors.indptr, arrays.op_successors.indices,
            problem.kept, limit.astype(np.int64), arrays.order, arrays.position,
        )  # fmt: skip
        self.width = 1 << math.ceil(math.log2(8 * num_ops))

    def restart(self, moves: int, deadline: Deadline, seed: tuple[int, int]) -> tuple[int, Int] | None:
        """Cost and op sequence of the best schedule within the budget that one run finds."""
        from remat.heuristics.annealing_kernel import BEST, anneal

        state = self._reference()
        seeds = np.random.default_rng(seed).integers(0, 2**31, -(-moves // BATCH))
        base = max(1, self.problem.graph.base_cost)
        per_byte = base / max(1, self.budget)
        least, most = per_byte / 100, per_byte * 100
        cool = seed[1] % 2 == 1
        per_area = self.options.area * per_byte * (0.25 if cool else 1.0)
        first = max(self.options.cold, self.options.heat * (0.1 if cool else 1.0))
        heat = first * base
        cooling = (self.options.cold / first) ** (1 / max(1, len(seeds) - 1))
        for part in seeds.tolist():
            met = anneal(
                self.net, state, part, BATCH, self.budget, self.fixed, heat, per_byte, per_area, self.options.again
            )  # fmt: skip
            heat *= cooling
            # Bytes above the budget cost more while it is rarely met, and less while it is met with ease.
            per_byte = (
                min(most, per_byte * 1.25) if met < 0.3 else max(least, per_byte / 1.25) if met > 0.6 else per_byte
            )
            if state.number[BEST] == self.problem.graph.base_cost or deadline.expired:
                break
        if state.number[BEST] < 0:
            return None
        return int(state.number[BEST]), state.best[state.best >= 0]

    def _reference(self) -> State:
        """The reference order, spread over the slots."""
        from remat.heuristics.annealing_kernel import State, start

        num_ops = len(self.net.cost)
        slots = np.zeros((num_ops, MOST_RUNS + 1), dtype=np.int64)
        slots[self.net.order, 0] = (np.arange(num_ops) * 2 + 1) * self.width // (2 * num_ops)
        state = State(
            slots, np.ones(num_ops, dtype=np.int64), np.empty(self.width, dtype=np.int64),
            np.empty(2 * self.width, dtype=np.int64), np.empty(2 * self.width, dtype=np.int64),
            np.empty(num_ops, dtype=np.int64), np.empty(num_ops, dtype=np.int64), np.empty(5, dtype=np.int64),
            np.full(self.width, -1, dtype=np.int64),
        )  # fmt: skip
        start(self.net, state)
        return state


def _only(rows: Int, columns: Int, wanted: NDArray[np.bool_], num_rows: int) -> tuple[Int, Int]:
    """Compressed rows of the entries whose column is wanted."""
    keep = wanted[columns]
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows[keep], minlength=num_rows))])
    return indptr.astype(np.int64), columns[keep]
