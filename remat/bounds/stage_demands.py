"""States of the elimination of ops from the last to the first: the stages in which tensors are requested."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from remat.bounds.stage_relaxation import StageRelaxation
from remat.bounds.stage_sets import StageSets
from remat.runtime.arrays import Float, Int
from remat.runtime.deadline import Deadline

#: Most states after a decision, and most moves in all.
MOST_STATES, MOST_MOVES = 30_000, 1_500_000
#: Numbers of events of the coarser relaxations.
COARSER = (1, 2, 4, 6, 8)
#: Steps in which the prices of a relaxation are improved, and the factor of their length after one without progress.
ROUNDS, SHORTER = 2, 0.7


class TooManyError(Exception):
    """Raised if states, or partial solutions, are too many."""


class Moves(NamedTuple):
    """Decision of one op: a row for each state before it and each set of stages in which the op may run again."""

    op: int
    before: Int
    """Number of the state before, shape (rows,)."""
    option: Int
    cost: Int
    bytes: Int
    """Bytes that the op's outputs take at each event, shape (rows, events)."""
    after: Int
    """Number of the state after, shape (rows,)."""
    number: int
    """Number of states after."""


class States(NamedTuple):
    """States after a decision: the stages in which some tensors are requested, with a key of each, ascending."""

    tensors: list[int]
    requests: Int
    """Shape (states, tensors)."""
    keys: Int


