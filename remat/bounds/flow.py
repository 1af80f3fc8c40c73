"""Minimum cuts over closed sets of ops, in exact integers.

The source side of the network is a set ``D`` of ops that is closed under dependence. The cut pays for the tensors on
the boundary of ``D``: those that an op in ``D`` writes and that are read outside ``D`` or kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from remat.graphs.arrays import Csr
from remat.problem import Problem
from remat.runtime.arrays import Bool, Int

#: A price that no cut pays.
UNLIMITED = 2**62


@dataclass(eq=False)
class BoundaryNetwork:
    """Flow network of a graph; each cut sets its own prices and terminals.

    Nodes:

    * each op ``u``, in ``D`` if it is on the source side, and its payment ``y(u)``;
    * for each tensor ``b(t)``, on the source side once an op in ``D`` writes it;
    * for each tensor ``x(t)``, on the sink side while an op outside ``D`` reads it.

    Arcs:

    * ``u -> y(u)`` with the price of giving up all outputs of ``u``;
    * ``b(t) -> x(t)`` with the price of holding ``t``;
    * unlimited: ``y(u) -> b(t)`` for each writer, ``x(t) -> w`` for each reader and ``w -> u`` for each dependence,
      source to ``b(t)`` for live tensors, and ``x(t)`` to sink for tensors to keep.

    OR-Tools computes the maximum flow.

    `predecessors`, `successors`, `writes` and `reads` list ops and tensors by op. `live` are tensors that are live at
    the start, `kept` those that must be live at the end.
    """

    predecessors: Csr
    successors: Csr
    writes: Csr
    reads: Csr
    live: Bool
    kept: Bool
    _tail: Int = field(init=False)
    _head: Int = field(init=False)

    def __post_init__(self) -> None:
        n, m = len(self.predecessors), len(self.kept)
        ops, tensors = np.arange(n), np.arange(m)
        pay, begun, ended = n + ops, 2 * n + tensors, 2 * n + m + tensors
        self._source, self._sink = 2 * (n + m), 2 * (n + m) + 1
        live, kept = np.flatnonzero(self.live), np.flatnonzero(self.kept)
        # The arcs with a price come first.
        parts: list[tuple[Int, Int]] = [
            (ops, pay),
            (begun, ended),
            (pay[self.writes.rows], begun[self.writes.indices]),
            (ended[self.reads.indices], self.reads.rows),
            (self.predecessors.rows, self.predecessors.indices),
            (np.full(len(live), self._source), begun[live]),
            (ended[kept], np.full(len(kept), self._sink)),
        ]
        self._tail, self._head = (np.concatenate([part[end] for part in parts]) for end in (0, 1))

    @classmethod
    def of(cls, problem: Problem) -> BoundaryNetwork:
        """Return the network of a problem, without graph inputs, which are always live."""
        arrays = problem.graph.arrays
        return cls(
            arrays.op_predecessors, arrays.op_successors, arrays.op_outputs, arrays.op_inputs.where(~arrays.is_input),
            np.zeros_like(problem.kept), problem.kept & ~arrays.is_input,
        )  # fmt: skip

    def cut(self, op: int, hold: Int, give_up: Int | None = None) -> int:
        """Return the price of the cheapest boundary of a closed set before `op` that contains all `op` depends on.

        `hold` is the price of holding each tensor; those that `op` reads or writes cost nothing. `give_up` is the price
        of giving up any number of an op's outputs; :data:`UNLIMITED`, or None for all ops, if impossible.
        """
        price = hold.copy()
        price[self.reads[op]] = 0
        price[self.writes[op]] = 0
        before, after = self.predecessors.reachable(op), np.append(self.successors.reachable(op), op)
        ends = np.full(len(before), self._source), np.full(len(after), self._sink)
        capacity = np.full(len(self._tail) + len(before) + len(after), UNLIMITED)
        if give_up is not None:
            capacity[: len(give_up)] = give_up
        capacity[len(self.predecessors) :][: len(price)] = price
        tail, head = np.concatenate([self._tail, ends[0], after]), np.concatenate([self._head, before, ends[1]])
        return int(maximum_flow(tail, head, capacity, self._source, self._sink).optimal_flow())


def maximum_flow(tail: Int, head: Int, capacity: Int, source: int, sink: int) -> Any:
    """Return the solved flow of OR-Tools from source to sink; no cut reaches arcs of capacity :data:`UNLIMITED`."""
    from ortools.graph.python.max_flow import SimpleMaxFlow

    # Least capacity that no cut reaches: the flow takes milliseconds with it, and seconds with 2^62.
    limited = capacity != UNLIMITED
    flow = SimpleMaxFlow()
    flow.add_arcs_with_capacity(tail, head, np.where(limited, capacity, capacity[limited].sum() + 1))
    status = flow.solve(source, sink)
    assert status == SimpleMaxFlow.OPTIMAL, status
    return flow
