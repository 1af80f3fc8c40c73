"""Dynamic tensor rematerialization: online eviction by the published scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from remat.heuristics.eviction import Eviction, EvictionOptions, Machine, Making
from remat.problem import Problem
from remat.runtime.deadline import Deadline

Score = Literal["dtr-eq", "dtr", "dtr-local", "lru", "size", "msps"]


@dataclass(frozen=True)
class DtrOptions(EvictionOptions):
    """Options of :class:`Dtr`."""

    score: Score = "dtr-eq"
    """Score of tensors, the least of which is evicted first: ``"dtr"``, ``"dtr-eq"``, ``"dtr-local"``, ``"lru"``,
    ``"size"`` or ``"msps"``; see :class:`Dtr`."""


class Dtr(Eviction):
    """Dynamic tensor rematerialization: run ops in order; evict the tensor of least score when memory is short.

    The scores follow from m, the bytes of a tensor; s, the time since it was last read or written; c, the cost of its
    op; and N, the costs of evicted neighbours::

        dtr        (c + N) / (m s)   N: evicted tensors that t is computed from, and that are computed from t, each
                                     through evicted tensors alone
        dtr-eq     (c + N) / (m s)   N: sums of the classes of the evicted neighbours; a union-find structure joins
                                     classes at evictions, and recomputation only subtracts the tensor's own cost
        dtr-local  c / (m s)
        lru        1 / s
        size       1 / m
        msps       (c + N) / m       N: evicted tensors that t is computed from, alone

    Time is the cost of all computes so far. An evicted input is recomputed just before it is read, and so, recursively,
    are its own inputs. A tensor without further reads in the program is evicted at once (*eager eviction*). The run
    gives up after `most_computes` computes per op, or when all remaining tensors are in use.

    Source: Kirisame et al., *Dynamic Tensor Rematerialization*, ICLR 2021, sections 3 and 4; ``msps`` after Peng et
    al., *Capuchin*, ASPLOS 2020. The method is online: unlike `eviction` it ignores the next read of a tensor. Its cost
    is not monotone in the budget.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> from remat.heuristics import HeuristicRun
    >>> problem = Problem(unit_chain(8), 5)
    >>> for score in ("dtr", "dtr-eq", "lru"):
    ...     found = problem.simulate(Dtr(DtrOptions(score=score)).run(problem, HeuristicRun()))
    ...     print(score, found.peak, found.cost)
    dtr 5 22
    dtr-eq 5 22
    lru 5 24
    """

    name = "dtr"
    options_type = DtrOptions

    def machine(self, problem: Problem, order: list[int], deadline: Deadline) -> Machine:
        return _Online(problem, order, self.options, deadline)


class _Online(Machine):
    """Simulated memory with a clock, evicted tensors and their classes."""

    def __init__(self, problem: Problem, order: list[int], options: DtrOptions, deadline: Deadline) -> None:
        super().__init__(problem, order, options.most_computes * len(order), deadline)
        self.score, self.clock = options.score, 0
        self.touched = [0] * len(self.size)
        readers = problem.graph.arrays.consumers.lists()
        outputs = problem.graph.arrays.op_outputs.lists()
        self.parents = [self.inputs[op] if op >= 0 else [] for op in self.writer]
        self.children = [[t for op in row for t in outputs[op]] for row in readers]
        self.gone: set[int] = set()
        self.classes = _Classes([self.cost[op] if op >= 0 else 0 for op in self.writer])

    def begin(self, op: int) -> Making:
        making = super().begin(op)
        lacking = set(making.inputs)
        making.inputs = [t for t in reversed(self.inputs[op]) if t in lacking]  # the first argument first
        return making

    def compute(self, making: Making) -> bool:
        lacking = [t for t in self.outputs[making.op] if t not in self.live]
        if not super().compute(making):
            return False
        for tensor in self.gone.intersection(lacking):
            self.gone.remove(tensor)
            self.classes.take_out(tensor)
        self.clock += self.cost[making.op]
        for tensor in (*making.pinned, *lacking):
            self.touched[tensor] = self.clock
        done = self.now + (making.op in self.order[self.now : self.now + 1])  # ops of the program
        for tensor in making.pinned:
            over = not self.uses[tensor] or self.uses[tensor][-1] < done
            if over and not self.pins[tensor] and self.droppable[tensor]:
                self.drop(tensor)  # eager eviction
        return True

    def victim(self, going: list[int]) -> int:
        return min(going, key=lambda t: (not self.size[t], not self.droppable[t], self.value(t), t))

    def drop(self, tensor: int) -> None:
        super().drop(tensor)
        self.gone.add(tensor)
        near = (*self.parents[tensor], *self.children[tensor])
        self.classes.put_in(tensor, [each for each in near if each in self.gone])

    def value(self, tensor: int) -> float:
        """Return the score of a tensor with a non-zero size."""
        size, stale = max(1, self.size[tensor]), 1 + self.clock - self.touched[tensor]
        cost = self.cost[self.writer[tensor]]
        match self.score:
            case "lru":
                return 1 / stale
            case "size":
                return 1 / size
            case "dtr-local":
                return cost / size / stale
            case "msps":
                return (cost + self.evicted_cost(tensor, self.parents)) / size
            case "dtr":
                around = self.evicted_cost(tensor, self.parents) + self.evicted_cost(tensor, self.children)
                return (cost + around) / size / stale
        near = [t for t in (*self.parents[tensor], *self.children[tensor]) if t in self.gone]
        return (cost + self.classes.total(near)) / size / stale

    def evicted_cost(self, tensor: int, neighbours: Sequence[Sequence[int]]) -> int:
        """Return the cost of the ops of evicted tensors reachable by `neighbours` through evicted tensors."""
        found, waiting = set[int](), [tensor]
        while waiting:
            new = [t for t in neighbours[waiting.pop()] if t in self.gone and t not in found]
            found.update(new)
            waiting += new
        return sum(self.cost[op] for op in {self.writer[t] for t in found})


class _Classes:
    """Classes of evicted tensors with the sums of their costs: union-find without splits.

    `costs`: cost of each tensor.

    Examples
    --------
    >>> classes = _Classes([3, 4, 5])
    >>> classes.put_in(0, []), classes.put_in(2, []), classes.put_in(1, [0, 2]), classes.total([0, 2])
    (None, None, None, 12)
    >>> classes.take_out(1), classes.total([0, 2])
    (None, 8)
    """

    def __init__(self, costs: Sequence[int]) -> None:
        self.costs, self.sums = costs, list(costs)
        self.root = list(range(len(costs)))
        self.at = list(range(len(costs)))  # class of each tensor; each eviction creates one

    def _find(self, place: int) -> int:
        while self.root[place] != place:
            self.root[place] = place = self.root[self.root[place]]
        return place

    def put_in(self, tensor: int, near: Sequence[int]) -> None:
        """Add an evicted tensor, and merge its class with those of evicted neighbours."""
        self.at[tensor] = home = len(self.root)
        self.root.append(home)
        self.sums.append(self.costs[tensor])
        for other in near:
            if (old := self._find(self.at[other])) != home:
                self.root[old] = home
                self.sums[home] += self.sums[old]

    def take_out(self, tensor: int) -> None:
        """Subtract the cost of a recomputed tensor from its class, which is not split."""
        self.sums[self._find(self.at[tensor])] -= self.costs[tensor]

    def total(self, tensors: Sequence[int]) -> int:
        """Return the total cost of the distinct classes of these tensors."""
        return sum(self.sums[place] for place in {self._find(self.at[t]) for t in tensors})
