"""Schedule from the steps that the search of the live set bound found."""

from __future__ import annotations

from functools import cache

from remat.bounds.live_set_game import LEAST_EFFORT, Live, LiveSetGame, Question
from remat.runtime.deadline import Deadline
from remat.schedule import Schedule

#: Computes of the longest schedule that is built.
MOST_COMPUTES = 200_000
#: Share of the memory from which it is worth a search whether a tensor can stay.
LARGE = 0.01


class Computes:
    """Computes of each op in the reference order, with its inputs by recorded steps and what happens to be live.

    The inputs of an op are made while tensors that later ops read for the first time stay live, as many as leave enough
    memory. Those written last come first: their computation takes most ops. All other tensors stay while there is room.
    Large ones that are read late, or never, and depend on few others go first.

    Parameters
    ----------
    game : LiveSetGame
        With steps to the inputs of each op within `memory`.
    memory : int
        Bytes, without constant ones.
    most_failures : int
        Searches per op for other steps to its inputs that may fail, where the recorded ones leave no memory for a large
        tensor. They take most of the time, and help on few graphs.
    """

    def __init__(self, game: LiveSetGame, memory: int, most_failures: int = 0) -> None:
        self._game, self._memory, self._most_failures = game, memory, most_failures
        self._ops: list[int] = []
        self._live: set[int] = set()
        self._bytes, self._now = 0, 0
        self._rank = self._hindrance  # cached for each place in the reference order, at which it does not change
        self._sources = [each.bit_count() for each in game.before]
        never = len(game.order)
        self._uses: list[list[int]] = [[never] if tensor in game.kept else [] for tensor in range(len(game.size))]
        for place in range(len(game.order) - 1, -1, -1):
            for read in game.reads[game.order[place]]:
                self._uses[read].append(place)

    def schedule(self, clock: Deadline) -> Schedule | None:
        """Return the schedule; None at the deadline, or if it has more than :data:`MOST_COMPUTES` computes.

        At the end, the tensors to keep are made live by their steps. If no such steps are known, they are live from
        their last compute on, in addition to `memory`.
        """
        game = self._game
        game.clock = clock
        for self._now, op in enumerate(game.order):
            self._rank = cache(self._hindrance)
            held = self._held(op)
            self._reach(game.reads[op] - held, held)
            self._run(op, game.reads[op] | held)
            if len(self._ops) > MOST_COMPUTES or clock.expired:
                return None
        if game.upper(game.kept) <= self._memory:
            self._reach(game.kept, frozenset())
        if len(self._ops) > MOST_COMPUTES:
            return None
        return Schedule.of_computes(game.problem.graph, self._ops, source="live set search")

    def _held(self, op: int) -> Live:
        """Return live tensors that can stay while the other inputs of an op are made, and while it runs."""
        game, never, failures = self._game, len(self._game.order) + 1, 0
        touched = game.touched[op]
        left: Live = game.reads[op]
        held: set[int] = set()
        memory, room = self._memory, self._memory - game.needs[op]
        for tensor in sorted(self._live, reverse=True):
            size = game.own_bytes(tensor, held)
            if (tensor not in touched and size > room) or self._next_use(tensor) == never:
                continue
            rest = left - {tensor}
            fits = game.upper(rest) <= memory - size
            if not fits and failures < self._most_failures and size > LARGE * self._memory:
                fits = bool(game.decide(rest, Question(memory - size, LEAST_EFFORT)))
                failures += not fits
            if fits:
                held.add(tensor)
                memory, left = memory - size, rest
                room -= 0 if tensor in touched else size
        return frozenset(held)

    def _reach(self, goal: Live, held: Live) -> None:
        """Make a set live by the steps of the game, while other tensors stay live.

        They start at the last set before it that is live, and skip those before a later one that has become live.
        """
        game, live = self._game, goal
        walk: list[tuple[int, Live, Live]] = []  # steps backwards, each with the sets before and after it
        while not live <= self._live:
            for step in game.steps[live].backwards:
                before = live - {-1 - step} if step < 0 else (live - game.writes[step]) | game.reads[step]
                walk.append((step, before, live))
                live = before
                if live <= self._live:
                    break
        for step, before, after in reversed(walk):
            if len(self._ops) > MOST_COMPUTES:
                return
            if after <= self._live:
                continue
            if step >= 0:
                self._run(step, held | before)
            else:
                self._reach(frozenset((-1 - step,)), held | before)

    def _run(self, op: int, held: Live) -> None:
        """Compute an op while some tensors stay live; others leave if they do not fit."""
        game = self._game
        touched = game.touched[op]
        room = self._memory - game.needs[op]
        size = self._bytes - game.bytes(touched & self._live)
        if size > room:
            self._drop(self._live - held - touched, size - room)
        self._ops.append(op)
        new = game.writes[op] - self._live
        self._bytes += sum(game.own_bytes(tensor, self._live) for tensor in new)
        self._live |= new

    def _drop(self, tensors: Live | set[int], excess: int) -> None:
        """Drop tensors of at least `excess` bytes, and none that the others make superfluous."""
        own_bytes, live, dropped = self._game.own_bytes, self._live, []
        least = self._bytes - excess
        for tensor in sorted(tensors, key=self._rank, reverse=True):
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
