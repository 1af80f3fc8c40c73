"""Best-first search over live tensors: least peak, least cost at a peak, and a bound at the deadline."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from remat.graphs.in_place import most_pairs
from remat.problem import Problem
from remat.runtime.deadline import Deadline
from remat.schedule import OrderRule, Schedule, simulate
from remat.schedule.schedule import StepKind

#: States after which the search stops, about 150 MB.
MOST_STATES = 300_000
#: Limit of tensors that one op reads or writes: the search tries to free every subset of them after the op.
MOST_TOUCHED = 10


class Aim(StrEnum):
    """Objective of the search."""

    PEAK = "peak"
    """The least peak, in bytes."""
    COST = "cost"
    """The least cost within a peak."""


@dataclass(frozen=True)
class Explored:
    """Result of a search."""

    bound: int
    """No schedule below the limit has a lower peak (or a lower cost within the peak)."""
    schedule: Schedule | None
    """The best schedule, if the search finished and one is below the limit."""
    states: int
    """Number of states evaluated."""


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
    """Search for the schedule of least peak below `limit` bytes, or of least cost below `limit` within `peak` bytes.

    A state consists of the computed ops (with counts, if these are limited) and the live contributions to each tensor.
    A move computes an op and frees some of the tensors that the op reads or writes. This suffices, since a tensor that
    is freed at all may as well be freed right after its last use. The search expands states by rising peak (cost), so
    the first complete state is best, and the value of the current state bounds all schedules when the search stops
    early. The order rule, limits of computes, kept tensors, workspace, constant memory, accumulation buffers and
    outputs in place of inputs are those of `problem`; its budget is ignored.

    Parameters
    ----------
    limit : int
        Value to improve on: bytes or cost units.
    peak : int, optional
        Limit of the peak in bytes, if the aim is cost.
    floor : int
        Known bound.
    most_states : int
        Number of states after which the search stops.

    Returns
    -------
    Explored or None
        None if an op reads and writes too many tensors.

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
    """Computes of each op, as far as they matter, and the live contributions; both packed into bits."""

    runs: int
    cells: int


class _Move(NamedTuple):
    """Tensors that an op reads, adds and may free; sizes in bytes."""

    op: int
    shift: int
    most: int
    """Number of computes to distinguish: 1 if any number is allowed, since only the first one matters then."""
    limited: bool
    reads: int
    adds: int
    workspace: int
    outputs: tuple[tuple[int, int], ...]
    touched: tuple[_Touched, ...]
    in_place: tuple[tuple[int, int, int], ...]
    """Cells of an output, cells of the input in whose place it may be written, and their bytes."""

    def saved(self, cells: int, after: int) -> int:
        """Return the most bytes of outputs written in place of inputs, for the cells before and after the move."""
        bytes_of = {output: size for output, source, size in self.in_place}
        possible = [(o, s) for o, s, _ in self.in_place if not (cells & o or after & s)]
        return sum(bytes_of[output] for output, _ in most_pairs(possible))


class _Touched(NamedTuple):
    """Tensor that may be freed after an op that reads or writes it: its cells and its bytes.

    If no op that reads or writes it runs twice, it is freed exactly when all `readers` (bits of runs) are done; None:
    it may be freed or stay. Readers that can never be done stand for the end.
    """

    cells: int
    size: int
    readers: int | None


class _Search:
    """Problem as bits; a cell is one (op, output) pair, and a tensor is live if one of its cells is."""

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
                if readers and len(arrays.producers[t]) > 1:  # incomplete buffers stay too
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
        """Yield moves from a state: op number, state, value and live bytes after it, and 1 for a first compute."""
        runs, cells = state
        for number, move in enumerate(self.moves):
            count = runs >> move.shift & ((1 << move.most.bit_length()) - 1)
            if self.fixed and not count and number != done:
                break  # the moves are in the reference order
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
        """Return the schedule that leads to a state; frees are explicit only if implied ones hold more."""
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
