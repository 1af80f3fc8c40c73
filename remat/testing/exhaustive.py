"""Optima by exhaustive search (Dijkstra over what is live), for tiny graphs.

Everything is stated in the rules themselves: what is live, what may be computed, what may be freed. Freeing is a move
of cost 0, so that every choice of what to hold is tried. No code is shared with formulations, backends or validator.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from remat.errors import ProblemError
from remat.problem import Problem
from remat.schedule import OrderRule, Schedule
from remat.scope import Scope


@dataclass(frozen=True)
class Optimum:
    """The least cost, and a schedule that has it.

    Attributes
    ----------
    cost : int
    schedule : Schedule
        Frees implied.
    """

    cost: int
    schedule: Schedule


def optimum(problem: Problem, scope: Scope) -> Optimum | None:
    """The cheapest schedule of `problem` in `scope`, or None where there is none.

    Accumulation buffers are filled once, by first computes, and never freed before they are complete; those that
    nobody reads or keeps are held during the contributions alone.

    Parameters
    ----------
    problem : Problem
        Of about six ops at most: the search is exponential. Constant memory must not be counted.
    scope : Scope
        Its `max_computes` holds for ops that the problem does not limit; its `notes` are not looked at.

    Raises
    ------
    ProblemError
        If constant memory is to be counted.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> best = optimum(Problem(unit_chain(2), 3), Scope(OrderRule.FIXED, staged=True))
    >>> best.cost, best.schedule.computes()
    (6, ['f0', 'f1', 'loss', 'g1', 'f0', 'g0'])
    """
    if problem.constant_bytes:
        raise ProblemError("the exhaustive search does not count constant memory")
    return _Search(problem, scope).run()


class _State(NamedTuple):
    """How often each op ran (as far as that matters), last slot of the stage, what is live, buffers gone for good."""

    runs: tuple[int, ...]
    slot: int
    live: frozenset[str]
    gone: frozenset[str]


class _Search:
    """The problem in plain Python; ops are 0..n-1 in the reference order, tensors go by name."""

    def __init__(self, problem: Problem, scope: Scope) -> None:
        self.graph, self.scope = problem.graph, scope
        ops = [self.graph.ops[op] for op in self.graph.arrays.order.tolist()]
        held = frozenset(self.graph.inputs)
        self.size = {tensor.name: tensor.size for tensor in self.graph.tensors}
        self.base = sum(self.size[name] for name in held)
        self.reads = [frozenset(op.inputs) - held for op in ops]
        self.writes = [frozenset(op.outputs) for op in ops]
        self.cost = [op.cost for op in ops]
        self.workspace = [op.workspace for op in ops]
        self.kept = (frozenset(self.graph.outputs) | frozenset(problem.keep)) - held
        given = dict(zip(self.graph.op_names, problem.compute_limits, strict=True))
        limits = [given[op.name] for op in ops]
        self.limit = [scope.max_computes if limit is None else limit for limit in limits]
        self.budget = math.inf if problem.budget_bytes is None else problem.budget_bytes
        self.parts: dict[str, list[int]] = {}  # writers of each buffer that somebody reads or keeps
        self.fleeting: set[str] = set()  # the other buffers
        for tensor in self.size:
            writers = [j for j, outputs in enumerate(self.writes) if tensor in outputs]
            if len(writers) > 1 and (tensor in self.kept or any(tensor in reads for reads in self.reads)):
                self.parts[tensor] = writers
            elif len(writers) > 1:
                self.fleeting.add(tensor)

    def run(self) -> Optimum | None:
        start = _State((0,) * len(self.cost), -1, frozenset(), frozenset())
        best: dict[_State, int] = {start: 0}
        came: dict[_State, tuple[_State, int | None]] = {}
        heap = [(0, 0, start)]
        tick = itertools.count(1)
        while heap:
            cost, _, state = heapq.heappop(heap)
            if cost > best[state]:
                continue
            if all(state.runs) and self.kept <= state.live and not self.kept & state.gone:
                return Optimum(cost, self._schedule(state, came))
            for op, target in itertools.chain(self._frees(state), self._computes(state)):
                total = cost + (0 if op is None else self.cost[op])
                if total < best.get(target, math.inf):
                    best[target] = total
                    came[target] = state, op
                    heapq.heappush(heap, (total, next(tick), target))
        return None

    def _schedule(self, state: _State, came: dict[_State, tuple[_State, int | None]]) -> Schedule:
        ops: list[int] = []
        while state in came:
            state, op = came[state]
            if op is not None:
                ops.append(op)
        return Schedule.of_computes(self.graph, self.graph.arrays.order[ops[::-1]], source="exhaustive search")

    def _frees(self, state: _State) -> Iterator[tuple[None, _State]]:
        for tensor in state.live:
            if self._complete(tensor, state):
                gone = state.gone | {tensor} if tensor in self.parts else state.gone
                yield None, state._replace(live=state.live - {tensor}, gone=gone)

    def _complete(self, tensor: str, state: _State) -> bool:
        return all(state.runs[j] for j in self.parts.get(tensor, ()))

    def _computes(self, state: _State) -> Iterator[tuple[int, _State]]:
        n = len(self.cost)
        done = next((j for j in range(n) if not state.runs[j]), n)  # the op whose turn it is
        staged = self.scope.staged
        for j in range(n):
            limit = self.limit[j]
            if self.scope.order is OrderRule.FIXED and j > done:
                continue
            if staged and (j <= state.slot or done == n):
                continue
            if limit is not None and state.runs[j] >= limit:
                continue
            if not self.reads[j] <= state.live or not all(self._complete(t, state) for t in self.reads[j]):
                continue
            during = state.live | self.writes[j]
            if self.base + sum(self.size[t] for t in during) + self.workspace[j] > self.budget:
                continue
            after = during - self.fleeting - (self.writes[j] & state.gone)
            count = 1 if limit is None else state.runs[j] + 1  # how often matters only where it is limited
            slot = j if staged and j != done else -1
            yield j, _State((*state.runs[:j], count, *state.runs[j + 1 :]), slot, after, state.gone)
