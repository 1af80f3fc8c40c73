"""Partition at places of an order where few bytes are alive, preferably after expensive ops."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from remat.graphs.arrays import staircase
from remat.hierarchy.groups import Group
from remat.hierarchy.partition.base import Partitioner
from remat.hierarchy.partition.rounds import Level
from remat.problem import Problem
from remat.runtime.arrays import Int
from remat.runtime.checked_options import Options, Range
from remat.runtime.deadline import Deadline

#: Target number of groups on a small graph, and bounds of the group size in ops. With some fifteen groups, a model that
#: chooses options is solved in seconds, and small groups offer it more choices.
GROUPS, FEW = 16, 3
#: Fewest ops to cut into groups, or into a further level of groups: fewer are solved at once.
MANY = 20
#: A cut may have this share more bytes alive than the least; the op before it costs at least this share of the largest
#: cost.
MORE, EXPENSIVE = 0.05, 0.5


@dataclass(frozen=True)
class MinCutOptions(Options):
    """Options of a partition by cuts."""

    max_group: Annotated[int, Range(2)] | None = None
    """Groups with more ops than this are cut. None: a sixteenth of the ops, between 3 and 20."""
    max_members: Annotated[int, Range(2)] = 20
    """Most parts of a group."""
    balance: Annotated[float, Range(above=0, most=0.5)] = 0.25
    """Least share of the ops on each side of a cut, up to 0.5."""


class MinCut(Partitioner):
    """Partition that cuts an order where the fewest bytes are alive, in the largest part first.

    Among places with about as few bytes it cuts after an expensive op. A value that crosses a cut is held or needs the
    whole group to run again, while a cheap value inside a group can be freed and recomputed.

    The order is the reference order, or, in a free order, a depth-first topological order.

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
        # bytes written before each place and read at it or later
        alive = staircase(first[passed] + 1, last[passed], arrays.size[passed], len(ops) + 1)
        names, position = problem.graph.op_names, arrays.position
        cost, given = arrays.cost[ops], self.options.max_group
        limit, most = (min(MANY, max(FEW, len(ops) // GROUPS)), MANY) if given is None else (given, given)

        def groups(start: int, stop: int) -> list[Group]:
            """Return the groups of a run of the order; none if it is short and inside the order."""
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
        """Return the parts of one run of the order; none if it is short."""
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
