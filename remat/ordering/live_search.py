"""Live search: the cheapest schedule of a small graph by best-first search backward over tensors that must be live."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from remat.ordering.best_first import Explored
from remat.ordering.live_sets import WORD, LiveSets, Sets, column, different, has, meets, numbers
from remat.ordering.live_states import STATE_BYTES, Batch, States
from remat.ordering.state_search import ENDLESS
from remat.problem import Problem
from remat.runtime.arrays import Bool, Float, Int
from remat.runtime.deadline import Deadline
from remat.schedule import OrderRule, Schedule

#: States expanded at a time: the least number, and the part of the stored ones.
LEAST, PARTS = 50, 100
#: Tolerance of costs in floating point.
ROUNDING = 1e-6
#: Dead ends that a set of them holds.
MOST_ENDS = 62


class LiveSearch:
    """Best-first search for the cheapest schedule within the budget, for any number of computes and either order rule.

    The search goes from the end of a schedule to its start. A *state* is the set ``S`` of tensors that must be live at
    a time, and a *stage*. With the fixed order, the *stage* is the number of ops that have run by then. With a free
    order, it is the set of *dead ends* that must have run: ops whose outputs are not read and not to be kept. Other ops
    need no record, since every schedule that runs all dead ends and ends with the tensors to keep has run their
    ancestors, hence all ops. The first state has the tensors to keep and every op or dead end; the search ends at the
    empty set.

    A *move* from ``S`` says which op ``u`` ran last before: one that writes a tensor of ``S``, the next op of the
    stage, or a dead end. Before it, ``S`` without the outputs of ``u``, and the inputs of ``u``, must be live; while it
    runs, all of these and the outputs must fit. *Proof.* Take a schedule without useless computes, and free each value
    after its last use. Then its live tensors at each time are exactly the set that these moves give. Conversely, moves
    to the empty set, in reverse, are a schedule. ∎ No state contains a tensor without use, and there is no choice of
    evictions, unlike in a search from the start.

    *Bound* on the cost that precedes a state: the ops ``R`` that must run, those of the stage and the ancestors of
    ``S``. To it comes a fractional knapsack at the first run of an op ``v`` of ``R``, the largest over all ``v``. A
    tensor that was written before it, and that ``S`` contains or an op after it reads, is live during ``v``, or its
    writer runs a second time. With the fixed order, ops before and after ``v`` are those of ``R`` by position; with a
    free order, its ancestors, and the ops of ``R`` that depend on it.

    *Dominance.* A state is dropped if one with one tensor less, or with the fixed order at the stage before, has at
    most its cost.

    *Tiny tensors* are forgotten at first (:meth:`remat.ordering.live_sets.LiveSets.forget`). If the cheapest schedule
    then breaks a rule or the budget, the search starts again with all of them; the bound holds in either case.

    States are expanded by the least sum of cost and bound, many at a time, by array operations; a state that is
    reached at a lower cost later is expanded again. The least sum of the states to expand is a bound at any time.

    Parameters
    ----------
    problem : Problem
        With a budget. See :meth:`applies`.
    memory : int
        Bytes for the states.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> found = LiveSearch(Problem(unit_chain(8), 4)).run()
    >>> found.bound, len(found.schedule.computes())
    (26, 26)
    """

    def __init__(self, problem: Problem, *, memory: int = 1 << 30) -> None:
        self.problem = problem
        self._most = max(1_000, memory // STATE_BYTES)

    @staticmethod
    def applies(problem: Problem) -> bool:
        """Return True if the search can state a problem: see :meth:`remat.ordering.live_sets.LiveSets.applies`."""
        return LiveSets.applies(problem) and (
            problem.order is OrderRule.FIXED or len(_dead_ends(LiveSets(problem))) <= MOST_ENDS
        )

    def run(self, limit: int | None = None, *, deadline: Deadline | None = None) -> Explored:
        """Search for the cheapest schedule that costs less than `limit`.

        Parameters
        ----------
        limit : int, optional
            Cost to improve on. Default: any schedule counts.

        Returns
        -------
        Explored
            `bound` is :data:`remat.ordering.state_search.ENDLESS` if no schedule keeps the budget. If time or memory
            runs out, `schedule` may be one that costs more than `bound`.
        """
        clock, top = deadline or Deadline(), ENDLESS if limit is None else limit
        found = _Search(self.problem, self._most, forget=True).run(top, clock)
        if found.schedule is None or self.problem.validate(found.schedule).accepted:
            return found
        exact = _Search(self.problem, self._most, forget=False).run(top, clock)
        return replace(exact, bound=max(exact.bound, found.bound))

    def any_schedule(self, *, deadline: Deadline | None = None) -> Explored:
        """Search for a schedule at any cost, in any order: ops cost nothing.

        **The order rule does not matter** for whether one exists. Any number of computes is allowed, so a schedule may
        start over: it frees everything, and computes the next op with the ops that it depends on. If a schedule exists
        for some order, run these parts one after the other, by the reference order.

        Returns
        -------
        Explored
            `bound` is :data:`remat.ordering.state_search.ENDLESS` if none exists, otherwise 0.
        """
        graph = self.problem.graph
        costless = replace(graph, ops=[replace(op, cost=0) for op in graph.ops])
        problem = replace(self.problem, graph=costless, budget=self.problem.budget_bytes, order=OrderRule.FREE)
        found = LiveSearch(problem, memory=self._most * STATE_BYTES).run(deadline=deadline)
        if found.schedule is None:
            return found
        return replace(found, schedule=Schedule.of_computes(graph, found.schedule.targets, source="live search"))


class _Search:
    """One search, with all tensors or without tiny ones."""

    def __init__(self, problem: Problem, most: int, *, forget: bool) -> None:
        self.problem, self._most, self.sets = problem, most, LiveSets(problem)
        self.fixed = problem.order is OrderRule.FIXED
        if forget:
            self.sets.forget()
        sets = self.sets
        self._ends = [] if self.fixed else _dead_ends(sets)
        if len(self._ends) > MOST_ENDS:
            self.sets = sets = LiveSets(problem)
            self._ends = _dead_ends(sets)
        self._kept = sets.mask(sets.kept)
        self._touched = [read | written for read, written in zip(sets.reads, sets.writes, strict=True)]
        self._once = np.concatenate([[0], np.cumsum(sets.cost)])
        self._knapsacks = _knapsacks(sets, fixed=self.fixed)

    def run(self, top: int, clock: Deadline) -> Explored:
        """Search for the cheapest schedule that costs less than `top`."""
        states = States(self.sets.words)
        first = self._first()
        states.add(first, self._bound(first.need, first.stage, np.array([top])))
        best, bound = -1, 0
        while len(rows := states.cheapest(max(LEAST, states.count // PARTS), top)):
            bound = max(bound, int(states.total[rows].min()))
            if clock.expired or states.count > self._most:
                return Explored(min(bound, top), self._schedule(states, best), states.count)
            starts = rows[(states.stage[rows] == 0) & ~states.need[:, rows].any(axis=0)]
            if len(starts):
                best = int(starts[np.argmin(states.spent[starts])])
                top = int(states.spent[best])
                rows = rows[states.total[rows] < top]
            rows = rows[~self._dominated(states, rows)]
            new = self._expanded(states, rows)
            new = states.lowered(new.at(new.spent < top))
            total = new.spent + self._bound(new.need, new.stage, top - new.spent)
            cheap = total < top
            states.add(new.at(cheap), total[cheap])
        return Explored(top, self._schedule(states, best), states.count)

    def _first(self) -> Batch:
        zero = np.zeros(1, dtype=np.int64)
        stage = len(self.sets.ops) if self.fixed else (1 << len(self._ends)) - 1
        return Batch(self._kept, zero + stage, zero, zero - 1, zero)

    def _bound(self, need: Sets, stage: Int, limit: Int) -> Int:
        """Return a bound on the cost that precedes states; the second part only where the first is below `limit`."""
        if self.fixed:
            cost, runs = self._once[stage].copy(), None
        else:
            cost, runs = self._must_run(need, stage)
        rows = np.flatnonzero(cost < limit)
        more = np.zeros(len(rows))
        live = self.sets.marks(need[:, rows])
        for knapsack in self._knapsacks:
            at = np.flatnonzero(stage[rows] > knapsack.op if runs is None else has(runs[:, rows], knapsack.op))
            if runs is None:
                read = stage[rows[at]] > knapsack.reader[:, None]
            else:
                read = meets(runs[:, None, rows[at]], knapsack.readers[:, :, None])
            more[at] = np.maximum(more[at], knapsack.value(live[knapsack.tensor][:, at] | read))
        cost[rows] += np.ceil(more - ROUNDING * (1 + more)).astype(np.int64)
        return cost

    def _must_run(self, need: Sets, stage: Int) -> tuple[Int, Sets]:
        """Return the cost of the ops that must run before states, and these ops as bits, shape (words, states)."""
        sets, count = self.sets, len(stage)
        wanted, cost = need.copy(), np.zeros(count, dtype=np.int64)
        runs = np.zeros((-(-len(sets.ops) // WORD), count), dtype=np.uint64)
        for op in range(len(sets.ops) - 1, -1, -1):
            here = meets(wanted, sets.mask(sets.writes[op])) | self._to_do(op, stage)
            wanted[:, here] |= sets.mask(sets.reads[op])
            cost[here] += sets.cost[op]
            runs[op // WORD, here] |= np.uint64(1 << op % WORD)
        return cost, runs

    def _to_do(self, op: int, stage: Int) -> Bool:
        """Mark the states before which an op must run as the last of a fixed order, or as a dead end."""
        if self.fixed:
            return stage == op + 1
        if op not in self._ends:
            return np.zeros(len(stage), dtype=np.bool_)
        return (stage >> self._ends.index(op)) & 1 != 0

    def _expanded(self, states: States, rows: Int) -> Batch:
        """Return the states that precede some states."""
        sets, need, stage = self.sets, states.need[:, rows], states.stage[rows]
        used = sets.bytes_of(need)
        found = [self._first().at(np.zeros(1, dtype=np.bool_))]
        for op, touched in enumerate(self._touched):
            written, to_do = sets.mask(sets.writes[op]), self._to_do(op, stage)
            serves = meets(need, written)
            at = np.flatnonzero(serves | to_do)
            room = sets.budget - int(sets.always[op]) - sets.size_of(touched)
            at = at[used[at] - sets.bytes_of(need[:, at], touched) <= room]
            before = (need[:, at] & ~written) | sets.mask(sets.reads[op])
            then = stage[at] - to_do[at] * (1 if self.fixed else 1 << self._ends.index(op) if op in self._ends else 0)
            spent = states.spent[rows[at]] + int(sets.cost[op])
            moves = Batch(before, then, spent, rows[at], np.full(len(at), op))
            found.append(moves)
            if self.fixed:  # the op may also have run again since its first compute
                again = (to_do & serves)[at]
                found.append(moves._replace(stage=stage[at]).at(again))
        sets_of, *columns = zip(*found, strict=True)
        every = Batch(np.concatenate(sets_of, axis=1), *map(np.concatenate, columns))
        return every.at(different(every.need, every.stage, every.spent))

    def _dominated(self, states: States, rows: Int) -> Bool:
        """Mark states that another one makes superfluous: it needs less, and what follows it costs no more."""
        need, stage, spent = states.need[:, rows], states.stage[rows], states.spent[rows]
        out = np.zeros(len(rows), dtype=np.bool_)

        def drop(at: Int, need: Sets, stage: Int) -> None:
            row = states.find(need, stage)
            out[at] |= (row >= 0) & (states.spent[row] <= spent[at])

        for tensor in range(len(self.sets.size)):
            at = np.flatnonzero(has(need, tensor) & ~out)
            drop(at, need[:, at] & ~self.sets.mask(1 << tensor), stage[at])
        for op in range(len(self.sets.ops)) if self.fixed else self._ends:
            at = np.flatnonzero(self._to_do(op, stage) & ~meets(need, self.sets.mask(self.sets.writes[op])) & ~out)
            drop(at, need[:, at], stage[at] - (1 if self.fixed else 1 << self._ends.index(op)))
        return out

    def _schedule(self, states: States, row: int) -> Schedule | None:
        """Return the schedule from a state without needs to the first state; None without one."""
        if row < 0:
            return None
        steps: list[int] = []
        while row > 0:
            steps.append(int(states.op[row]))
            row = int(states.parent[row])
        graph = self.problem.graph
        return Schedule.of_computes(graph, graph.arrays.order[steps], source="live search")


def _dependents(sets: LiveSets) -> list[int]:
    """Return the ops that depend on each op, as bits."""
    writer = {t: op for op, written in enumerate(sets.writes) for t in numbers(written)}
    after = [0] * len(sets.ops)
    for op in range(len(sets.ops) - 1, -1, -1):
        for tensor in numbers(sets.reads[op]):
            after[writer[tensor]] |= after[op] | 1 << op
    return after


def _dead_ends(sets: LiveSets) -> list[int]:
    """Return the ops whose outputs are neither read nor kept."""
    used = sets.kept
    for read in sets.reads:
        used |= read
    return [op for op, written in enumerate(sets.writes) if not written & used]


class _Knapsack(NamedTuple):
    """Tensors that may have to be live during the first run of an op, by rising cost of the writer per byte.

    With the fixed order, a tensor is read by a first compute after the op once the stage exceeds `reader`. With a free
    order, `readers` contains its readers that depend on the op.
    """

    op: int
    excess: int
    tensor: Int
    size: Int
    price: Float
    reader: Int
    readers: Sets

    def value(self, held: Bool) -> Float:
        """Return the least cost of runs of writers such that the other held tensors fit, shape (states,)."""
        size = held * self.size[:, None]
        before = np.cumsum(size, axis=0) - size
        excess = self.excess + size.sum(axis=0)
        return (self.price / self.size) @ np.clip(excess - before, 0, size)


def _knapsacks(sets: LiveSets, *, fixed: bool) -> list[_Knapsack]:
    """Return the knapsacks of the ops during which not all tensors fit that may have to be live."""
    ops, size, after = len(sets.ops), sets.size.tolist(), _dependents(sets)
    writer = {t: op for op in range(ops) for t in numbers(sets.writes[op])}
    price = {
        t: int(sets.cost[op]) / max(1, sum(size[u] > 0 for u in numbers(sets.writes[op]))) for t, op in writer.items()
    }
    found = []
    for op in range(ops):
        follows = (1 << ops) - (2 << op) if fixed else after[op]
        touched = sets.reads[op] | sets.writes[op]
        tensors = [
            t for t, by in writer.items()
            if size[t] and not touched >> t & 1 and (by < op if fixed else after[by] >> op & 1)
        ]  # fmt: skip
        tensors.sort(key=lambda t: price[t] / size[t])
        readers = [sets.readers[t] & follows for t in tensors]
        excess = int(sets.always[op]) + sets.size_of(touched) - sets.budget
        if excess + sum(size[t] for t in tensors) > 0 and any(price[t] for t in tensors):
            first = [(mask & -mask).bit_length() - 1 if mask else ops for mask in readers]
            found.append(
                _Knapsack(
                    op, excess, np.array(tensors, dtype=np.int64), sets.size[tensors],
                    np.array([price[t] for t in tensors]), np.array(first, dtype=np.int64),
                    np.concatenate([column(mask, -(-ops // WORD)) for mask in readers], axis=1),
                )
            )  # fmt: skip
    return found
