"""Live search: the cheapest schedule of a small graph by best-first search over live tensors alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from remat.ordering.best_first import Explored
from remat.ordering.live_sets import LiveSets, Sets, bits, contains, different, has
from remat.ordering.state_search import ENDLESS
from remat.problem import Problem
from remat.runtime.arrays import Bool, Int
from remat.runtime.deadline import Deadline
from remat.schedule import OrderRule, Schedule

Hashes = NDArray[np.uint64]

#: States expanded at a time, and bytes of a state with its place in the index.
PIECE, STATE_BYTES = 20_000, 120
#: Tolerance of costs in floating point.
ROUNDING = 1e-6
#: Dead ends that a set of them holds.
MOST_ENDS = 62
#: Levels above that of a state, at which a cheaper state with the same tensors is sought.
AHEAD = 3


class _Batch(NamedTuple):
    """New states: live tensors, stage, cost so far, row of the state before, and op between them."""

    live: Sets
    stage: Int
    spent: Int
    parent: Int
    op: Int

    def at(self, rows: Int | Bool) -> _Batch:
        """Return some of the states."""
        return _Batch(self.live[:, rows], *(values[rows] for values in self[1:]))


class LiveSearch:
    """Best-first search for the cheapest schedule within the budget, for any number of computes and either order rule.

    A *state* is the set ``L`` of live tensors and a stage. With the fixed order, the *stage* is the number of ops that
    have run. With a free order, it is the set of *dead ends* that have run: ops whose outputs are not read and not to
    be kept. Other ops need no record, since every schedule that runs all dead ends and ends with the tensors to keep
    has run their ancestors, hence all ops. On a graph with one dead end, such as the loss of a network or the last op
    of a layered graph, states of a free order are sets of live tensors alone.

    Costs are total costs: with the fixed order, a first compute counts like a recomputation. Thus a state at a later
    stage serves for an earlier one with the same tensors: what the schedule still has to compute for the first time,
    it may have computed already.

    *Evictions* are minimal and as late as possible, as in :class:`remat.ordering.state_search.StateSearch`.

    *Bound* on the cost that follows: the ops ``R`` that must still run. These are the first computes to come, or the
    dead ends, and the writers of missing tensors that they, the tensors to keep, or their missing inputs need. To it
    comes a fractional knapsack at the next run of an op ``v`` of ``R``, the largest over all ``v``. Some ops run only
    after it: those that read a missing output of ``v``, or of such an op, and in a fixed order the first computes after
    that of ``v``. A tensor that they read is live during ``v``, or its writer runs after ``v``. That run costs extra if
    the writer is not in ``R``, or must run before ``v`` as well.

    *Dominance.* A state is dropped if one with one more live tensor, or at one of the next three stages, has at most
    its cost.

    States are expanded by the least sum of cost and bound, 20,000 at a time, by array operations; a state that is
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
        self.problem, self.sets = problem, LiveSets(problem)
        self.fixed = problem.order is OrderRule.FIXED
        self._most = max(1_000, memory // STATE_BYTES)
        ops, sets = len(self.sets.ops), self.sets
        self._ends = _dead_ends(sets)
        last = _last_uses(sets)
        self._useful = np.concatenate(
            [sets.mask(bits(t for t, use in enumerate(last) if use >= stage)) for stage in range(ops + 1)], axis=1
        )
        self._last = np.array(last, dtype=np.int64)
        self._goal = ops if self.fixed else (1 << len(self._ends)) - 1
        self._kept = sets.mask(sets.kept)
        self._price = np.zeros(len(sets.size))
        for op, cost in enumerate(sets.cost.tolist()):
            outputs = [t for t, size in enumerate(sets.size.tolist()) if size and sets.writes[op] >> t & 1]
            self._price[outputs] = cost / max(1, len(outputs))
        sized = np.flatnonzero(sets.size)
        self._by_price = sized[np.argsort(self._price[sized] / sets.size[sized])].tolist()
        touched = [sets.reads[op] | sets.writes[op] for op in range(ops)]
        self._alone = sets.always + [
            sum(n for t, n in enumerate(sets.size.tolist()) if mask >> t & 1) for mask in touched
        ]

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
            `bound` is :data:`remat.ordering.state_search.ENDLESS` if no schedule keeps the budget.
        """
        clock = deadline or Deadline()
        top, best, bound = ENDLESS if limit is None else limit, -1, 0
        states = _States(self.sets.words)
        states.add(self._first(), self._bound(*self._first()[:2]))
        while len(states.open):
            rows = states.cheapest(PIECE, top)
            if not len(rows):
                break
            bound = max(bound, int(states.total[rows].min()))
            if clock.expired or states.count > self._most:
                return Explored(min(bound, top), None, states.count)
            ends = self._ends_of(states, rows)
            if len(ends):
                best = int(ends[np.argmin(states.spent[ends])])
                top = int(states.spent[best])
                rows = rows[states.total[rows] < top]
            new = self._expanded(states, rows)
            new = states.lowered(new.at(new.spent < top))
            new = new.at(~self._dominated(states, new))
            total = new.spent + self._bound(new.live, new.stage, top - new.spent)
            cheap = total < top
            states.add(new.at(cheap), total[cheap])
        return Explored(top, None if best < 0 else self._schedule(states, best), states.count)

    def _first(self) -> _Batch:
        zero = np.zeros(1, dtype=np.int64)
        return _Batch(np.zeros((self.sets.words, 1), dtype=np.uint64), zero, zero, zero - 1, zero)

    def _ends_of(self, states: _States, rows: Int) -> Int:
        """Return the rows of states in which every op has run and the tensors to keep are live."""
        return rows[(states.stage[rows] == self._goal) & contains(states.live[:, rows], self._kept)]

    def _bound(self, live: Sets, stage: Int, limit: Int | None = None) -> Int:
        """Return a bound on the cost that follows states; the second part only where the first is below `limit`."""
        cost, runs = self._must_run(live, stage)
        rows = np.arange(len(stage)) if limit is None else np.flatnonzero(cost < limit)
        more = np.zeros(len(rows), dtype=np.int64)
        for op in range(len(self.sets.ops)):
            at = np.flatnonzero(runs[op, rows])
            if len(at):
                some = rows[at]
                more[at] = np.maximum(more[at], self._knapsack(op, live[:, some], stage[some], runs[:, some]))
        cost[rows] += more
        return cost

    def _must_run(self, live: Sets, stage: Int) -> tuple[Int, Bool]:
        """Return the cost of the ops that must run after states, and the ops, shape (ops, states)."""
        sets, count = self.sets, len(stage)
        wanted, cost = np.repeat(self._kept, count, axis=1), np.zeros(count, dtype=np.int64)
        every = np.zeros((len(sets.ops), count), dtype=np.bool_)
        for op in range(len(sets.ops) - 1, -1, -1):
            runs = (wanted & ~live & sets.mask(sets.writes[op])).any(axis=0) | self._to_do(op, stage)
            wanted[:, runs] |= sets.mask(sets.reads[op])
            cost[runs] += sets.cost[op]
            every[op] = runs
        return cost, every

    def _knapsack(self, op: int, live: Sets, stage: Int, runs: Bool) -> Int:
        """Return a bound on the cost beyond that of ops that must run, from the room at the next run of `op`."""
        sets, none = self.sets, np.uint64(0)
        first = stage <= op if self.fixed else np.zeros(len(stage), dtype=np.bool_)
        missing, read, early = ~live, np.repeat(self._kept, len(stage), axis=1), np.zeros_like(live)
        made = missing & sets.mask(sets.writes[op])
        for later in range(op + 1, len(sets.ops)):
            is_late = runs[later] & ((made & sets.mask(sets.reads[later])).any(axis=0) | first)
            made |= np.where(is_late, missing & sets.mask(sets.writes[later]), none)
            read |= np.where(is_late, sets.mask(sets.reads[later]), none)
        wanted = missing & sets.mask(sets.reads[op])
        other = np.zeros_like(live)  # written by ops that must run, but not surely before this one
        for before in range(len(sets.ops)):
            other |= np.where(runs[before], sets.mask(sets.writes[before]), none)
        for before in range(op - 1, -1, -1):
            is_early = (wanted & sets.mask(sets.writes[before])).any(axis=0) | (first & (stage <= before))
            wanted |= np.where(is_early, missing & sets.mask(sets.reads[before]), none)
            early |= np.where(is_early, sets.mask(sets.writes[before]), none)
        held = read & (early | ~other) & ~sets.mask(sets.reads[op] | sets.writes[op])
        excess = sets.bytes_of(held) + int(self._alone[op]) - sets.budget
        value = np.zeros(len(stage))
        for tensor in self._by_price:
            size = int(sets.size[tensor])
            gone = has(held, tensor) & (excess > 0)
            value += np.where(gone, self._price[tensor] * np.minimum(1.0, excess / size), 0.0)
            excess = np.where(gone, excess - size, excess)
        return np.ceil(value - ROUNDING * (1 + value)).astype(np.int64)

    def _to_do(self, op: int, stage: Int) -> Bool:
        """Mark the states in which an op has not run, if the stage shows it."""
        if self.fixed:
            return stage <= op
        if op not in self._ends:
            return np.zeros(len(stage), dtype=np.bool_)
        return (stage >> self._ends.index(op)) & 1 == 0

    def _expanded(self, states: _States, rows: Int) -> _Batch:
        """Return the states that follow some states."""
        sets, live, stage = self.sets, states.live[:, rows], states.stage[rows]
        used = sets.bytes_of(live)
        found: list[_Batch] = []
        for op in range(len(sets.ops)):
            written = sets.mask(sets.writes[op])
            wanted = written & self._useful[:, stage] if self.fixed else written
            first = self._to_do(op, stage)
            again = (wanted & ~live).any(axis=0) & ((stage > op) if self.fixed else op not in self._ends)
            may = first & (stage == op) if self.fixed else first
            at = np.flatnonzero(sets.ready(live, op) & (may | again))
            if not len(at):
                continue
            after, source = sets.after(op, live[:, at], used[at], at)
            then = stage[source]
            if self.fixed:
                then = then + (then == op)
                after &= self._useful[:, then]
            elif op in self._ends:
                then = then | 1 << self._ends.index(op)
                after &= ~written
            spent = states.spent[rows[source]] + int(sets.cost[op])
            found.append(_Batch(after, then, spent, rows[source], np.full(len(source), op)))
        if not found:
            return self._first().at(np.zeros(1, dtype=np.bool_))
        sets_of, *columns = zip(*found, strict=True)
        every = _Batch(np.concatenate(sets_of, axis=1), *map(np.concatenate, columns))
        return every.at(different(every.live, every.stage, every.spent))

    def _dominated(self, states: _States, new: _Batch) -> Bool:
        """Mark new states that a stored one makes superfluous."""
        sets = self.sets
        out = np.zeros(len(new.stage), dtype=np.bool_)
        used = sets.bytes_of(new.live)

        def drop(at: Int, live: Sets, stage: Int) -> None:
            row = states.find(live, stage)
            out[at] |= (row >= 0) & (states.spent[row] <= new.spent[at])

        for tensor, size in enumerate(sets.size.tolist()):
            more = ~has(new.live, tensor) & (used + size <= sets.budget) & ~out
            if self.fixed:
                more &= self._last[tensor] >= new.stage
            at = np.flatnonzero(more)
            drop(at, new.live[:, at] | sets.mask(1 << tensor), new.stage[at])
        for more_stages in range(1, AHEAD + 1) if self.fixed else ():
            at = np.flatnonzero((new.stage + more_stages <= len(sets.ops)) & ~out)
            stage = new.stage[at] + more_stages
            drop(at, new.live[:, at] & self._useful[:, stage], stage)
        return out

    def _schedule(self, states: _States, row: int) -> Schedule:
        steps: list[int] = []
        while row > 0:
            steps.append(int(states.op[row]))
            row = int(states.parent[row])
        graph = self.problem.graph
        return Schedule.of_computes(graph, graph.arrays.order[steps[::-1]], source="live search")


@dataclass(eq=False)
class _States:
    """All states, by row; an index of them; and the rows to expand."""

    words: int
    count: int = 0
    open: Int = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    _index: list[tuple[Hashes, Int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.live = np.zeros((self.words, 1024), dtype=np.uint64)
        self.stage, self.spent, self.total, self.parent = (np.zeros(1024, dtype=np.int64) for _ in range(4))
        self.op = np.zeros(1024, dtype=np.int16)
        self.closed = np.zeros(1024, dtype=np.bool_)
        """States that were expanded at their current cost."""

    def cheapest(self, most: int, limit: int) -> Int:
        """Remove and return the rows to expand with the least totals, all below `limit`."""
        total = self.total[self.open]
        below = total < limit
        self.open, total = self.open[below], total[below]
        if len(total) <= most:
            rows, self.open = self.open, self.open[:0]
        else:
            part = np.argpartition(total, most)
            rows, self.open = self.open[part[:most]], self.open[part[most:]]
        self.closed[rows] = True
        return rows

    def find(self, live: Sets, stage: Int) -> Int:
        """Return the rows of states, and -1 where there is none."""
        hashes, rows = _hash(live, stage), np.full(len(stage), -1, dtype=np.int64)
        for known, row in self._index:
            at = np.searchsorted(known, hashes)
            at[at == len(known)] = 0
            hit = np.flatnonzero(known[at] == hashes)
            found = row[at[hit]]
            same = (self.stage[found] == stage[hit]) & (self.live[:, found] == live[:, hit]).all(axis=0)
            rows[hit[same]] = found[same]
        return rows

    def lowered(self, new: _Batch) -> _Batch:
        """Lower the costs of states that are stored already; return the other ones."""
        row = self.find(new.live, new.stage)
        known = row >= 0
        better = known.copy()
        better[known] = new.spent[known] < self.spent[row[known]]
        rows = row[better]
        self.total[rows] -= self.spent[rows] - new.spent[better]
        self.spent[rows], self.parent[rows], self.op[rows] = new.spent[better], new.parent[better], new.op[better]
        again = rows[self.closed[rows]]
        self.closed[again] = False
        self.open = np.concatenate([self.open, again])
        return new.at(~known)

    def add(self, new: _Batch, total: Int) -> None:
        """Store different new states."""
        end = self.count + len(total)
        while end > len(self.stage):
            self.live = np.concatenate([self.live, np.zeros_like(self.live)], axis=1)
            for name in ("stage", "spent", "total", "parent", "op", "closed"):
                values = getattr(self, name)
                setattr(self, name, np.concatenate([values, np.zeros_like(values)]))
        rows = np.arange(self.count, end)
        self.live[:, rows], self.stage[rows], self.spent[rows] = new.live, new.stage, new.spent
        self.parent[rows], self.op[rows], self.total[rows] = new.parent, new.op, total
        self.count, self.open = end, np.concatenate([self.open, rows])
        self._index.append(_sorted(_hash(new.live, new.stage), rows))
        while len(self._index) > 1 and 2 * len(self._index[-1][1]) >= len(self._index[-2][1]):
            (one, a), (other, b) = self._index.pop(), self._index.pop()
            self._index.append(_sorted(np.concatenate([other, one]), np.concatenate([b, a])))


def _sorted(hashes: Hashes, rows: Int) -> tuple[Hashes, Int]:
    order = np.argsort(hashes, kind="stable")
    return hashes[order], rows[order]


def _hash(live: Sets, stage: Int) -> Hashes:
    """Return hashes of states. Where two states share one, only the first is found, which costs time only."""
    mixed = stage.astype(np.uint64) * np.uint64(0xC2B2AE3D27D4EB4F)
    for word in live:
        mixed = (mixed ^ word) * np.uint64(0xFF51AFD7ED558CCD)
        mixed ^= mixed >> np.uint64(32)
    return mixed


def _dead_ends(sets: LiveSets) -> list[int]:
    """Return the ops whose outputs are neither read nor kept."""
    used = sets.kept
    for read in sets.reads:
        used |= read
    return [op for op, written in enumerate(sets.writes) if not written & used]


def _last_uses(sets: LiveSets) -> list[int]:
    """Return the last first compute that may need each tensor, directly or through recomputations; the end if kept."""
    ops = len(sets.ops)
    use = [ops if sets.kept >> t & 1 else -1 for t in range(len(sets.size))]
    for op in range(ops - 1, -1, -1):
        last = max([op, *(use[t] for t in range(len(use)) if sets.writes[op] >> t & 1)])
        for t in range(len(use)):
            if sets.reads[op] >> t & 1:
                use[t] = max(use[t], last)
    return use
