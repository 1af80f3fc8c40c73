"""State search: the cheapest schedule of a small graph, level by level over computed ops and live tensors."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remat.bounds.suffix_cuts import SuffixCut, suffix_cut
from remat.ordering.best_first import Explored
from remat.problem import Problem
from remat.runtime.arrays import Bool, Int
from remat.runtime.bits import bits, digits, words
from remat.runtime.compiled import KernelSet
from remat.runtime.deadline import Deadline
from remat.schedule import OrderRule, Schedule

#: Largest number of ops, and of tensors that are no graph inputs: one and two words.
MOST_OPS, MOST_TENSORS = 64, 128
#: Memory of the two levels, in bytes, and bytes of a state with its entries of table and heap.
MEMORY, STATE_BYTES = 1 << 30, 160
#: States expanded between two checks of the deadline.
PIECE = 2_000
#: States expanded in a pass before suffix cuts are sought.
QUICK = 20_000
#: States of a level that are kept while suffix cuts are sought, and most cuts at a level.
NARROW, MOST_CUTS = 30, 4
#: Growth of the part of the limit above the first bound, and its first value as a share of the cost of each op once.
GROWTH, FIRST = 1.5, 1 / 200
#: Extra cost above that of any schedule; NEVER of the kernel.
ENDLESS = 1 << 50


def _example() -> None:
    from remat.graphs.families import unit_chain

    for order in OrderRule:
        StateSearch(Problem(unit_chain(2), 4, order)).run()


#: Kernels of the search.
KERNELS = KernelSet("state-search", __name__, _example)


@dataclass(frozen=True)
class _Pass:
    """Result of one pass over all levels: extra cost of the best schedule, if any, and whether it missed none."""

    extra: int | None
    steps: tuple[int, ...]
    complete: bool
    samples: tuple[tuple[int, Bool], ...]
    """Cheapest live tensors of each level, by tensors of the graph."""
    states: int


class StateSearch:
    """Search for the cheapest schedule within the budget, exact for any number of computes and either order rule.

    A *state* consists of the set ``C`` of ops computed so far (a prefix, if the order is fixed) and the set ``L`` of
    live tensors. A *level* contains the states with the same number of computed ops. A recomputation leads to a state
    of the same level, a first compute to one of the next. Each level is expanded by rising cost, so the cost of a state
    is final when it is expanded.

    *Evictions.* Tensors are evicted only right before a step for which there is no room, and only an inclusion-minimal
    set of them; a tensor that no later step can need, directly or through recomputations, is dropped at once. *Proof.*
    Take a schedule, given by its sequence of computes, and call a tensor idle if the sequence does not read it before
    its next compute. Run the sequence, and before each step that lacks room evict a minimal sufficient set of idle
    tensors. By induction, everything that the schedule holds is live in this run, and what is live in addition is idle;
    the step fits once all idle tensors are gone. Hence a sufficient set exists. ∎

    *Recomputations as late as possible.* Consider a recomputation of ``u`` and the step ``o`` that follows. Let ``o``
    read no output of ``u``, and let no input or output of ``u`` be evicted or dropped for ``o``. Let the workspace of
    ``u`` be no larger than that of ``o``. Then the two can change places: ``o`` has more room than before, and while
    ``u`` runs no more is live than while ``o`` ran. So the search skips this pair if ``o`` is a first compute, or the
    recomputation of an op with a lower number. *Proof.* Each exchange moves a first compute forward, or keeps their
    places and removes an inversion among recomputations. Among the cheapest schedules with their runs, take one for
    which the sum of places of first computes is least, and then the number of inversions. It contains no such pair. ∎
    A state thus includes the last op if that was a recomputation. If ``u`` has a single output, that is not evicted for
    ``o``, either: the recomputation would have been in vain.

    *Dominance.* A state is discarded if the same state without restriction of its next step, or one with one more live
    tensor, has at most its cost.

    *Bounds.* With the cost so far, a state whose bound on the further cost reaches the limit is discarded. The bound is
    the largest of

    1. the cost ``R`` of the ops ``A`` that must run again: to compute the ops not yet computed, and to have the tensors
       to keep, the missing inputs must be recomputed, and their missing inputs in turn;
    2. for each op ``v`` not yet computed, ``R`` and a fractional knapsack: tensors that were written before the first
       compute of ``v``, and that an op after it reads, are live then, or their writers run again after it. That costs
       nothing more for ops in ``A`` that no first compute up to ``v`` needs;
    3. in a fixed order, suffix cuts (:mod:`remat.bounds.suffix_cuts`).

    *Limits.* The first limit is just above the bound of the first state. If no schedule is below a limit, the limit is
    a bound, and a larger one follows. The search ends with the cheapest schedule, at `limit`, or when time or memory
    runs out.

    Parameters
    ----------
    problem : Problem
        With a budget. See :meth:`applies`.
    memory : int
        Bytes for the states of two levels.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> found = StateSearch(Problem(unit_chain(8), 4)).run()
    >>> found.bound, len(found.schedule.computes())
    (26, 26)
    """

    def __init__(self, problem: Problem, *, memory: int = MEMORY) -> None:
        import remat.ordering.state_search_kernel as kernel

        self.problem, self._kernel = problem, kernel
        self._capacity = max(1_000, memory // (2 * STATE_BYTES))
        arrays = problem.graph.arrays
        self._tensors = np.flatnonzero(~arrays.is_input)
        self._cuts: list[list[SuffixCut]] = [[] for _ in arrays.cost]
        self._facts = _tables(problem, self._tensors, kernel)
        self._tables = self._with_cuts()

    @staticmethod
    def applies(problem: Problem) -> bool:
        """Return True if the search can state a problem.

        It has a budget, at most 64 ops and 128 tensors besides graph inputs. Each tensor has one writer, no output is
        written in place of an input, and ops run once or any number of times.
        """
        graph, arrays = problem.graph, problem.graph.arrays
        own = ~arrays.is_input
        return (
            problem.budget_bytes is not None
            and len(arrays.cost) <= MOST_OPS
            and int(own.sum()) <= MOST_TENSORS
            and bool((arrays.producers.counts[own] == 1).all())
            and not graph.in_place
            and all(limit in {None, 1} for limit in problem.compute_limits)
            and MOST_OPS * graph.base_cost < ENDLESS
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
        base = self.problem.graph.base_cost
        top = ENDLESS if limit is None else limit - base
        known, states = self._root(), 0
        first, step = known, max(1, int(FIRST * base))
        quick: int | None = QUICK
        while known < top and not clock.expired:
            now = min(top, max(known + 1, first + step))
            if now > 64 * base:
                now = top
            found = self._pass(now, clock, most_states=quick)
            states += found.states
            if found.extra is not None and found.complete:
                return Explored(found.extra + base, self._schedule(found.steps), states)
            if found.complete:
                known, step = now, int(step * GROWTH) + 1
            elif quick is None:
                break
            else:
                quick = None
                if self.problem.order is OrderRule.FIXED:
                    states += self._improve_cuts(top, clock)
                    known = max(known, self._root())
        if known >= ENDLESS and self._none_exists(clock):
            return Explored(ENDLESS, None, states)
        return Explored(min(known + base, ENDLESS - 1), None, states)

    def _none_exists(self, clock: Deadline) -> bool:
        """Return True if no schedule exists at any cost: none is found where ops cost nothing."""
        graph = self.problem.graph
        if not graph.base_cost:
            return True
        free = replace(graph, ops=[replace(op, cost=0) for op in graph.ops])
        problem = replace(self.problem, graph=free, budget=self.problem.budget_bytes)
        return StateSearch(problem, memory=2 * STATE_BYTES * self._capacity).run(deadline=clock).bound == ENDLESS

    def beam(self, width: int, *, deadline: Deadline | None = None) -> Schedule | None:
        """Return a schedule from levels of at most `width` states; None if they lead to none."""
        found = self._pass(ENDLESS, deadline or Deadline(), width)
        return None if found.extra is None else self._schedule(found.steps)

    def _root(self) -> int:
        zero = np.uint64(0)
        return int(self._kernel.bound_at(self._tables, zero, zero, zero))

    def _improve_cuts(self, top: int, clock: Deadline) -> int:
        """Add suffix cuts at the cheapest states of narrow passes, from the last level to the first."""
        n, states = len(self._cuts), 0
        samples: dict[int, Bool | None] = dict.fromkeys(range(n - 1))
        seen: set[tuple[int, bytes]] = set()
        for _ in range(MOST_CUTS):
            for level in sorted(samples, reverse=True):
                if clock.expired:
                    return states
                sample = samples[level]
                key = level, b"" if sample is None else sample.tobytes()
                if key in seen:
                    continue
                seen.add(key)
                cut = suffix_cut(self.problem, range(level, n), sample)
                if cut is not None and (cut.slope.any() or cut.constant > 0):
                    self._cuts[level].append(cut)
            self._tables = self._with_cuts()
            found = self._pass(top, clock, NARROW)
            states += found.states
            samples = {level - 1: live for level, live in found.samples if 0 < level < n}
        return states

    def _with_cuts(self) -> Any:
        """Return the tables with all cuts; the cuts of position k belong to states with k + 1 computed ops."""
        every = [cut for cuts in self._cuts for cut in cuts]
        counts = [0, 0, *(len(cuts) for cuts in self._cuts)]
        slope = np.zeros((max(1, len(every)), max(1, len(self._tensors))))
        for row, cut in enumerate(every):
            slope[row] = cut.slope[self._tensors]
        return self._facts._replace(
            cut_first=np.cumsum(counts, dtype=np.int64),
            constant=np.array([cut.constant for cut in every] or [0.0]),
            slope=slope,
        )

    def _pass(self, limit: int, clock: Deadline, width: int | None = None, most_states: int | None = None) -> _Pass:
        """Expand all levels with costs below `limit`, at most `width` states each and `most_states` in total."""
        kernel = self._kernel
        n = len(self._cuts)
        most = min(400 * width + 10_000 if width is not None else self._capacity, 50 * (most_states or self._capacity))
        capacity = min(self._capacity, most)
        here, following = (_level(kernel, capacity) for _ in range(2))
        heap = kernel.Heap(np.zeros(2 * capacity, dtype=np.int32), np.zeros(2 * capacity, dtype=np.int64))
        scratch = tuple(np.zeros((2, MOST_TENSORS), dtype=np.int64))
        found = np.zeros(5, dtype=np.int64)
        here.last[0], here.parent[0] = -1, -1
        found[kernel.HERE], base = 1, 0
        parents: list[Int] = []
        ops: list[NDArray[np.int16]] = []
        samples: list[tuple[int, Bool]] = []
        complete = True
        for level in range(n + 1):
            found[kernel.HEAP] = found[kernel.NEXT] = 0
            kernel.begin_level(here, heap, found)
            ended = False
            while not ended and not clock.expired:
                ended = kernel.work(self._tables, (here, following), limit, heap, base, found, scratch, PIECE)
                if most_states is not None and found[kernel.SEEN] > most_states:
                    ended = False
                    break
            if not ended or (found[kernel.FULL] and width is None):
                return _Pass(None, (), False, tuple(samples), int(found[kernel.SEEN]))
            complete &= not found[kernel.FULL]
            found[kernel.FULL] = 0
            count, more = int(found[kernel.HERE]), int(found[kernel.NEXT])
            parents.append(here.parent[:count].copy())
            ops.append(here.op[:count].copy())
            if level == n and (best := self._complete(here, count)) >= 0:
                steps = _steps(np.concatenate(parents), np.concatenate(ops), base + best)
                return _Pass(int(here.spent[best]), steps, complete, tuple(samples), int(found[kernel.SEEN]))
            base += count
            here.table[:] = 0
            following.table[:] = 0
            if width is not None and more > width:
                chosen = np.lexsort((-following.live[:more], following.spent[:more] + following.rest[:more]))[:width]
                for field in following[:-1]:
                    field[:width] = field[chosen]
                complete, more = False, width
            if not more:
                break
            found[kernel.HERE] = more
            here, following = following, here
            samples.append((level + 1, self._sample(here, more)))
        return _Pass(None, (), complete, tuple(samples), int(found[kernel.SEEN]))

    def _sample(self, level: Any, count: int) -> Bool:
        """Return the live tensors of the state of a level with the least bound on its whole cost."""
        row = int(np.argmin(level.spent[:count] + level.rest[:count]))
        bits = int(level.low[row]) | int(level.high[row]) << 64
        live = np.zeros(len(self.problem.graph.tensors), dtype=np.bool_)
        live[[t for k, t in enumerate(self._tensors.tolist()) if bits >> k & 1]] = True
        return live

    def _complete(self, level: Any, count: int) -> int:
        """Return the cheapest state of the last level in which all tensors to keep are live; -1 if there is none."""
        low, high = self._facts.kept
        good = np.flatnonzero(((level.low[:count] & low) == low) & ((level.high[:count] & high) == high))
        return int(good[np.argmin(level.spent[good])]) if len(good) else -1

    def _schedule(self, steps: tuple[int, ...]) -> Schedule:
        order = self.problem.graph.arrays.order
        return Schedule.of_computes(self.problem.graph, order[list(steps)], source="state search")


def _steps(parent: Int, op: NDArray[np.int16], state: int) -> tuple[int, ...]:
    """Return the ops that lead from the first state to a state."""
    steps = []
    while state > 0:
        steps.append(int(op[state]))
        state = int(parent[state])
    return tuple(steps[::-1])


def _level(kernel: ModuleType, capacity: int) -> Any:
    """Return an empty level."""
    slots = 1 << (2 * capacity - 1).bit_length()
    words = (np.zeros(capacity, dtype=np.uint64) for _ in range(3))
    numbers = (np.zeros(capacity, dtype=np.int64) for _ in range(3))
    last, op = np.zeros((2, capacity), dtype=np.int16)
    parent = np.zeros(capacity, dtype=np.int64)
    return kernel.Level(*words, *numbers, last, parent, op, np.zeros(slots, dtype=np.int32))


def _tables(problem: Problem, tensors: Int, kernel: ModuleType) -> Any:
    """Return the problem as sets, without cuts."""
    arrays = problem.graph.arrays
    order, n = arrays.order.tolist(), len(arrays.cost)
    number = {tensor: k for k, tensor in enumerate(tensors.tolist())}
    reads = [[number[t] for t in arrays.op_inputs[op].tolist() if t in number] for op in order]
    writes = [[number[t] for t in arrays.op_outputs[op].tolist()] for op in order]
    writer = {t: op for op in range(n) for t in writes[op]}
    before, after, readers = [0] * n, [0] * n, [0] * len(number)
    for op in range(n):
        for t in reads[op]:
            before[op] |= before[writer[t]] | 1 << writer[t]
            readers[t] |= 1 << op
    for op, other in itertools.product(range(n), range(n)):
        if before[op] >> other & 1:
            after[other] |= 1 << op
    later = [reduce(or_, (1 << op | after[op] for op in range(n) if mask >> op & 1), 0) for mask in readers]
    kept = problem.kept[tensors]
    fixed = problem.order is OrderRule.FIXED
    once = np.array([problem.compute_limits[op] == 1 for op in order])
    cost, size = arrays.cost[order].astype(np.int64), arrays.size[tensors].astype(np.int64)
    workspace = arrays.workspace[order].astype(np.int64) + arrays.input_bytes + problem.constant_bytes
    cost = np.where(once, kernel.NEVER, cost)
    share = [cost[writer[t]] / max(1, sum(size[u] > 0 for u in writes[writer[t]])) for t in range(len(number))]
    if fixed:
        before, after = [(1 << op) - 1 for op in range(n)], [(1 << n) - (2 << op) for op in range(n)]
    candidates: list[list[int]] = []
    for op in range(n):
        touched = {*reads[op], *writes[op]}
        lasting = [
            t for t in range(len(number))
            if size[t] > 0 and t not in touched and not (after[op] | 1 << op) >> writer[t] & 1
            and (kept[t] or readers[t] & after[op])
        ]  # fmt: skip
        total = int(workspace[op]) + sum(int(size[t]) for t in (*touched, *lasting))
        fits = total <= (problem.budget_bytes or 0)
        candidates.append([] if fits else sorted(lasting, key=lambda t: share[t] / size[t]))
    flat = [t for each in candidates for t in each]
    keepers = bits(op for op in range(n) if any(kept[t] for t in writes[op]))
    return kernel.Tables(
        words(map(bits, reads)), words(map(bits, writes)),
        *(np.array(sets, dtype=np.uint64) for sets in (before, later)),
        words([bits(np.flatnonzero(kept).tolist())])[0], np.array([keepers], dtype=np.uint64),
        cost, workspace, np.array([len(each) == 1 for each in writes]), size,
        np.array([writer[t] for t in range(len(number))], dtype=np.int64),
        np.cumsum([0, *map(len, candidates)], dtype=np.int64), np.array(flat, dtype=np.int64),
        np.array([share[t] for t in flat], dtype=np.float64),
        np.zeros(n + 2, dtype=np.int64), np.zeros(1), np.zeros((1, 1)),
        digits(kernel.SEQUENCE), np.array([n, problem.budget_bytes or 0, fixed], dtype=np.int64),
    )  # fmt: skip
