"""Schedule from the steps that the search of the live set bound found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from functools import cache

from remat.bounds.live_set_game import LEAST_EFFORT, Live, LiveSetGame, Question
from remat.runtime.bits import numbers
from remat.runtime.deadline import Deadline
from remat.schedule import Schedule

#: Computes of the longest schedule that is built.
MOST_COMPUTES = 200_000
#: Share of the memory from which it is worth a search whether a tensor can stay.
LARGE = 0.01
#: Failed searches per op for other steps to its inputs. Two help no further on ResNet-50, vit and transformer.
MOST_FAILURES = 1
#: Ops that make missing inputs of live tensors, at most; more are steps of the game.
FEW_OPS = 20
#: Ops that make a tensor of others so fast that it need not stay. With 8, transformer takes four times the computes.
VERY_FEW_OPS = 3
#: Steps of the computation of a tensor whose inputs stay live for it.
NEAR = 2

#: Steps backwards, each with the sets before and after it.
Walk = list[tuple[int, Live, Live]]


class Computes:
    """Computes of each op in the reference order, with its inputs by recorded steps and what happens to be live.

    The inputs of an op are made while tensors that later ops read for the first time stay live, as many as leave enough
    memory: see :class:`Holding`. All other tensors stay while there is room. Large ones that are read late, or never,
    and depend on few others go first, and last those that the present steps need again.

    Parameters
    ----------
    game : LiveSetGame
        With steps to the inputs of each op within `memory`.
    memory : int
        Bytes, without constant ones.
    by_writer : bool
        Hold those written last first, whatever else is live: their computation takes most ops.
    most : int
        Computes of the longest schedule.
    failures : int
        Failed searches per op for other steps to its inputs, at most. They take most of the time.
    """

    def __init__(
        self, game: LiveSetGame, memory: int, *, by_writer: bool = False, most: int = MOST_COMPUTES,
        failures: int = MOST_FAILURES,
    ) -> None:  # fmt: skip
        self._game, self._memory, self._by_writer, self._most = game, memory, by_writer, most
        self._failures = failures
        self._ops: list[int] = []
        self._live: set[int] = set()
        self._bytes, self._now = 0, 0
        self._rank = self._hindrance  # cached for each place in the reference order, at which it does not change
        self._needed: Counter[int] = Counter()
        """Tensors that later steps of the present walks need, with their number."""
        self._sources = [each.bit_count() for each in game.before]
        never = len(game.order)
        self._uses: list[list[int]] = [[never] if tensor in game.kept else [] for tensor in range(len(game.size))]
        for place in range(len(game.order) - 1, -1, -1):
            for read in game.reads[game.order[place]]:
                self._uses[read].append(place)
        self._last_use = [uses[0] if uses else -1 for uses in self._uses]

    def schedule(self, clock: Deadline) -> Schedule | None:
        """Return the schedule; None at the deadline, or if it has too many computes.

        At the end, the tensors to keep are made live by their steps. If no such steps are known, they are live from
        their last compute on, in addition to `memory`.
        """
        game, last_use = self._game, self._last_use
        game.clock = clock
        for self._now, op in enumerate(game.order):
            self._rank = cache(self._hindrance)
            self._needed.clear()
            useful = {tensor for tensor in self._live if last_use[tensor] >= self._now}
            holding = Holding(game, self._memory, op, self._live, useful, failures=self._failures)
            held = holding.by_writer() if self._by_writer else holding.by_effort()
            self._follow(holding.walk or self._walk(game.reads[op] - held), held)
            self._run(op, held - game.reads[op])
            if len(self._ops) > self._most or clock.expired:
                return None
        if game.upper(game.kept) <= self._memory:
            self._follow(self._walk(game.kept), frozenset())
        if len(self._ops) > self._most:
            return None
        return Schedule.of_computes(game.problem.graph, self._ops, source="live set search")

    def _walk(self, goal: Live) -> Walk:
        """Return the recorded steps to a set from the last set before it that is live."""
        game, live = self._game, goal
        walk: Walk = []
        while not live <= self._live:
            steps = game.steps[live]
            for step in steps.backwards:
                before = game.before_step(step, live)
                walk.append((step, before, live))
                live = before
                if live <= self._live:
                    return walk
            live = steps.live  # also has outputs that one of these ops writes again
        return walk

    def _follow(self, walk: Walk, held: Live) -> None:
        """Take steps while other tensors stay live; skip those before a later set that has become live."""
        needs = [self._near(-1 - step) if step < 0 else () for step, _, _ in walk]
        for each in needs:
            self._needed.update(each)
        for (step, before, after), needed in zip(reversed(walk), reversed(needs), strict=True):
            self._needed.subtract(needed)
            if after <= self._live or len(self._ops) > self._most:
                continue
            if step >= 0:
                self._run(step, held | after)
            else:
                self._follow(self._walk(frozenset((-1 - step,))), held | before)

    def _near(self, tensor: int) -> Live:
        """Return a tensor and the inputs of the last steps that compute it from nothing."""
        found = live = frozenset((tensor,))
        for step in self._game.steps[live].backwards[:NEAR]:
            live = self._game.before_step(step, live)
            found |= live
        return found

    def _run(self, op: int, held: Live) -> None:
        """Compute an op while some tensors stay live; others leave if they do not fit."""
        game = self._game
        merged = game.merged[op]
        for part in merged.parts:
            room = self._memory - part.needs
            size = self._bytes - game.bytes(part.own & self._live)
            if size > room:
                self._drop(self._live - held - part.own, size - room)
        self._ops += merged.ops
        new = game.writes[op] - self._live
        self._bytes += sum(game.own_bytes(tensor, self._live) for tensor in new)
        self._live |= new

    def _drop(self, tensors: Live | set[int], excess: int) -> None:
        """Drop tensors of at least `excess` bytes, and none that the others make superfluous."""
        own_bytes, live, dropped = self._game.own_bytes, self._live, []
        least = self._bytes - excess
        needed = {tensor for tensor, times in self._needed.items() if times and tensor in tensors}
        first = sorted(tensors - needed, key=self._rank, reverse=True)
        for tensor in first + sorted(needed, key=self._rank, reverse=True):
            if self._bytes <= least:
                break
            dropped.append(tensor)
            live.discard(tensor)
            self._bytes -= own_bytes(tensor, live)
        for tensor in reversed(dropped):
            size = own_bytes(tensor, live)
            if self._bytes + size <= least:
                live.add(tensor)
                self._bytes += size

    def _hindrance(self, tensor: int) -> float:
        """Return the bytes of a tensor times the ops up to its next use, per tensor that it depends on."""
        idle = self._next_use(tensor) - self._now + 1
        return self._game.size[tensor] * idle / (1 + self._sources[tensor])

    def _next_use(self, tensor: int) -> int:
        """Return the place in the reference order of the next op that reads a tensor for the first time.

        Tensors to keep are read at the end, others after it: never.
        """
        uses = self._uses[tensor]
        while uses and uses[-1] < self._now:
            uses.pop()
        return uses[-1] if uses else len(self._game.order) + 1


class Holding:
    """Live tensors that stay while the other inputs of an op are made, and while it runs.

    If few ops make the missing inputs of live tensors, these ops run. Otherwise the steps of the game do: they compute
    all tensors that lead to these inputs, which therefore need not stay.

    Parameters
    ----------
    game : LiveSetGame
        With steps to the inputs of each op within `memory`.
    memory : int
        Bytes.
    op : int
        The op.
    live, useful : set of int
        Live tensors, and those of them that this op or a later one reads.
    failures : int
        Failed searches for other steps to the inputs, at most.

    Attributes
    ----------
    walk : list
        Steps to the inputs that are not held, if live tensors suffice; empty: those of the game.
    """

    def __init__(
        self, game: LiveSetGame, memory: int, op: int, live: set[int], useful: set[int], *, failures: int
    ) -> None:  # fmt: skip
        self._game, self._memory, self._useful = game, memory, useful
        self._reads, self._touched = game.reads[op], game.touched[op]
        self._missing = self._reads - live
        self._room, self._left, self._failures = memory - game.needs[op], memory, failures
        self._held: set[int] = set()
        self._rest = self._reads
        """Inputs that are not held."""
        self._sources: Live | None = None
        self._live = live
        self.walk: Walk = []
        self._peak = 0

    def by_writer(self) -> Live:
        """Return tensors to hold; those written last come first."""
        for tensor in sorted(self._useful, reverse=True):
            self._add(tensor)
        return frozenset(self._held)

    def by_effort(self) -> Live:
        """Return tensors to hold; those that very few ops make of others come last, and then small ones."""
        useful = self._useful
        if self._missing:
            self._sources = self._found_sources(self._missing, self._live, FEW_OPS)
            if self._sources is None:
                useful = useful & self._reads | useful - self._on_the_way()
        within = useful | self._missing

        def rank(tensor: int) -> tuple[bool, bool, int]:
            cheap = self._found_sources((tensor,), within - {tensor}, VERY_FEW_OPS) is not None
            return not cheap, tensor in self._reads, tensor

        large = sorted(filter(self._is_large, useful), key=rank, reverse=True)
        while any(tensor not in self._held and self._add(tensor) for tensor in large):
            pass  # each may allow the ones before it
        for tensor in sorted(useful.difference(large), reverse=True):
            self._add(tensor)
        if self._sources is not None and not self.walk:
            self.walk = self._short_walk(frozenset(self._held), self._rest) or []
        return frozenset(self._held)

    def _is_large(self, tensor: int) -> bool:
        return self._game.size[tensor] > LARGE * self._memory

    def _on_the_way(self) -> set[int]:
        """Return the tensors written by ops that lead to the missing inputs."""
        game, before = self._game, 0
        for tensor in self._missing:
            before |= game.before[tensor] | 1 << tensor
        return {each for tensor in numbers(before) for each in game.writes[game.writer[tensor]]}

    def _found_sources(self, goals: Collection[int], live: Collection[int], most: int) -> Live | None:
        """Return the tensors of `live` of which at most `most` ops make others; None if it takes more."""
        game, found = self._game, set()
        stack, ops = list(goals), set()
        while stack:
            tensor = stack.pop()
            if tensor in live:
                found.add(tensor)
            elif game.writer[tensor] not in ops:
                ops.add(game.writer[tensor])
                if len(ops) > most:
                    return None
                stack += game.reads[game.writer[tensor]]
        return frozenset(found)

    def _add(self, tensor: int) -> bool:
        """Hold a tensor if the other inputs can be made next to it; return whether they can."""
        game, touched = self._game, tensor in self._touched
        size = game.own_bytes(tensor, self._held)
        if size > self._room and not touched:
            return False
        rest = self._rest - {tensor} if tensor in self._rest else self._rest
        left, walk = self._left - size, None
        if self.walk and rest is self._rest and self._peak + game.size[tensor] <= self._memory:
            walk, self._peak = self.walk, self._peak + game.size[tensor]
        elif rest and self._sources is not None:
            walk = self._short_walk(frozenset((*self._held, tensor)), rest)
        if walk is None and game.upper(rest) > left:
            if self._failures <= 0 or self._sources is not None or not self._is_large(tensor):
                return False
            if not game.decide(rest, Question(left, LEAST_EFFORT)):
                self._failures -= 1
                return False
        self._held.add(tensor)
        self._rest, self._left, self.walk = rest, left, walk or []
        self._room -= 0 if touched else size
        return True

    def _short_walk(self, held: Live, rest: Live) -> Walk | None:
        """Return steps that make tensors of the sources while others stay live; None if none fit.

        :attr:`_peak` becomes their memory.
        """
        game, sources, walk = self._game, self._sources or frozenset(), []
        live, peak = held | rest, 0
        for tensor in sorted(rest - sources, reverse=True):
            others = live - {tensor}
            made = game.made_from(tensor, others | sources, Question(self._memory, LEAST_EFFORT))
            if made is None:
                return None
            peak = max(peak, made.peak)
            for step in made.backwards:
                before = game.before_step(step, live)
                walk.append((step, before, live))
                live = before
            live |= others
        self._peak = peak
        return walk
