"""Rules that make a single order, as compilers and frameworks do."""

from __future__ import annotations

import heapq
from abc import abstractmethod
from collections.abc import Callable, Iterator

import numpy as np

from remat.ordering.base import OnOrder, Ordering, OrderSearch
from remat.ordering.instance import OrderInstance
from remat.runtime.arrays import Int
from remat.runtime.deadline import Deadline, OverdueError


class Ready:
    """Ready ops, and bytes per op, updated from step to step."""

    def __init__(self, instance: OrderInstance) -> None:
        self.live = instance.start
        """Bytes held between steps."""
        self._size, self._kept = instance.size.tolist(), instance.kept.tolist()
        self._inputs, self._outputs = instance.op_inputs.lists(), instance.op_outputs.lists()
        self._writers, self._readers = instance.producers.lists(), instance.consumers.lists()
        self._after = instance.successors.lists()
        self._waiting = instance.predecessors.counts.tolist()
        # remaining uses; kept tensors have one that never comes
        uses = instance.producers.counts + instance.consumers.counts + instance.kept
        self._uses, self._begun = uses.tolist(), instance.live.tolist()
        self._done = [False] * instance.num_ops
        allocates = instance.op_outputs.sums(np.where(instance.live, 0, instance.size))
        last = np.where(uses == 1, instance.size, 0)
        self.need: list[int] = (allocates + instance.workspace).tolist()
        """Bytes that the step of each op adds while it runs: tensors it allocates and its workspace."""
        self.growth: list[int] = (allocates - instance.op_inputs.sums(last) - instance.op_outputs.sums(last)).tolist()
        """Net bytes that each op adds: those it allocates, less those it frees."""
        self.ready = [op for op, count in enumerate(self._waiting) if not count]
        """Ops that are ready at the start, ascending."""

    def do(self, op: int) -> tuple[list[int], list[int]]:
        """Compute a ready op; return ops that became ready, and other ready ops that need or grow less; ascending."""
        self._done[op] = True
        self.live += self.growth[op]
        changed = []
        for tensor in self._outputs[op]:
            if not self._begun[tensor]:
                self._begun[tensor] = True
                for other in self._writers[tensor]:
                    if not self._done[other]:
                        self.need[other] -= self._size[tensor]
                        self.growth[other] -= self._size[tensor]
                        changed.append(other)
        for tensors in (self._inputs[op], self._outputs[op]):
            for tensor in tensors:
                self._uses[tensor] -= 1
                if self._uses[tensor] == 1 and not self._kept[tensor]:
                    users = (*self._readers[tensor], *self._writers[tensor])
                    last = next(other for other in users if not self._done[other])
                    self.growth[last] -= self._size[tensor]
                    changed.append(last)
        made = []
        for other in self._after[op]:
            self._waiting[other] -= 1
            if not self._waiting[other]:
                made.append(other)
        return made, [other for other in changed if not self._waiting[other] and other not in made]


#: Ops between two checks of the deadline.
PIECE = 1000


class Rule(OrderSearch):
    """Base of rules that make a single order; the bound is the structural one."""

    def search(
        self,
        instance: OrderInstance,
        *,
        deadline: Deadline | None = None,
        seed: int = 0,
        upper: int | None = None,
        on_order: OnOrder | None = None,
    ) -> Ordering:
        """Return one order and the structural bound; no order if the deadline passes first."""
        bound = instance.structural_bound
        none = Ordering(None, None, bound if upper is None else min(bound, upper))
        try:
            order = self.order(instance, deadline or Deadline())
        except OverdueError:
            return none
        peak = instance.peak_of(order)
        return none if upper is not None and peak >= upper else Ordering(order, peak, bound)

    @abstractmethod
    def order(self, instance: OrderInstance, deadline: Deadline) -> Int:
        """Return the order.

        Raises
        ------
        OverdueError
            At the deadline.
        """


def kahn_order(instance: OrderInstance, deadline: Deadline | None = None) -> Int:
    """Return Kahn's order: the op that has been ready for the longest time comes next.

    Source: A. B. Kahn, Topological sorting of large networks, 1962. Ops that are ready at the start, or become ready
    with the same op, come in the reference order.

    Examples
    --------
    >>> from remat import Problem
    >>> from remat.graphs.families import unit_chain
    >>> kahn_order(OrderInstance.of(Problem(unit_chain(3)))).tolist()
    [0, 1, 2, 3, 4, 5, 6]
    """
    waiting = instance.predecessors.counts.tolist()
    after = instance.successors.lists()
    queue = [op for op, count in enumerate(waiting) if not count]
    for op in (deadline or Deadline()).each(queue, PIECE):  # the queue grows meanwhile
        for other in after[op]:
            waiting[other] -= 1
            if not waiting[other]:
                queue.append(other)
    order = instance.reference
    order[:] = queue
    return order


class Kahn(Rule):
    """Kahn's order, first in, first out: used by many frameworks, and the starting point of Serenity."""

    name = "kahn"

    def order(self, instance: OrderInstance, deadline: Deadline) -> Int:
        return kahn_order(instance, deadline)


class DepthFirst(Rule):
    """Depth first, small ops first: the dependencies of an op are computed right before it.

    Ops are visited in ascending order of the bytes that they read and write. A visit computes the missing dependencies
    in the same order, and then the op.

    Source: `topological_sort_dfs` of PyTorch's inductor (torch/_inductor/memory.py).
    """

    name = "depth-first"

    def order(self, instance: OrderInstance, deadline: Deadline) -> Int:
        need = (instance.op_bytes - instance.held - instance.workspace).tolist()
        return post_order(instance, lambda op: (need[op], op), range(instance.num_ops), deadline)


