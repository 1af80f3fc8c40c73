"""Online heuristics: compute in the given order, drop values when memory is short, recompute those that are read."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from remat.heuristics.base import Heuristic, HeuristicRun
from remat.problem import Problem
from remat.problem.op_sequence import order_of, standing_buffers, useful_schedule
from remat.runtime.checked_options import Options, Positive
from remat.runtime.deadline import Deadline, OverdueError
from remat.schedule import OrderRule, Schedule


class OnlineHeuristic(Heuristic):
    """Heuristic that computes ops in the reference order or, if the order is free, in that of the start."""

    def run(self, problem: Problem, run: HeuristicRun) -> Schedule | None:
        order = problem.graph.arrays.order
        if run.start is not None and problem.order is OrderRule.FREE:
            order = order_of(problem, run.start)
        try:
            sequence = self.sequence(problem, order.tolist(), run.deadline)
        except OverdueError:
            return None
        return None if sequence is None else useful_schedule(problem, np.array(sequence, dtype=np.int64), self.name)

    @abstractmethod
    def sequence(self, problem: Problem, order: list[int], deadline: Deadline) -> Sequence[int] | None:
        """Return the computes for ops in this order; None if the method gives up.

        Raise OverdueError at the deadline.
        """


@dataclass(frozen=True)
class EvictionOptions(Options):
    """Options of :class:`Eviction`."""

    most_computes: Positive = 20
    """Average computes per op after which the run gives up."""


class Eviction(OnlineHeuristic):
    """Eviction as in dynamic tensor rematerialization, with knowledge of future reads.

    Ops are computed in the reference order or, if the order is free, in that of the start. When memory is short, a
    value that no pending compute needs is dropped: first values without further use by later ops. Then comes the one
    with the most bytes times steps to its next use, per unit of its cost. A dropped input is recomputed just before it
    is read, and so, recursively, are its own inputs; inputs of pending computes stay. Inputs whose recomputation needs
    most memory come first. Accumulation buffers are held from the first contribution to the last read.

    After Kirisame et al., *Dynamic Tensor Rematerialization* (ICLR 2021), which ignores future reads. It saves
    memory rather than time. On training graphs of convolutional networks they mostly reach the least
    feasible budget in a fraction of a second; on wide random graphs it gives up early.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> from remat.heuristics import HeuristicRun
    >>> from remat.schedule import simulate
    >>> problem = Problem(unit_chain(8), 3)
    >>> simulate(problem.graph, Eviction().run(problem, HeuristicRun())).peak
    3
    """

    name = "eviction"
    options_type = EvictionOptions

    def sequence(self, problem: Problem, order: list[int], deadline: Deadline) -> list[int] | None:
        return self.machine(problem, order, deadline).run()

    def machine(self, problem: Problem, order: list[int], deadline: Deadline) -> Machine:
        """Return the simulated memory with this method's eviction rule, for ops in this order."""
        return Machine(problem, order, self.options.most_computes * len(order), deadline)


@dataclass
class Making:
    """Pending compute of an op: inputs still to be provided, and tensors that must stay until it is done."""

    op: int
    inputs: list[int]
    pinned: list[int] = field(default_factory=list)


