"""Stage relaxation with a single event, solved by minimum cuts: for graphs of any size."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from remat.bounds.flow import UNLIMITED, maximum_flow
from remat.bounds.stage_relaxation import StageRelaxation
from remat.runtime.arrays import Bool, Int, distinct
from remat.runtime.deadline import Deadline

#: Most that capacities may add up to: the flow algorithm computes with 64 bits.
LARGEST = 2.0**60
#: Factor below 1 that exceeds the rounding errors of a product.
BELOW = 1 - 2.0**-50


@dataclass(frozen=True)
class Choice:
    """Ops that run again after the event, tensors that are live at it, and their cost and bytes."""

    again: Bool
    live: Bool
    cost: int
    held: int

    def at(self, price: Fraction) -> Fraction:
        """Return the cost plus that of the bytes at a price."""
        return self.cost + price * self.held


@dataclass(eq=False)
class EventCut:
    r"""Linear relaxation of a built stage relaxation with one event, solved by minimum cuts.

    A tensor is *requested* if it is kept, or if a first compute after the event or an op that runs again reads it. With
    one event, the rows (3), (4) and (7) of :class:`~remat.bounds.stage_relaxation.StageRelaxation` say that requested
    tensors are live at the event unless all of their writers run again. Let a byte have the price :math:`\lambda` in
    place of row (1):

    .. math:: L(\lambda) = \min \sum_o C_o \, \mathrm{again}_o
              + \lambda \Bigl(\sum_t M_t \, \mathrm{live}_t - \mathrm{room}\Bigr)

    No schedule recomputes for less than :math:`L(\lambda)`, for any :math:`\lambda \ge 0`. The minimum is a minimum
    cut, which is integral, so the largest :math:`L(\lambda)` is the optimum of the linear relaxation. Two choices
    enclose it, one within the room and one beyond it. Each round takes the price at which both cost the same. Its cut
    is cheaper and replaces one of them, or both are optimal (Eisner and Severance 1976, Mathematical techniques for
    efficient record segmentation in large shared databases).

    In that case they differ in independent parts of the graph, often one in each layer. The solution takes as many
    parts of the choice beyond the room as fit.

    Network: ops that run again and requested tensors are on the source side. An op has an arc to the sink with its
    cost, and unlimited arcs to its inputs. A tensor has an arc with the price of its bytes to its writer, or to a node
    that leads to each of its writers. First computes request tensors directly from the source, without a node for the
    request: unlimited arcs from the source would make the flow algorithm slow.

    Attributes
    ----------
    bound : int
        No schedule recomputes for less: the optimum of the linear relaxation, rounded up to a whole cost. At the
        deadline, that of the best price so far.
    infeasible : bool
        True if it is proved that no choice is within the room.
    best : Choice or None
        The solution; None if none was found.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> from remat.problem import Problem
    >>> relaxation = StageRelaxation(Problem(unit_chain(8), 7), [9])
    >>> _ = relaxation.build()
    >>> cut = EventCut(relaxation)
    >>> cut.solve()
    >>> cut.bound, cut.best.cost, cut.best.held, cut.room
    (3, 7, 0, 4)
    """

    relaxation: StageRelaxation
    bound: int = field(init=False, default=0)
    infeasible: bool = field(init=False, default=False)
    best: Choice | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        relaxation = self.relaxation
        before, after = relaxation.stages
        arrays = relaxation.problem.graph.arrays
        self._cost, self._size = arrays.cost, arrays.size
        self.room = relaxation.whole_room(before)
        self._may_run = (after.again >= 0) & ~relaxation.problem.once
        writer, tensor = relaxation.needed(after)
        reader, source, read = relaxation.asked(after)
        self._needed = np.zeros(len(self._size), dtype=np.bool_)
        self._needed[tensor] = True
        # Pairs of op and tensor: what ops that run again read, and the writers of what may be requested.
        self._reader, self._read = reader, read
        pairs = distinct(np.append(writer, source) * len(self._size) + np.append(tensor, read))
        self._writer, self._written = pairs // len(self._size), pairs % len(self._size)
        self._connect()

    def _connect(self) -> None:
        """Set the arcs of the network: first those of tensors and ops, which have a price."""
        n, m = len(self._cost), len(self._size)
        self._source, self._sink = n + 2 * m, n + 2 * m + 1
        requested, regained = n + np.arange(m), n + m + np.arange(m)
        requested[self._needed] = self._source
        several = np.bincount(self._written, minlength=m)[self._written] > 1
        regained[self._written[~several]] = self._writer[~several]
        self._tensors, self._ops = distinct(self._written), distinct(np.append(self._writer, self._reader))
        asks = ~self._needed[self._read]
        parts = [
            (requested[self._tensors], regained[self._tensors]),
            (self._ops, np.full(len(self._ops), self._sink)),
            (regained[self._written[several]], self._writer[several]),
            (self._reader[asks], requested[self._read[asks]]),
        ]
        self._tail, self._head = (np.concatenate([part[end] for part in parts]) for end in (0, 1))

    def solve(self, deadline: Deadline | None = None) -> None:
        """Set :attr:`bound`, :attr:`infeasible` and :attr:`best`, as far as possible before the deadline."""
        clock = deadline or Deadline()
        beyond = self._choice(np.zeros(len(self._cost), dtype=np.bool_))
        if beyond.held <= self.room:
            self.best = beyond
            return
        least, within = self._cut(1.0, 0.0)
        if within.held > self.room:
            self.infeasible = math.ceil(least) > self.room
            return
        while not clock.expired:
            price = (within.cost - beyond.cost) / (beyond.held - within.held)
            exact = Fraction(price)
            least, choice = self._cut(price, 1.0)
            self.bound = max(self.bound, math.ceil(least - exact * self.room))
            if choice.at(exact) >= min(within.at(exact), beyond.at(exact)):
                break
            if choice.held <= self.room:
                within = choice
            else:
                beyond = choice
        self.best = self._mixed(within, beyond)

    def _cut(self, price: float, unit: float) -> tuple[Fraction, Choice]:
        """Return a bound on the least cost with bytes at a price and costs times a unit, and a choice close to it."""
        size, cost = self._size[self._tensors], self._cost[self._ops]
        total = price * float(size.sum()) + unit * float(cost.sum())
        scale = 2.0 ** math.floor(math.log2(LARGEST / total)) if total else 1.0
        capacity = np.full(len(self._tail), UNLIMITED)
        capacity[: len(size)] = size * (price * scale * BELOW)
        again = np.where(self._may_run[self._ops], cost * (unit * scale * BELOW), UNLIMITED)
        capacity[len(size) :][: len(cost)] = again
        flow = maximum_flow(self._tail, self._head, capacity, self._source, self._sink)
        side = np.zeros(self._sink + 1, dtype=np.bool_)
        side[flow.get_source_side_min_cut()] = True
        return flow.optimal_flow() / Fraction(scale), self._choice(side[: len(self._cost)] & self._may_run)

    def _choice(self, again: Bool) -> Choice:
        """Return the choice with some ops that run again."""
        live, kept = self._needed.copy(), np.zeros(len(self._size), dtype=np.bool_)
        live[self._read[again[self._reader]]] = True
        kept[self._written[~again[self._writer]]] = True
        live &= kept
        return Choice(again, live, int(self._cost[again].sum()), int(self._size[live].sum()))

    def _mixed(self, within: Choice, beyond: Choice) -> Choice:
        """Replace parts of the choice within the room by those of the other one, the largest first, while they fit."""
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        n, m = len(self._cost), len(self._size)
        differs = within.again != beyond.again
        op, tensor = np.append(self._writer, self._reader), np.append(self._written, self._read)
        op, tensor = op[differs[op]], tensor[differs[op]]
        links = coo_array((np.ones(len(op), dtype=np.bool_), (op, n + tensor)), shape=(n + m, n + m))
        count, part = connected_components(links, directed=False)
        of_op, of_tensor = np.split(part.astype(np.int64), [n])
        saved = _totals(count, of_op, self._cost, within.again, beyond.again)
        added = _totals(count, of_tensor, self._size, beyond.live, within.live)
        taken, room = np.zeros(count, dtype=np.bool_), self.room - within.held
        useful = np.flatnonzero(saved > 0)
        for number in useful[np.argsort(-added[useful], kind="stable")].tolist():
            if added[number] <= room:
                taken[number] = True
                room -= int(added[number])
        return self._choice(np.where(taken[of_op], beyond.again, within.again))


def _totals(count: int, part: Int, weight: Int, more: Bool, less: Bool) -> Int:
    """Return the weight of members of `more` minus that of members of `less`, for each part."""
    found = np.zeros(count, dtype=np.int64)
    np.add.at(found, part[more], weight[more])
    np.subtract.at(found, part[less], weight[less])
    return found
