"""Refutations of live sets: what can have been in memory when an op of much memory ran."""

from __future__ import annotations

from functools import reduce
from itertools import combinations
from operator import and_
from typing import NamedTuple

from remat.bounds.live_set_game import LEAST_EFFORT, MOST_NESTED, Live, LiveSetGame, Question, Visits
from remat.problem import Problem
from remat.runtime.bits import bits, numbers

#: Most gates that are tried for a tensor: of those without room for a large tensor, and of those with room for one.
MOST_GATES = 4
#: Effort of the question whether a tensor can be made from nothing without small tensors.
EFFORT_ALONE = 60
#: Gates of which is remembered what makes each tensor, at most the square of the number of tensors in bits each.
MOST_MAKERS = 50


class Gate(NamedTuple):
    """An op that a tensor needs and that leaves room for one large tensor at most.

    Sets of tensors are whole numbers with a bit for each.
    """

    touched: int
    """Inputs and outputs of the op."""
    chain: int
    """Large tensors from the outputs of the op to the tensor that needs it. From then on, one of them is live."""
    held: int
    """Bytes of the smallest tensor of the chain."""
    room: int
    """Bytes that the step of the op leaves for others."""


class GatedGame(LiveSetGame):
    """A game whose search also leaves out sets that gates refute.

    Tensors of at most `small` bytes are *small*, the others *large*; the smallest of these has ``u`` bytes. A *gate* of
    a large tensor ``h`` is an op ``d`` that ``h`` needs by a path of large tensors with one writer each. The *chain* is
    made of the tensors of all such paths, ``h`` included. Let a set ``S`` with ``h`` be live within ``M`` bytes.
    Take the last run of ``d``. Apart from ``T``, which ``d`` reads and writes, at most ``room = M - needs(d)`` bytes
    were live; if ``room < 2 u``, at most one large tensor ``x``. Since then, some tensor of the chain has always been
    live, with at least ``held`` bytes.

    1. Let ``B`` be what can be made of ``T`` and small tensors by ops that need at most ``M - held``, or ``M`` if they
       read or write a tensor of the chain. A tensor of ``S`` outside ``B`` is ``x`` or depends on it.
    2. Let ``z`` in ``S`` not depend on ``T``, and let it not fit into ``M - held`` in the game without small tensors.
       Then ``z`` is ``x`` or depends on it: otherwise the ops after ``d`` that lead to ``z`` would be steps of that
       game, while a tensor of the chain, which they do not touch, is live.
    3. Let 1 or 2 hold for ``z``, and let ``z`` not depend on ``T``, or let the whole chain be in ``B``. Then a large
       tensor that comes from ``x`` and leads to ``z`` has been live ever since the run of ``d``; otherwise the rest
       would make ``z`` without ``x``. It is not in the chain. So 2 holds with ``M - held - u``, too.

    All tensors of 1 to 3 need the same ``x`` of at most ``room`` bytes, and with ``T`` and small tensors it makes those
    of 1 and 2 by the ops of 1. If there is none, then ``S`` cannot be live within ``M``. Nor can it if that is known of
    two of its tensors.

    Parameters
    ----------
    problem : Problem
        As for :class:`LiveSetGame`.
    small : int
        Bytes of the largest small tensor.
    dropped : bool
        Whether this is the game without small tensors.
    """

    def __init__(self, problem: Problem, small: int, *, dropped: bool = False) -> None:
        super().__init__(problem)
        tensors = [tensor for tensor, writer in enumerate(self.writer) if writer >= 0]
        light = frozenset(tensor for tensor in tensors if self.size[tensor] <= small)
        self._large = frozenset(tensors) - light
        self._unit = min((self.size[tensor] for tensor in self._large), default=0)
        self._light, self._without_small = bits(light), self
        if dropped:
            self._drop(light)
        else:
            self._without_small = GatedGame(problem, small, dropped=True)
        self._read_bits, self._write_bits = [bits(each) for each in self.reads], [bits(each) for each in self.writes]
        self._needed_ops, self._paths = self._needed()
        self._gates: dict[tuple[int, int], list[Gate]] = {}
        self._parts = bits(self.shared)
        self._alone_suffices = [bits(self.whole(tensor)) for tensor in range(len(self.size))]
        self._sources = [
            self._closed(before) | alone for before, alone in zip(self.before, self._alone_suffices, strict=True)
        ]
        self._made_by: dict[tuple[int, int, int, int], list[int]] = {}

    def sharing(self, game: LiveSetGame) -> GatedGame:
        """Use the clock and the tables of another game of the same problem, and return this one."""
        self.clock = self._without_small.clock = game.clock
        self.steps, self._upper, self._lower, self._local = game.steps, game._upper, game._lower, game._local
        return self

    def has_gates(self, memory: int) -> bool:
        """Return True if an op leaves room for less than two large tensors."""
        return max(self.needs) + 2 * self._unit > memory

    def decide(self, goal: Live, asked: Question) -> bool | None:
        """Answer as :meth:`LiveSetGame.decide`, and see first whether the set is refuted."""
        if self.upper(goal) > asked.memory and self._refuted(goal, asked):
            return False
        return super().decide(goal, asked)

    def lower(self, live: Live) -> float:
        """Return a bound on the memory in which a set can be live, also from pairs of its tensors."""
        return max(super().lower(live), 0, *(self._lower.get(frozenset(two), 0) for two in combinations(live, 2)))

    def _expand(self, live: Live, visits: Visits, asked: Question) -> tuple[list[Live], float]:
        """Leave out the sets that are refuted."""
        new, beyond = super()._expand(live, visits, asked)
        refuted = [before for before in new if self.upper(before) > asked.memory and self._refuted(before, asked)]
        left = [before for before in new if before not in refuted]
        return left, min([beyond, *map(self.lower, refuted)])

    def _closed(self, tensors: int) -> int:
        """Return tensors with all contributions to buffers of which they have one."""
        return tensors | bits(other for part in numbers(tensors & self._parts) for other in self.whole(part))

    # -- tables ------------------------------------------------------------------------------------------------------

    def _drop(self, light: Live) -> None:
        """Forget tensors, and their bytes at each step."""
        for op, touched in enumerate(self.touched):
            self.needs[op] -= self.bytes(touched & light)
        self.reads, self.writes = [each - light for each in self.reads], [each - light for each in self.writes]
        self.touched, self.kept, self._light = [each - light for each in self.touched], self.kept - light, 0
        self._least = self._largest_steps()

    def _needed(self) -> tuple[list[int], list[int]]:
        """Return the ops that each tensor needs by large tensors with one writer, and these tensors, with itself."""
        ops, paths = [0] * len(self.size), [0] * len(self.size)
        for op in self.order:
            before, path = 1 << op, 0
            for tensor in self.reads[op]:
                before |= ops[tensor]
                path |= paths[tensor]
            for tensor in self.writes[op]:
                if tensor in self._large and tensor not in self.shared:
                    ops[tensor], paths[tensor] = before, path | 1 << tensor
        return ops, paths

    def _gates_of(self, tensor: int, memory: int) -> list[Gate]:
        """Return gates of a tensor, the nearest first."""
        found = self._gates.get((tensor, memory))
        if found is None:
            found, left = [], {True: MOST_GATES, False: MOST_GATES}
            for op in reversed(self.order):
                room = memory - self.needs[op]
                if self._needed_ops[tensor] >> op & 1 and 0 <= room < 2 * self._unit and left[room < self._unit]:
                    left[room < self._unit] -= 1
                    chain = self._chain(op, tensor)
                    held = min(self.size[each] for each in numbers(chain))
                    found.append(Gate(bits(self.touched[op]), chain, held, room))
            self._gates[tensor, memory] = found
        return found

    def _chain(self, op: int, tensor: int) -> int:
        """Return the tensors of all paths from an op to a tensor that needs it, with the tensor."""
        found = self._write_bits[op]
        for later in self.order[self.position[op] + 1 :]:
            if self._read_bits[later] & found & self._paths[tensor]:
                found |= self._write_bits[later]
        return found & self._paths[tensor]

    # -- refutations -------------------------------------------------------------------------------------------------

    def _refuted(self, live: Live, asked: Question) -> bool:
        """Return True, and record it, if gates or two of its tensors show that a set cannot be live in the memory."""
        if self.lower(live) > asked.memory:
            return True
        large = live & self._large
        gated = any(
            self._gate_refutes(gate, large - {tensor}, asked)
            for tensor in sorted(large, key=self.size.__getitem__, reverse=True)
            for gate in self._gates_of(tensor, asked.memory)
        )
        if gated:
            self._lower[live] = asked.memory + 1
        return gated or (len(large) > 2 and asked.depth < MOST_NESTED and self._two_refute(large, asked))

    def _two_refute(self, large: Live, asked: Question) -> bool:
        """Return True if two tensors of a set cannot be live together."""
        question = Question(asked.memory, LEAST_EFFORT, asked.depth + 1)
        return any(
            any(self._gates_of(tensor, asked.memory) for tensor in two)
            and self.decide(frozenset(two), question) is False
            for two in combinations(sorted(large), 2)
        )

    def _gate_refutes(self, gate: Gate, large: Live, asked: Question) -> bool:
        """Return True if a gate of one tensor shows that it cannot be live with others: see the class."""
        others = [tensor for tensor in large if not (gate.touched | gate.chain) >> tensor & 1]
        if not others:
            return False
        makers = self._makers(gate, asked.memory)
        free = [tensor for tensor in others if not self.before[tensor] & gate.touched]
        memory = asked.memory - gate.held
        needy = [
            tensor
            for tensor in others
            if makers[tensor] != -1 or (tensor in free and not self._alone(tensor, memory, asked))
        ]
        if not needy or gate.room < self._unit:
            return bool(needy)
        common = needy
        if all(makers[tensor] == -1 for tensor in numbers(gate.chain)) or any(tensor in free for tensor in needy):
            common = needy + [tensor for tensor in free if not self._alone(tensor, memory - self._unit, asked)]
        sources = reduce(and_, (self._sources[tensor] for tensor in common))
        sources &= reduce(and_, (makers[tensor] for tensor in needy), ~(self._light | gate.touched))
        return not any(self.size[source] <= gate.room for source in numbers(sources))

    def _makers(self, gate: Gate, memory: int) -> list[int]:
        """Return for each tensor the tensors of which one suffices to make it after a gate, -1 if none is needed.

        Small tensors and what the op of the gate touched may be read, too, and only by steps that keep the memory.
        """
        key = gate.touched, gate.chain, gate.held, memory
        found = self._made_by.get(key)
        if found is None:
            if len(self._made_by) >= MOST_MAKERS:
                self._made_by.clear()
            found = self._made_by[key] = self._alone_suffices.copy()
            for tensor in numbers(gate.touched | self._light):
                found[tensor] = -1
            for op in self.order:
                held = 0 if (self._read_bits[op] | self._write_bits[op]) & gate.chain else gate.held
                if self.needs[op] + held <= memory:
                    common = reduce(and_, (found[read] for read in self.reads[op]), -1)
                    for written in self.writes[op]:
                        found[written] |= common
        return found

    def _alone(self, tensor: int, memory: int, asked: Question) -> bool:
        """Return False only if a tensor cannot be live within the memory in the game without small tensors."""
        game, goal = self._without_small, frozenset((tensor,))
        if asked.depth >= MOST_NESTED:
            return game.lower(goal) <= memory
        return game.decide(goal, Question(memory, EFFORT_ALONE, asked.depth + 1)) is not False
