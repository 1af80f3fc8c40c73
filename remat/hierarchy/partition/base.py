"""Interface of partitioners."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from remat import registry
from remat.hierarchy.groups import Group
from remat.hierarchy.tree import Hierarchy
from remat.problem import Problem
from remat.problem.training_step import training_step
from remat.runtime.arrays import Int
from remat.runtime.compiled.algorithm import Algorithm
from remat.runtime.deadline import Deadline


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
