"""Interface of partitioners, and joining of neighbouring members of a group."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from remat import registry
from remat.hierarchy.groups import Group
from remat.hierarchy.partition.rounds import Level
from remat.hierarchy.tree import Hierarchy
from remat.problem import Problem
from remat.problem.training_step import training_step
from remat.runtime.arrays import Int
from remat.runtime.compiled.algorithm import Algorithm
from remat.runtime.deadline import Deadline


def joined(problem: Problem, members: list[Group | int]) -> Group:
    """Return a group of ops and groups, named by its first and last op."""
    position, names = problem.graph.arrays.position, problem.graph.op_names
    ops = np.concatenate([m.forward if isinstance(m, Group) else np.array([m], dtype=np.int64) for m in members])
    ops = ops[np.argsort(position[ops])]
    children = tuple(member for member in members if isinstance(member, Group))
    return Group(f"{names[ops[0]]} .. {names[ops[-1]]}", ops, children=children)


def nodes_of(problem: Problem, members: list[Group | int]) -> Int:
    """Return the number of the member of each op, -1 for ops in none; shape (ops,)."""
    node = np.full(len(problem.graph.ops), -1, dtype=np.int64)
    for number, member in enumerate(members):
        node[member.forward if isinstance(member, Group) else member] = number
    return node


def in_order(problem: Problem, members: list[Group | int]) -> list[Group | int]:
    """Sort members by the position of their first ops in the reference order."""
    position = problem.graph.arrays.position
    return sorted(members, key=lambda member: position[member.forward[0] if isinstance(member, Group) else member])


def in_runs(problem: Problem, members: list[Group | int], limit: int) -> list[Group | int]:
    """Join neighbours in a topological order into groups, repeatedly, until at most `limit` members are left."""
    if len(members) <= limit:
        return members
    order = Level.of(problem, nodes_of(problem, members), None, problem.kept).by_rank
    members = [members[number] for number in order]
    while len(members) > limit:
        runs = np.array_split(np.arange(len(members)), -(-len(members) // limit))
        members = [
            joined(problem, [members[k] for k in run.tolist()]) if len(run) > 1 else members[run[0]] for run in runs
        ]
    return members


def groups_of(members: list[Group | int]) -> list[Group]:
    """Return the groups among members."""
    return [member for member in members if isinstance(member, Group)]


class Partitioner(Algorithm):
    """Algorithm that groups the ops of a graph, registered in the entry-point group ``remat.partitioners``.

    Parameters
    ----------
    options : optional
        Of the class's `options_type`; None: its defaults.

    Raises
    ------
    ProblemError
        For anything else.

    Examples
    --------
    A partitioner that pairs neighbours in the reference order if they depend on each other:

    >>> from remat.graphs.families import unit_chain
    >>> class Pairs(Partitioner):
    ...     name = "pairs"
    ...
    ...     def forward_groups(self, problem, ops, deadline):
    ...         return [Group(f"pair {k}", ops[k : k + 2]) for k in range(0, len(ops) - 1, 2)]
    >>> hierarchy = Pairs().partition(Problem(unit_chain(4)))
    >>> [(group.forward.tolist(), group.backward.tolist()) for group in hierarchy.root.children]
    [([0, 1], [7, 8]), ([2, 3], [5, 6])]
    """

    def partition(self, problem: Problem, deadline: Deadline | None = None) -> Hierarchy:
        """Return a validated hierarchy of all ops of the problem.

        In training graphs forward ops are grouped, and each backward op joins its group
        (:mod:`remat.hierarchy.pairing`); in other graphs all ops are grouped.

        Raises
        ------
        ProblemError
            If this partitioner does not apply to the graph.
        OverdueError
            If the deadline passes.
        """
        from remat.hierarchy.pairing import attach_backward

        deadline = deadline or Deadline()
        groups = self.forward_groups(problem, groupable(problem), deadline)
        hierarchy = attach_backward(problem, groups, deadline)
        hierarchy.check()
        return hierarchy

    @abstractmethod
    def forward_groups(self, problem: Problem, ops: Int, deadline: Deadline) -> list[Group]:
        """Return the groups of the highest level, with their children, without backward ops.

        Parameters
        ----------
        ops : int64 array
            Ops to group, in the reference order: the forward ops of a training graph, otherwise all ops.
        """


#: Name, class or object of a partitioner.
PartitionerLike = str | type[Partitioner] | Partitioner


def as_partitioner(partitioner: PartitionerLike) -> Partitioner:
    """Return the partitioner given by name, class or object.

    Raises
    ------
    RematError
        If a name is not registered or a class cannot be instantiated.

    Examples
    --------
    >>> as_partitioner("min-cut").name
    'min-cut'
    """
    if isinstance(partitioner, Partitioner):
        return partitioner
    if isinstance(partitioner, str):
        made: Partitioner = registry.make("partitioners", partitioner)
    else:
        made = registry.attempt(partitioner, f"partitioner {partitioner.name!r} cannot be made")
    return made


def groupable(problem: Problem) -> Int:
    """Return the ops to group, in the reference order: forward ops of a training graph, otherwise all."""
    step = training_step(problem)
    order = problem.graph.arrays.order
    return np.array(order if step is None else order[: step.num_forward])
