"""H-Partition of HiRemate: groups between a node and the closest common ancestor of what it reads, round by round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from remat.deadline import Deadline
from remat.errors import ProblemError
from remat.hierarchy.partition.base import Partitioner
from remat.hierarchy.partition.rounds import Level, Wrapping, classes, leaving, region_candidates, run_candidates
from remat.hierarchy.partition.runs import groups_of, in_order, joined, nodes_of
from remat.hierarchy.tree import Group
from remat.problem import Problem
from remat.runtime.arrays import Int
from remat.runtime.options import Options, Positive, Range
from remat.schedule.rules import OrderRule

#: A round that leaves more than this share of the nodes is the last one with candidates between nodes.
STALLED = 0.8


@dataclass(frozen=True)
class HPartitionOptions(Options):
    """Options of H-Partition.

    Attributes
    ----------
    max_top : int
        Rounds end when so many nodes are left at the highest level, or fewer: *M^t* of the paper.
    max_group : int
        Nodes of a group at the most, ops or groups of the level below: *M^l* of the paper.
    alpha : float
        Exponent of the number of ops in the score of a group; 0: only the bytes that cross its border count.
    min_group : int
        Groups of fewer nodes than this are not made, unless a round would make no others.
    """

    max_top: Positive = 30
    max_group: Annotated[int, Range(2)] = 20
    alpha: Annotated[float, Range(0, 10)] = 0.5
    min_group: Annotated[int, Range(2)] = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_group > self.max_group:
            raise ProblemError(
                f"min_group must be at most max_group, {self.max_group}, not {self.min_group}", "option", "min_group"
            )


class HPartition(Partitioner):
    """H-Partition (HiRemate, appendix A, algorithm 2).

    While there are more than `max_top` nodes: for each node ``x``, let ``a(x)`` be the closest node that everything
    before ``x`` comes through. Candidates are the nodes on paths from ``a(x)`` to ``x``, with or without ``a(x)`` and
    with or without ``x``, of at most `max_group` nodes. The one with the least score, (bytes that cross its border) x
    (number of its ops) ** `alpha`, is made a group; candidates that meet it take it in, and are left out where that
    makes them too large. When none is left, groups become nodes, and the next round begins.

    All members of a candidate come after one entry, through which everything enters; the same holds of the union of
    candidates that meet, so groups are convex and never depend on each other in a cycle. Where the order of first
    computations is fixed, groups are runs of the reference order instead, since nothing else could be run as a whole:
    candidates are neighbours, and runs from ``a(x)`` to ``x``. The same is done, along an order in which ops come soon
    after what they wait for, where candidates between nodes are too large to go on with, as in random graphs.

    Source: HiRemate, algorithms 1 and 2. What differs: neighbours are candidates too, and small groups are left out
    (`min_group`), both as in the authors' code; values that are read all over the graph do not count for ``a(x)``.

    Examples
    --------
    >>> from remat.graphs.zoo.gpt import gpt
    >>> problem = Problem(gpt(layers=4))
    >>> print(HPartition(HPartitionOptions(max_top=10)).partition(problem).root)
    Group('gpt-b2', 68+67 ops, 8 children)
    """

    name = "h-partition"
    options_type = HPartitionOptions

    def forward_groups(self, problem: Problem, ops: Int, deadline: Deadline) -> list[Group]:
        options: HPartitionOptions = self.options
        members: list[Group | int] = ops.tolist()
        kinds = None if problem.order is OrderRule.FIXED else classes(problem, ops)
        leaves = leaving(problem)
        while len(members) > options.max_top:
            level = Level.of(problem, nodes_of(problem, members), kinds, leaves)
            make = run_candidates if kinds is None else region_candidates
            wrapping = Wrapping(level, options.alpha, options.max_group)
            found = wrapping.run(make(level, options.max_group, deadline), options.max_top, deadline)
            large = [nodes for nodes in found if len(nodes) >= options.min_group]
            found = large or found
            left = len(members) - sum(len(nodes) - 1 for nodes in found)
            if left > max(options.max_top, STALLED * len(members)) and kinds is not None:
                kinds = None  # runs of an order from now on
            members = _wrapped(problem, members, found)
        return groups_of(members)


def _wrapped(problem: Problem, members: list[Group | int], found: list[list[int]]) -> list[Group | int]:
    """Members after a round: groups in the place of their first node."""
    gone = {node for nodes in found for node in nodes}
    made = [joined(problem, [members[node] for node in nodes]) for nodes in found]
    return in_order(problem, [*made, *(member for number, member in enumerate(members) if number not in gone)])
