"""Search for an order within a limit of memory, run by kernels."""

from __future__ import annotations

from enum import Enum

import numpy as np

from remat.graphs.arrays import Csr, stacked
from remat.ordering.lifetimes import Lifetimes
from remat.runtime.arrays import Int
from remat.runtime.compiled import KernelSet
from remat.runtime.deadline import Deadline

#: Work between two checks of the deadline: some hundredths of a second.
SLICE = 1_000_000
#: Initial and largest number of keys in the table (16 bytes each); largest number of entries in the list of choices.
FIRST_KEYS, MOST_KEYS, MOST_CHOICES = 1 << 14, 1 << 22, 1_000_000
#: Exceeds every step.
ENDLESS = 2**62


def _example() -> None:
    one = Csr.from_pairs(np.array([0, 1]), np.array([0, 1]), 2)
    none = Csr.from_pairs(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), 2)
    zeros = np.zeros(2, dtype=np.int64)
    search = LimitSearch(Lifetimes(zeros, zeros, one, one, none, none, zeros > 0, zeros > 0, 0))
    search.enlarge()
    search.go(9, 100)


#: Kernels of the search.
KERNELS = KernelSet("orders", __name__, _example)


class Answer(Enum):
    """Result of a search within a limit."""

    FOUND = "there is an order within it"
    REFUTED = "there is none"
    OPEN = "not known"


class LimitSearch:
    """Depth-first search for an order within a limit; it continues where it stopped while the limit stays the same.

    The search runs over closed sets of ops. A *valley* is a set with no more live bytes than an earlier set on the path
    and than all closed sets between the two. From a valley the search never backtracks between the two (see
    docs/ordering/valley.md). It stores sets from which the end cannot be reached as keys of 128 random bits: the
    probability that any two of ten million share a key is 1 in 10^24.

    `seed`: seed of the order among equal choices; 0: by number.

    Examples
    --------
    >>> from remat import Problem
    >>> from remat.graphs.families import unit_chain
    >>> from remat.ordering.instance import OrderInstance
    >>> search = LimitSearch(Lifetimes.of(OrderInstance.of(Problem(unit_chain(4)))))
    >>> search.go(6, 1000).name, search.go(5, 1000).name, search.above
    ('FOUND', 'REFUTED', 6)
    """

    def __init__(self, problem: Lifetimes, seed: int = 0) -> None:
        from remat.ordering import least_cut_kernel as cut
        from remat.ordering import valley_kernel as valley

        self.problem, self._cut, self._valley = problem, cut, valley
        n, m = len(problem.workspace), len(problem.size)
        self._ops = np.zeros((cut.RANK + 1, n + 1), dtype=np.int64)
        self._tensors = np.zeros((cut.INSIDE + 1, m + 1), dtype=np.int64)
        tables = (problem.predecessors, problem.successors, problem.begins, problem.ends)
        self._ops[: len(tables)], self._links = stacked(tables)
        waiting = problem.predecessors.counts
        ready = np.flatnonzero(waiting == 0)
        self._num_ready = len(ready)
        self._ops[cut.WORKSPACE, :n], self._ops[cut.WAITING, :n] = problem.workspace, waiting
        self._ops[cut.READY, : len(ready)] = ready
        self._ops[cut.PLACE, ready] = np.arange(len(ready))
        self._ops[cut.OP_NODE] = -1
        keys = np.random.default_rng(n)
        self._ops[cut.KEY_A : cut.KEY_B + 1] = keys.integers(-(2**63), 2**63, size=(2, n + 1), dtype=np.int64)
        self._tensors[cut.SIZE, :m] = problem.size
        self._tensors[cut.BEGUN, :m] = problem.live
        self._tensors[cut.LEFT, :m] = np.bincount(problem.ends.indices, minlength=m) + problem.kept
        self._tensors[cut.TENSOR_NODE] = -1
        self._first = self._ops.copy(), self._tensors.copy()
        self._live = problem.held + int(problem.size[problem.live].sum())
        self._frames = np.zeros((valley.ROOM + 1, n + 2), dtype=np.int64)
        self._arena = np.zeros((2, min(MOST_CHOICES, n * n) + 2 * n + 2), dtype=np.int64)
        self._table = np.zeros((2, FIRST_KEYS), dtype=np.int64)
        self._nodes = np.zeros((cut.MEMBER + 1, n + 2 * m + 2), dtype=np.int64)
        self._arcs = np.zeros((cut.NEXT + 1, 2 * (len(self._links) + 2 * m)), dtype=np.int64)
        self._number = np.zeros(valley.RULE + 1, dtype=np.int64)
        self._limit: int | None = None
        self._dead_within: int | None = None  # the limit for which the table holds
        self.above = 0
        """After :attr:`Answer.REFUTED`: no order has a lower peak, in bytes."""
        self.states = 0
        """Total number of states evaluated."""
        self.shuffle(seed)

    def shuffle(self, seed: int, rule: int = 0) -> None:
        """Restart with another order among equal choices; `rule` 1: sorted by the bytes at their steps."""
        n = len(self.problem.workspace)
        rank = np.random.default_rng(seed).permutation(n) if seed else np.arange(n)
        self._ops[self._cut.RANK, :n] = self._first[0][self._cut.RANK, :n] = rank
        self._rule, self._limit = rule, None

    def go(self, limit: int, work: int, *, window: int = 128, deadline: Deadline | None = None) -> Answer:
        """Search for an order whose peak is at most `limit` bytes.

        Parameters
        ----------
        limit : int
        work : int
            Limit of states, choices and nodes of cuts evaluated in this call.
        window : int
            Number of preceding ops to search for an earlier state that the current one dominates.
        deadline : Deadline, optional
            Checked every few hundredths of a second.
        """
        number, valley = self._number, self._valley
        if limit != self._limit:
            self._begin(limit)
        number[valley.WINDOW] = window
        before, last = int(number[valley.STATES]), int(number[valley.WORK]) + work
        answer = valley.WORKING
        while answer == valley.WORKING and number[valley.WORK] < last:
            most = min(last, int(number[valley.WORK]) + SLICE)
            answer = valley.search(
                self._ops, self._tensors, self._links, self._frames, self._arena, self._table, self._nodes, self._arcs,
                number, most,
            )  # fmt: skip
            if 2 * number[valley.FILLED] > self._table.shape[1] and self._table.shape[1] < MOST_KEYS:
                self.enlarge()
            if deadline is not None and deadline.expired:
                break
        self.states += int(number[valley.STATES]) - before
        if answer == valley.REFUTED and not number[valley.CLIPPED]:
            self.above = int(number[valley.ABOVE])
            return Answer.REFUTED
        return Answer.FOUND if answer == valley.FOUND else Answer.OPEN

    @property
    def order(self) -> Int:
        """Order found; shape (ops,)."""
        return self._frames[self._valley.OP, 1 : self._ops.shape[1]].copy()

    def _begin(self, limit: int) -> None:
        number, valley, frames = self._number, self._valley, self._frames
        self._ops[:], self._tensors[:] = self._first
        # dead ends within a limit are dead ends within any lower one, but say nothing more about steps above it
        keep = self._dead_within is not None and limit <= self._dead_within
        filled, above = (int(number[valley.FILLED]), int(number[valley.ABOVE])) if keep else (0, ENDLESS)
        if not keep:
            self._table[:] = 0
        self._limit = self._dead_within = limit
        number[:] = 0
        number[[valley.FILLED, valley.READY_COUNT, valley.LIVE_NOW]] = filled, self._num_ready, self._live
        number[[valley.LIMIT, valley.ABOVE, valley.FRESH, valley.RULE]] = limit, above, 1, self._rule
        frames[:, 0] = 0
        frames[valley.LIVE, 0] = self._live
        frames[[valley.FRAME_A, valley.FRAME_B], 0] = self._ops[[self._cut.KEY_A, self._cut.KEY_B], -1]

    def enlarge(self) -> None:
        """Give the table four times as many entries."""
        old = self._table
        self._table = np.zeros((2, 4 * old.shape[1]), dtype=np.int64)
        self._valley.refill(old, self._table, self._number)


