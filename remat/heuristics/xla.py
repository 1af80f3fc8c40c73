"""XLA's rematerialization pass: recompute what saves most bytes where the given sequence exceeds the budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from remat.heuristics.eviction import OnlineHeuristic
from remat.problem import Problem
from remat.problem.op_sequence import standing_buffers
from remat.runtime.checked_options import Options, Positive
from remat.runtime.deadline import Deadline
from remat.schedule import OrderRule


@dataclass(frozen=True)
class XlaOptions(Options):
    """Options of :class:`Xla`, with the values of XLA's compiler for GPUs."""

    block_size_limit: Positive = 1
    """Most consecutive ops that are recomputed together."""
    block_factor: Positive = 1
    """Evaluations of blocks of several ops, as a multiple of those of single ops, after which the pass gives up."""


class Xla(OnlineHeuristic):
    """XLA's pass over a fixed sequence of instructions (``HloRematerialization``).

    The pass goes through the sequence once. Where an op makes memory exceed the budget:

    1. Evaluate each block of up to `block_size_limit` ops computed so far. Its *saving* is the bytes of its live
       outputs, less those of inputs that are dead by now and would have to live on.
    2. Take the block of least cost, ``budget / saving`` rounded down: compute time does not count. In a free order a
       block that no op has read yet costs 0, since it is only moved.
    3. Recompute it; all later ops read the copy. Each op of the block is copied right before the first later op that
       reads the copy or one of its inputs.
    4. Repeat until the op fits or no block saves anything.

    Differences: bytes are those of :mod:`remat.schedule.simulate`, where outputs count from their compute on. In a
    fixed order every op keeps its first compute, even if nothing reads it before the copy. XLA's compression and host
    offload are omitted. Ops that must not be recomputed, and those that accumulate into a buffer, are not candidates.

    Source: ``xla/hlo/transforms/simplifiers/hlo_rematerialization.cc`` of the OpenXLA project, as of 2025. The result
    may exceed the budget, and copies early in the sequence may raise the memory of ops already passed.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> from remat.heuristics import HeuristicRun
    >>> problem = Problem(unit_chain(8), 7)
    >>> found = problem.simulate(Xla().run(problem, HeuristicRun()))
    >>> found.peak, found.cost
    (7, 20)
    """

    name = "xla"
    options_type = XlaOptions

    def sequence(self, problem: Problem, order: list[int], deadline: Deadline) -> list[int]:
        return _Pass(problem, order, self.options, deadline).run()


@dataclass(eq=False)
class _Item:
    """Compute in the sequence: of an op, or of its copy."""

    op: int
    reads: list[_Buffer] = field(default_factory=list)
    writes: list[_Buffer] = field(default_factory=list)
    placed: bool = False
    stays: bool = False
    """True if its first compute stays in the sequence: because of the order rule, or of readers of a buffer."""
    denied: bool = False
    moved: bool = False
    """True for a copy of an op without earlier readers."""
    dead: bool = False
    """True when ops read only its copy."""


@dataclass(eq=False)
class _Buffer:
    """Bytes that live from a compute to the last reader, or to the end."""

    size: int
    kept: bool
    shared: bool
    """True when several ops write it."""
    writer: _Item
    users: list[_Item] = field(default_factory=list)
    unfinished: int = 0

    @property
    def live(self) -> bool:
        return self.writer.placed and (self.unfinished > 0 or self.kept)


