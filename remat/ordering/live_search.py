"""Live search: the cheapest schedule of a small graph by best-first search backward over tensors that must be live."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from remat.ordering.best_first import Explored
from remat.ordering.live_sets import MOST, LiveSets
from remat.problem import Problem
from remat.runtime.arrays import Int
from remat.runtime.bits import bits, digits, numbers, words
from remat.runtime.compiled import KernelSet
from remat.runtime.deadline import Deadline
from remat.schedule import OrderRule, Schedule

#: Above the cost of any schedule.
ENDLESS = 1 << 50
#: Dead ends that a word holds.
MOST_ENDS = 64
#: States expanded between two checks of the deadline.
PIECE = 2_000
#: Tiny tensors that are not worth leaving out. With a free order, ops that read them lose their place after the writer.
FEW = 4
#: Share of the time for the least costs up to the first run of each op but the last.
REPEATS_SHARE = 0.5
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
    ``S``. To it come further runs, until an op ``v`` of ``R`` has run first and after that; the largest sum of the two
    over all ``v`` counts.

    1. *Until then*, ops that must run before ``v`` are a problem of their own, in which ``v`` is last: with the fixed
       order, those at earlier places, otherwise the ancestors of ``v``. Its optimum is sought first, for one op after
       the other, each with the bounds at the ops before (a Russian doll search: Verfaillie, Lemaître and Schiex, AAAI
       1996).
    2. *After that*, take the set ``T`` of tensors that were written before ``v``, and that ``S`` contains or an op
       after ``v`` reads. With the fixed order, ops before and after ``v`` are those of ``R`` by position; with a free
       order, its ancestors, and the ops of ``R`` that depend on it. A tensor of ``T`` is live during ``v``, or its
       writer runs again. If they exceed the room by ``e`` bytes, a fractional knapsack bounds the cost.

    *Inputs of further runs.* These writers also read tensors written before ``v`` that are not in ``T``. Each is live
    during ``v``, or its writer runs again, too. For any price ``p`` of a byte, the cost after ``v`` is thus at least

        p e − sum over t in T of max(0, p M(t) − C(t) − sum over such inputs u of min(C(u), p M(u)) / users(u))

    where ``M`` are bytes, ``C`` costs of writers, and ``users(u)`` is the number of tensors ``t`` with
    ``C(t) < p M(t)`` for which ``u`` is such an input. *Proof.* Let ``X`` be the tensors of ``T`` that are not live
    during ``v``, and ``U`` the inputs that their writers need. ``X`` has at least ``e`` bytes more than the live part
    of ``U``. So the cost is at least ``p e``, plus ``C(t) − p M(t)`` over ``X``, plus the minimum over ``U``. The sum
    divides each minimum among its users, and ``X`` contains some of these. ∎

    *Forced moves.* Let all ops that read an output of ``u`` follow the state. Then ``u`` runs once before it, and can
    run last, if its outputs in ``S`` have at least the bytes of its inputs outside ``S``, and its step fits: these
    inputs take the place of these outputs. With the fixed order, this is sought for the last op of the stage.

    *Dominance.* A state is dropped if one with one tensor less, or at the stage before, has at most its cost.

    *Tiny tensors*, if there are several, are forgotten at first (:class:`remat.ordering.live_sets.LiveSets`). If the
    cheapest schedule then breaks a rule or the budget, the search starts again with all of them; the bound holds in
    either case.

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
            `bound` is :data:`remat.ordering.live_search.ENDLESS` if no schedule keeps the budget. If time or memory
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
            `bound` is :data:`remat.ordering.live_search.ENDLESS` if none exists, otherwise 0.
        """
        graph = self.problem.graph
        costless = replace(graph, ops=[replace(op, cost=0) for op in graph.ops])
        problem = replace(self.problem, graph=costless, budget=self.problem.budget_bytes, order=OrderRule.FREE)
        found = LiveSearch(problem, memory=self._most * STATE_BYTES).run(deadline=deadline)
        if found.schedule is None:
            return found
        return replace(found, schedule=Schedule.of_computes(graph, found.schedule.targets, source="live-search"))


class _Way(NamedTuple):
    """Least cost of steps that lead to a state, or a bound on it, and steps that the search found, if any."""

    bound: int
    steps: list[int] | None
    states: int


