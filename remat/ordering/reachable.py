"""Feasibility of a budget with any number of computes: sets of live tensors that can be reached from the empty one."""

from __future__ import annotations

from functools import reduce
from operator import or_

import numpy as np

from remat.ordering.live_sets import LiveSets, Sets, contains, different
from remat.problem import Problem
from remat.runtime.deadline import Deadline

#: States expanded at a time.
PIECE = 20_000


class Reachable:
    """Search for a way to compute each op within the budget; a black pebble game with sizes.

    Any number of computes is allowed, so a schedule may start over: free everything, and compute the next op with the
    ops that it depends on. Hence the budget is feasible if
    and only if two things hold. Each op can be computed from nothing, with recomputations of its ancestors alone. All
    tensors to keep can be live together. **The order rule does not matter**: run these parts one after the other, by
    the reference order.

    The search for an op expands sets of live tensors. It evicts only minimal sets right before a step that lacks room.
    A set is *saturated* if no op that is ready fits without an eviction; only saturated sets are stored, since every
    set leads to whatever its subsets lead to. It ends when the op has run, or no set is new.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> [Reachable(Problem(unit_chain(6), budget)).run() for budget in (2, 3)]
    [False, True]
    """

    def __init__(self, problem: Problem, most_states: int = 20_000_000) -> None:
        self.sets, self._most = LiveSets(problem), most_states
        self._room = problem.budget_bytes or 0
        self.states = 0

    def run(self, deadline: Deadline | None = None) -> bool | None:
        """Return True if a schedule keeps the budget, False if none does, and None if time or memory ran out."""
        clock, sets = deadline or Deadline(), self.sets
        ends = [op for op in range(len(sets.ops)) if not any(sets.readers[t] for t in _numbers(sets.writes[op]))]
        keepers = [op for op in range(len(sets.ops)) if sets.writes[op] & sets.kept]
        answer: bool | None = True
        for goal in ends:
            answer = _and(answer, self._reach(sets.before(goal), goal, 0, clock))
            if answer is False:
                return False
        if keepers:
            ops = reduce(or_, map(sets.before, keepers))
            answer = _and(answer, self._reach(ops, None, sets.kept, clock))
        return answer

    def _reach(self, ops: int, goal: int | None, wanted: int, clock: Deadline) -> bool | None:
        """Search with some ops until `goal` has run, or until the `wanted` tensors are live together."""
        sets = self.sets
        every = _numbers(ops)
        known = self._saturated(np.zeros((sets.words, 1), dtype=np.uint64), every)
        frontier = known

        def ended(live: Sets) -> bool:
            if goal is None:
                return bool(contains(live, sets.mask(wanted)).any())
            return bool((live & sets.mask(sets.writes[goal])).any())

        while frontier.shape[1]:
            if ended(frontier):
                return True
            found: list[Sets] = []
            for start in range(0, frontier.shape[1], PIECE):
                piece = frontier[:, start : start + PIECE]
                used = sets.bytes_of(piece)
                for op in every:
                    if clock.expired or known.shape[1] > self._most:
                        return None
                    vain = contains(piece, sets.mask(sets.writes[op])) & (op != goal)
                    at = np.flatnonzero(sets.ready(piece, op) & ~vain)
                    if not len(at):
                        continue
                    after = sets.after(op, piece[:, at], used[at], at).live
                    if op == goal and after.shape[1]:
                        return True
                    found.append(after[:, different(after)])
            new = self._saturated(np.concatenate(found, axis=1), every) if found else frontier[:, :0]
            both = np.concatenate([known, new], axis=1)
            rows = different(both)
            frontier = both[:, rows[rows >= known.shape[1]]]
            known = np.concatenate([known, frontier], axis=1)
            self.states = max(self.states, known.shape[1])
        return False

    def _saturated(self, live: Sets, ops: list[int]) -> Sets:
        """Run ops that fit without an eviction, until there is none; return the different sets."""
        sets = self.sets
        live = live[:, different(live)]
        used = sets.bytes_of(live)
        more = True
        while more:
            more = False
            for op in ops:
                written = sets.mask(sets.writes[op])
                idle = np.flatnonzero(sets.ready(live, op) & ~contains(live, written))
                new = sets.size_of(sets.writes[op]) - sets.bytes_of(live[:, idle], sets.writes[op])
                at = idle[used[idle] + new + int(sets.always[op]) <= self._room]
                if len(at):
                    live[:, at] |= written
                    used[at] = sets.bytes_of(live[:, at])
                    more = True
        return live[:, different(live)]


def _numbers(mask: int) -> list[int]:
    """Return the numbers of the bits of a set."""
    return [k for k in range(mask.bit_length()) if mask >> k & 1]


def _and(one: bool | None, other: bool | None) -> bool | None:
    """Return True if both hold, and None if that is not known."""
    return False if one is False or other is False else None if one is None or other is None else True
