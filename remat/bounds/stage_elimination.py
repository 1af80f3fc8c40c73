"""Stage relaxations solved exactly by eliminating ops one after another, with prices of memory instead of its limit."""

from __future__ import annotations

import contextlib
import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from remat.bounds.stage_relaxation import StageRelaxation
from remat.modeling.rows import NONE
from remat.runtime.arrays import Bool, Float, Int
from remat.runtime.deadline import Deadline, OverdueError

#: Most events; most states between two decisions, and transitions between them in all; most partial solutions kept.
MOST_EVENTS, MOST_STATES, MOST_TRANSITIONS, MOST_PARTIAL = 2, 20_000, 1_000_000, 10_000
#: Partial solutions kept for a first solution, which is often the optimum.
BEAM = 100
#: Most ops considered for the next decision.
MOST_NEAR = 24
#: First distance of the cost limit from the bound of the prices, in parts of it, and its factor.
FIRST_GAP, WIDER = 1e-3, 4.0
#: Bits of a state.
BITS = 62
#: Partial solutions of the same state, in order of cost, with which each one is compared for dominance.
NEIGHBOURS = 6


class Eliminated(NamedTuple):
    """Outcome: no solution costs less than `bound`, in units of the relaxation.

    `live`, shape (events, tensors), is a solution within the memory of each event, which costs `cost`; it is optimal if
    `cost` equals `bound`. None: none was found.
    """

    bound: int | float
    cost: int | None = None
    live: Bool | None = None


class Step(NamedTuple):
    """Decision in which stages an op runs again.

    `options` are sets of stages as bits. `place` is the position in the state of the op's own set, and `reads` are
    those of the requests for its linked inputs, with the stages in which they matter. `fulfilled` are positions of
    writers and of requests that they fulfil, which are removed. `closed` are the tensors of which all ops are now
    decided, with the positions of their writer's set and their requests. `clear` has the bits that end here.
    """

    op: int
    options: list[int]
    place: int
    reads: list[tuple[int, int]]
    fulfilled: list[tuple[int, int]]
    closed: list[tuple[int, int, int]]
    clear: int


class Layer(NamedTuple):
    """Partial solutions after a step, in groups with the same state, cost and memory."""

    source: Int
    """Group before the step, shape (solutions,)."""
    option: Int
    """Set of stages, shape (solutions,)."""
    since: Int
    """Number of the state before the step, shape (solutions,)."""
    ways: Float
    """Number of sequences of options that lead there, in proportion, shape (solutions,)."""
    begin: Int
    """First solution of each group, shape (groups,)."""
    end: Int
    """Solution after the last of each group, shape (groups,)."""


class Found(NamedTuple):
    """Solutions of the same cost: a group after the last step."""

    cost: int
    layers: list[Layer]
    group: int


class Transition(NamedTuple):
    """Step from every state before it: row ``option * states + state`` stands for an option in a state."""

    options: Int
    """Sets of stages, shape (options,)."""
    cost: Int
    """Cost of each option, shape (options,)."""
    bytes: Int
    """Bytes that each row adds at each event, shape (rows, events)."""
    after: Int
    """Number of the state after the step, shape (rows,)."""
    to_end: Float
    """Least priced cost from each state after the step to the end, shape (states after the step,)."""