class ExtraUsersFirst(Rule):
    """Depth first from the last ops, many readers first: tensors with many readers are computed early.

    The extra users of an op are its readers beyond one, plus those of the ops it depends on, counted once per path. The
    traversal starts at ops without readers and computes the dependencies of an op before it. Those with most extra
    users come first, and of these the ones with most bytes, including the bytes of their own dependencies.

    Source: the depth-first memory scheduler of XLA (hlo_memory_scheduler.cc), with its limits of both sums: the number
    of ops, and the bytes of all of them.
    """

    name = "extra-users-first"

    def order(self, instance: OrderInstance, deadline: Deadline) -> Int:
        before, readers = instance.predecessors.lists(), instance.successors.counts.tolist()
        extra, total = [max(0, count - 1) for count in readers], instance.op_outputs.sums(instance.size).tolist()
        everything = sum(total)
        for op in deadline.each(range(instance.num_ops), PIECE):
            extra[op] = min(extra[op] + sum(extra[u] for u in before[op]), instance.num_ops)
            total[op] = min(total[op] + sum(total[u] for u in before[op]), everything)
        ends = (op for op, count in enumerate(readers) if not count)
        return post_order(instance, lambda op: (-extra[op], -total[op], op), ends, deadline)


def post_order(
    instance: OrderInstance, key: Callable[[int], tuple[int, ...]], roots: Iterator[int] | range, deadline: Deadline
) -> Int:
    """Return an order with every op after its dependencies, which are visited in ascending order of a key."""
    before, seen = instance.predecessors.lists(), [False] * instance.num_ops
    made: list[int] = []
    for root in deadline.each(sorted(roots, key=key), PIECE):
        if seen[root]:
            continue
        seen[root] = True
        path = [(root, iter(sorted(before[root], key=key)))]
        while path:  # recursion would be as deep as the longest path
            op, rest = path[-1]
            following = next((u for u in rest if not seen[u]), None)
            if following is None:
                made.append(op)
                path.pop()
                if len(made) % PIECE == 0:
                    deadline.check()
            else:
                seen[following] = True
                path.append((following, iter(sorted(before[following], key=key))))
    order = instance.reference
    order[:] = made
    return order


class ListOrder(Rule):
    """Take the ready op that frees most beyond what it allocates; of several, the one with most readers.

    Source: the list scheduler of XLA (hlo_memory_scheduler.cc). There ties go to the op that entered the queue last;
    here they go to the reference order.
    """

    name = "list-order"

    def order(self, instance: OrderInstance, deadline: Deadline) -> Int:
        state, readers = Ready(instance), instance.successors.counts.tolist()
        growth, done = state.growth, [False] * instance.num_ops
        heap = [(growth[op], -readers[op], op) for op in state.ready]
        heapq.heapify(heap)
        order = instance.reference
        for step in deadline.each(range(instance.num_ops), PIECE):
            grows, _, op = heapq.heappop(heap)
            while done[op] or grows != growth[op]:  # an outdated entry with a higher growth
                grows, _, op = heapq.heappop(heap)
            order[step], done[op] = op, True
            made, changed = state.do(op)
            for other in (*made, *changed):
                heapq.heappush(heap, (growth[other], -readers[other], other))
        return order


class LeastPeakFirst(Rule):
    """Take the ready op that keeps the peak so far and leaves least; if none keeps the peak, the smallest.

    That is the op with the least ``max(bytes held at its step, peak so far)``, and of several the one with the least
    growth. Ties go to the reference order.

    Source: `topological_sort_lpmf` of PyTorch's inductor (torch/_inductor/memory.py).
    """

    name = "least-peak-first"

    def order(self, instance: OrderInstance, deadline: Deadline) -> Int:
        state, peak = Ready(instance), instance.start
        done = [False] * instance.num_ops
        # ops that keep the peak, by growth, and others, by need; both may contain outdated entries
        fits: list[tuple[int, int]] = []
        others = [(state.need[op], state.growth[op], op) for op in state.ready]
        heapq.heapify(others)
        order = instance.reference
        for step in deadline.each(range(instance.num_ops), PIECE):
            room = peak - state.live
            while others and others[0][0] <= room:
                need, growth, op = heapq.heappop(others)
                if not done[op] and (need, growth) == (state.need[op], state.growth[op]):
                    heapq.heappush(fits, (growth, op))
            chosen = -1
            while fits and chosen < 0:
                growth, op = heapq.heappop(fits)
                if done[op] or growth != state.growth[op]:
                    continue
                if state.need[op] <= room:
                    chosen = op
                else:
                    heapq.heappush(others, (state.need[op], growth, op))
            while chosen < 0:
                need, growth, op = heapq.heappop(others)
                if not done[op] and (need, growth) == (state.need[op], state.growth[op]):
                    chosen = op
            order[step], done[chosen] = chosen, True
            peak = max(peak, state.live + state.need[chosen])
            made, changed = state.do(chosen)
            for op in (*made, *changed):
                heapq.heappush(others, (state.need[op], state.growth[op], op))
        return order


#: The rules, fastest first.
RULES: tuple[type[Rule], ...] = (Kahn, DepthFirst, ExtraUsersFirst, ListOrder, LeastPeakFirst)