@dataclass(eq=False)
class DemandStates:
    r"""States between the decisions of a stage relaxation, and what is necessary to reach and to complete each.

    Ops are decided from the readers to the writers. When an op is decided, all requests for its outputs are known: its
    stages decide where these are live, and which inputs it requests. So a state is the set of stages in which each
    tensor with an undecided writer is requested. A run that no request needs is left out.

    With prices :math:`\lambda \ge 0` of a byte at each event, a solution of cost `c` that takes :math:`m_e` bytes costs
    at least :math:`c + \sum_e \lambda_e (m_e - \mathrm{room}_e)` within the memory. States and moves that no solution
    of at most `most` can take are left out, in three ways:

    * by the least priced costs from the start to a state and from there to the end;
    * while states are listed, by those of `coarser`, which has some of the events: the requests in all stages between
      two of its events are united. What a state needs then costs no more;
    * if the united requests are no state of `coarser`, it was left out there.

    Parameters
    ----------
    relaxation : StageRelaxation
        Built, without rows (5) and (6).
    order : list of int
        Ops to decide, readers first. Others do not run again, and nothing that runs again requests their outputs.
    at : list of int
        Numbers of its events among those of the finest relaxation, ascending.
    most : int
        Cost of the solutions sought, in units of the relaxation.
    prices : float64 array, shape (events,)
        First prices, which are improved.
    coarser : DemandStates, optional
    finest : bool
        Leave out all runs without use. Otherwise those stay that can be of use in a finer relaxation.
    deadline : Deadline

    Attributes
    ----------
    room : int64 array, shape (events,)
        Bytes for outputs of these ops.
    moves : list of Moves
    states : list of States
        After each decision.
    prices : float64 array, shape (events,)
    bound : float
        No solution costs less.
    to_end, from_start : list of float64 arrays
        Least priced cost from the states after each decision to the end, and from the start to the states before each.
    """

    relaxation: StageRelaxation
    order: list[int]
    at: list[int]
    most: int
    prices: Float
    coarser: DemandStates | None
    finest: bool
    deadline: Deadline = field(repr=False)

    def __post_init__(self) -> None:
        self.sets = StageSets(self.relaxation)
        self.room = self.sets.room - self._bytes_of_others()
        self.moves: list[Moves] = []
        self.states: list[States] = []
        self._list_states()
        self.prices = np.maximum(self.prices, 0.0)
        self.bound = self._improve_prices()
        self._leave_out()

    @property
    def error(self) -> float:
        """More than the rounding errors of priced costs, which are sums of few thousand terms of such sizes."""
        return 1e-9 * (1 + self.most + float(self.prices @ self.room.clip(0)))

    def _bytes_of_others(self) -> Int:
        """Return the bytes at each event of outputs of ops that are not decided."""
        sets, total = self.sets, np.zeros(self.sets.count, dtype=np.int64)
        decided = np.zeros(len(sets.again), dtype=np.bool_)
        decided[self.order] = True
        for tensor in np.flatnonzero(sets.held & (sets.writer >= 0)).tolist():
            if not decided[sets.writer[tensor]]:
                total += sets.lifetimes(tensor).live[0, 0] * sets.size[tensor]
        return total

    # -- states ----------------------------------------------------------------------------------------------------

    def _list_states(self) -> None:
        """List all states and moves that the coarser relaxation does not leave out."""
        keys = np.random.default_rng(0).integers(1, 2**62, len(self.sets.links))
        states, least = States([], np.zeros((1, 0), dtype=np.int64), np.zeros(1, dtype=np.int64)), np.zeros(1)
        shared, total = self._shared_prices(), 0
        for number, op in enumerate(self.deadline.each(self.order, 8)):
            grown, moves = self._grow(op, states)
            key = _keys_of(grown, keys)
            cost = least[moves.before] + moves.cost + moves.bytes @ shared
            if self.coarser is not None:
                _, some, which = np.unique(key, return_index=True, return_inverse=True)
                rest = self._coarse_bound(number, States(grown.tensors, grown.requests[some], key[some]), keys)
                keep = cost + rest[which.ravel()] - shared @ self.room <= self.most + self.coarser.error
                moves = _selected(moves, keep)
                grown, key, cost = States(grown.tensors, grown.requests[keep], grown.keys), key[keep], cost[keep]
            unique, some, after = np.unique(key, return_index=True, return_inverse=True)
            after = after.ravel()
            states = States(grown.tensors, grown.requests[some], unique)
            if not (states.requests[after] == grown.requests).all():
                raise TooManyError  # two states have the same key
            total += len(after)
            if len(unique) > MOST_STATES or total > MOST_MOVES:
                raise TooManyError
            least = np.full(len(unique), np.inf)
            np.minimum.at(least, after, cost)
            self.moves.append(moves._replace(after=after, number=len(unique)))
            self.states.append(states)

    def _grow(self, op: int, states: States) -> tuple[States, Moves]:
        """Return what each option makes of each state, one row each; keys and the numbers after are missing."""
        sets, arrays = self.sets, self.relaxation.problem.graph.arrays
        inputs = [t for t in arrays.op_inputs[op].tolist() if sets.links[t] & sets.again[op]]
        outputs = [t for t in arrays.op_outputs[op].tolist() if sets.writer[t] == op]
        column = {tensor: number for number, tensor in enumerate(states.tensors)}
        nothing = np.zeros(len(states.requests), dtype=np.int64)
        asked = [(tensor, states.requests[:, column[tensor]] if tensor in column else nothing) for tensor in outputs]
        stay = [tensor for tensor in states.tensors if tensor not in outputs]
        tensors = [*stay, *(tensor for tensor in inputs if tensor not in column)]
        kept = np.zeros((len(nothing), len(tensors)), dtype=np.int64)
        kept[:, : len(stay)] = states.requests[:, [column[tensor] for tensor in stay]]
        parts: list[tuple[Int, Int, Int, Int]] = []
        for option in sets.options(op):
            of_use, held = nothing, np.zeros((len(nothing), sets.count), dtype=np.int64)
            for tensor, requests in asked:
                table = sets.lifetimes(tensor)
                of_use = of_use | (table.of_use[option, requests] if self.finest else table.of_use_of_fewer[requests])
                held += table.live[option, requests] * sets.size[tensor]
            rows = np.flatnonzero(option & ~of_use == 0)
            found = kept[rows]
            for tensor in inputs:
                found[:, tensors.index(tensor)] |= option & sets.links[tensor]
            parts.append((rows, np.full(len(rows), option), found, held[rows]))
        before, options, requests, held = (np.concatenate(each) for each in zip(*parts, strict=True))
        some = np.flatnonzero(requests.any(axis=0))
        grown = States([tensors[k] for k in some.tolist()], requests[:, some], nothing)
        runs = np.array([option.bit_count() for option in range(sets.full + 1)])[options]
        return grown, Moves(op, before, options, sets.cost(op) * runs, held, before, 0)

    def _shared_prices(self) -> Float:
        """Return the prices of the coarser relaxation, 0 at the other events."""
        found = np.zeros(len(self.at))
        if self.coarser is not None:
            found[np.searchsorted(self.at, self.coarser.at)] = self.coarser.prices
        return found

    def _coarse_bound(self, number: int, states: States, keys: Int) -> Float:
        """Return the least priced cost to complete each state in the coarser relaxation; infinite if it has none."""
        coarser = self.coarser
        assert coarser is not None
        stage = np.searchsorted(coarser.at, self.at, side="right") - 1  # of each fine stage
        united = np.zeros_like(states.requests)
        for fine, coarse in enumerate(stage.tolist()):
            if coarse >= 0:
                united |= (states.requests >> fine & 1) << coarse
        united &= coarser.sets.links[states.tensors]
        known = coarser.states[number]
        key = _keys_of(States(states.tensors, united, states.keys), keys)
        place = np.minimum(np.searchsorted(known.keys, key), len(known.keys) - 1)
        found = known.keys[place] == key
        column = {tensor: column for column, tensor in enumerate(known.tensors)}
        same = found.copy()
        for tensor, requests in zip(states.tensors, united.T, strict=True):
            same &= requests == (known.requests[place, column[tensor]] if tensor in column else 0)
        for tensor in set(known.tensors) - set(states.tensors):
            same &= known.requests[place, column[tensor]] == 0
        if (found & ~same).any():
            raise TooManyError  # two states have the same key
        return np.where(found, coarser.to_end[number][place], np.inf)

    # -- prices ----------------------------------------------------------------------------------------------------

    def _improve_prices(self) -> float:
        """Improve the prices by steps along subgradients; return the best bound, of which errors are subtracted."""
        room, best, length, prices = self.room, -np.inf, 1.0, self.prices
        for _ in range(ROUNDS):
            self.deadline.check()
            to_end = self._to_end(prices)
            value = float(self._least(to_end, prices)) - float(prices @ room)
            if value > best:
                best, self.prices = value, prices
            else:
                length *= SHORTER
            if self.finest:
                break
            over = (self._bytes(to_end, prices) - room).astype(np.float64)
            over[(self.prices <= 0) & (over < 0)] = 0
            if not over.any():
                break
            step = length * max(self.most - value, 1.0) / float(over @ over)
            prices = np.maximum(0.0, self.prices + step * over)
        return best - self.error

    def _priced(self, moves: Moves, prices: Float) -> Float:
        return moves.cost + moves.bytes @ prices

    def _to_end(self, prices: Float) -> list[Float]:
        """Return the least priced cost from the states after each decision to the end."""
        found, least = [], np.zeros(self.moves[-1].number if self.moves else 1)
        for moves, count in zip(reversed(self.moves), reversed(self._counts[:-1]), strict=True):
            found.append(least)
            cost, least = self._priced(moves, prices) + least[moves.after], np.full(count, np.inf)
            np.minimum.at(least, moves.before, cost)
        return found[::-1]

    @property
    def _counts(self) -> list[int]:
        """Numbers of states before each decision, and at the end."""
        return [1, *(moves.number for moves in self.moves)]

    def _from_start(self, prices: Float) -> list[Float]:
        """Return the least priced cost from the start to the states before each decision."""
        found, least = [], np.zeros(1)
        for moves in self.moves:
            found.append(least)
            cost, least = self._priced(moves, prices) + least[moves.before], np.full(moves.number, np.inf)
            np.minimum.at(least, moves.after, cost)
        return [*found, least]

    def _least(self, to_end: list[Float], prices: Float) -> float:
        """Return the least priced cost from the start to the end; infinite if there is no way."""
        if not self.moves:
            return 0.0
        first = self.moves[0]
        return float((self._priced(first, prices) + to_end[0][first.after]).min(initial=np.inf))

    def _bytes(self, to_end: list[Float], prices: Float) -> Int:
        """Return the bytes at each event of a solution of the least priced cost."""
        total, state = np.zeros(self.sets.count, dtype=np.int64), 0
        for moves, rest in zip(self.moves, to_end, strict=True):
            rows = np.flatnonzero(moves.before == state)
            if not len(rows):
                break
            cost = moves.cost[rows] + moves.bytes[rows] @ prices + rest[moves.after[rows]]
            row = rows[int(cost.argmin())]
            total += moves.bytes[row]
            state = int(moves.after[row])
        return total

    def _leave_out(self) -> None:
        """Leave out moves and states that no solution of at most `most` can take."""
        prices, number = self.prices, np.zeros(1, dtype=np.int64)
        to_end, from_start = self._to_end(prices), self._from_start(prices)
        limit = self.most + float(prices @ self.room) + self.error
        kept: list[Moves] = []
        self.to_end = []
        for k, moves in enumerate(self.moves):
            low = from_start[k][moves.before] + self._priced(moves, prices) + to_end[k][moves.after]
            some = _selected(moves, low <= limit)
            used, after = np.unique(some.after, return_inverse=True)
            kept.append(some._replace(before=number[some.before], after=after.ravel(), number=len(used)))
            states = self.states[k]
            self.states[k] = States(states.tensors, states.requests[used], states.keys[used])
            self.to_end.append(to_end[k][used])
            number = np.full(moves.number, -1)
            number[used] = np.arange(len(used))
        self.moves = kept
        self.from_start = self._from_start(prices)

    @property
    def empty(self) -> bool:
        """True if no solution costs at most `most`."""
        return bool((self.room < 0).any()) or any(not moves.number for moves in self.moves)


