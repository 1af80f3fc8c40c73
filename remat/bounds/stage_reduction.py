"""Smaller problems whose stage relaxations bound the same costs: fewer tensors, merged ops, limits of computes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from remat.graphs.graph import Op
from remat.problem import Problem
from remat.runtime.arrays import Bool


class Known(NamedTuple):
    """Costs of a problem that limit how often ops run again.

    No schedule costs less than `bound`, by the stage relaxation with `event` alone. Only schedules that cost less than
    `enough` are sought.
    """

    event: int
    bound: int
    enough: int


@dataclass(eq=False)
class StageReduction:
    r"""Problem with fewer ops and tensors, for slim stage relaxations with given events.

    Its slim relaxation bounds the cost of the problem's schedules, or of those that cost less than a known cost. It has
    the same optimum if no tensors are negligible.

    1. *Negligible tensors are left out*: the smallest ones, which together take at most `negligible` bytes. The step of
       an op that reads or writes one keeps its bytes, as workspace. Schedules need no more memory then, and have the
       same cost.
    2. *Ops are merged*: a writer of a single tensor :math:`t` with its only reader, if that reads no other tensor that
       has to be kept, and writes no more bytes than :math:`t` has; no event may be at either op or between them.
       *Proof.* Let the reader run wherever the writer runs, and hold its outputs wherever :math:`t` is live at an
       event. Each run of the writer that is of use is followed by a run of the reader before the next, so this costs
       no more and keeps the smaller limit of the two.
    3. *Limits of computes* (with `known`). Let :math:`L` be the optimum of the relaxation with the event :math:`e`
       alone, and :math:`U` the cost to undercut. A schedule with a cost below :math:`U` computes an op of cost
       :math:`c` at most :math:`1 + \lfloor (U - 1 - L) / c \rfloor` times, and once more if its first compute is not
       after :math:`e`. *Proof.* The relaxation with :math:`e` alone counts one run of an op after :math:`e`, and none
       of those whose first compute is later. Every other run adds :math:`c` to a cost of at least :math:`L`. ∎

    Parameters
    ----------
    problem : Problem
        Without in-place pairs.
    at : sequence of int
        Positions of the events in the reference order, ascending.
    known : Known, optional
    negligible : int

    Attributes
    ----------
    reduced : Problem
    events : list of int
        Positions of the same steps in the reference order of `reduced`.
    """

    problem: Problem
    at: Sequence[int]
    known: Known | None = None
    negligible: int = 0

    def __post_init__(self) -> None:
        problem, graph = self.problem, self.problem.graph
        arrays = graph.arrays
        limits = self._limits()
        self._dropped = self._negligible()
        self._instead: list[tuple[int, list[int]]] = []  # tensors between merged ops, and those in their place
        ops = self._ops()
        for op in arrays.order.tolist():
            self._merge(op, ops, limits)
        order = [op for op in arrays.order.tolist() if op in ops]
        used = {tensor for op in order for tensor in (*ops[op].inputs, *ops[op].outputs)}
        kept = problem.kept & ~self._dropped
        used.update(name for name, stays in zip(graph.tensor_names, kept.tolist(), strict=True) if stays)
        used.update(graph.inputs)
        small = replace(
            graph,
            tensors=[tensor for tensor in graph.tensors if tensor.name in used],
            ops=[ops[op] for op in order],
            outputs=[name for name in graph.outputs if name in used],
            order=[ops[op].name for op in order],
        )
        most = {ops[op].name: limit for op in order if (limit := limits[op]) is not None}
        self.reduced = replace(
            problem, graph=small, budget=problem.budget_bytes, max_computes=most, keep=problem.keep & used
        )
        place = {op: number for number, op in enumerate(order)}
        self.events = [place[int(arrays.order[event])] for event in self.at]

    def original(self, held: Bool) -> Bool:
        """Return tensors of the problem that are held at each event, given those of the reduced one.

        Negligible ones that are of use later are held, too, while there is room: those to keep, then the smallest.
        Shapes (events, tensors).
        """
        arrays, names = self.problem.graph.arrays, self.problem.graph.tensor_index
        tensors = np.array([names[name] for name in self.reduced.graph.tensor_names], dtype=np.int64)
        found = np.zeros((len(self.at), len(arrays.size)), dtype=np.bool_)
        found[:, tensors] = held
        small = np.flatnonzero(self._dropped)
        kept = self.problem.kept
        small = small[np.lexsort((arrays.size[small], ~kept[small]))]
        first = arrays.producers.lowest(arrays.position, len(arrays.cost))
        last = np.where(kept, len(arrays.cost), arrays.consumers.highest(arrays.position, -1))
        for event, mask in zip(self.at, found, strict=True):
            op = arrays.order[event]
            there = np.zeros(len(arrays.size), dtype=np.bool_)
            there[arrays.op_inputs[op]] = there[arrays.op_outputs[op]] = True
            room = (self.problem.budget_bytes or 0) - self.problem.constant_bytes - int(arrays.op_bytes[op])
            room -= int(arrays.size[mask & ~there].sum())
            wanted = small[(first[small] < event) & (last[small] > event) & ~there[small]]
            mask[wanted[np.cumsum(arrays.size[wanted]) <= room]] = True
        return found

    def merged(self, held: Bool) -> Bool:
        """Return `held`, shape (events, tensors), with outputs of merged ops in place of the tensors between them."""
        found = held.copy()
        for tensor, outputs in self._instead:
            found[:, outputs] |= found[:, [tensor]]
        return found

    def _negligible(self) -> Bool:
        """Mark the tensors that are left out: all of the same size, or none."""
        arrays = self.problem.graph.arrays
        free = ~arrays.is_input
        size, count = np.unique(arrays.size[free], return_counts=True)
        small = size[np.cumsum(size * count) <= self.negligible]
        return free & (arrays.size <= small.max(initial=-1))

    def _limits(self) -> list[int | None]:
        """Return the most computes of each op of the problem, by position."""
        arrays, limits = self.problem.graph.arrays, list(self.problem.compute_limits)
        if self.known is None:
            return limits
        room = max(0, self.known.enough - 1 - self.known.bound)
        early = arrays.position <= self.known.event
        for op, (cost, again) in enumerate(zip(arrays.cost.tolist(), early.tolist(), strict=True)):
            most = 1 + again + room // cost if cost else len(self.at) + 2
            if most < len(self.at) + 2:  # in the relaxation ops run once, and once more in each stage
                limits[op] = _least(limits[op], most)
        return limits

    def _ops(self) -> dict[int, Op]:
        """Return the ops without negligible tensors, whose bytes count as workspace."""
        arrays, graph = self.problem.graph.arrays, self.problem.graph
        dropped = {name for name, out in zip(graph.tensor_names, self._dropped.tolist(), strict=True) if out}
        size = np.where(self._dropped, arrays.size, 0)
        bytes_out = arrays.op_inputs.sums(size) + arrays.op_outputs.sums(size)
        return {
            number: replace(
                op,
                inputs=tuple(name for name in op.inputs if name not in dropped),
                outputs=tuple(name for name in op.outputs if name not in dropped),
                workspace=op.workspace + int(bytes_out[number]),
            )
            for number, op in enumerate(graph.ops)
        }

    def _merge(self, writer: int, ops: dict[int, Op], limits: list[int | None]) -> None:
        """Merge an op with the reader of its output, if that is allowed."""
        arrays, index = self.problem.graph.arrays, self.problem.graph.tensor_index
        tensors = [index[name] for name in ops[writer].outputs]
        if len(tensors) != 1 or self.problem.kept[tensors[0]] or arrays.producers.counts[tensors[0]] != 1:
            return
        readers = arrays.consumers[tensors[0]]
        if len(readers) != 1:
            return
        reader = int(readers[0])
        op, since, until = ops[reader], int(arrays.position[writer]), int(arrays.position[reader])
        if bisect_left(self.at, since) != bisect_right(self.at, until):
            return
        inputs, outputs = ([index[name] for name in names] for names in (op.inputs, op.outputs))
        others = [tensor for tensor in inputs if tensor != tensors[0] and not arrays.is_input[tensor]]
        fits = arrays.size[outputs].sum() <= arrays.size[tensors[0]] and (arrays.producers.counts[outputs] == 1).all()
        if others or not fits:
            return
        own = [name for name in op.inputs if arrays.is_input[index[name]]]
        both = tuple(dict.fromkeys([*ops[writer].inputs, *own]))
        ops[reader] = replace(op, inputs=both, cost=op.cost + ops[writer].cost)
        limits[reader] = _least(limits[reader], limits[writer])
        self._instead.append((tensors[0], outputs))
        del ops[writer]


def _least(limit: int | None, other: int | None) -> int | None:
    """Return the smaller of two limits; None is no limit."""
    return other if limit is None else limit if other is None else min(limit, other)
