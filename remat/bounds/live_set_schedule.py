"""Schedule from the steps that the search of the live set bound found."""

from __future__ import annotations

from remat.bounds.live_set_game import Live, LiveSetGame
from remat.schedule import Schedule

#: Computes of the longest schedule that is built.
MOST_COMPUTES = 200_000


class Computes:
    """Computes of each op in the reference order, with its inputs by recorded steps and what happens to be live.

    Tensors that the steps do not need stay live while there is room. Those that are read last, or never, go first.

    Parameters
    ----------
    game : LiveSetGame
        With steps to the inputs of each op within `memory`.
    memory : int
        Bytes, without constant ones.
    """

    def __init__(self, game: LiveSetGame, memory: int) -> None:
        self._game, self._memory = game, memory
        self._ops: list[int] = []
        self._live: set[int] = set()
        self._bytes, self._now = 0, 0
        self._uses: list[list[int]] = [[] for _ in game.size]
        for place in range(len(game.order) - 1, -1, -1):
            for read in game.reads[game.order[place]]:
                self._uses[read].append(place)

    def schedule(self) -> Schedule | None:
        """Return the schedule; None if it has more than :data:`MOST_COMPUTES` computes.

        Tensors to keep are live from their last compute on, in addition to `memory`.
        """
        game = self._game
        for self._now, op in enumerate(game.order):
            self._reach(game.reads[op], frozenset())
            self._run(op, game.reads[op])
            if len(self._ops) > MOST_COMPUTES:
                return None
        return Schedule.of_computes(game.problem.graph, self._ops, source="live set search")

    def _reach(self, goal: Live, held: Live) -> None:
        """Make a set live by the steps of the game, while other tensors stay live."""
        game, stages, target = self._game, [], goal
        while not target <= self._live:
            found = game.steps[target]
            sets = [target]
            for step in found.backwards:
                sets.append(sets[-1] - {-1 - step} if step < 0 else (sets[-1] - game.writes[step]) | game.reads[step])
            stages.append((found.backwards, sets))
            target = found.live
        for backwards, sets in reversed(stages):
            # Later sets may be live already.
            start = next(place for place, live in enumerate(sets) if live <= self._live or place == len(backwards))
            for place in range(start - 1, -1, -1):
                step, before = backwards[place], held | sets[place + 1]
                if len(self._ops) > MOST_COMPUTES:
                    return
                if step >= 0:
                    self._run(step, before)
                elif -1 - step not in self._live:
                    self._reach(frozenset((-1 - step,)), before)

    def _run(self, op: int, held: Live) -> None:
        """Compute an op while some tensors stay live; others leave if they do not fit."""
        game = self._game
        touched = game.reads[op] | game.writes[op]
        room = self._memory - game.needs[op]
        size = self._bytes - sum(game.size[tensor] for tensor in touched & self._live)
        if size > room:
            for tensor in sorted(self._live - held - touched, key=self._next_use, reverse=True):
                self._live.discard(tensor)
                self._bytes -= game.size[tensor]
                size -= game.size[tensor]
                if size <= room:
                    break
        self._ops.append(op)
        new = game.writes[op] - self._live
        self._live |= new
        self._bytes += sum(game.size[tensor] for tensor in new)

    def _next_use(self, tensor: int) -> int:
        """Return the place in the reference order of the next op that reads a tensor for the first time."""
        uses = self._uses[tensor]
        while uses and uses[-1] < self._now:
            uses.pop()
        return uses[-1] if uses else len(self._game.order)
