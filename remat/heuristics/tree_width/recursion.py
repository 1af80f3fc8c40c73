"""Recursion of TW-Remat with an explicit stack, and the compute sequence it makes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from remat.heuristics.retention import inputs_by_position, missing_inputs
from remat.heuristics.tree_width.separators import SeparatorTree
from remat.problem import Problem
from remat.problem.op_sequence import allowed_computes
from remat.runtime.arrays import Int
from remat.runtime.deadline import Deadline
from remat.schedule import OrderRule

#: A part, and the values wanted of it.
Call = tuple[int, list[int]]


class LongSequenceError(Exception):
    """Raised when a sequence exceeds its limit of computes."""


class Ops:
    """Data of a problem for the recursion: ops by position in the reference order, and their inputs.

    Attributes
    ----------
    inputs : list of list of int
        Ops that each op reads from, ascending.
    limits : list of int
        Largest number of computes of each op: one for the several writers of a buffer.
    sinks : list of int
        Ops whose values have no reader.
    """

    def __init__(self, problem: Problem) -> None:
        arrays = problem.graph.arrays
        self.inputs = inputs_by_position(problem)
        self.sinks = arrays.position[arrays.op_successors.counts == 0].tolist()
        self.limits: list[int] = allowed_computes(problem, np.iinfo(np.int64).max)[arrays.order].tolist()
        self.in_order = problem.order is OrderRule.FIXED

    @property
    def neighbours(self) -> list[list[int]]:
        """Ops that each op reads from or is read by."""
        both: list[list[int]] = [list(row) for row in self.inputs]
        for op, row in enumerate(self.inputs):
            for other in row:
                both[other].append(op)
        return both


def sequence_of(ops: Ops, tree: SeparatorTree, cut_off: int, most: int, deadline: Deadline) -> Int:
    """Return the computes of TW-Remat by position; parts of at most `cut_off` ops run in order, without drops.

    Raises
    ------
    LongSequenceError
        If there are more than `most`.
    OverdueError
        At the deadline.

    Notes
    -----
    Kumar et al., *Efficient Rematerialization for Deep Networks* (NeurIPS 2019), algorithm 1. Of a part with separator
    X, the wanted values of X and all that they need are computed in order. Before each op, its inputs in the parts
    below are computed, and these parts hold nothing else. At the end the wanted values of the parts below follow.
    """
    recursion = _Recursion(ops, tree, cut_off, _Machine(ops, most))
    stack = [recursion.leave(0, sorted(ops.sinks))]
    while stack:
        deadline.check()
        following = next(stack[-1], None)
        if following is None:
            stack.pop()
        else:
            stack.append(recursion.leave(*following))
    return np.array(recursion.machine.sequence, dtype=np.int64)


@dataclass(frozen=True)
class _Recursion:
    """Calls of the recursion, each of which yields those that it waits for."""

    ops: Ops
    tree: SeparatorTree
    cut_off: int
    machine: _Machine

    def leave(self, part: int, wanted: list[int]) -> Iterator[Call]:
        """Compute the wanted values of a part, and hold no others, given all that it needs from outside."""
        home, inputs, end = self.tree.home, self.ops.inputs, self.tree.end[part]
        needed, found = set(wanted), list(wanted)
        for op in found:
            for other in inputs[op]:
                if other not in needed and part <= home[other] < end:
                    needed.add(other)
                    found.append(other)
        whole = self.tree.num_nodes[part] <= self.cut_off
        children = [] if whole else self.tree.children[part]
        own = sorted(op for op in needed if whole or home[op] == part)

        def below(values: list[int]) -> dict[int, list[int]]:
            """Return the values in the parts below, by part."""
            parts: dict[int, list[int]] = {}
            for value in values:
                if children and part < home[value] < end:
                    parts.setdefault(children[bisect_right(children, home[value]) - 1], []).append(value)
            return parts

        for op in own:
            read = below(inputs[op])
            yield from read.items()
            self.machine.compute(op)
            for values in read.values():
                self.machine.drop(values)
        yield from below(wanted).items()
        kept = set(wanted)
        self.machine.drop([op for op in own if op not in kept])


class _Machine:
    """Execution of the recursion's calls, which skips live values and keeps the required order of first computes."""

    def __init__(self, ops: Ops, most: int) -> None:
        self.ops, self.most = ops, most
        self.counts = [0] * len(ops.inputs)
        self.live: set[int] = set()
        self.sequence: list[int] = []
        self.following = 0
        """Position up to which every op has been computed, where the order is fixed."""

    def compute(self, op: int) -> None:
        """Compute a value unless it is live, and before its first compute all earlier ops."""
        if op in self.live:
            return
        if self.ops.in_order and not self.counts[op]:
            for earlier in range(self.following, op):
                if not self.counts[earlier]:
                    self._regain(earlier)
                    self._run(earlier)
            self.following = max(self.following, op + 1)
            self._regain(op)
        self._run(op)

    def drop(self, values: list[int]) -> None:
        """Drop values, except those that cannot be recomputed."""
        self.live.difference_update(v for v in values if self.counts[v] < self.ops.limits[v])

    def _run(self, op: int) -> None:
        self.sequence.append(op)
        self.counts[op] += 1
        self.live.add(op)
        if len(self.sequence) > self.most:
            raise LongSequenceError

    def _regain(self, op: int) -> None:
        """Compute the missing inputs of an op temporarily, since the recursion does not provide them this early."""
        missing = missing_inputs(op, self.ops.inputs, self.live)
        for value in missing:
            self._run(value)
        self.drop(missing)
