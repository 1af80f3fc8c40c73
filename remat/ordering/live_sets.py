"""Sets of tensors as bits, for searches over live tensors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_

import numpy as np

from remat.problem import Problem
from remat.runtime.bits import bits, numbers

#: Largest number of tensors besides graph inputs, and of ops: two words.
MOST = 128


class LiveSets:
    """Ops of a problem as sets of tensors, in the reference order.

    Tensors are those that are no graph inputs, numbered by rising price per byte. Ops are numbered by position.

    Parameters
    ----------
    forget : bool
        Leave out tiny tensors: each at most 1/500 of the budget, together at most 1/100. Ops run without them. Every
        schedule of the problem is one without them too.

    Attributes
    ----------
    reads, writes : list of int
        Sets of tensors of each op, as bits of integers.
    readers : list of int
        Ops that read each tensor, as bits.
    writer : list of int
        Op that writes each tensor.
    kept : int
        Tensors to keep, as bits.
    size, price : lists
        By tensor: bytes, and the cost of its writer, divided by the number of that writer's outputs above 0 bytes.
    cost, room : lists of int
        By op: cost, and bytes for tensors while it runs.
    ends : list of int
        *Dead ends*: ops whose outputs are neither read nor kept.
    """

    def __init__(self, problem: Problem, *, forget: bool = False) -> None:
        arrays = problem.graph.arrays
        assert problem.budget_bytes is not None
        budget, order = problem.budget_bytes, arrays.order.tolist()
        tensors = np.flatnonzero(~arrays.is_input)
        if forget:
            tensors = tensors[np.argsort(arrays.size[tensors], kind="stable")]
            size = arrays.size[tensors]
            tensors = tensors[(size > budget / 500) | (np.cumsum(size) > budget / 100)]
        some = {t for t in tensors.tolist() if arrays.size[t]}
        cost, price = arrays.cost.tolist(), {}
        for op in order:
            written = arrays.op_outputs[op].tolist()
            share = cost[op] / max(1, len(some.intersection(written)))
            price.update(dict.fromkeys(written, share))
        rate = {t: price[t] / int(arrays.size[t]) if t in some else np.inf for t in tensors.tolist()}
        ranked = sorted(rate, key=lambda t: (rate[t], t))
        number = {tensor: k for k, tensor in enumerate(ranked)}
        self.reads = [bits(number[t] for t in arrays.op_inputs[op].tolist() if t in number) for op in order]
        self.writes = [bits(number[t] for t in arrays.op_outputs[op].tolist() if t in number) for op in order]
        self.readers = [bits(op for op, read in enumerate(self.reads) if read >> t & 1) for t in range(len(ranked))]
        self.writer = [next(op for op, written in enumerate(self.writes) if written >> t & 1) for t in number.values()]
        self.kept = bits(number[t] for t in np.flatnonzero(problem.kept).tolist() if t in number)
        self.size, self.price = [int(arrays.size[t]) for t in ranked], [price[t] for t in ranked]
        self.cost = [cost[op] for op in order]
        always = arrays.input_bytes + problem.constant_bytes
        self.room = [budget - always - int(arrays.workspace[op]) for op in order]
        used = reduce(or_, self.reads, self.kept)
        self.ends = [op for op, written in enumerate(self.writes) if not written & used]

    @staticmethod
    def applies(problem: Problem) -> bool:
        """Return True if a problem has a budget, one writer of each tensor, no limits of computes, and no in-place op.

        It has at most 128 ops, and 128 tensors besides graph inputs.
        """
        graph, arrays = problem.graph, problem.graph.arrays
        own = ~arrays.is_input
        return (
            problem.budget_bytes is not None
            and max(int(own.sum()), len(arrays.cost)) <= MOST
            and bool((arrays.producers.counts[own] == 1).all())
            and not graph.in_place
            and all(limit is None for limit in problem.compute_limits)
        )

    def size_of(self, tensors: int) -> int:
        """Return the bytes of a set of tensors."""
        return sum(self.size[t] for t in numbers(tensors))

    def ancestors(self) -> list[int]:
        """Return the ops that each op depends on, as bits."""
        before: list[int] = []
        for read in self.reads:
            before.append(reduce(or_, (before[self.writer[t]] | 1 << self.writer[t] for t in numbers(read)), 0))
        return before

    def fit(self, steps: Sequence[int]) -> bool:
        """Return True if ops can run in this order; each value is freed after its last use, and none is kept."""
        live = 0
        for op in reversed(steps):
            if self.size_of(live | self.reads[op] | self.writes[op]) > self.room[op]:
                return False
            live = live & ~self.writes[op] | self.reads[op]
        return not live
