"""Live search: the cheapest schedule of a small graph by best-first search backward over tensors that must be live."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remat.ordering.best_first import Explored
from remat.ordering.live_sets import MOST, LiveSets
from remat.ordering.state_search import ENDLESS
from remat.problem import Problem
from remat.runtime.arrays import Int
from remat.runtime.bits import bits, digits, numbers, words
from remat.runtime.compiled import KernelSet
from remat.runtime.deadline import Deadline
from remat.schedule import OrderRule, Schedule

#: Dead ends that a word holds.
MOST_ENDS = 64
#: States expanded between two checks of the deadline.
PIECE = 2_000
#: Bytes of a state with its entries of table and heap, and states for which there is room at first.
STATE_BYTES, FIRST = 80, 1 << 12


def _example() -> None:
    from remat.graphs.families import unit_chain

    for order in OrderRule:
        LiveSearch(Problem(unit_chain(2), 4, order)).run()


#: Kernels of the search.
KERNELS = KernelSet("live-search", __name__, _example)


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

    *Forced moves.* Let all ops that read an output of ``u`` follow the state. Then ``u`` runs once before it, and can
    run last, if its outputs in ``S`` have at least the bytes of its inputs outside ``S``, and its step fits: these
    inputs take the place of these outputs. With the fixed order, this is sought for the last op of the stage.

    *Dominance.* A state is dropped if one with one tensor less, or at the stage before, has at most its cost.

    *Tiny tensors* are forgotten at first (:class:`remat.ordering.live_sets.LiveSets`). If the cheapest schedule
    then breaks a rule or the budget, the search starts again with all of them; the bound holds in either case.

    States are expanded by the least sum of cost and bound; a state that is reached at a lower cost later is expanded
    again. The least sum of the states to expand is a bound at any time.

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
        return (
            LiveSets.applies(problem)
            and (problem.order is OrderRule.FIXED or len(LiveSets(problem).ends) <= MOST_ENDS)
            and MOST * problem.graph.base_cost < ENDLESS
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
        import remat.ordering.live_search_kernel as kernel

        self.problem, self._most = problem, most
        self._kernel: Any = kernel
        self.fixed = problem.order is OrderRule.FIXED
        self.sets = LiveSets(problem, forget=forget)
        if forget and not self.fixed and len(self.sets.ends) > MOST_ENDS:
            self.sets = LiveSets(problem)
        self._tables = _tables(self.sets, kernel, fixed=self.fixed)

    def run(self, top: int, clock: Deadline) -> Explored:
        """Search for the cheapest schedule that costs less than `top`."""
        kernel, sets = self._kernel, self.sets
        room = min(FIRST, self._most)
        states = _states(kernel, room)
        heap = kernel.Heap(np.zeros(FIRST, dtype=np.int32), np.zeros(FIRST, dtype=np.int64))
        found = np.array([0, 0, 0, -1, top, 0], dtype=np.int64)
        later = np.zeros((MOST, 2), dtype=np.uint64)
        low, high = words([sets.kept])[0]
        stage = np.uint64(len(sets.cost) if self.fixed else (1 << len(sets.ends)) - 1)
        kernel.begin(self._tables, later, states, heap, low, high, stage, found)
        result = kernel.MORE
        while result != kernel.ENDED and not clock.expired:
            result = kernel.work(self._tables, later, states, heap, found, PIECE)
            if result == kernel.FULL:
                if len(states.low) >= self._most:
                    break
                states, heap = self._larger(states, heap, found)
        best, limit = int(found[kernel.BEST]), int(found[kernel.LIMIT])
        bound = limit if result == kernel.ENDED else min(int(found[kernel.BOUND]), limit)
        return Explored(bound, self._schedule(states, best), int(found[kernel.SEEN]))

    def _larger(self, states: Any, heap: Any, found: Int) -> tuple[Any, Any]:
        """Return the same states and heap with twice the room, as far as memory allows."""
        more = min(2 * len(states.low), self._most) - len(states.low)
        grown: list[Any] = [np.concatenate([field, np.zeros(more, dtype=field.dtype)]) for field in states[:-1]]
        states = self._kernel.States(*grown, _table(len(grown[0])))
        self._kernel.rebuild(states, found)
        return states, self._kernel.Heap(*(np.concatenate([field, np.zeros_like(field)]) for field in heap))

    def _schedule(self, states: Any, row: int) -> Schedule | None:
        """Return the schedule from a state without needs to the first state; None without one."""
        if row < 0:
            return None
        steps: list[int] = []
        while row > 0:
            steps.append(int(states.op[row]))
            row = int(states.parent[row])
        graph = self.problem.graph
        return Schedule.of_computes(graph, graph.arrays.order[steps], source="live search")


def _states(kernel: Any, capacity: int) -> Any:
    """Return room for states."""
    words = (np.zeros(capacity, dtype=np.uint64) for _ in range(3))
    costs = (np.zeros(capacity, dtype=np.int64) for _ in range(2))
    kinds = (np.int32, np.int16, np.bool_)
    return kernel.States(*words, *costs, *(np.zeros(capacity, dtype=kind) for kind in kinds), _table(capacity))


def _table(capacity: int) -> NDArray[np.int32]:
    """Return an empty hash table, at most half of which is filled."""
    return np.zeros(1 << (2 * capacity - 1).bit_length(), dtype=np.int32)


def _tables(sets: LiveSets, kernel: Any, *, fixed: bool) -> Any:
    """Return the problem as sets in words."""
    from remat.ordering.state_search_kernel import SEQUENCE

    ops, after = len(sets.cost), sets.dependents()
    before = [bits(op for op in range(ops) if after[op] >> other & 1) | 1 << other for other in range(ops)]
    between = np.zeros((ops, ops + 1, 2) if fixed else (1, 1, 2), dtype=np.uint64)
    for op in range(ops) if fixed else ():
        read = [0] * (ops + 1)
        for place in range(op + 2, ops + 1):
            read[place] = read[place - 1] | sets.reads[place - 1]
        between[op] = words(read)
    outlasting, spare = [], []
    for op in range(ops):
        touched = sets.reads[op] | sets.writes[op]
        outlasting.append(
            bits(
                t for t, by in enumerate(sets.writer)
                if sets.size[t] and not touched >> t & 1 and (by < op if fixed else after[by] >> op & 1)
            )
        )  # fmt: skip
        spare.append(sets.room[op] - sets.size_of(touched))
    readers = [bits(by for t in numbers(written) for by in numbers(sets.readers[t])) for written in sets.writes]
    end_of = np.full(ops, -1, dtype=np.int64)
    end_of[sets.ends] = np.arange(len(sets.ends))
    lists = sets.room, spare, np.cumsum([0, *sets.cost]), sets.cost, sets.writer, end_of, sets.ends, sets.size
    return kernel.Tables(
        words(sets.reads), words(sets.writes), words(outlasting), between, words(readers),
        words([before[op] for op in sets.writer]), words([before[op] for op in sets.ends]),
        *(np.array(values, dtype=np.int64) for values in lists), np.array(sets.price, dtype=np.float64),
        _octets(sets.size), _octets(sets.cost), digits(SEQUENCE), np.array([ops, fixed], dtype=np.int64),
    )  # fmt: skip


def _octets(values: list[int]) -> Int:
    """Return the sum of the values of the elements of each octet of two words, shape (16, 256)."""
    bit = np.arange(256)[:, None] >> np.arange(8) & 1
    padded = np.array([*values, *[0] * (MOST - len(values))], dtype=np.int64).reshape(16, 8)
    return padded @ bit.T