class _Pass:
    """One pass; see :class:`Xla`.

    Raise OverdueError at the deadline.
    """

    def __init__(self, problem: Problem, order: Sequence[int], options: XlaOptions, deadline: Deadline) -> None:
        arrays = problem.graph.arrays
        standing, workspace = standing_buffers(problem)
        self.options, self.deadline = options, deadline
        self.budget = problem.budget_bytes
        self.limit = (self.budget or 0) - arrays.input_bytes - problem.constant_bytes
        self.workspace = workspace.tolist()
        self.again = [None if limit is None else limit - 1 for limit in problem.compute_limits]
        self.memory = 0
        self.sequence = [_Item(op) for op in order]
        ordinary, kept = arrays.producers.counts == 1, problem.kept
        inputs, outputs = arrays.op_inputs.lists(), arrays.op_outputs.lists()
        buffers: dict[int, _Buffer] = {}
        for item in deadline.each(self.sequence):
            item.stays = problem.order is OrderRule.FIXED or not ordinary[outputs[item.op]].all()
            for t in outputs[item.op]:
                if t in buffers:  # a further contribution reads the buffer
                    _use(item, buffers[t])
                elif ordinary[t] or standing[t]:
                    buffers[t] = _Buffer(int(arrays.size[t]), bool(kept[t]), not ordinary[t], item)
                    item.writes.append(buffers[t])
        for item in deadline.each(self.sequence):
            for t in inputs[item.op]:
                if t in buffers:
                    _use(item, buffers[t])

    def run(self) -> list[int]:
        """Return the ops in the order of their computes."""
        for place, item in enumerate(self.sequence):  # copies are inserted after the current place
            item.placed = True
            self.memory += sum(buffer.size for buffer in item.writes)
            self._reduce(place)
            for buffer in item.reads:
                buffer.unfinished -= 1
            self.memory -= sum(b.size for b in (*item.reads, *item.writes) if not b.live)
        return [item.op for item in self.sequence if item.stays or not item.dead]

    def _reduce(self, place: int) -> None:
        """Recompute blocks later until the op at `place` fits, or no block helps."""
        least, most, first, second = 1, 1, 0, 0
        while self.budget is not None and self.memory + self.workspace[self.sequence[place].op] > self.limit:
            block, effort = self._best_block(place, least, most)
            first, second = (first + effort, second) if most == 1 else (first, second + effort)
            if block:
                self._recompute(block, place)
                least, most = 1, 1
            else:
                least, most = most + 1, 2 * most
            if most > self.options.block_size_limit or second > self.options.block_factor * first:
                break

    def _best_block(self, place: int, least: int, most: int) -> tuple[list[_Item], int]:
        """Return the block with the least cost, and the number of blocks evaluated."""
        best, cost, effort = list[_Item](), self.limit + 1, 0
        for start in self.deadline.each(range(place - least + 1), 1000):
            for block in self._blocks(start, place, least, most):
                effort += 1
                saving = self._saving(block, self.sequence[place])
                if saving > 0:
                    users = (user for each in block for buffer in each.writes for user in buffer.users)
                    moves = not any(each.stays for each in block) and not any(user.placed for user in users)
                    own = 0 if moves else self.limit // saving
                    if own < cost:
                        best, cost = block, own
        return best, effort

    def _blocks(self, start: int, place: int, least: int, most: int) -> Iterator[list[_Item]]:
        """Yield the blocks that begin at `start`, with `least` to `most` ops, and end before `place`."""
        for end in range(start + 1, min(start + most, place) + 1):
            last = self.sequence[end - 1]
            limit = self.again[last.op]
            if last.denied or limit == 0 or any(buffer.shared for buffer in last.writes) or not last.writes:
                return
            if end - start >= least:
                yield self.sequence[start:end]

    def _saving(self, block: list[_Item], current: _Item) -> int:
        """Return the bytes freed now by recomputing the block later."""
        saved = 0
        for k, item in enumerate(block):
            for buffer in item.writes:
                if buffer.kept or buffer in current.reads:
                    return 0
                saved += buffer.size * buffer.live
            saved -= sum(b.size for b in item.reads if not b.live and b.writer not in block[:k])
        return saved

    def _recompute(self, block: list[_Item], place: int) -> None:
        """Insert copies of the block after `place`, and redirect all later readers to them."""
        for item in reversed(block):
            if not any(not user.placed for buffer in item.writes for user in buffer.users):
                continue
            copy = _Item(item.op)
            for buffer in item.reads:
                self.memory += 0 if buffer.live else buffer.size
                _use(copy, buffer)
            for old in item.writes:
                self.memory -= old.size * old.live
                new = _Buffer(old.size, False, False, copy)
                copy.writes.append(new)
                for user in old.users:
                    if not user.placed:
                        user.reads[user.reads.index(old)] = new
                        new.users.append(user)
                        new.unfinished += 1
                old.users = [user for user in old.users if user.placed]
                old.unfinished = 0
            before = {user for b in (*copy.writes, *copy.reads) for user in b.users if not user.placed} - {copy}
            where = next(k for k in range(place + 1, len(self.sequence)) if self.sequence[k] in before)
            self.sequence.insert(where, copy)
            if (limit := self.again[item.op]) is not None:
                self.again[item.op] = limit - 1
            if not any(buffer.users for buffer in item.writes):
                copy.denied, copy.moved, item.dead = item.moved, True, True


def _use(item: _Item, buffer: _Buffer) -> None:
    if buffer not in item.reads:
        item.reads.append(buffer)
        buffer.users.append(item)
        buffer.unfinished += 1
