"""Stage relaxations of several events, solved by partial solutions from both ends that meet in the middle."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from remat.bounds.stage_demands import DemandStates, Moves, TooManyError, demand_states
from remat.bounds.stage_relaxation import StageRelaxation
from remat.bounds.stage_sets import StageSets
from remat.runtime.arrays import Bool, Float, Int
from remat.runtime.deadline import Deadline, OverdueError

#: Events of relaxations that it may decide.
EVENTS = range(2, 11)
#: Most partial solutions at a time, and most pairs of them compared at a time.
MOST_PARTIAL, PAIRS = 150_000, 1_000_000
#: Parts of the distance from the bound of the prices to the cost sought, for the limits of the cost.
LIMITS = (0.25, 0.5, 1.0)
#: Parts of the distance that rounding priced costs down to a grid may lose in all.
LOSS = 0.03
#: Partial solutions of the same state, in order of cost, with which each one is compared for dominance.
NEIGHBOURS = 8
#: Largest number that combines two others.
MOST_KEY = 2**62


class Met(NamedTuple):
    """Outcome: no solution costs less than `bound`, in units of the relaxation; infinite if none costs at most `most`.

    `again` are the stages in which each op runs again in an optimal solution, shape (ops,); None if none was found.
    """

    bound: int | float
    again: Int | None = None


class Partial(NamedTuple):
    """Partial solutions, ordered by state and cost."""

    state: Int
    cost: Int
    bytes: Int
    """Shape (solutions, events)."""
    source: Int
    """Number of the partial solution that each one extends."""
    option: Int
    """Set of stages of the last decision."""


class Completions(NamedTuple):
    """Least priced cost with the bytes at one event, for each state: steps of a falling function."""

    key: Int
    """Bytes plus a multiple of the state, ascending."""
    state: Int
    cost: Int
    """In units of the grid."""


@dataclass(eq=False)
class StageMeeting:
    r"""Exact search for solutions of at most a given cost of a relaxation with several events.

    Partial solutions are extended from both ends of the decisions of :class:`~remat.bounds.stage_demands.DemandStates`,
    always on the side where they are fewer. They meet at a decision, where the cheapest pair with the same state that
    fits into the memory is an optimum. Partial solutions increase exponentially with the number of decisions; on either
    side they are about the square root of those at the end.

    A partial solution is discarded if another one of its state has neither more cost nor more bytes, or by what the
    other side needs at least: the exact least cost of a completion within the memory of the *tracked* event, with
    prices of the bytes at the others. It follows from a dynamic programme over the bytes at one event.

    Parameters
    ----------
    relaxation : StageRelaxation
        Built, without rows (5) and (6); tensors that have variables have one writer (:meth:`applies`).
    prices : float64 array, shape (events,)
        Of one byte, in units of cost. The duals of the memory rows of its linear relaxation are good ones.

    Attributes
    ----------
    bound : int
        No solution costs less, after what :meth:`run` has done by its deadline.
    """

    relaxation: StageRelaxation
    prices: Float
    bound: int = field(init=False, default=0)

    @staticmethod
    def applies(relaxation: StageRelaxation) -> bool:
        """Return True if a built relaxation has several events, and no variables for tensors of several writers."""
        one_memory = relaxation.slim and not len(relaxation.more)
        return one_memory and len(relaxation.events) in EVENTS and StageSets.applies(relaxation)

    def run(self, least: int, most: int, deadline: Deadline) -> Met:
        """Search for the cheapest solution of at most `most`; none costs less than `least`."""
        self.bound = least
        try:
            for part in LIMITS:
                limit = min(most, least + math.ceil(part * (most - least)))
                if limit < self.bound:
                    continue
                again = self._within(limit, deadline)
                if again is not None:
                    return Met(self.bound, again)
                self.bound = limit + 1
        except (OverdueError, TooManyError):
            return Met(self.bound)
        return Met(math.inf)

    def _within(self, limit: int, deadline: Deadline) -> Int | None:
        """Return the stages of an optimal solution of at most `limit`, whose cost becomes the bound; None if none."""
        states = demand_states(self.relaxation, self.prices, limit, deadline)
        if states.empty:
            return None
        again = np.zeros(len(self.relaxation.problem.graph.ops), dtype=np.int64)
        for moves in states.moves:
            again[moves.op] = moves.option[0]
        search = _Search(states, limit, deadline)
        found = search.meet()
        if found is None:
            return None
        self.bound, options = found
        again[search.ops] = options
        return again


@dataclass(eq=False)
class _Search:
    """Search for solutions of at most a cost. Decisions with one option in all are made at the start."""

    states: DemandStates
    most: int
    deadline: Deadline

    def __post_init__(self) -> None:
        states, prices = self.states, self.states.prices
        self._moves: list[Moves] = []
        self._to_end, self._from_start = [], []
        made, held = 0, np.zeros(len(states.room), dtype=np.int64)  # by decisions made at the start
        for moves, from_start, to_end in zip(states.moves, states.from_start, states.to_end, strict=False):
            if len(moves.option) > 1:
                self._moves.append(moves)
                self._from_start.append(from_start - (made + held @ prices))
                self._to_end.append(to_end + (made + held @ prices))
            else:
                made, held = made + int(moves.cost[0]), held + moves.bytes[0]
        self._to_end = [to_end - (made + held @ prices) for to_end in self._to_end]
        self._made, self._room = made, states.room - held
        self._most = self.most - made
        self._tracked = int(np.argmax(states.prices * self._room))
        self._others = states.prices.copy()
        self._others[self._tracked] = 0.0
        self._span = int(self._room[self._tracked]) + 1
        largest = max([1, *(moves.number for moves in self._moves)])
        if largest * max(self._span, self._most + 2) >= MOST_KEY:
            raise TooManyError
        self._grid = max(1e-9, LOSS * max(1.0, self.most - states.bound) / (len(self._moves) + 1))

    @property
    def ops(self) -> list[int]:
        """Ops of the decisions that are not made at the start."""
        return [moves.op for moves in self._moves]

    def meet(self) -> tuple[int, list[int]] | None:
        """Return the least cost and the options of all decisions; None if there is no solution."""
        if (self._room < 0).any():
            return None
        to_end, from_start = self._completions(), self._beginnings()
        one, nothing = np.zeros(1, dtype=np.int64), np.zeros((1, len(self._room)), dtype=np.int64)
        start = Partial(one, one, nothing, one, one)
        ahead, back = [start], [start]
        first, last = 0, len(self._moves)
        while first < last:
            self.deadline.check()
            if len(ahead[-1].state) <= len(back[-1].state):
                ahead.append(self._extended(ahead[-1], self._moves[first], to_end[first + 1], forward=True))
                first += 1
            else:
                last -= 1
                back.append(self._extended(back[-1], self._moves[last], from_start[last], forward=False))
            if not len(ahead[-1].state) or not len(back[-1].state):
                return None
            if max(len(ahead[-1].state), len(back[-1].state)) > MOST_PARTIAL:
                raise TooManyError
        pair = self._cheapest_pair(ahead[-1], back[-1])
        if pair is None:
            return None
        cost = self._made + int(ahead[-1].cost[pair[0]] + back[-1].cost[pair[1]])
        return cost, [*_options(ahead, pair[0])[::-1], *_options(back, pair[1])]

    # -- partial solutions -----------------------------------------------------------------------------------------

    def _extended(self, known: Partial, moves: Moves, rest: Completions, *, forward: bool) -> Partial:
        """Return partial solutions with one more decision, without those that cannot be part of one sought."""
        begin, end = (moves.before, moves.after) if forward else (moves.after, moves.before)
        source, row = _joined(known.state, begin)
        state, cost, held = end[row], known.cost[source] + moves.cost[row], known.bytes[source] + moves.bytes[row]
        keep = np.flatnonzero((cost <= self._most) & (held <= self._room).all(axis=1))
        state, cost, held, source, row = state[keep], cost[keep], held[keep], source[keep], row[keep]
        low = cost + (held - self._room) @ self._others + self._rest(state, held, rest)
        keep = np.flatnonzero(low <= self._most + self.states.error)
        keep = keep[np.lexsort((*held[keep].T, cost[keep], state[keep]))]
        keep = keep[~_dominated(state[keep], held[keep])]
        return Partial(state[keep], cost[keep], held[keep], source[keep], moves.option[row[keep]])

    def _rest(self, state: Int, held: Int, rest: Completions) -> Float:
        """Return the least priced cost of the other side for partial solutions; infinite if it does not fit."""
        room = self._room[self._tracked] - held[:, self._tracked]
        place = np.searchsorted(rest.key, state * self._span + room, side="right") - 1
        found = (place >= 0) & (rest.state[place] == state) if len(rest.key) else np.zeros(len(state), dtype=np.bool_)
        return np.where(found, rest.cost[place] * self._grid if len(rest.key) else 0.0, np.inf)

    def _cheapest_pair(self, ahead: Partial, back: Partial) -> tuple[int, int] | None:
        """Return numbers of two partial solutions of a state that fit together at the least cost; None if none do."""
        span, best, pair = self._most + 2, self._most + 1, None
        low = np.searchsorted(back.state, ahead.state)
        key, first = back.state * span + back.cost, 0
        while first < len(ahead.state):
            self.deadline.check()
            left = best - 1 - ahead.cost[first:]  # cost of the other side that is cheaper
            high = np.searchsorted(key, ahead.state[first:] * span + np.maximum(left, -1), side="right")
            count = np.where(left < 0, 0, np.maximum(0, high - low[first:]))
            number = max(1, int(np.searchsorted(np.cumsum(count), PAIRS, side="right")))
            count = count[:number]
            one = first + np.repeat(np.arange(number), count)
            other = low[one] + np.arange(len(one)) - np.repeat(np.cumsum(count) - count, count)
            fits = np.flatnonzero((ahead.bytes[one] + back.bytes[other] <= self._room).all(axis=1))
            if len(fits):
                cost = ahead.cost[one[fits]] + back.cost[other[fits]]
                which = int(cost.argmin())
                best, pair = int(cost[which]), (int(one[fits[which]]), int(other[fits[which]]))
            first += number
        return pair

    # -- what the other side needs at least ------------------------------------------------------------------------

    def _completions(self) -> list[Completions]:
        """Return what states before each decision, and at the end, need to the end."""
        found = [self._no_steps()]
        for k in range(len(self._moves) - 1, -1, -1):
            moves = self._moves[k]
            found.append(self._step(found[-1], moves.after, moves.before, moves, self._from_start[k]))
        return found[::-1]

    def _beginnings(self) -> list[Completions]:
        """Return what is needed from the start to the states before each decision, and at the end."""
        found = [self._no_steps()]
        for moves, to_end in zip(self._moves, self._to_end, strict=True):
            found.append(self._step(found[-1], moves.before, moves.after, moves, to_end))
        return found

    def _no_steps(self) -> Completions:
        nothing = np.zeros(1, dtype=np.int64)
        return Completions(nothing, nothing, nothing)

    def _step(self, known: Completions, begin: Int, end: Int, moves: Moves, other: Float) -> Completions:
        """Return what one more decision needs; `other` is the least priced cost of the rest of each state."""
        self.deadline.check()
        tracked, prices = self._tracked, self.states.prices
        extra = np.floor((moves.cost + moves.bytes @ self._others) / self._grid).astype(np.int64)
        source, row = _joined(known.state, begin)
        state, cost = end[row], known.cost[source] + extra[row]
        held = known.key[source] - known.state[source] * self._span + moves.bytes[row, tracked]
        low = cost * self._grid + prices[tracked] * held + other[state] - float(prices @ self._room)
        keep = np.flatnonzero((held < self._span) & (low <= self._most + self.states.error))
        key, cost, state = state[keep] * self._span + held[keep], cost[keep], state[keep]
        order = np.lexsort((cost, key))
        key, cost, state = key[order], cost[order], state[order]
        falling = cost - state * (int(cost.max(initial=0)) + 1)
        lower = np.ones(len(key), dtype=np.bool_)
        lower[1:] = falling[1:] < np.minimum.accumulate(falling)[:-1]
        if np.count_nonzero(lower) > 2 * MOST_PARTIAL:
            raise TooManyError
        return Completions(key[lower], state[lower], cost[lower])


def _joined(state: Int, begin: Int) -> tuple[Int, Int]:
    """Return the pairs of entries and rows where an entry of `state` equals a row of `begin`."""
    order = np.argsort(begin, kind="stable")
    keys = begin[order]
    low, high = np.searchsorted(keys, state), np.searchsorted(keys, state, side="right")
    count = high - low
    entry = np.repeat(np.arange(len(state)), count)
    within = np.arange(len(entry)) - np.repeat(np.cumsum(count) - count, count)
    return entry, order[low[entry] + within]


def _dominated(state: Int, held: Int) -> Bool:
    """Mark partial solutions, ordered by state, cost and bytes, that an earlier one of the same state dominates."""
    found = np.zeros(len(state), dtype=np.bool_)
    for shift in range(1, min(NEIGHBOURS, len(state) - 1) + 1):
        found[shift:] |= (state[:-shift] == state[shift:]) & (held[:-shift] <= held[shift:]).all(axis=1)
    return found


def _options(layers: list[Partial], number: int) -> list[int]:
    """Return the options of a partial solution, the last decision first."""
    found = []
    for layer in layers[:0:-1]:
        found.append(int(layer.option[number]))
        number = int(layer.source[number])
    return found
