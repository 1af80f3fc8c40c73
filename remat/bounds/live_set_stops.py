"""Search over the sets that are live at runs of large ops, where a search over all sets gives up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import reduce
from operator import or_

from remat.bounds.live_set_game import Live, LiveSetGame, Question, Steps
from remat.runtime.bits import bits, numbers

#: Memory of the first gates, relative to that of the question.
LARGE = 0.7
#: Memory of further gates, relative to the largest op between two stops.
NEXT = 0.98
#: Choices of tensors at gates, and sets of ops in some order, per unit of effort.
CHOICES, ORDERS = 600, 20
#: Choices per gate that look for a stop that is known, and choices between two checks of the deadline.
FEW_CHOICES, CHECKED = 500, 1_000
#: Effort of a question, relative to that of the game's search from stop to stop.
FOLLOWING = 10


class _TooLongError(Exception):
    """The search has used up its effort."""


class Stops:
    """Search for the last runs of *gates*: some ops of much memory.

    Let a set ``S`` be live after a schedule within ``M`` bytes, without superfluous runs. Either no gate ran. Or take
    the last run of a gate, ``d``. At that moment the tensors ``T`` that ``d`` reads or writes were live, and a set
    ``X`` of others, of at most ``M - needs(d)`` bytes. Afterwards other ops made ``S`` of ``T`` and ``X``. Before it,
    the inputs of ``d`` and ``X`` were live: a *stop*. So the search goes back from stop to stop. It ignores the memory
    of ops that are no gates. If it ends without a stop that they make from nothing, ``S`` cannot be live within ``M``.

    * *Choices.* For each ``d``, the sets ``X`` are found by choices, from the last tensor to the first: it is in ``X``,
      or the inputs of its writer must be made, too.
    * *Lines.* Take a tensor of ``S`` that ops other than gates cannot make of ``T``. Its *line* consists of it, an
      input of its writer that they cannot make either, and so on, up to an output of a gate. One of these tensors is in
      ``X``. So the least sizes of disjoint lines add up to a bound on the bytes of ``X``.
    * *Dominance.* A stop is left out if ops other than gates can make of it one that was found before: from that one,
      the same gates and sets lead back.

    If stops lead back to nothing, an order of the ops between two stops is sought in which they keep the memory. If
    there is none, the game decides on the later stop. What it refutes is left out from then on. Unless it reaches the
    stop, the largest ops between the two become gates.

    Parameters
    ----------
    game : LiveSetGame
        It records what is decided.
    """

    def __init__(self, game: LiveSetGame) -> None:
        self._game = game
        self._vain: dict[Live, Question] = {}
        """Questions that were not decided: with more memory there are more choices."""

    def decide(self, goal: Live, asked: Question) -> bool | None:
        """Return True if a set can be live within the memory, and False if it cannot; None: not decided."""
        vain = self._vain.get(goal)
        if vain is not None and vain.memory <= asked.memory and vain.effort >= asked.effort:
            return None
        decided = self._decide(goal, asked)
        if decided is None and not self._game.clock.expired:
            self._vain[goal] = asked
        return decided

    def _decide(self, goal: Live, asked: Question) -> bool | None:
        game, gates, refuted = self._game, set[int](), list[int]()
        left = CHOICES * asked.effort
        while not game.clock.expired:
            search = _Search(game, goal, asked.memory, more_gates=gates, refuted=refuted, left=left)
            try:
                route = search.route()
            except _TooLongError:
                return None
            left = search.left
            if route is None:
                game.exclude(goal, asked.memory)
                return False
            before: Stop | None = None
            for stop in route:
                decided = search.reaches(before, stop, asked)
                if not decided:
                    break
                before = stop
            else:
                return True
            larger = search.largest_between(before, stop)
            if decided is False and stop.gate is not None:
                refuted.append(stop.live)
            elif decided is False or not larger:
                return decided
            gates |= larger
        return None


@dataclass(frozen=True)
class Stop:
    """Tensors that are live, as bits: before a run of `gate`, or the goal if that is None; then `after` follows."""

    live: int
    gate: int | None = None
    after: Stop | None = None


class _Search:
    """The search for one set and memory, with given gates."""

    def __init__(
        self, game: LiveSetGame, goal: Live, memory: int, *, more_gates: set[int], refuted: list[int], left: int
    ) -> None:
        self._game, self._goal, self._memory, self._refuted, self.left = game, goal, memory, refuted, left
        leading = reduce(or_, (game.before[tensor] | 1 << tensor for tensor in goal), 0)
        needed = {game.writer[tensor] for tensor in numbers(leading)}
        ops = [op for op in game.order if op in needed]
        large = {op for op in ops if game.needs[op] >= LARGE * memory} | more_gates
        self._gates = [op for op in ops if op in large and game.needs[op] <= memory]  # the others never run
        self._ops, self._large = ops, large
        self._reads, self._writes = ({op: bits(sets[op]) for op in ops} for sets in (game.reads, game.writes))
        self._others = [(self._reads[op], self._writes[op]) for op in ops if op not in large]
        # Contributions to buffers share bytes, so they count as none.
        self._size = {t: 0 if t in game.shared else game.size[t] for op in ops for t in game.writes[op]}
        self._free = self._made(0)
        self._sources = {t: game.reads[op] if op not in large else frozenset() for op in ops for t in game.writes[op]}
        self._free_lines = _Lines(self._size, self._sources, self._free)

    def _made(self, found: int) -> int:
        """Return tensors with all that ops other than gates make of them."""
        for reads, writes in self._others:
            if not reads & ~found:
                found |= writes
        return found

    def _last_gates(self, live: int) -> Iterator[int]:
        """Yield the gates that may be the last one before a set.

        They lead to it, and fit next to lines of its tensors to which they do not lead.
        """
        game, lines = self._game, self._free_lines
        leading = {tensor: game.before[tensor] | 1 << tensor for tensor in numbers(live)}
        needed = reduce(or_, leading.values(), 0)
        for gate in self._gates:
            writes = self._writes[gate]
            if needed & writes:
                outside = bits(t for t, led in leading.items() if not (self._free >> t & 1 or led & writes))
                if game.needs[gate] + lines.least(outside, writes | self._reads[gate]) <= self._memory:
                    yield gate

    def route(self) -> list[Stop] | None:
        """Return stops from nothing to the goal; None if there are none.

        Raises
        ------
        _TooLongError
            If it takes too many choices, or at the deadline of the game.
        """
        found, ends = [bits(self._goal)], [Stop(bits(self._goal))]
        if self._is_known(found[0]):
            return ends
        if (near := self._near(ends[0])) is not None:
            return [near, ends[0]]
        while ends:
            last = ends.pop()
            for gate in self._last_gates(last.live):
                for held in self._held_at(gate, last.live):
                    live = self._reads[gate] | held
                    if not all(each & ~live for each in self._refuted):
                        continue
                    missing = ~self._made(self._free | live)
                    if all(each & missing for each in found):
                        found.append(live)
                        ends.append(Stop(live, gate, last))
                        if self._is_known(live):
                            return list(_followed(ends[-1]))
            ends.sort(key=lambda end: -end.live.bit_length())  # the one closest to nothing is next
        return None

    def _near(self, goal: Stop) -> Stop | None:
        """Return a known stop right before the goal, if few choices lead to one."""
        for gate in reversed(list(self._last_gates(goal.live))):
            for held in self._held_at(gate, goal.live, FEW_CHOICES):
                live = self._reads[gate] | held
                if self._is_known(live):
                    return Stop(live, gate, goal)
        return None

    def _is_known(self, live: int) -> bool:
        """Return True if a set is known to be live within the memory, or ops other than gates make it from nothing."""
        return not live & ~self._free or self._game.upper(frozenset(numbers(live))) <= self._memory

    def _held_at(self, gate: int, live: int, most: int | None = None) -> list[int]:
        """Return the sets of other tensors that may be live at the last run of a gate, the smallest first.

        `most`: choices after which those found so far suffice.
        """
        room = self._memory - self._game.needs[gate]
        base = self._made(self._free | self._reads[gate] | self._writes[gate])
        lines, found = _Lines(self._size, self._sources, base), list[tuple[int, int]]()
        stack = [(live & ~base, 0, 0)]
        last = -1 if most is None else self.left - most
        while stack and self.left != last:
            pending, held, size = stack.pop()
            self.left -= 1
            if self.left < 0 or (self.left % CHECKED == 0 and self._game.clock.expired):
                raise _TooLongError
            if not pending:
                found.append((size, held))
                continue
            tensor = pending.bit_length() - 1
            rest, writer = pending & ~(1 << tensor), self._game.writer[tensor]
            choices = [(rest, held | 1 << tensor, size + self._size[tensor])]
            if writer not in self._large:
                choices.append(((rest | self._reads[writer]) & ~base & ~held, held, size))
            stack += [choice for choice in choices if choice[2] + lines.least(choice[0], choice[1]) <= room]
        return [held for _, held in sorted(found)]

    # -- from stop to stop -------------------------------------------------------------------------------------------

    def reaches(self, before: Stop | None, stop: Stop, asked: Question) -> bool | None:
        """Return True if a stop can be live, once the one before is, and False if it cannot; None: not decided."""
        game, live = self._game, frozenset(numbers(stop.live))
        if game.upper(live) <= asked.memory:
            return True
        held = 0 if before is None else before.live
        ops = self._between(before, stop)
        if before is not None and before.gate is not None:
            ops.add(before.gate)
        steps = self._steps(held, sorted(ops, key=game.position.__getitem__), stop.live, ORDERS * asked.effort)
        if steps is not None:
            game.reach(live, steps)
            return True
        return game.decide(live, Question(asked.memory, asked.effort // FOLLOWING))

    def _steps(self, held: int, ops: list[int], goal: int, effort: int) -> Steps | None:
        """Return steps in which ops, once each, make a set of what is held; None if no order keeps the memory."""
        game, everything = self._game, (1 << len(ops)) - 1
        stack, seen = [(0, 0, list[int]())], {0}
        while stack and len(seen) <= effort:
            done, peak, order = stack.pop()
            if done == everything:
                return Steps(frozenset(numbers(held)), peak, order[::-1])
            made = held | bits(tensor for op in order for tensor in game.writes[op])
            for place in reversed(range(len(ops))):
                op, now = ops[place], done | 1 << place
                if now in seen or self._reads[op] & ~made:
                    continue
                left = (self._reads[other] for number, other in enumerate(ops) if not now >> number & 1)
                after = reduce(or_, left, goal) & (made | self._writes[op])
                needed = game.memory(op, frozenset(numbers(after)))
                if needed <= self._memory:
                    seen.add(now)
                    stack.append((now, max(peak, needed), [*order, op]))
        return None

    def _between(self, before: Stop | None, stop: Stop) -> set[int]:
        """Return the ops other than gates that make a stop of the one before."""
        given = 0
        if before is not None:
            assert before.gate is not None
            given = before.live | self._writes[before.gate]
        ops, stack = set[int](), list(numbers(stop.live & ~given))
        while stack:
            op = self._game.writer[stack.pop()]
            if op not in ops:
                ops.add(op)
                stack += numbers(self._reads[op] & ~given)
        return ops

    def largest_between(self, before: Stop | None, stop: Stop) -> set[int]:
        """Return the largest ops other than gates that make a stop of the one before."""
        ops = self._between(before, stop)
        least = NEXT * max((self._game.needs[op] for op in ops), default=0)
        return {op for op in ops if self._game.needs[op] >= least}


def _followed(stop: Stop | None) -> Iterator[Stop]:
    """Yield a stop and those after it."""
    while stop is not None:
        yield stop
        stop = stop.after


@dataclass
class _Lines:
    """Lines of tensors that are not made of those of `base`, as bits: the least bytes of a line, and its tensors.

    Of several inputs, a line follows the one whose line has the most. `sources`: inputs of the writer of each tensor,
    unless it is a gate.
    """

    size: dict[int, int]
    sources: dict[int, Live]
    base: int
    _found: dict[int, tuple[int, int]] = field(default_factory=dict)

    def __getitem__(self, tensor: int) -> tuple[int, int]:
        line = self._found.get(tensor)
        if line is None:
            size = self.size[tensor]
            most = max([self[read] for read in self.sources[tensor] if not self.base >> read & 1], default=None)
            line = (min(size, most[0]), most[1] | 1 << tensor) if most else (size, 1 << tensor)
            self._found[tensor] = line
        return line

    def least(self, tensors: int, held: int) -> int:
        """Return the sum of the least bytes of lines that have no tensor in common, nor one that is held."""
        total, taken = 0, held
        for least, line in sorted([self[tensor] for tensor in numbers(tensors)], reverse=True):
            if not line & taken:
                total += least
                taken |= line
        return total
