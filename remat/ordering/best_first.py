"""Best-first search over what is live: the least peak, the least cost at a peak, and a bound when time is over."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from remat.deadline import Deadline
from remat.graphs.in_place import most_pairs
from remat.problem import Problem
from remat.schedule import OrderRule, Schedule, simulate
from remat.schedule.schedule import StepKind

#: States after which the search gives up, about 150 MB.
MOST_STATES = 300_000
#: Tensors that one op touches, at most: every subset of them may be freed after it.
MOST_TOUCHED = 10


class Aim(StrEnum):
    """What the search looks for."""

    PEAK = "peak"
    """The least peak, in bytes."""
    COST = "cost"
    """The least cost within a peak."""


@dataclass(frozen=True)
class Explored:
    """What a search found out.

    Attributes
    ----------
    bound : int
        No schedule has a lower peak (costs less within the peak), as far as the aim was to find one below a limit.
    schedule : Schedule or None
        The best one, where the search came to an end and there is one below the limit.
    states : int
        How many were looked at.
    """

    bound: int
    schedule: Schedule | None
    states: int


def explore(
    problem: Problem,
    aim: Aim,
    *,
    limit: int,
    peak: int | None = None,
    floor: int = 0,
    deadline: Deadline | None = None,
    most_states: int = MOST_STATES,
) -> Explored | None:
    """The schedule of least peak below `limit` bytes, or of least cost below `limit` within `peak` bytes.

    A state is what has been computed (how often, where that is limited) and what is live: for each tensor the
    contributions it has. A move computes an op and frees some of the tensors that it touches; this is enough, since
    a tensor that goes at all may as well go at once after its last use. States are taken by rising peak (cost), so
    that the first one in which everything is done is best, and the value of the state at hand bounds all schedules
    when the search is broken off. The order rule, limits of computes, kept tensors, workspace, constant memory,
    accumulation buffers and outputs in place of inputs are those of `problem`; its budget is not looked at.

    Parameters
    ----------
    limit : int
        The value that is to be beaten: bytes or cost units.
    peak : int, optional
        The peak that must be kept, in bytes, where the aim is cost.
    floor : int
        A bound known before.
    most_states : int
        When to give up.

    Returns
    -------
    Explored or None
        None where an op touches too many tensors to try.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> found = explore(Problem(unit_chain(4)), Aim.PEAK, limit=6)
    >>> found.bound, explore(Problem(unit_chain(4)), Aim.COST, limit=99, peak=3).bound
    (3, 15)
    """
    search = _Search(problem, aim, peak)
    if search.most_touched > MOST_TOUCHED:
        return None
    return search.run(limit, floor, deadline or Deadline(), most_states)


class _State(NamedTuple):
    """How often each op ran, as far as it matters, and the contributions that are live; both packed into bits."""

    runs: int
    cells: int


class _Move(NamedTuple):
    """What an op reads, adds and may free; sizes in bytes."""

    op: int
    shift: int
    most: int
    """Runs that are told apart: 1 where any number is allowed, since only whether it ran matters then."""
    limited: bool
    reads: int
    adds: int
    workspace: int
    outputs: tuple[tuple[int, int], ...]
    touched: tuple[_Touched, ...]
    in_place: tuple[tuple[int, int, int], ...]
    """Cells of an output, cells of the input in whose place it may be written, and their bytes."""

    def saved(self, cells: int, after: int) -> int:
        """Return the most bytes of outputs that take the place of inputs, for the cells before and after the move."""
        bytes_of = {output: size for output, source, size in self.in_place}
        possible = [(o, s) for o, s, _ in self.in_place if not (cells & o or after & s)]
        return sum(bytes_of[output] for output, _ in most_pairs(possible))


class _Touched(NamedTuple):
    """A tensor that may go after an op that reads or writes it: its cells and its bytes.

    Where nothing that concerns it runs twice, it goes exactly when all `readers` (bits of runs) are done; None: it may
    go or stay. Readers that can never be done stand for the end.
    """

    cells: int
    size: int
    readers: int | None


class _Search:
    """The problem as bits; a cell is one (op, output) pair, a tensor is live if one of its cells is."""

    def __init__(self, problem: Problem, aim: Aim, peak: int | None) -> None:
        graph, arrays = problem.graph, problem.graph.arrays
        self.problem, self.aim, self.peak = problem, aim, peak
        self.fixed = problem.order is OrderRule.FIXED
        inside = np.flatnonzero(~arrays.is_input).tolist()
        self.tensor_cells = dict.fromkeys(inside, 0)
        for cell, tensor in enumerate(arrays.op_outputs.indices.tolist()):
            self.tensor_cells[tensor] |= 1 << cell
        self.goal = sum(self.tensor_cells[t] for t in inside if problem.kept[t])
        size, first = arrays.size.tolist(), arrays.op_outputs.indptr.tolist()
        self.held = arrays.input_bytes + problem.constant_bytes
        allowed = [problem.compute_limits[op] for op in arrays.order.tolist()]
        most = [1 if limit is None else limit for limit in allowed]
        shifts = [0, *itertools.accumulate(m.bit_length() for m in most)]
        touched: dict[int, _Touched] = {}
        for t in inside:
            users = arrays.position[np.concatenate([arrays.producers[t], arrays.consumers[t]])].tolist()
            readers: int | None = None
            if all(allowed[user] == 1 for user in users) or not (len(arrays.consumers[t]) or problem.kept[t]):
                readers = sum(1 << shifts[at] for at in set(arrays.position[arrays.consumers[t]].tolist()))
                readers |= 1 << shifts[-1] if problem.kept[t] else 0  # a bit that is never set
                if readers and len(arrays.producers[t]) > 1:  # incomplete buffers stay, too
                    readers |= sum(1 << shifts[at] for at in set(users))
            touched[t] = _Touched(self.tensor_cells[t], size[t], readers)
        self.moves: list[_Move] = []
        for number, op in enumerate(arrays.order.tolist()):
            inputs = [t for t in arrays.op_inputs[op].tolist() if not arrays.is_input[t]]
            outputs = arrays.op_outputs[op].tolist()
            self.moves.append(
                _Move(
                    op, shifts[number], most[number], allowed[number] is not None,
                    sum(self.tensor_cells[t] for t in inputs),
                    (1 << first[op + 1]) - (1 << first[op]),
                    graph.ops[op].workspace,
                    tuple((self.tensor_cells[t], size[t]) for t in outputs),
                    tuple(touched[t] for t in {*inputs, *outputs}),
                    tuple(
                        (self.tensor_cells[output], self.tensor_cells[source], size[output])
                        for output, source in arrays.in_place_pairs.get(op, ())
                    ),
                )
            )  # fmt: skip
        self.most_touched = max(sum(t.readers is None for t in move.touched) for move in self.moves)
        self.cost = [graph.ops[move.op].cost for move in self.moves]

    def run(self, limit: int, floor: int, deadline: Deadline, most_states: int) -> Explored:
        start = _State(0, 0)
        value = max(floor, self.held if self.aim is Aim.PEAK else self.problem.graph.base_cost)
        best: dict[_State, int] = {start: value}
        came: dict[_State, tuple[_State, int, int]] = {}
        tick = itertools.count()
        heap = [(value, 0, next(tick), start, self.held)]
        seen = 0
        while heap:
            value, done, _, state, live = heapq.heappop(heap)
            if value > best[state]:
                continue
            if done == -len(self.moves) and state.cells & self.goal == self.goal:
                return Explored(value, self._schedule(state, came), seen)
            seen += 1
            if seen > most_states or deadline.expired:
                return Explored(min(value, limit), None, seen)
            for number, after, new_value, new_live, ran in self._following(state, value, live, -done):
                if new_value < limit and new_value < best.get(after, limit):
                    best[after] = new_value
                    came[after] = state, number, state.cells | self.moves[number].adds
                    heapq.heappush(heap, (new_value, done - ran, next(tick), after, new_live))
        return Explored(limit, None, seen)

    def _following(
        self, state: _State, value: int, live: int, done: int
    ) -> Iterator[tuple[int, _State, int, int, int]]:
        """Moves from a state: number of the op, state, value and live bytes afterwards, and whether it ran first."""
        runs, cells = state
        for number, move in enumerate(self.moves):
            count = runs >> move.shift & ((1 << move.most.bit_length()) - 1)
            if self.fixed and not count and number != done:
                break  # the order of the moves is the reference order
            if cells & move.reads != move.reads or (move.limited and count == move.most):
                continue
            during = cells | move.adds
            if count and during == cells:
                continue
            new_live = live + sum(size for mask, size in move.outputs if not cells & mask)
            after = runs + (1 << move.shift if count < move.most else 0)
            base, rest = during, new_live
            choices: list[_Touched] = []
            for tensor in move.touched:
                if tensor.readers is None:
                    choices.append(tensor)
                elif after & tensor.readers == tensor.readers:
                    base &= ~tensor.cells
                    rest -= tensor.size
            for choice in range(1 << len(choices)):
                kept, left = base, rest
                for k, tensor in enumerate(choices):
                    if choice >> k & 1:
                        kept &= ~tensor.cells
                        left -= tensor.size
                step = new_live + move.workspace - (move.saved(cells, kept) if move.in_place else 0)
                if self.aim is Aim.PEAK:
                    new_value = max(value, step)
                elif self.peak is not None and step > self.peak:
                    continue
                else:
                    new_value = value + (self.cost[number] if count else 0)
                yield number, _State(after, kept), new_value, left, int(not count)

    def _schedule(self, state: _State, came: dict[_State, tuple[_State, int, int]]) -> Schedule:
        """The way to a state; with frees written out only where implied ones hold more."""
        kinds: list[int] = []
        targets: list[int] = []
        while state in came:
            before, number, during = came[state]
            freed = [t for t, mask in self.tensor_cells.items() if during & mask and not state.cells & mask]
            kinds += [StepKind.FREE] * len(freed) + [StepKind.COMPUTE]
            targets += [*freed, self.moves[number].op]
            state = before
        graph = self.problem.graph
        whole = Schedule.for_graph(
            graph,
            np.array(kinds[::-1], dtype=np.int8),
            np.array(targets[::-1], dtype=np.int64),
            source="exhaustive search",
        )
        rules = {"keep": self.problem.keep, "count_constant_memory": self.problem.count_constant_memory}
        short = whole.without_frees()
        lean = simulate(graph, short, **rules).peak <= simulate(graph, whole, **rules).peak  # type: ignore[arg-type]
        return short if lean else whole
