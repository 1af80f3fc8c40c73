"""Groups are parts of an order between which few bytes are passed on, and such as are worth being held."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from remat.deadline import Deadline
from remat.graphs.arrays import staircase
from remat.hierarchy.partition.base import Partitioner
from remat.hierarchy.partition.rounds import Level
from remat.hierarchy.tree import Group
from remat.problem import Problem
from remat.runtime.arrays import Int
from remat.runtime.options import Options, Range

#: Groups that a small graph is cut into, about, and the fewest ops that a group is still cut for: with some fifteen
#: groups a model that chooses options is solved in seconds, and small ones leave it more to choose from.
GROUPS, FEW = 16, 3
#: Ops that make a group, or a level of groups below the highest one: fewer than these are solved at once.
MANY = 20
#: Share by which more bytes than the fewest may be alive at a cut, and share of the largest cost that the op before it
#: has at the least.
MORE, EXPENSIVE = 0.05, 0.5


@dataclass(frozen=True)
class MinCutOptions(Options):
    """Options of a partition by cuts.

    Attributes
    ----------
    max_group : int or None
        Groups with more ops than this are cut. None: a sixteenth of the ops, 3 at least and 20 at most.
    max_members : int
        Into so many parts at the most.
    balance : float
        Share of the ops that each side of a cut has at the least, up to 0.5.
    """

    max_group: Annotated[int, Range(2)] | None = None
    max_members: Annotated[int, Range(2)] = 20
    balance: Annotated[float, Range(above=0, most=0.5)] = 0.25


class MinCut(Partitioner):
    """Cuts an order where the fewest bytes are alive, again and again, the largest part first.

    Where about as few are alive at several places, it cuts behind an expensive op: what crosses a cut is held, or all
    of a group runs again for it, whereas what is cheap to make again can be freed between the parts of one group.

    The order is the reference order, or, where the order of first computations is free, one in which ops come soon
    after what they wait for.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> hierarchy = MinCut(MinCutOptions(max_group=4)).partition(Problem(unit_chain(16)))
    >>> [group.forward.tolist() for group in hierarchy.root.children]
    [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    """

    name = "min-cut"
    options_type = MinCutOptions

    def forward_groups(self, problem: Problem, ops: Int, deadline: Deadline) -> list[Group]:
        arrays = problem.graph.arrays
        node = np.full(len(arrays.cost), -1, dtype=np.int64)
        node[ops] = np.arange(len(ops))
        ops = ops[Level.of(problem, node, None, problem.kept).by_rank]
        node[ops] = np.arange(len(ops))
        first, last = arrays.lifetimes(node)
        passed = np.flatnonzero(last > first)
        # bytes that pass from the ops before each place to it and later
        alive = staircase(first[passed] + 1, last[passed], arrays.size[passed], len(ops) + 1)
        names, position = problem.graph.op_names, arrays.position
        cost, given = arrays.cost[ops], self.options.max_group
        limit, most = (min(MANY, max(FEW, len(ops) // GROUPS)), MANY) if given is None else (given, given)

        def groups(start: int, stop: int) -> list[Group]:
            """Return the groups that a run of the order is cut into; none of a small one within the order."""
            deadline.check()
            found = []
            if stop - start > most or stop - start == len(ops):
                for a, b in self._parts(alive, cost, limit, start, stop):
                    if b - a > 1:
                        mine = ops[a:b]
                        name = f"{names[mine[0]]} .. {names[mine[-1]]}"
                        below = tuple(groups(a, b))
                        found.append(Group(name, mine[np.argsort(position[mine])], children=below))
            return found

        return groups(0, len(ops))

    def _parts(self, alive: Int, cost: Int, limit: int, start: int, stop: int) -> list[tuple[int, int]]:
        """Where to cut one run of the order; nowhere if it is small."""
        options: MinCutOptions = self.options
        if stop - start <= limit:
            return []
        runs = [(start - stop, start, stop)]
        while len(runs) < options.max_members and -runs[0][0] > limit:
            _, a, b = heapq.heappop(runs)
            margin = max(1, int(options.balance * (b - a)))
            places = np.arange(a + margin, b - margin + 1)
            few = places[alive[places] <= (1 + MORE) * alive[places].min()]
            best = few[cost[few - 1] >= EXPENSIVE * cost[few - 1].max()]
            cut = int(best[np.abs(2 * best - a - b).argmin()])
            heapq.heappush(runs, (a - cut, a, cut))
            heapq.heappush(runs, (cut - b, cut, b))
        return sorted((a, b) for _, a, b in runs)
