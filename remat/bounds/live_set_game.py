"""Search backwards over sets of live tensors: the least peak at which a set can be live, and steps that reach it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

import numpy as np

from remat.problem import Problem
from remat.runtime.bits import bits, numbers
from remat.runtime.deadline import Deadline


class Stage(NamedTuple):
    """Ops that lead from one set of live tensors to another."""

    live: int
    ops: tuple[int, ...]


class Reached(NamedTuple):
    """Least peak at which a goal can be live, or a bound on it; `stages` lead there, None if it is only a bound."""

    peak: int
    stages: tuple[Stage, ...] | None


@dataclass
class LiveSetGame:
    """Sets of tensors that ops write, as bits numbered in the reference order, and steps backwards between them."""

    problem: Problem
    sizes: list[int] = field(init=False)
    writers: list[list[int]] = field(init=False)
    reads: list[int] = field(init=False)
    writes: list[int] = field(init=False)
    kept: int = field(init=False)

    def __post_init__(self) -> None:
        arrays = self.problem.graph.arrays
        last = arrays.producers.highest(arrays.position, -1)
        order = np.argsort(last, kind="stable")
        bit, own = np.argsort(order, kind="stable").tolist(), ~arrays.is_input
        self.sizes = arrays.size[order].tolist()
        self._position = arrays.position.tolist()
        producers = arrays.producers.shared_lists()
        self.writers = [sorted(producers[tensor], key=self._position.__getitem__) for tensor in order.tolist()]
        tables = arrays.op_inputs.shared_lists(), arrays.op_outputs.shared_lists()
        self.reads, self.writes = ([bits(bit[t] for t in row if own[t]) for row in table] for table in tables)
        self._inputs, self._outputs = ([list(numbers(row)) for row in rows] for rows in (self.reads, self.writes))
        self.kept = bits(bit[t] for t in np.flatnonzero(self.problem.kept & own).tolist())
        self._needs = arrays.op_bytes.tolist()
        self._produced: dict[tuple[int, int], tuple[int, ...] | None] = {}
        self._bound = -1

    def least(self, goal: int, bound: int, most: int, clock: Deadline) -> Reached:
        """Return the least peak at which the tensors of `goal` can be live together, at least `bound`.

        Beyond `most` sets or at the deadline, return a bound on it. Sets whose last op comes first in the reference
        order are expanded first, and of those the smallest.
        """
        while not clock.expired:
            self._bound, self._produced = bound, {}
            beyond, start = inf, self._reduced(goal)
            after: dict[int, tuple[int, int]] = {start: (-1, goal)}
            queue = [(start.bit_length(), self._bytes(start), start)]
            while queue:
                live = heappop(queue)[-1]
                if not live:
                    return Reached(bound, self._stages(after, goal))
                if len(after) > most or clock.expired:
                    return Reached(bound, None)
                for op in {op for tensor in numbers(live) for op in self.writers[tensor]}:
                    memory = self._memory(op, live)
                    if memory > bound:
                        beyond = min(beyond, memory)
                        continue
                    before = self._reduced(self._before(op, live))
                    if before not in after:
                        after[before] = op, live
                        heappush(queue, (before.bit_length(), self._bytes(before), before))
            bound = int(beyond)
        return Reached(bound, None)

    def _stages(self, after: dict[int, tuple[int, int]], goal: int) -> tuple[Stage, ...]:
        """Return the stages from the empty set to `goal`."""
        stages, live, op = [], 0, -1
        while True:
            op, following = after[live]
            whole = goal if op < 0 else self._before(op, following)
            stages.append(Stage(live, (*self._restored(whole), *((op,) if op >= 0 else ()))))
            if op < 0:
                return tuple(stages)
            live = following

    def _reduced(self, live: int) -> int:
        """Leave out tensors that can be computed while the others stay live: the smaller set suffices."""
        return live & ~bits(tensor for tensor, _ in self._left_out(live))

    def _restored(self, live: int) -> list[int]:
        """Return the ops that compute the tensors that :meth:`_reduced` leaves out of a set."""
        return [op for _, ops in reversed(list(self._left_out(live))) for op in ops]

    def _left_out(self, live: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield the tensors that :meth:`_reduced` leaves out, the last one first, and the ops that compute each."""
        for tensor in reversed(list(numbers(live))):
            others = live & ~(1 << tensor)
            ops = self._production(tensor, others)
            if ops is not None:
                live = others
                yield tensor, ops

    def _production(self, tensor: int, held: int) -> tuple[int, ...] | None:
        """Return the ops, each once in the reference order, that compute a tensor from held ones within the bound."""
        key = tensor, held
        if key not in self._produced:
            ops = self._ancestors(tensor, held)
            self._produced[key] = tuple(ops) if self._fits(ops, tensor, held) else None
        return self._produced[key]

    def _ancestors(self, tensor: int, held: int) -> list[int]:
        """Return the ops that a tensor depends on besides those of held tensors, in the reference order."""
        stack = [self.writers[tensor][0]] if self.writers[tensor] else []
        found = set(stack)
        while stack:
            for read in self._inputs[stack.pop()]:
                writer = self.writers[read][0]
                if not held >> read & 1 and writer not in found:
                    found.add(writer)
                    stack.append(writer)
        return sorted(found, key=self._position.__getitem__)

    def _fits(self, ops: Sequence[int], tensor: int, held: int) -> bool:
        """Return True if ops, run in turn while some tensors stay live, keep the bound."""
        sizes, live = self.sizes, self._bytes(held)
        last = {read: op for op in ops for read in self._inputs[op]}
        for op in ops:
            touched = sum(sizes[read] for read in self._inputs[op])
            touched += sum(sizes[written] for written in self._outputs[op] if held >> written & 1)
            if live - touched + self._needs[op] > self._bound:
                return False
            live += sum(
                sizes[written] for written in self._outputs[op]
                if not held >> written & 1 and (written in last or written == tensor)
            )  # fmt: skip
            live -= sum(sizes[read] for read in self._inputs[op] if last[read] == op and not held >> read & 1)
        return True

    def _before(self, op: int, live: int) -> int:
        """Return the tensors that must be live before a step of `op`, so that those of `live` are after it."""
        return (live & ~self.writes[op]) | self.reads[op]

    def _memory(self, op: int, live: int) -> int:
        """Return the memory of a step of `op` with the tensors of `live`."""
        return int(self._needs[op]) + self._bytes(live & ~(self.reads[op] | self.writes[op]))

    def _bytes(self, live: int) -> int:
        return sum(self.sizes[tensor] for tensor in numbers(live))
