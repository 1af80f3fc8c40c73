"""Refutations of live sets: what can have been in memory when an op of much memory ran last."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property, reduce
from operator import and_
from typing import NamedTuple

from remat.bounds.live_set_game import Live, LiveSetGame, Question
from remat.bounds.tensor_cuts import TensorCuts
from remat.problem import Problem
from remat.runtime.bits import bits, numbers

#: Memory of a gate, relative to the most that an op needs: the small tensors of the same op differ by layer.
GATE = 0.98
#: Effort of the question whether a tensor can be made from nothing.
EFFORT_ALONE = 60
#: Most sets of tensors at a gate that a proof tries.
MOST_TRIES = 1_000
#: Most moments of which a proof checks the conditions.
MOST_MOMENTS = 300


class Gates:
    """Proofs that sets cannot be live, in a game without small tensors.

    Let a set be live after a schedule within ``M`` bytes that has no superfluous runs. An op is a *gate* if it needs at
    least :data:`GATE` of the most that an op needs. Either no gate ran. Or consider the last run of any gate, of ``d``.
    Then the tensors ``T`` that ``d`` reads or writes were live, and a set ``X`` of others, of at most ``M - needs(d)``
    bytes. No gate ran later, and later runs lead from an output of ``d`` to the set. The proof tries every ``d`` and
    ``X``. :class:`Level` has the conditions that all must violate.

    Parameters
    ----------
    problem : Problem
        As for :class:`LiveSetGame`.
    small, early : int
        Bytes of the largest tensor that is left out, and of the largest one among those that depend on no gate.
    forks : int
        Most forks at which a proof tries each path from a gate to a set.
    """

    def __init__(self, problem: Problem, small: int, early: int = 0, forks: int = 0) -> None:
        self.forks = forks
        self._left_out = left_out(LiveSetGame(problem, merge=False), small, max(small, early))
        self.game = LiveSetGame(problem, merge=False, left_out=self._left_out)
        self._needed = [0] * len(self.game.size)
        for op in self.game.order:
            ops = 1 << op
            for read in self.game.reads[op]:
                ops |= self._needed[read]
            for written in self.game.writes[op]:
                self._needed[written] |= ops
        self._fits: dict[int, int] = {}
        self._exceeds: dict[int, int] = {}
        self._levels: dict[int, Level] = {}

    def refute(self, live: Live, memory: int) -> bool:
        """Return True only if a set cannot be live within the memory; tensors that were left out are ignored.

        A later call with the same memory continues one that was interrupted.

        Raises
        ------
        OverdueError
            At the deadline of the game.
        """
        live -= self._left_out
        if memory not in self._levels:
            self._levels[memory] = Level(self, memory, -1)
        refuted = bool(live) and self._levels[memory].refute(live)
        if refuted:  # there will be no questions with less memory
            self._levels = {each: level for each, level in self._levels.items() if each >= memory}
        return refuted

    def needed_by(self, live: Live) -> int:
        """Return the ops that a set needs, as bits."""
        ops = 0
        for tensor in live:
            ops |= self._needed[tensor]
        return ops

    def fits_alone(self, tensor: int, memory: int) -> bool:
        """Return False only if a tensor cannot be live within the memory."""
        game, goal = self.game, frozenset((tensor,))
        if self._exceeds.get(tensor, -1) >= memory:
            return False
        if self._fits.get(tensor, memory + 1) <= memory:
            return True
        self._fits[tensor] = memory  # for questions within this one
        fits = False
        try:
            decided = game.decide(goal, Question(memory, EFFORT_ALONE))
            game.clock.check()
            # Not by the common level, which is for all tensors and may be under construction.
            fits = bool(decided) or (decided is None and not Level(self, memory, self._needed[tensor]).refute(goal))
        finally:
            if not fits:
                self._fits.pop(tensor, None)
        if not fits:
            self._exceeds[tensor] = memory
        return fits


def left_out(game: LiveSetGame, small: int, early: int) -> Live:
    """Return tensors of at most `small` bytes, and of at most `early` if they depend on no op of the most memory."""
    least, late = GATE * max(game.needs, default=0), 0
    for op in game.order:
        if game.needs[op] >= least or any(late >> read & 1 for read in game.reads[op]):
            late |= bits(game.writes[op])
    return frozenset(t for t, size in enumerate(game.size) if size <= (small if late >> t & 1 else early))


class Condition(NamedTuple):
    """A tensor that must come from what was live at the gate."""

    tensor: int
    held: int | None
    """Bytes of other lines next to which it is made if it is closed; None if it is not."""


@dataclass(eq=False)
class Moment:
    """A step after the gate, or the end: tensors that are live, and others of which a line is live."""

    live: Live
    lines: Live
    conditions: list[Condition] = field(default_factory=list)
    bound: Live = frozenset()
    """Tensors of `live` that come from what was live at the gate."""
    impossible: bool = False
    before: dict[int, Moment] = field(default_factory=dict)
    """The moments at which the tensors of `bound` were computed."""


class Level:
    """Conditions for sets within `memory` bytes, for one choice of gates.

    * A tensor is *free* next to ``h`` bytes if it can be made from nothing within ``M - h`` without gates. The *closed*
      tensors are those that ops other than gates make of free ones.
    * Let a set need ``z``, which is not closed. If its writer is no gate, it has an input that is not closed; one such
      input and its line are a *line* of ``z``, with ``z``. From the last gate on, a tensor of the line is live: if
      ``z`` is made later, the input is live then, and so on, back to an output of a gate, which is made no more.
      So the live tensors have at least the bytes of a minimum cut of all lines of such tensors.
    * So ``z`` is made by such ops of ``T``, ``X`` and closed tensors.
    * Let ``z`` be closed, and let lines of other tensors of the set hold at least ``h`` bytes. If
      ``z`` is not free next to ``h``, it is made of a tensor of ``T`` or ``X``, and of free ones, by ops that need at
      most ``M - h``: they touch no line.
    * If one of these tensors is not in ``T`` or ``X``, its writer ran after the gate. At that moment its inputs
      were live, and lines of the other tensors of the set. The same holds for them. So it does, even if they are in
      ``X``, for tensors that are on all paths from an output of ``d`` to the set.

    Parameters
    ----------
    gates : Gates
        The game, and what is known of its tensors alone.
    memory : int
        Bytes.
    needed : int
        Ops that matter, as bits: those that the sets in question need.
    """

    def __init__(self, gates: Gates, memory: int, needed: int) -> None:
        self._all, self.game, self._memory = gates, gates.game, memory
        needs = gates.game.needs
        ops = [op for op in gates.game.order if needed >> op & 1]
        least = GATE * max((needs[op] for op in ops if needs[op] <= memory), default=0)
        self._gates = {op: None for op in ops if needs[op] >= least}
        self._ops = [op for op in ops if op not in self._gates]
        self._shared = bits(gates.game.shared)
        self._free: dict[int, int] = {}
        self._moments: dict[tuple[Live, Live, int | None], Moment] = {}
        self._refuted: dict[Live, bool] = {}
        self._excluded: set[tuple[Live, int, int]] = set()
        """Sets, with last gates and tensors that these lead to, which are impossible."""
        self.ancestors, self._within = cache(self._find_ancestors), cache(self._find_within)
        self._derived = cache(self._find_derived)

    @cached_property
    def _closed(self) -> int:
        return self._closure(self._free_next_to(0))

    def refute(self, live: Live) -> bool:
        """Return True only if a set cannot be live."""
        if live not in self._refuted:
            self._refuted[live] = self._refutes(live)
        return self._refuted[live]

    def _refutes(self, live: Live) -> bool:
        needed = self._all.needed_by(live)
        # Those near the set first: where the proof fails, it mostly fails there.
        gates = [op for op in reversed(self._gates) if needed >> op & 1]
        if not gates:
            return False
        end = self._moment(live, frozenset(), None)
        if self._violated(0, self._memory, [end]) is None:
            return False
        fitting = (gate for gate in gates if self.game.needs[gate] <= self._memory)
        cases = [(live, gate, last) for gate in fitting for last in live if self._derived(gate) >> last & 1]
        for case in cases:
            if case not in self._excluded:
                _, gate, last = case
                if not self._excludes(gate, end, last, ()):
                    return False
                self._excluded.add(case)
        return True

    def _excludes(self, gate: int, end: Moment, last: int, forks: tuple[int, ...]) -> bool:
        """Return True only if a gate cannot be the last one and lead to a tensor of the set, along a path by `forks`.

        It then tries all paths at the next fork.
        """
        moments, branches = self._chain(gate, end, last, forks)
        if self._all_violate(gate, [*reversed(moments), end]):
            return True
        more = branches if len(forks) < self._all.forks else []
        return bool(more) and all(self._excludes(gate, end, last, (*forks, branch)) for branch in more)

    # -- what ops other than gates make ------------------------------------------------------------------------------

    def inputs(self, tensor: int, held: int = 0) -> Live | None:
        """Return the inputs of the writer of a tensor; None if it is a gate or does not fit next to `held` bytes."""
        writer = self.game.writer[tensor]
        fits = writer not in self._gates and self.game.needs[writer] <= self._memory - held
        return self.game.reads[writer] if fits else None

    def _free_next_to(self, held: int) -> int:
        """Return the tensors that are free next to `held` bytes."""
        if held not in self._free:
            game, most, found = self.game, self._memory - held, 0
            for op in self._ops:
                if game.needs[op] <= most and all(found >> read & 1 for read in game.reads[op]):
                    found |= bits(written for written in game.writes[op] if self._all.fits_alone(written, most))
            self._free[held] = found
        return self._free[held]

    def known(self, held: int | None) -> int:
        """Return the tensors that conditions take for granted: closed ones, or those free next to `held` bytes."""
        return self._closed if held is None else self._free_next_to(held)

    def _closure(self, found: int) -> int:
        """Return tensors with all that ops other than gates make of them."""
        for op in self._ops:
            if all(found >> read & 1 for read in self.game.reads[op]):
                found |= bits(self.game.writes[op])
        return found

    def _find_derived(self, gate: int) -> int:
        """Return the tensors to which ops other than gates lead from the outputs of a gate, with these outputs."""
        found = bits(self.game.writes[gate])
        for op in self._ops:
            if any(found >> read & 1 for read in self.game.reads[op]):
                found |= bits(self.game.writes[op])
        return found

    # -- lines -------------------------------------------------------------------------------------------------------

    def _is_open(self, tensor: int) -> bool:
        return not self._closed >> tensor & 1

    @cached_property
    def _lines(self) -> TensorCuts:
        """Lines of tensors that are not closed. Contributions to buffers count as none: they share bytes."""
        tensors = [tensor for op in self.game.order for tensor in self.game.writes[op] if self._is_open(tensor)]
        size = {tensor: 0 if tensor in self.game.shared else self.game.size[tensor] for tensor in tensors}
        return TensorCuts(size, {t: frozenset(filter(self._is_open, self.inputs(t) or ())) for t in tensors})

    @cached_property
    def _held(self) -> Callable[[Live], int]:
        """Function that returns the least bytes of lines of tensors."""
        return cache(self._lines.least)

    # -- moments -----------------------------------------------------------------------------------------------------

    def _moment(self, live: Live, lines: Live, op: int | None) -> Moment:
        """Return the moment before a step of an op, or the end, with the conditions that hold for its tensors."""
        key = live, lines, op
        if key in self._moments:
            return self._moments[key]
        moment = Moment(live, lines)
        game = self.game
        least, touched = (game.bytes(live), live) if op is None else (game.needs[op], game.touched[op])
        room = self._memory - least
        # A cut has at most the bytes of the tensors themselves.
        if sum(game.size[tensor] for tensor in lines) > room:
            moment.impossible = self._lines.least(lines, touched) > room
        opened = frozenset(filter(self._is_open, live))
        moment.conditions = [Condition(tensor, None) for tensor in opened]
        if closed := live - opened:
            held = self._held(opened | lines)
            known = self._free_next_to(held)
            moment.conditions += [Condition(tensor, held) for tensor in closed if not known >> tensor & 1]
        moment.bound = frozenset(condition.tensor for condition in moment.conditions)
        self._moments[key] = moment
        return moment

    def _earlier(self, moment: Moment, tensor: int) -> Moment | None:
        """Return the moment at which a tensor was computed for another; None if it is not known."""
        writer = self.game.writer[tensor]
        if writer in self._gates:
            return None
        if tensor not in moment.before:
            others = frozenset(filter(self._is_open, moment.lines | moment.bound - {tensor}))
            moment.before[tensor] = self._moment(self.game.reads[writer], others, writer)
        return moment.before[tensor]

    def _chain(self, gate: int, end: Moment, tensor: int, forks: tuple[int, ...]) -> tuple[list[Moment], list[int]]:
        """Return moments of steps after a gate on all paths from it to a tensor of the last set, and the next fork.

        At the first forks the paths lead through the given inputs.
        """
        outputs, derived = self.game.writes[gate], self._derived(gate)
        common, found, moment, choices = self._common(gate, derived), [], end, list(forks)
        branches: list[int] = []
        while tensor not in outputs:
            earlier = self._earlier(moment, tensor)
            if earlier is None:
                break
            found.append(earlier)
            below = [read for read in earlier.live if derived >> read & 1]
            if len(below) > 1 and choices:
                below = [choices.pop(0)]
            if len(below) == 1:
                moment, tensor = earlier, below[0]
                continue
            branches = branches or below
            # Several paths: the next tensor on all of them.
            others = [each for each in numbers(common[tensor]) if each != tensor]
            if not others:
                break
            tensor = max(others, key=lambda each: self.game.position[self.game.writer[each]])
            lines = earlier.lines | {each for each in earlier.bound if self._is_open(each) and not derived >> each & 1}
            moment = Moment(frozenset(), lines)
        return found, branches

    def _common(self, gate: int, derived: int) -> dict[int, int]:
        """Return for each tensor derived from a gate those on all paths to it, with itself."""
        found: dict[int, int] = {}
        game = self.game
        for op in self._ops:
            above = [read for read in game.reads[op] if derived >> read & 1]
            if above:
                common = reduce(and_, (found.get(read, 0) for read in above))  # paths begin at outputs of the gate
                found.update((written, common | 1 << written) for written in game.writes[op])
        return found

    # -- sets at a gate ----------------------------------------------------------------------------------------------

    def _all_violate(self, gate: int, moments: list[Moment]) -> bool:
        """Return True if a condition is violated, no matter which tensors were live at the last run of a gate."""
        size, first = self.game.size, bits(self.game.touched[gate])
        stack, seen = [(first, self._memory - self.game.needs[gate])], {first}
        while stack:
            live, room = stack.pop()
            self.game.clock.check()
            missing = self._violated(live, room, moments)
            if missing is None or len(seen) > MOST_TRIES:
                return False
            for tensor in numbers(missing):
                more = live | 1 << tensor
                needs = 0 if bits(self.game.whole(tensor)) & live else size[tensor]
                if needs <= room and more not in seen:
                    seen.add(more)
                    stack.append((more, room - needs))
        return True

    def _find_within(self, room: int) -> int:
        """Return the tensors of at most `room` bytes, and contributions to buffers, as bits."""
        size = self.game.size
        return self._shared | bits(tensor for tensor in range(len(size)) if size[tensor] <= room)

    def _violated(self, live: int, room: int, moments: list[Moment]) -> int | None:
        """Return the fewest tensors of which one is missing for a condition, as bits; None if all conditions hold.

        Those of more than `room` bytes are left out.
        """
        small = self._within(room)
        origin = Origin(self, live)
        best, fewest = None, len(self.game.size) + 1
        queue: deque[tuple[Moment, int]] = deque((moment, 0) for moment in moments)
        seen = set(map(id, moments))
        while queue and len(seen) <= MOST_MOMENTS:
            moment, path = queue.popleft()
            if path.bit_count() >= fewest:
                break  # further paths are no shorter
            if moment.impossible:
                best, fewest = path, path.bit_count()
            for condition in moment.conditions:
                if not origin.meets(condition):
                    # Were a tensor of the path live, this moment would not have been necessary.
                    found = path | origin.sources(condition) & small
                    if found.bit_count() < fewest:
                        best, fewest = found, found.bit_count()
            for tensor in moment.bound:
                earlier = None if live >> tensor & 1 else self._earlier(moment, tensor)
                if earlier is not None and id(earlier) not in seen:
                    seen.add(id(earlier))
                    queue.append((earlier, path | (small & 1 << tensor)))
        return best

    def _find_ancestors(self, tensor: int, held: int | None) -> int:
        """Return a tensor and those from which ops that fit next to `held` bytes lead to it, as bits."""
        found, stack = 0, [tensor]
        while stack:
            each = stack.pop()
            if not found >> each & 1:
                found |= 1 << each
                stack += self.inputs(each, held or 0) or ()
        return found


@dataclass
class Origin:
    """Tensors that were live at the last gate, as bits, and those that can be made of them without gates."""

    level: Level
    live: int
    _made: dict[Condition, bool] = field(default_factory=dict)
    _sources: dict[Condition, int] = field(default_factory=dict)

    def meets(self, condition: Condition) -> bool:
        """Return True if the tensor of a condition can be made."""
        level, held, made = self.level, condition.held, self._made
        known, stack = self.live | level.known(held), [condition]
        while stack:
            each = stack[-1]
            if each in made:
                stack.pop()
            elif known >> each.tensor & 1:
                made[each] = True
            elif held is not None and not level.game.before[each.tensor] & self.live:
                made[each] = False
            else:
                reads = level.inputs(each.tensor, held or 0)
                inputs = [Condition(read, held) for read in reads or ()]
                left = [read for read in inputs if read not in made]
                stack += left
                if not left:
                    made[each] = reads is not None and all(made[read] for read in inputs)
        return made[condition]

    def sources(self, condition: Condition) -> int:
        """Return tensors of which one must be live, in addition, for a condition that is not met, as bits."""
        steps, each = [], condition
        while each not in self._sources:
            steps.append(each)
            inputs = self.level.inputs(each.tensor, each.held or 0)
            missing = [read for read in inputs or () if not self.meets(Condition(read, each.held))]
            if not missing:
                # Written by a gate, or made of free tensors without being free.
                self._sources[each] = self.level.ancestors(*each)
            else:
                each = Condition(min(missing), each.held)
        found = self._sources[each]
        for step in reversed(steps):
            found |= 1 << step.tensor
            self._sources[step] = found
        return found