class Machine:
    """Simulated memory during a run; ops and tensors by number.

    Raise OverdueError at the deadline, also during construction: 20,000 ops and half a million links take half a
    second.
    """

    def __init__(self, problem: Problem, order: list[int], most: int, deadline: Deadline) -> None:
        arrays = problem.graph.arrays
        standing, workspace = standing_buffers(problem)
        ordinary = arrays.producers.counts == 1
        self.order, self.most, self.deadline, each = order, most, deadline, deadline.each
        self.inputs = [[t for t in row if not arrays.is_input[t]] for row in each(arrays.op_inputs.lists())]
        self.outputs = [[t for t in row if ordinary[t] or standing[t]] for row in each(arrays.op_outputs.lists())]
        self.writer = [row[0] if row else -1 for row in arrays.producers.lists()]
        self.droppable = ordinary.tolist()
        self.size, self.cost = arrays.size.tolist(), arrays.cost.tolist()
        self.workspace = workspace.tolist()
        self.limits, self.counts = problem.compute_limits, [0] * len(order)
        self.kept = np.flatnonzero(problem.kept & ~arrays.is_input).tolist()
        at = {op: place for place, op in enumerate(order)}
        self.uses = [sorted(at[op] for op in row) for row in each(arrays.consumers.lists())]
        for tensor in self.kept:
            self.uses[tensor].append(len(order))
        self.width = [0] * len(order)  # rough estimate of the bytes for computing an op with no live inputs
        for op in each(order):
            own = sum(self.size[t] for t in (*self.inputs[op], *self.outputs[op]))
            self.width[op] = max([own, *(self.width[self.writer[t]] for t in self.inputs[op])])
        self.left = -1 if problem.budget_bytes is None else problem.budget_bytes
        self.left -= arrays.input_bytes + problem.constant_bytes
        self.unlimited = problem.budget_bytes is None
        self.live: set[int] = set()
        self.pins = [0] * len(self.size)
        self.now = 0
        self.sequence: list[int] = []

    def run(self) -> list[int] | None:
        """Return the computes, or None if the run gave up.

        Raise OverdueError at the deadline.
        """
        for place, op in enumerate(self.order):
            self.now = place
            if not self.make(op):
                return None
        self.now = len(self.order)
        for tensor in self.kept:  # live ones stay, since they are used at the end
            if tensor not in self.live and not self.make(self.writer[tensor]):
                return None
        return self.sequence if self.live.issuperset(self.kept) else None

    def make(self, op: int) -> bool:
        """Compute `op` after all missing inputs; return False if memory or computes run out."""
        stack = [self.begin(op)]
        while stack:
            self.deadline.check()
            making = stack[-1]
            if making.inputs:
                tensor = making.inputs[-1]
                if tensor in self.live:
                    making.inputs.pop()
                    self.pin(making, tensor)
                elif self.droppable[tensor] and self.may_run(self.writer[tensor]):
                    stack.append(self.begin(self.writer[tensor]))
                else:
                    return False
                continue
            if not self.compute(making):
                return False
            stack.pop()
        return True

    def begin(self, op: int) -> Making:
        """Start a compute: pin live inputs and list the others, the last one to be made first."""
        making = Making(op, [])
        for tensor in self.inputs[op]:
            if tensor in self.live:
                self.pin(making, tensor)
            else:
                making.inputs.append(tensor)
        making.inputs.sort(key=lambda t: self.width[self.writer[t]])
        return making

    def pin(self, making: Making, tensor: int) -> None:
        """Hold a tensor until `making` is done."""
        self.pins[tensor] += 1
        making.pinned.append(tensor)

    def may_run(self, op: int) -> bool:
        """Return True if the limits allow another compute."""
        limit = self.limits[op]
        return (limit is None or self.counts[op] < limit) and len(self.sequence) < self.most

    def compute(self, making: Making) -> bool:
        """Compute the op of `making`, whose inputs are live; return False without memory or computes left."""
        op = making.op
        new = []
        for tensor in self.outputs[op]:
            if tensor in self.live:
                self.pin(making, tensor)
            else:
                new.append(tensor)
        needed = sum(self.size[t] for t in new)
        if not self.may_run(op) or not self.make_room(needed + self.workspace[op]):
            return False
        self.live.update(new)
        self.left -= needed
        self.counts[op] += 1
        self.sequence.append(op)
        for tensor in making.pinned:
            self.pins[tensor] -= 1
        return True

    def make_room(self, needed: int) -> bool:
        """Drop tensors until that many bytes are free; return False if no more can be dropped."""
        while self.left < needed and not self.unlimited:
            self.deadline.check()
            going = [t for t in self.live if not self.pins[t] and self.replaceable(t)]
            if not going:
                return False
            self.drop(self.victim(going))
        return True

    def victim(self, going: list[int]) -> int:
        """Return the tensor to drop first."""
        return max(going, key=lambda t: (*self.idle(t), -t))

    def drop(self, tensor: int) -> None:
        """Drop a tensor."""
        self.live.remove(tensor)
        self.left += self.size[tensor]

    def replaceable(self, tensor: int) -> bool:
        """Return True if a tensor can be dropped: it has no further use, or can be recomputed."""
        return self.next_use(tensor) is None or (self.droppable[tensor] and self.may_run(self.writer[tensor]))

    def next_use(self, tensor: int) -> int | None:
        """Return the position of the next op that reads the tensor, or of the end; None without a use."""
        uses = self.uses[tensor]
        place = bisect_left(uses, self.now)
        return uses[place] if place < len(uses) else None

    def idle(self, tensor: int) -> tuple[bool, float]:
        """Return the drop priority of a tensor: no further use, then bytes times steps to its next use per cost."""
        following = self.next_use(tensor)
        steps = (len(self.order) if following is None else following) - self.now
        return following is None, steps * self.size[tensor] / (1 + self.cost[self.writer[tensor]])