class TwoWaySearch:
    """Limit searches from both ends of a problem; the end that answered last is tried first.

    `seed`: as for :class:`LimitSearch`.

    Examples
    --------
    >>> from remat import Problem
    >>> from remat.graphs.families import unit_chain
    >>> from remat.ordering.instance import OrderInstance
    >>> search = TwoWaySearch(Lifetimes.of(OrderInstance.of(Problem(unit_chain(4)))))
    >>> search.go(6, 1000, Deadline()).name, search.order.tolist()
    ('FOUND', [0, 1, 2, 3, 4, 5, 6, 7, 8])
    """

    def __init__(self, problem: Lifetimes, seed: int = 0) -> None:
        self._ways = [LimitSearch(problem, seed), LimitSearch(problem.mirrored, seed)]
        self._first = 0

    def shuffle(self, seed: int, rule: int) -> None:
        """Call :meth:`LimitSearch.shuffle` at both ends."""
        for way in self._ways:
            way.shuffle(seed, rule)

    def go(self, limit: int, work: int, deadline: Deadline, *, window: int = 128) -> Answer:
        """Call :meth:`LimitSearch.go` at both ends; `work` is for each end."""
        for at in (self._first, 1 - self._first):
            answer = self._ways[at].go(limit, work, window=window, deadline=deadline)
            if answer is not Answer.OPEN:
                self._first = at
                return answer
        return Answer.OPEN

    @property
    def order(self) -> Int:
        """Order found, from the start; shape (ops,)."""
        order = self._ways[self._first].order
        return order[::-1].copy() if self._first else order

    @property
    def above(self) -> int:
        """After :attr:`Answer.REFUTED`: no order has a lower peak, in bytes."""
        return self._ways[self._first].above

    @property
    def states(self) -> int:
        """Total number of states evaluated."""
        return sum(way.states for way in self._ways)