class _Search:
    """One search, with all tensors or without tiny ones."""

    def __init__(self, problem: Problem, most: int, *, forget: bool) -> None:
        import remat.ordering.live_search_kernel as kernel

        self.problem, self._most = problem, most
        self._kernel: Any = kernel
        self.fixed = problem.order is OrderRule.FIXED
        self.sets = every = LiveSets(problem)
        if forget:
            fewer = LiveSets(problem, forget=True)
            if len(fewer.size) < len(every.size) - FEW and (self.fixed or len(fewer.ends) <= MOST_ENDS):
                self.sets = fewer
        self._tables = _tables(self.sets, kernel, fixed=self.fixed)

    def run(self, top: int, clock: Deadline) -> Explored:
        """Search for the cheapest schedule that costs less than `top`."""
        sets, graph = self.sets, self.problem.graph
        states = self._find_repeats(top, clock.share(REPEATS_SHARE)) if any(sets.cost) else 0
        stage = len(sets.cost) if self.fixed else (1 << len(sets.ends)) - 1
        found = self._to(sets.kept, stage, top, clock)
        schedule = None
        if found.steps is not None:
            schedule = Schedule.of_computes(graph, graph.arrays.order[found.steps], source="live-search")
        return Explored(found.bound, schedule, states + found.states)

    def _find_repeats(self, top: int, clock: Deadline) -> int:
        """Fill in the least costs until each op but the last has run first; return the number of states expanded.

        If the steps for the op before with the highest cost can continue without further runs, that cost is the least.
        A search that runs out of time or memory leaves a bound.
        """
        sets, repeats, ways = self.sets, self._tables.repeats, dict[int, list[int]]()
        states, total = 0, sum(sets.cost)
        for op, before in enumerate(_earlier(sets, fixed=self.fixed)[:-1]):
            if clock.expired:
                break
            dearest = max(before, key=lambda other: (repeats[other], other), default=None)
            way = [] if dearest is None else ways.get(dearest)
            if way is not None:
                way = [*way, *(other for other in before if other not in way), op]
                if sets.fit(way):
                    repeats[op], ways[op] = 0 if dearest is None else repeats[dearest], way
                    continue
            once = sum(sets.cost[other] for other in before)
            # With the fixed order, the state after the op; with a free one, that before it.
            state = (0, op + 1) if self.fixed else (sets.reads[op], 0)
            once += sets.cost[op] if self.fixed else 0
            found = self._to(*state, top - (total - once), clock)
            states += found.states
            repeats[op] = found.bound - once
            if found.steps is not None and sum(sets.cost[step] for step in found.steps) == found.bound:
                ways[op] = found.steps if self.fixed else [*found.steps, op]
        return states

    def _to(self, live: int, stage: int, top: int, clock: Deadline) -> _Way:
        """Search for the cheapest steps to a state that cost less than `top`."""
        kernel = self._kernel
        states = _states(kernel, min(FIRST, self._most))
        heap = kernel.Heap(np.zeros(FIRST, dtype=np.int32), np.zeros(FIRST, dtype=np.int64))
        found = np.array([0, 0, 0, -1, top, 0], dtype=np.int64)
        scratch = kernel.Scratch(np.zeros((MOST, 2), dtype=np.uint64), np.zeros(MOST, dtype=np.uint8))
        low, high = words([live])[0]
        kernel.begin(self._tables, scratch, states, heap, low, high, np.uint64(stage), found)
        result = kernel.MORE
        while result != kernel.ENDED and not clock.expired:
            result = kernel.work(self._tables, scratch, states, heap, found, PIECE)
            if result == kernel.FULL:
                if len(states.low) >= self._most:
                    break
                states, heap = self._larger(states, heap, found)
        best, limit = int(found[kernel.BEST]), int(found[kernel.LIMIT])
        bound = limit if result == kernel.ENDED else min(int(found[kernel.BOUND]), limit)
        return _Way(bound, _steps(states, best), int(found[kernel.SEEN]))

    def _larger(self, states: Any, heap: Any, found: Int) -> tuple[Any, Any]:
        """Return the same states and heap with twice the room, as far as memory allows."""
        more = min(2 * len(states.low), self._most) - len(states.low)
        grown: list[Any] = [np.concatenate([field, np.zeros(more, dtype=field.dtype)]) for field in states[:-1]]
        states = self._kernel.States(*grown, _table(len(grown[0])))
        self._kernel.rebuild(states, found)
        return states, self._kernel.Heap(*(np.concatenate([field, np.zeros_like(field)]) for field in heap))


def _earlier(sets: LiveSets, *, fixed: bool) -> list[list[int]]:
    """Return the ops that must run before each op, in the reference order."""
    return [list(range(op)) if fixed else list(numbers(mask)) for op, mask in enumerate(sets.ancestors())]


def _steps(states: Any, row: int) -> list[int] | None:
    """Return the ops from a state without needs to the first state; None without one."""
    if row < 0:
        return None
    steps: list[int] = []
    while row > 0:
        steps.append(int(states.op[row]))
        row = int(states.parent[row])
    return steps


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
    from remat.ordering.words_kernel import SEQUENCE

    ops, ancestors = len(sets.cost), sets.ancestors()
    before = [mask | 1 << op for op, mask in enumerate(ancestors)]
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
                if sets.size[t] and not touched >> t & 1 and (by < op if fixed else ancestors[op] >> by & 1)
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
        np.zeros(ops, dtype=np.int64),
        _octets(sets.size), _octets(sets.cost), digits(SEQUENCE), np.array([ops, fixed], dtype=np.int64),
    )  # fmt: skip


def _octets(values: list[int]) -> Int:
    """Return the sum of the values of the elements of each octet of two words, shape (16, 256)."""
    bit = np.arange(256)[:, None] >> np.arange(8) & 1
    padded = np.array([*values, *[0] * (MOST - len(values))], dtype=np.int64).reshape(16, 8)
    return padded @ bit.T
