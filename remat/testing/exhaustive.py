"""Optima of tiny graphs by exhaustive search: Dijkstra's algorithm over sets of live tensors.

It follows the rules directly: which tensors are live, which ops can be computed, which tensors can be freed. Freeing
costs 0, so that all choices of retained tensors are tried. It shares no code with formulations, backends or validator.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from remat.errors import ProblemError
from remat.problem import Problem
from remat.problem.scope import Restriction, Scope
from remat.schedule import OrderRule, Schedule

#: Restriction of scopes in which no accumulation buffer is freed and filled again.
FILLED_ONCE = Restriction.FILLED_ONCE


@dataclass(frozen=True)
class Optimum:
    """An optimal schedule.

    Attributes
    ----------
    cost : int
        Cost of the schedule.
    schedule : Schedule
        Frees are implicit.
    peak : int
        Bytes with which it can run; from :func:`least_peak` the least possible.
    """

    cost: int
    schedule: Schedule
    peak: int

    @property
    def time(self) -> int:
        """Time of the schedule, which moves no tensor: its cost."""
        return self.cost

    @property
    def energy(self) -> int:
        """Energy of the schedule: its cost, in units of that of a cost unit of computing."""
        return self.cost


def optimum(problem: Problem, scope: Scope) -> Optimum | None:
    """Return the cheapest schedule of `problem` in `scope`, or None if there is none.

    An accumulation buffer may be freed at any time, complete or not. All its writers then contribute again, in any
    order, before it can be read. A writer that runs again for another output while its contribution is present adds
    nothing. If the scope states ``each accumulation buffer filled once``, buffers hold the contributions of first
    computes and are not freed before they are complete. Buffers that are neither read nor kept are then held during
    their contributions only.

    Parameters
    ----------
    problem : Problem
        At most about six ops: the search is exponential. Constant memory must not be counted.
    scope : Scope
        Its `max_computes` holds in addition to the problem's limits; of its `notes` only the one on buffers counts.

    Raises
    ------
    ProblemError
        If the problem counts constant memory.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> best = optimum(Problem(unit_chain(2), 3), Scope(OrderRule.FIXED, staged=True))
    >>> best.cost, best.schedule.computes()
    (6, ['f0', 'f1', 'loss', 'g1', 'f0', 'g0'])
    """
    return _Search(problem, scope).cheapest(math.inf if problem.budget_bytes is None else problem.budget_bytes)


def least_peak(problem: Problem, scope: Scope) -> Optimum | None:
    """Return the cheapest schedule of least peak; the arguments are those of :func:`optimum`.

    The budget applies, so there may be none.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> best = least_peak(Problem(unit_chain(2)), Scope(OrderRule.FIXED, staged=True))
    >>> best.peak, best.cost
    (3, 6)
    """
    search = _Search(problem, scope)
    peak = search.least_peak(math.inf if problem.budget_bytes is None else problem.budget_bytes)
    return None if peak is None else search.cheapest(peak)


class _State(NamedTuple):
    """Computes of each op (capped at 1 if unlimited), last slot of the stage, live tensors, buffers freed for good.

    `filled` has the contributions in live buffers, as pairs (buffer, writer).
    """

    runs: tuple[int, ...]
    slot: int
    live: frozenset[str]
    filled: frozenset[tuple[str, int]]
    gone: frozenset[str]


class _Search:
    """The problem in plain Python: ops are 0..n-1 in the reference order, tensors are names."""

    def __init__(self, problem: Problem, scope: Scope) -> None:
        if problem.constant_bytes:
            raise ProblemError("the exhaustive search does not count constant memory", "constant-memory")
        self.graph, self.scope = problem.graph, scope
        ops = [self.graph.ops[op] for op in self.graph.arrays.order.tolist()]
        held = frozenset(self.graph.inputs)
        self.size = {tensor.name: tensor.size for tensor in self.graph.tensors}
        self.base = sum(self.size[name] for name in held)
        self.reads = [frozenset(op.inputs) - held for op in ops]
        self.writes = [frozenset(op.outputs) for op in ops]
        self.cost = [op.cost for op in ops]
        self.workspace = [op.workspace for op in ops]
        self.in_place = [[pair for pair in op.in_place if pair[1] not in held] for op in ops]
        self.kept = (frozenset(self.graph.outputs) | problem.keep) - held
        given = dict(zip(self.graph.op_names, problem.compute_limits, strict=True))
        limits = [[limit for limit in (given[op.name], scope.max_computes) if limit is not None] for op in ops]
        self.limit = [min(limit, default=None) for limit in limits]
        self.once = FILLED_ONCE in scope.notes
        self.parts: dict[str, frozenset[tuple[str, int]]] = {}  # contributions to each buffer
        self.fleeting: set[str] = set()  # buffers neither read nor kept, if buffers are filled once
        for tensor in self.size:
            writers = [j for j, outputs in enumerate(self.writes) if tensor in outputs]
            if len(writers) > 1:
                self.parts[tensor] = frozenset((tensor, j) for j in writers)
                if self.once and tensor not in self.kept and not any(tensor in reads for reads in self.reads):
                    self.fleeting.add(tensor)

    def cheapest(self, budget: float) -> Optimum | None:
        """Return the schedule of least cost that holds at most `budget` bytes."""
        found = self._best(budget, lambda worth, op, _held: worth + self.cost[op])
        if found is None:
            return None
        cost, state, came = found
        ops, peak = [], self.base
        while state in came:
            state, op, held = came[state]
            if op is not None:
                ops.append(op)
                peak = max(peak, held)
        computes = self.graph.arrays.order[ops[::-1]]
        return Optimum(cost, Schedule.of_computes(self.graph, computes, source="exhaustive search"), peak)

    def least_peak(self, budget: float) -> int | None:
        """Return the least peak of a schedule, at most `budget`; None if there is no schedule."""
        found = self._best(budget, lambda worth, _op, held: max(worth, held))
        return None if found is None else found[0]

    def _best(
        self, budget: float, worth: Callable[[int, int, int], int]
    ) -> tuple[int, _State, dict[_State, tuple[_State, int | None, int]]] | None:
        """Return the least worth of a final state, that state, and the predecessors of all states."""
        start = _State((0,) * len(self.cost), -1, frozenset(), frozenset(), frozenset())
        best: dict[_State, int] = {start: 0}
        came: dict[_State, tuple[_State, int | None, int]] = {}
        heap = [(0, 0, start)]
        tick = itertools.count(1)
        while heap:
            value, _, state = heapq.heappop(heap)
            if value > best[state]:
                continue
            if all(state.runs) and all(self._ready(tensor, state) for tensor in self.kept):
                return value, state, came
            for op, held, target in itertools.chain(self._frees(state), self._computes(state, budget)):
                total = value if op is None else worth(value, op, held)
                if total < best.get(target, math.inf):
                    best[target] = total
                    came[target] = state, op, held
                    heapq.heappush(heap, (total, next(tick), target))
        return None

    def _ready(self, tensor: str, state: _State) -> bool:
        """Return True if a tensor can be read: it is live and, if it is a buffer, complete."""
        return tensor in state.live and self.parts.get(tensor, frozenset()) <= state.filled

    def _frees(self, state: _State) -> Iterator[tuple[None, int, _State]]:
        for tensor in state.live:
            parts = self.parts.get(tensor, frozenset())
            if self.once and not parts <= state.filled:
                continue
            gone = state.gone | {tensor} if self.once and parts else state.gone
            yield None, 0, state._replace(live=state.live - {tensor}, filled=state.filled - parts, gone=gone)

    def _computes(self, state: _State, budget: float) -> Iterator[tuple[int, int, _State]]:
        n = len(self.cost)
        done = next((j for j in range(n) if not state.runs[j]), n)  # first op not computed yet
        staged = self.scope.staged
        for j in range(n):
            limit = self.limit[j]
            if self.scope.order is OrderRule.FIXED and j > done:
                continue
            if staged and (j <= state.slot or done == n):
                continue
            if limit is not None and state.runs[j] >= limit:
                continue
            if not all(self._ready(tensor, state) for tensor in self.reads[j]):
                continue
            during = state.live | self.writes[j]
            full = self.base + sum(self.size[tensor] for tensor in during) + self.workspace[j]
            after = during - self.fleeting - (self.writes[j] & state.gone)
            filled = state.filled | {(t, j) for t in self.writes[j] & after if t in self.parts}
            count = 1 if limit is None else state.runs[j] + 1  # the number matters only if it is limited
            slot = j if staged and j != done else -1
            runs = (*state.runs[:j], count, *state.runs[j + 1 :])
            for dying in self._dying(j):
                held = full - self._overwritten(j, dying, state.live)
                if held <= budget:
                    yield j, held, _State(runs, slot, after - dying, filled, state.gone)

    def _dying(self, j: int) -> Iterator[frozenset[str]]:
        """Yield every set of inputs that can be freed at once after op `j`, so that outputs take their place."""
        places = sorted({source for _, source in self.in_place[j]})
        for count in range(len(places) + 1):
            yield from map(frozenset, itertools.combinations(places, count))

    def _overwritten(self, j: int, dying: frozenset[str], live: frozenset[str]) -> int:
        """Return the most bytes of new outputs of op `j` that take the place of dying inputs."""
        possible = [pair for pair in self.in_place[j] if pair[1] in dying and pair[0] not in live]
        most = 0
        for count in range(1, len(dying) + 1):
            for chosen in itertools.combinations(possible, count):
                if len({o for o, _ in chosen}) == len({s for _, s in chosen}) == count:
                    most = max(most, sum(self.size[output] for output, _ in chosen))
        return most
