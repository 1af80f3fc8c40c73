"""H-Partition of HiRemate: groups between a node and the closest common ancestor of its inputs, round by round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from remat.errors import ProblemError
from remat.hierarchy.groups import Group
from remat.hierarchy.partition.base import Partitioner, groups_of, in_order, joined, nodes_of
from remat.hierarchy.partition.rounds import Level, Wrapping, classes, leaving, region_candidates, run_candidates
from remat.problem import Problem
from remat.runtime.arrays import Int
from remat.runtime.checked_options import Options, Positive, Range
from remat.runtime.deadline import Deadline
from remat.schedule.rules import OrderRule

#: If a round leaves more than this share of the nodes, later rounds use runs of an order as candidates.
STALLED = 0.8


@dataclass(frozen=True)
class HPartitionOptions(Options):
    """Options of H-Partition."""

    max_top: Positive = 30
    """Rounds end when at most this many nodes are left at the highest level: *M^t* of the paper."""
    max_group: Annotated[int, Range(2)] = 20
    """Most nodes of a group, ops or groups of the level below: *M^l* of the paper."""
    alpha: Annotated[float, Range(0, 10)] = 0.5
    """Exponent of the number of ops in the score of a group; 0: only bytes across its border count."""
    min_group: Annotated[int, Range(2)] = 4
    """Fewest nodes of a group; a round makes smaller groups only if it would make no others."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_group > self.max_group:
            raise ProblemError(
                f"min_group must be at most max_group, {self.max_group}, not {self.min_group}", "option", "min_group"
            )


class HPartition(Partitioner):
    """H-Partition (HiRemate, appendix A, algorithm 2).

    While there are more than `max_top` nodes: for each node ``x``, let ``a(x)`` be the closest node that all paths to
    ``x`` pass through. Candidates are the nodes on paths from ``a(x)`` to ``x``, with or without ``a(x)`` and with or
    without ``x``, of at most `max_group` nodes. The candidate with the least score, (bytes across its border) x (number
    of its ops) ** `alpha`, becomes a group. Candidates that overlap it absorb it, or are dropped if that makes them too
    large. When none is left, groups become nodes and the next round starts.

    All paths into a candidate enter through one node. The same holds for unions of overlapping candidates, so groups
    are convex and never form a cycle. In a fixed order, groups are runs of the reference order, since nothing else
    could run as a whole. Candidates are then neighbours, and runs from ``a(x)`` to ``x``. If candidates between nodes
    become too large, as in random graphs, the same is done along a depth-first topological order.

    Source: HiRemate, algorithms 1 and 2. Differences: neighbours are candidates too, and small groups are skipped
    (`min_group`), both as in the authors' code; long-lived values with many readers do not count for ``a(x)``.

    Examples
    --------
    >>> from remat.graphs.zoo.transformers import gpt
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
                kinds = None  # from now on, runs of an order
            members = _wrapped(problem, members, found)
        return groups_of(members)


def _wrapped(problem: Problem, members: list[Group | int], found: list[list[int]]) -> list[Group | int]:
    """Return the members after a round: groups replace their first node."""
    gone = {node for nodes in found for node in nodes}
    made = [joined(problem, [members[node] for node in nodes]) for nodes in found]
    return in_order(problem, [*made, *(member for number, member in enumerate(members) if number not in gone)])
