"""Search backwards over sets of live tensors: the least memory in which a set can be live, and steps that reach it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

import numpy as np

from remat.bounds.merged_ops import MergedOp, Merging, Part
from remat.problem import Problem
from remat.runtime.bits import bits
from remat.runtime.deadline import Deadline

#: Values that must be live together: tensors, and contributions to accumulation buffers. They are numbered in the
#: reference order of their writers.
Live = frozenset[int]

#: Ops of the longest computation of a tensor from others that is tried.
MOST_LOCAL = 60
#: Searches within searches: each takes some frames of the interpreter's stack.
MOST_NESTED = 40
#: Smallest effort of a search within another.
LEAST_EFFORT = 10
#: Computations of tensors from others, and smaller sets, that are remembered, about 1 kB each; then they are forgotten.
MOST_LOCAL_FOUND, MOST_SMALLER = 1_000_000, 200_000
#: Merged ops relative to all from which merging does not pay: schedules of merged ops run more of them again.
FEWER = 0.8
#: Bytes beyond all memory.
ENDLESS = 1 << 62


class Question(NamedTuple):
    """Bytes within which sets are to be live, and the effort and the depth of the search that asks."""

    memory: int
    effort: int
    depth: int = 0

    def within(self, held: int) -> Question:
        """Return the question for a search within this one, while `held` bytes stay live."""
        return Question(self.memory - held, max(LEAST_EFFORT, self.effort // 2), self.depth + 1)


class Steps(NamedTuple):
    """Steps backwards to a set: ops, and tensors computed from nothing as negative numbers ``-1 - tensor``."""

    live: Live
    peak: int
    backwards: list[int]


#: Sets that a search reached: the set after each, and the steps between them.
Visits = dict[Live, tuple[Live | None, Steps]]


@dataclass
class LiveSetGame:
    """Sets of tensors that ops write, and steps backwards between them.

    Each contribution to an accumulation buffer is a tensor of its own, with one writer. It is live while the buffer is
    and has this contribution; an op that reads the buffer reads all of them. Contributions to a buffer share its bytes.

    All that a search proves about a set is recorded for the next ones: the least memory in which it is known to be
    live, with the steps, and a bound on this memory.

    Ops that may as well run in one go are merged, see :class:`.merged_ops.Merging`, unless `merge` is False or nearly
    all ops are left. The last op of each group stands for it in all tables.

    Tensors can be left out: they take no memory and are always there. What cannot be live then cannot be live with them
    either.
    """

    problem: Problem
    clock: Deadline = field(default_factory=Deadline)
    merge: bool = True
    left_out: Live = frozenset()
    steps: dict[Live, Steps] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        arrays = self.problem.graph.arrays
        tables = arrays.producers.shared_lists()
        # Each value is a tensor with its writer; -1: an input of the graph.
        pairs = [(tensor, op) for tensor, ops in enumerate(tables) for op in (ops or (-1,))]
        self.position, self.order = arrays.position.tolist(), arrays.order.tolist()
        pairs.sort(key=lambda pair: (self.position[pair[1]] if pair[1] >= 0 else -1, pair[0]))
        self.writer = [op for _, op in pairs]
        self.size: list[int] = arrays.size[[tensor for tensor, _ in pairs]].tolist()
        parts: list[list[int]] = [[] for _ in tables]
        for number, (tensor, op) in enumerate(pairs):
            if op >= 0:
                parts[tensor].append(number)
        self._buffer = {number: frozenset(same) for same in parts if len(same) > 1 for number in same}
        self.shared: Live = frozenset(self._buffer)

        def wholes(tensors: Iterable[int]) -> Live:
            return frozenset(number for tensor in tensors for number in parts[tensor])

        self.reads = [wholes(row) for row in arrays.op_inputs.shared_lists()]
        written = [wholes(row) for row in arrays.op_outputs.shared_lists()]
        self.writes = [frozenset(n for n in row if self.writer[n] == op) for op, row in enumerate(written)]
        self.kept: Live = wholes(np.flatnonzero(self.problem.kept).tolist())
        self.needs: list[int] = arrays.op_bytes.tolist()
        self.touched = [read | row for read, row in zip(self.reads, written, strict=True)]
        if self.left_out:
            self._leave_out(self.left_out)
        self.merged = {
            op: MergedOp([op], self.reads[op], self.writes[op], [Part(self.needs[op], self.touched[op])])
            for op in self.order
        }
        if self.merge:
            self._merge()
        self.before = [0] * len(self.size)
        for op in self.order:
            sources = bits(self.reads[op])
            for tensor in self.reads[op]:
                sources |= self.before[tensor]
            for tensor in self.writes[op]:
                self.before[tensor] |= sources
        self._singles: list[Live] = [frozenset((tensor,)) for tensor in range(len(self.size))]
        self._upper: dict[Live, int] = {frozenset(): 0}
        self._lower: dict[Live, float] = {}
        self._least = self._largest_steps()
        self._vain: dict[Live, Question] = {}
        self._local: dict[tuple[int, Live], Steps | int] = {}
        self._smaller: dict[tuple[Live, int], tuple[int, Steps]] = {}
        """Smaller sets by set and memory, with the effort of the search."""

    def _merge(self) -> None:
        """Merge ops, if this leaves far fewer: the last one of each group stands for it."""
        merged = Merging(self.merged, self.bytes, self.kept, self.shared).run()
        if len(merged) > FEWER * len(self.merged):
            return
        self.merged, self.order = merged, list(merged)
        for op, each in merged.items():
            self.reads[op], self.needs[op], self.touched[op] = each.reads, each.needs, each.reads | each.writes

    def _leave_out(self, small: Live) -> None:
        """Leave out tensors, and their bytes at each step."""
        for op, touched in enumerate(self.touched):
            self.needs[op] -= self.bytes(touched & small)
        self.reads, self.writes = [each - small for each in self.reads], [each - small for each in self.writes]
        self.touched, self.kept = [each - small for each in self.touched], self.kept - small

    def _largest_steps(self) -> list[int]:
        """Return for each tensor the memory of the largest step among those that it needs."""
        least = [ENDLESS] * len(self.size)
        for op in self.order:
            needed = max([self.needs[op], *[least[read] for read in self.reads[op]]])
            for written in self.writes[op]:
                least[written] = needed
        return least

    # -- what is known -----------------------------------------------------------------------------------------------

    def upper(self, live: Live) -> int:
        """Return the least memory in which a set is known to be live; :data:`ENDLESS` if none is known."""
        return self._upper.get(live, ENDLESS)

    def lower(self, live: Live) -> float:
        """Return a bound on the memory in which a set can be live; infinite if it never can."""
        lower, singles = self._lower, self._singles
        return max([lower.get(live, 0), *[lower.get(singles[tensor], 0) for tensor in live]])

    def exclude(self, goal: Live, memory: int) -> None:
        """Record that a set cannot be live within the memory."""
        self._lower[goal] = max(memory + 1, self._lower.get(goal, 0))

    def reach(self, goal: Live, steps: Steps) -> None:
        """Record steps to a set from one that can be live."""
        self._record(goal, steps.live, {steps.live: (None, steps)})

    def decide(self, goal: Live, asked: Question) -> bool | None:
        """Return True if a set can be live within the memory, and False if it cannot; None: not decided.

        The search gives up at the deadline, or when as many more sets as the effort brought it no closer to the start
        of the reference order. Sets whose last op comes first in this order are expanded first, and of those the
        smallest.
        """
        if self.upper(goal) <= asked.memory:
            return True
        if self.lower(goal) > asked.memory:
            return False
        if self._is_vain(goal, asked):
            return None
        first = self._reduced(goal, asked)
        visits: Visits = {first.live: (None, first)}
        beyond, reached = inf, first.live if self.upper(first.live) <= asked.memory else None
        if self.lower(first.live) > asked.memory:
            beyond = self.lower(first.live)
        elif reached is None:
            queue, progress = [self._entry(first.live, 0)], (max(first.live), 1)
            while queue and reached is None:
                last, size, _, live = heappop(queue)
                if last < progress[0]:
                    progress = last, len(visits)
                if self.clock.expired:
                    return None
                if len(visits) - progress[1] > asked.effort:
                    self._vain[goal] = asked
                    return None
                new, exceeded = self._expand(live, size, visits, asked)
                beyond = min(beyond, exceeded)
                reached = next((before for before in new if self.upper(before) <= asked.memory), None)
                for before in new:
                    heappush(queue, self._entry(before, len(visits)))
        if reached is not None:
            self._record(goal, reached, visits)
            return True
        for live in (goal, *visits):
            self._lower[live] = max(beyond, self._lower.get(live, 0))
        return False

    def _is_vain(self, goal: Live, asked: Question) -> bool:
        """Return True if a search gave up after as much effort.

        For a question within another, which hopes for steps, it may have had more memory. Less memory is easier to
        refute, which is the hope of the others.
        """
        vain = self._vain.get(goal)
        if vain is None or vain.effort < asked.effort:
            return False
        return vain.memory >= asked.memory if asked.depth else vain.memory == asked.memory

    def _entry(self, live: Live, number: int) -> tuple[int, int, int, Live]:
        """Return a set with its place in the queue of a search."""
        return max(live, default=-1), self.bytes(live), number, live

    def _expand(self, live: Live, size: int, visits: Visits, asked: Question) -> tuple[list[Live], float]:
        """Return new sets from which `live` is reached by a last step, and the least memory of those that exceed it.

        `size`: bytes of `live`.
        """
        new, beyond = [], inf
        for op in self._last_ops(live):
            needed = self._memory(op, live, size)
            if needed > asked.memory:
                beyond = min(beyond, needed)
                continue
            before = self._reduced((live - self.writes[op]) | self.reads[op], asked)
            if before.live in visits:
                continue
            visits[before.live] = live, Steps(before.live, max(needed, before.peak), [op, *before.backwards])
            bound = self.lower(before.live)
            if bound > asked.memory:
                beyond = min(beyond, bound)
            else:
                new.append(before.live)
        # In searches within others, this takes four times as long for the same result on diffusion-unet.
        for made in self._narrower(live, asked) if not asked.depth else ():
            before = self._reduced(made.live, asked)
            if before.live not in visits and self.lower(before.live) <= asked.memory:
                peak, steps = max(made.peak, before.peak), [*made.backwards, *before.backwards]
                visits[before.live] = live, Steps(before.live, peak, steps)
                new.append(before.live)
        return new, beyond

    def _narrower(self, live: Live, asked: Question) -> Iterator[Steps]:
        """Yield steps of several ops to `live` from sets of fewer bytes, between which sets may be larger."""
        for op in self._last_ops(live):
            goals = self.writes[op] & live
            others = live - goals
            found = self._narrow_sources(op, others, self.bytes(goals), asked.memory - self.bytes(others))
            if found is not None:
                sources, ops = found
                made = self._simulated(sorted(ops, key=self.position.__getitem__), goals, others | sources, asked)
                if made is not None:
                    yield made

    def _narrow_sources(self, op: int, others: Live, most: int, memory: int) -> tuple[Live, set[int]] | None:
        """Return tensors of less than `most` bytes of which ops lead to `op`, and these ops; None if none are found.

        The last tensor gives way to the inputs of its writer, without `others` and tensors that can be live in
        `memory`.
        """
        ops, sources, writer = set[int](), set[int](), op
        while len(ops) < MOST_LOCAL:
            ops.add(writer)
            sources -= self.writes[writer]
            for read in self.reads[writer] - others:
                if self._upper.get(self._singles[read], ENDLESS) > memory:
                    sources.add(read)
            if not sources:
                return None
            if self.bytes(sources) < most:
                return (frozenset(sources), ops) if len(ops) > 1 else None
            writer = self.writer[max(sources)]
        return None

    def _record(self, goal: Live, reached: Live, visits: Visits) -> None:
        """Record the sets from `reached`, which is known, to the goal."""
        after, steps = visits[reached]
        peak = self._upper[reached]
        while True:
            target, peak = goal if after is None else after, max(peak, steps.peak)
            if target != steps.live and peak < self.upper(target):
                self._upper[target], self.steps[target] = peak, steps
            peak = self._upper[target]
            if after is None:
                return
            after, steps = visits[after]

    # -- smaller sets ------------------------------------------------------------------------------------------------

    def _reduced(self, live: Live, asked: Question) -> Steps:
        """Return a smaller set that can be live within the memory exactly if `live` can.

        It leaves out tensors that can be computed while the others stay live. Inputs of an op take the place of its
        outputs if they have no more bytes, and no other tensor of the set depends on these outputs.
        """
        question = live, asked.memory
        effort, found = self._smaller.get(question, (0, None))
        if found is None or effort < asked.effort:
            found = self._search_smaller(live, asked)
            if not self.clock.expired:
                if len(self._smaller) >= MOST_SMALLER:
                    self._smaller.clear()
                self._smaller[question] = asked.effort, found
        return found

    def _search_smaller(self, live: Live, asked: Question) -> Steps:
        """Return the set of :meth:`_reduced` by a search."""
        peak, changed = 0, True
        backwards: list[int] = []
        while changed and live:
            changed, size = False, self.bytes(live)
            for tensor in sorted(live, reverse=True):
                others = live - {tensor}
                held = size - self.own_bytes(tensor, others)
                made = self._made(tensor, others, held, asked) if others else None
                if made is not None:
                    live, size, peak, changed = others, held, max(peak, made.peak), True
                    backwards += made.backwards
            for op in self._last_ops(live):
                before = self._forced(op, live)
                if before is not None and (needed := self._memory(op, live, size)) <= asked.memory:
                    live, peak, changed = before, max(peak, needed), True
                    backwards.append(op)
                    break
        return Steps(live, peak, backwards)

    def _forced(self, op: int, live: Live) -> Live | None:
        """Return the set before a last step of `op` if that step, if it fits, is as good as any other; else None."""
        outputs, more = self.writes[op] & live, self.reads[op] - live
        if self.bytes(more) > self.bytes(outputs):
            return None
        if not self.shared.isdisjoint(outputs):  # a buffer takes no further bytes while its other writers run
            return None
        others, written = live - outputs, bits(outputs)
        if any(self.before[other] & written for other in others):
            return None
        return others | more

    def _made(self, tensor: int, others: Live, held: int, asked: Question) -> Steps | None:
        """Return steps that compute a tensor while others of `held` bytes stay live; None if none are found."""
        local = self.made_from(tensor, others, asked)
        if local is not None:
            return local
        if not self._from_nothing(tensor, held, asked):
            return None
        return Steps(others, self._upper[self._singles[tensor]] + held, [-1 - tensor])

    def _from_nothing(self, tensor: int, held: int, asked: Question) -> bool:
        """Return True if a tensor can be computed from nothing while `held` bytes stay live."""
        alone, memory = self._singles[tensor], asked.memory - held
        if self._upper.get(alone, ENDLESS) <= memory:
            return True
        if self._lower.get(alone, 0) > memory or self._least[tensor] > memory:
            return False
        within = asked.within(held)
        if self._is_vain(alone, within) or within.depth > MOST_NESTED or self.clock.expired:
            return False
        return bool(self.decide(alone, within))

    def before_step(self, step: int, live: Live) -> Live:
        """Return the set before a step backwards, see :class:`Steps`."""
        return live - {-1 - step} if step < 0 else (live - self.writes[step]) | self.reads[step]

    def made_from(self, tensor: int, others: Live, asked: Question) -> Steps | None:
        """Return the steps that compute a tensor from others, which stay live; None if none are found.

        Ops that depend on the others run once each, in the reference order; other inputs are computed from nothing.
        """
        known = self._local.get((tensor, others), -1)
        if isinstance(known, int):
            if known >= asked.memory:
                return None
        elif known.peak <= asked.memory:
            return known
        held = bits(others)
        ops = self._between(tensor, others, held) if self.before[tensor] & held else None
        found = self._simulated(ops, self._singles[tensor], others, asked) if ops else None
        if len(self._local) >= MOST_LOCAL_FOUND:
            self._local.clear()
        self._local[tensor, others] = found or (asked.memory if ops else ENDLESS)
        return found

    def _between(self, tensor: int, others: Live, held: int) -> list[int] | None:
        """Return the ops between others and a tensor in the reference order; None if they are too many."""
        reads, writer, before = self.reads, self.writer, self.before
        stack = [writer[tensor]]
        found = set(stack)
        while stack:
            for read in reads[stack.pop()]:
                op = writer[read]
                if op not in found and read not in others and before[read] & held:
                    found.add(op)
                    stack.append(op)
            if len(found) > MOST_LOCAL:
                return None
        return sorted(found, key=self.position.__getitem__)

    def _simulated(self, ops: list[int], goals: Live, others: Live, asked: Question) -> Steps | None:
        """Return the steps if ops, run in turn while others stay live, keep the memory."""
        last = {read: op for op in ops for read in self.reads[op]}
        live, size, peak = set(others), self.bytes(others), 0
        steps: list[int] = []
        for op in ops:
            for read in sorted(self.reads[op] - live, key=self.size.__getitem__, reverse=True):
                if not self._from_nothing(read, size, asked):
                    return None
                peak = max(peak, self._upper[self._singles[read]] + size)
                size += self.own_bytes(read, live)
                live.add(read)
                steps.append(-1 - read)
            new = {written for written in self.writes[op] - live if written in last or written in goals}
            old = {read for read in self.reads[op] if last[read] == op} - others - goals
            live |= new
            live -= old
            size = self.bytes(live) if self.shared else size + self.bytes(new) - self.bytes(old)
            needed = self._memory(op, live, size)
            if needed > asked.memory:
                return None
            peak = max(peak, needed)
            steps.append(op)
        return Steps(others, peak, steps[::-1])

    def _last_ops(self, live: Live) -> Iterator[int]:
        """Yield the ops that may have run last before a set is live, each once, those of the last tensors first."""
        seen = set()
        for tensor in sorted(live, reverse=True):
            op = self.writer[tensor]
            if op not in seen:
                seen.add(op)
                yield op

    def memory(self, op: int, live: Live) -> int:
        """Return the memory of a step of `op` after which the tensors of `live` stay."""
        return self._memory(op, live, self.bytes(live))

    def _memory(self, op: int, live: Live | set[int], size: int) -> int:
        """Return the memory of a step of `op` after which the tensors of `live` stay, which take `size` bytes."""
        parts = self.merged[op].parts
        if len(parts) == 1:
            return size + parts[0].needs - self.bytes(live & parts[0].own)
        return size + max([part.needs - self.bytes(live & part.own) for part in parts])

    def bytes(self, tensors: Live | set[int]) -> int:
        """Return the memory of tensors; contributions to the same buffer share its bytes."""
        total = sum(map(self.size.__getitem__, tensors))
        if self.shared and (parts := self.shared.intersection(tensors)):
            first = {min(self._buffer[part]) for part in parts}
            total += sum(self.size[part] for part in first) - sum(self.size[part] for part in parts)
        return total

    def own_bytes(self, tensor: int, others: Live | set[int]) -> int:
        """Return the memory of a tensor in addition to others: 0 for a contribution if they have one to its buffer."""
        if tensor in self.shared and not others.isdisjoint(self._buffer[tensor]):
            return 0
        return self.size[tensor]

    def whole(self, tensor: int) -> Live:
        """Return all contributions to the buffer of one; any other tensor alone."""
        return self._buffer.get(tensor) or self._singles[tensor]