@dataclass(eq=False)
class StageElimination:
    r"""Exact search for the optimum of a built stage relaxation without its rows (5) and (6).

    Given the stages in which each op runs again, the tensors that must be live follow: those that a first compute, a
    reader that runs again or a later event requires, back to the event before which their writer ran last. Only ops and
    tensors that are linked interact: a reader that runs again asks for a tensor only in stages in which no first
    compute asks for it anyway. So ops are decided one after another, in an order in which few tensors are *open*, with
    some but not all of their writer and readers decided. The *state* after a decision is the stages of the writers and
    the requests of the open tensors. Repeated blocks pass through the same states.

    1. With prices :math:`\lambda \ge 0` of a byte at each event in place of the rows (1), the least cost to complete
       each state follows backwards, as in any dynamic programme. At the start it is a bound, for any prices.
    2. Partial solutions with their true cost and memory are extended from the first op to the last. One is discarded if
       its cost, the priced memory above the limit, and the least cost to complete its state exceed a limit, or if
       another one with its state has neither more cost nor more memory at any event. If none is left, no solution is
       within the limit; otherwise the cheapest one is optimal.
    3. A first solution follows from the :data:`BEAM` most promising partial solutions after each decision. The limit
       begins near the bound and rises to its cost: partial solutions increase with the distance.

    Repeated blocks also give many solutions with the same cost and memory. :meth:`live` draws one of them.

    It claims nothing if states are too many; beyond :data:`MOST_PARTIAL` partial solutions it continues with the most
    promising ones, and claims only what the last limit has proved.

    Parameters
    ----------
    relaxation : StageRelaxation
        Built; tensors that have variables have one writer (:meth:`applies`).
    prices : float array, shape (events,)
        Of one byte, in units of cost. The duals of the memory rows of its linear relaxation are good ones.
    """

    relaxation: StageRelaxation
    prices: Float

    def __post_init__(self) -> None:
        relaxation = self.relaxation
        arrays = self._arrays = relaxation.problem.graph.arrays
        events = self._count = len(relaxation.events)
        self._full = (1 << events) - 1
        live = np.array(relaxation.live)
        self._size: Int = (arrays.size * (live >= 0)).T
        self._room: Int = np.array([relaxation.room(event) for event in relaxation.events])
        self._prices = np.maximum(self.prices, 0.0)
        # Bit i of a set stands for the stage that follows event i.
        weight = 1 << np.arange(events)
        stages = relaxation.stages[1:]
        self._again: Int = weight @ np.array([stage.again >= 0 for stage in stages])
        wanted = np.zeros(live.shape, dtype=np.bool_)
        for marks, stage in zip(wanted, stages, strict=True):
            marks[relaxation.needed(stage)[1]] = True
        free = np.array([relaxation.at(event) for event in relaxation.events])
        self._wanted: Int = weight @ wanted
        self._free: Int = weight @ free  # read or written by the event's op, so live there
        self._held: Bool = np.any(live >= 0, axis=0)
        single = arrays.producers.counts == 1
        writer: Int = np.where(single, arrays.producers.highest(np.arange(len(arrays.cost)), NONE), NONE)
        self._writer = writer
        old = arrays.position[np.maximum(writer, 0)] <= np.array(relaxation.events)[:, None]
        self._old: Int = weight @ (old & (writer >= 0))
        self._links: Int = self._old & ~self._wanted & ~self._free  # stages in which requests of readers matter
        self._tables = cache(self._table)
        self._transitions: list[Transition] | None = None
        self._found: Found | None = None
        self._least, self._distance = 0.0, 1.0
        self._proved = 0  # no solution costs less
        self._ended = False

    @staticmethod
    def applies(relaxation: StageRelaxation) -> bool:
        """Return True if a built relaxation has few events, and no variables for tensors with several writers."""
        shared = relaxation.problem.graph.arrays.producers.counts > 1
        few = 0 < len(relaxation.events) <= MOST_EVENTS
        return few and not any((live[shared] >= 0).any() for live in relaxation.live)

    def run(self, most: int | None, deadline: Deadline) -> Eliminated:
        """Search for a solution of at most `most` until the deadline; another call continues the search."""
        with contextlib.suppress(OverdueError):
            if self._transitions is None and not self._prepare(deadline):
                return Eliminated(0)
            self._ended = False
            most = self._all_again if most is None else min(most, self._all_again)
            if self._found is None:
                self._keep(self._within(most, BEAM, deadline)[0])
            while self._proved <= most:
                limit = math.floor(self._least + self._distance)
                if self._found is not None:
                    limit = min(limit, self._found.cost)
                limit = min(max(limit, self._proved), most)
                best, cut = self._within(limit, MOST_PARTIAL, deadline)
                self._keep(best)
                if not cut:
                    self._proved, self._distance = limit + 1 if best is None else best.cost, self._distance * WIDER
                if cut or best is not None:
                    break
            self._ended = True
            if self._proved > most:
                return Eliminated(math.inf)
        known = self._found
        if known is None or (most is not None and known.cost > most):
            return Eliminated(self._proved)
        return Eliminated(self._proved, known.cost, self.live())

    @property
    def pending(self) -> bool:
        """True if the last call ended at its deadline, and another one would continue."""
        return self._transitions is not None and not self._ended

    def _keep(self, found: Found | None) -> None:
        """Keep a solution unless a cheaper one is known."""
        if found is not None and (self._found is None or found.cost <= self._found.cost):
            self._found = found

    def _prepare(self, deadline: Deadline) -> bool:
        """Prepare the transitions and the bound of the prices; return False if states are too many."""
        steps = self._decisions()
        found = None if steps is None else self._from_all_states(steps, deadline)
        if steps is None or found is None:
            return False
        self._steps, (self._transitions, least) = steps, found
        self._all_again = sum(self._cost(step.op) * max(each.bit_count() for each in step.options) for step in steps)
        self._least = max(0.0, least - float(self._prices @ self._room))
        self._proved = max(0, math.ceil(self._least - self._error(self._least)))
        self._distance = max(1.0, FIRST_GAP * self._least)
        return True

    # -- order of the decisions ----------------------------------------------------------------------------------------

    def _decisions(self) -> list[Step] | None:
        """Return the decisions in order; None if a state has too many bits."""
        arrays, places, steps = self._arrays, _Places(self._count), []
        inputs, outputs = arrays.op_inputs.shared_lists(), arrays.op_outputs.shared_lists()
        left = {t: set(ops) for t, ops in self._members().items()}  # undecided ops of linked tensors
        of_op: dict[int, list[int]] = {}
        for tensor, ops in left.items():
            for op in ops:
                of_op.setdefault(op, []).append(tensor)
        for op in self._order(left, of_op):
            linked = of_op.get(op, [])
            own = [t for t in outputs[op] if self._held[t]]
            place = places.of(("op", op)) if linked and any(t in left for t in own) else NONE
            reads = [(places.of(("tensor", t)), int(self._links[t])) for t in inputs[op] if t in linked]
            closed, done, fulfilled = [], [], []
            for tensor in dict.fromkeys([*own, *linked]):
                writer = int(self._writer[tensor])
                decided = writer == op or ("op", writer) in places
                if tensor in left:
                    left[tensor].discard(op)
                    if left[tensor]:
                        if decided and ("tensor", tensor) in places:
                            fulfilled.append((places.of(("op", writer)), places.of(("tensor", tensor))))
                        continue
                    done.append(("tensor", tensor))
                    closed.append((tensor, places.of(("op", writer)), places.of(("tensor", tensor))))
                else:
                    closed.append((tensor, NONE, NONE))
            for other in {op, *(int(self._writer[t]) for t in linked)}:
                if ("op", other) in places and not any(left.get(t) for t in outputs[other]):
                    done.append(("op", other))
            clear = sum(self._full << places.free(name) for name in done)
            if places.most > BITS:
                return None
            steps.append(Step(op, self._options(op), place, reads, fulfilled, closed, clear))
        return steps

    def _members(self) -> dict[int, list[int]]:
        """Return the writer and the linked readers of each tensor that has linked readers."""
        arrays, found = self._arrays, {}
        readers = arrays.consumers.shared_lists()
        for tensor in np.flatnonzero(self._held & (self._links > 0)).tolist():
            linked = [reader for reader in readers[tensor] if self._again[reader] & self._links[tensor]]
            if linked:
                found[tensor] = [int(self._writer[tensor]), *linked]
        return found

    def _order(self, left: dict[int, set[int]], of_op: dict[int, list[int]]) -> Iterator[int]:
        """Yield the ops to decide: next is one that opens the fewest tensors more than it closes.

        The caller removes each op from `left`.
        """
        arrays = self._arrays
        writes = np.zeros(len(arrays.cost), dtype=np.bool_)
        writes[self._writer[self._held & (self._writer >= 0)]] = True
        waiting = dict.fromkeys(op for op in arrays.order.tolist() if writes[op] or op in of_op)
        members = {tensor: len(ops) for tensor, ops in left.items()}
        place = arrays.position
        near: set[int] = set()

        def opened(op: int) -> int:
            tensors = of_op.get(op, [])
            opens = sum(len(left[t]) == members[t] for t in tensors)
            return opens - sum(len(left[t]) == 1 for t in tensors)

        while waiting:
            some = sorted(near, key=lambda op: place[op])[:MOST_NEAR]
            op = min(some, key=lambda each: (opened(each), place[each])) if some else next(iter(waiting))
            del waiting[op]
            near.discard(op)
            yield op
            near.update(other for t in of_op.get(op, []) for other in left[t])

    def _cost(self, op: int) -> int:
        """Return the cost of an op in units of the relaxation."""
        return int(self._arrays.cost[op]) // self.relaxation.unit

    def _options(self, op: int) -> list[int]:
        """Return the sets of stages in which an op may run again."""
        mask, limit = int(self._again[op]), self.relaxation.problem.compute_limits[op]
        most = self._count if limit is None else limit - 1
        return [k for k in range(self._full + 1) if k & ~mask == 0 and k.bit_count() <= most]

    # -- dynamic programme ---------------------------------------------------------------------------------------------

    def _grow(self, step: Step, state: Int) -> tuple[Int, Int]:
        """Return the states that each option makes of each state, and the bytes that it adds at each event."""
        states, added = [], []
        for option in step.options:
            after = state if step.place == NONE else state | np.int64(option << step.place)
            for place, links in step.reads:
                after = after | np.int64((option & links) << place)
            held = np.zeros((len(state), self._count), dtype=np.int64)
            for tensor, writer, requests in step.closed:
                table = self._tables(int(self._wanted[tensor]), int(self._free[tensor]), int(self._old[tensor]))
                if writer == NONE:
                    held += table[option, 0] * self._size[tensor]
                else:
                    held += table[(after >> writer) & self._full, (after >> requests) & self._full] * self._size[tensor]
            for writer, requests in step.fulfilled:
                after = after & ~(((after >> writer) & self._full) << requests)
            states.append(after & np.int64(~step.clear))
            added.append(held)
        return np.concatenate(states), np.concatenate(added)

    def _table(self, wanted: int, free: int, old: int) -> Int:
        """Return where a tensor must be live, by the set of its writer and the requests, shape (sets, sets, events)."""
        sets = np.arange(self._full + 1)
        again, requests = sets[:, None], sets[None, :] | wanted
        live = np.zeros((len(sets), len(sets), self._count), dtype=np.int64)
        later: Int = np.zeros((len(sets), len(sets)), dtype=np.int64)
        for i in range(self._count - 1, -1, -1):
            if (old & ~free) >> i & 1:
                later = (later | (requests >> i & 1)) & ~(again >> i & 1)
            else:
                later = np.zeros_like(later)
            live[:, :, i] = later
        return live

    def _from_all_states(self, steps: list[Step], deadline: Deadline) -> tuple[list[Transition], float] | None:
        """Return the steps from all states, and the least priced cost from the start to the end.

        None if states or transitions are too many.
        """
        state, total = np.zeros(1, dtype=np.int64), 0
        grown: list[tuple[Int, Int]] = []
        for step in deadline.each(steps, 16):
            states, added = self._grow(step, state)
            state, after = np.unique(states, return_inverse=True)
            total += len(after)
            if len(state) > MOST_STATES or total > MOST_TRANSITIONS:
                return None
            grown.append((added, after))
        to_end, found = np.zeros(len(state)), []
        for step, (added, after) in zip(reversed(steps), reversed(grown), strict=True):
            options = np.array(step.options)
            cost = np.array([self._cost(step.op) * option.bit_count() for option in step.options])
            found.append(Transition(options, cost, added, after, to_end))
            priced = added @ self._prices + to_end[after]
            to_end = (cost[:, None] + priced.reshape(len(options), -1)).min(axis=0)
        return found[::-1], float(to_end[0])

    def _within(self, limit: int, kept: int, deadline: Deadline) -> tuple[Found | None, bool]:
        """Return the cheapest solution of at most `limit`, None if there is none, and whether some were left out.

        At most `kept` partial solutions are extended at a time, the most promising ones.
        """
        assert self._transitions is not None
        # Groups of partial solutions: the number of their state, cost, and bytes held at the events.
        state, cost = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
        held = np.zeros((1, self._count), dtype=np.int64)
        ways = np.ones(1)
        most, cut = limit + self._error(limit), False
        layers: list[Layer] = []
        count = 1
        for options, added, more, after, to_end in deadline.each(self._transitions, 16):
            number, origin = len(state), state
            row = (np.arange(len(options))[:, None] * count + state).ravel()
            cost = (added[:, None] + cost).ravel()
            held = (more[row].reshape(len(options), number, -1) + held).reshape(len(row), -1)
            state, count = after[row], len(to_end)
            low = cost + (held - self._room) @ self._prices + to_end[state]
            keep = np.flatnonzero((low <= most) & (cost <= limit) & (held <= self._room).all(axis=1))
            if not len(keep):
                return None, cut
            keep = keep[np.lexsort((*held[keep].T, cost[keep], state[keep]))]
            low, state, cost, held, source = low[keep], state[keep], cost[keep], held[keep], keep % number
            differs = (state[1:] != state[:-1]) | (cost[1:] != cost[:-1]) | (held[1:] != held[:-1]).any(axis=1)
            begin = np.flatnonzero(np.append(True, differs))
            end, total = np.append(begin[1:], len(keep)), np.add.reduceat(ways[source], begin)
            best = np.flatnonzero(~_dominated(state[begin], held[begin]))
            if len(best) > kept:
                cut, best = True, np.sort(best[np.argpartition(low[begin[best]], kept)[:kept]])
            begin, end, option = begin[best], end[best], options[keep // number]
            state, cost, held = state[begin], cost[begin], held[begin]
            layers.append(Layer(source, option, origin[source], ways[source], begin, end))
            ways = total[best] / total[best].max()
        group = int(cost.argmin())
        return Found(int(cost[group]), layers, group), cut

    def live(self, rng: np.random.Generator | None = None) -> Bool:
        """Return the live tensors of a solution with the cost and memory that :meth:`run` found.

        The first one, or with `rng` a random one by systematic sampling: choices of one kind, as in repeated blocks,
        are spread evenly.
        """
        assert self._found is not None
        arrays, (_, layers, group) = self._arrays, self._found
        again = np.zeros(len(arrays.cost), dtype=np.int64)
        credit: dict[tuple[int, ...], float] = {}
        for (op, *_), layer in zip(reversed(self._steps), reversed(layers), strict=True):
            chosen = layer.begin[group]
            if rng is not None and layer.end[group] - chosen > 1:
                alike = np.arange(chosen, layer.end[group])
                shares = layer.ways[alike] / layer.ways[alike].sum()
                kind = int(arrays.cost[op]), int(arrays.op_bytes[op])
                pairs = zip(layer.option[alike], layer.since[alike], strict=True)
                choices = [(*kind, *pair) for pair in pairs]
                # A choice collects its share of the ways, and pays 1 when it is made; credits are random at first.
                for choice, share in zip(choices, shares, strict=True):
                    credit[choice] = credit.get(choice, rng.random()) + share
                place = max(range(len(alike)), key=lambda each: credit[choices[each]])
                credit[choices[place]] -= 1
                chosen = alike[place]
            again[op], group = layer.option[chosen], layer.source[chosen]
        requests = np.zeros(len(arrays.size), dtype=np.int64)
        np.bitwise_or.at(requests, arrays.edge_tensor, again[arrays.edge_consumer])
        live = np.zeros((self._count, len(arrays.size)), dtype=np.bool_)
        for tensor in np.flatnonzero(self._held).tolist():
            table = self._tables(int(self._wanted[tensor]), int(self._free[tensor]), int(self._old[tensor]))
            asked = int(requests[tensor]) & int(self._links[tensor])
            live[:, tensor] = table[int(again[self._writer[tensor]]), asked] > 0
        return live

    def _error(self, cost: float) -> float:
        """Return more than the rounding errors of priced costs, which are sums of few thousand terms of such sizes."""
        return 1e-9 * (1 + abs(cost) + float(self._prices @ self._room.clip(0)))


class _Places:
    """Positions of sets of a given number of bits in a state, each lent to one name at a time."""

    def __init__(self, bits: int) -> None:
        self._bits, self.most = bits, 0
        self._free: list[int] = []
        self._of: dict[tuple[str, int], int] = {}

    def __contains__(self, name: tuple[str, int]) -> bool:
        return name in self._of

    def of(self, name: tuple[str, int]) -> int:
        """Return the position of a name, a new one if it has none."""
        if name not in self._of:
            if not self._free:
                self._free.append(self.most)
                self.most += self._bits
            self._of[name] = heapq.heappop(self._free)
        return self._of[name]

    def free(self, name: tuple[str, int]) -> int:
        """Return the position of a name, and end its use."""
        place = self._of.pop(name)
        heapq.heappush(self._free, place)
        return place


def _dominated(state: Int, held: Int) -> Bool:
    """Mark partial solutions, sorted by state and cost, that an earlier one of the same state dominates."""
    found = np.zeros(len(state), dtype=np.bool_)
    if held.shape[1] == 1:  # the least memory so far in each state decides
        group = np.cumsum(np.append(False, state[1:] != state[:-1]))
        rank = np.empty_like(group)  # ranks do not overflow; of equal ones, the later one is dominated
        rank[np.argsort(held[:, 0], kind="stable")] = np.arange(len(rank))
        key = rank - group * len(rank)
        found[1:] = key[1:] >= np.minimum.accumulate(key)[:-1]
        return found
    for shift in range(1, NEIGHBOURS + 1):
        better = (state[:-shift] == state[shift:]) & (held[:-shift] <= held[shift:]).all(axis=1)
        found[shift:] |= better
    return found