def demand_states(relaxation: StageRelaxation, prices: Float, most: int, deadline: Deadline) -> DemandStates:
    """Return the states of a relaxation, found by way of coarser ones with some of its events, the dearest ones.

    Raises
    ------
    TooManyError
        If states are too many.
    OverdueError
        At the deadline.
    """
    order, found = decisions(relaxation), None
    count, room = len(relaxation.events), np.array([relaxation.room(event) for event in relaxation.events])
    rank = np.argsort(-prices * room, kind="stable")
    for number in [*(each for each in COARSER if each < count), count]:
        at = sorted(rank[:number].tolist())
        part = relaxation
        if number < count:
            part = StageRelaxation(relaxation.problem, [relaxation.events[k] for k in at], relaxation.slim)
            part.build(deadline)
        found = DemandStates(part, order, at, most, prices[at], found, number == count, deadline)
        if found.empty:
            break
    assert found is not None
    return found


def decisions(relaxation: StageRelaxation) -> list[int]:
    """Return the ops that may run again, or are requested then, in the order in which they are decided.

    Readers are decided before writers; next is an op that opens the fewest tensors more than it closes.
    """
    sets, arrays = StageSets(relaxation), relaxation.problem.graph.arrays
    place = arrays.position.tolist()
    inputs = {
        op: [t for t in arrays.op_inputs[op].tolist() if sets.links[t] & sets.again[op]]
        for op in np.flatnonzero(sets.again).tolist()
    }
    writers = {int(sets.writer[t]) for tensors in inputs.values() for t in tensors}
    inputs |= {op: [] for op in writers - inputs.keys()}
    ops = list(inputs)
    left = dict.fromkeys(ops, 0)  # readers that are not decided
    for tensors in inputs.values():
        for tensor in tensors:
            left[int(sets.writer[tensor])] += 1
    opened: set[int] = set()

    def rank(op: int) -> tuple[int, int, int]:
        opens = sum(tensor not in opened for tensor in inputs[op])
        return opens - sum(t in opened for t in arrays.op_outputs[op].tolist()), -place[op], op

    readers: dict[int, list[int]] = {}
    for op in ops:
        for tensor in inputs[op]:
            readers.setdefault(tensor, []).append(op)
    ready, found, decided = [rank(op) for op in ops if not left[op]], [], set[int]()
    heapq.heapify(ready)
    while ready:
        known = heapq.heappop(ready)
        op = known[2]
        if op in decided:
            continue
        if (now := rank(op)) > known:
            heapq.heappush(ready, now)
            continue
        decided.add(op)
        found.append(op)
        opened.difference_update(arrays.op_outputs[op].tolist())
        new = [tensor for tensor in inputs[op] if tensor not in opened]
        opened.update(new)
        nearer = {reader for tensor in new for reader in readers[tensor] if not left[reader]} - decided
        for tensor in inputs[op]:
            writer = int(sets.writer[tensor])
            left[writer] -= 1
            if not left[writer]:
                nearer.add(writer)
        for each in sorted(nearer):
            heapq.heappush(ready, rank(each))
    return found


def _selected(moves: Moves, keep: Int | np.ndarray) -> Moves:
    """Return some rows."""
    op, before, option, cost, held, after, number = moves
    return Moves(op, before[keep], option[keep], cost[keep], held[keep], after[keep], number)


def _keys_of(states: States, keys: Int) -> Int:
    """Return a number for each state, by which equal ones are found."""
    return states.requests @ keys[states.tensors]
