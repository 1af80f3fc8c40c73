"""Partition by the modules of the network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from remat.heuristics.forward_blocks import module_paths
from remat.hierarchy.groups import Group
from remat.hierarchy.pairing import largest_acyclic
from remat.hierarchy.partition.base import Partitioner, groups_of, in_order, in_runs
from remat.hierarchy.tree import dependencies
from remat.problem import Problem
from remat.runtime.arrays import Int
from remat.runtime.checked_options import Options, Range
from remat.runtime.deadline import Deadline


@dataclass(frozen=True)
class ModulesOptions(Options):
    """Options of a partition by modules."""

    max_members: Annotated[int, Range(2)] = 32
    """In a module with more members than this (groups and ops), neighbours are joined."""


class Modules(Partitioner):
    """Partition by the dotted paths in ``meta["modules"]``: ops of a module form a group, submodules its children.

    Modules of one op, and modules that only contain one other module, are skipped. If the ops of a module cannot run as
    a whole, some of them stand alone at the level above.

    Examples
    --------
    >>> from remat.graphs.zoo.transformers import gpt
    >>> hierarchy = Modules().partition(Problem(gpt(layers=2)))
    >>> [group.name for group in hierarchy.groups()][:4]
    ['embedding', 'layers.0.attn', 'layers.0.mlp', 'layers.0']
    """

    name = "modules"
    options_type = ModulesOptions

    def forward_groups(self, problem: Problem, ops: Int, deadline: Deadline) -> list[Group]:
        paths = dict(zip(ops.tolist(), module_paths(problem, ops), strict=True))
        self._cut(problem, ops, paths, deadline)
        members = self._members(problem, ops.tolist(), paths, deadline)
        return groups_of(in_runs(problem, members, self.options.max_members))

    def _cut(self, problem: Problem, ops: Int, paths: dict[int, tuple[str, ...]], deadline: Deadline) -> None:
        """Shorten paths, level by level, until every module of a level can run as a whole."""
        tails, heads = dependencies(problem, ops)
        for length in range(1, max(map(len, paths.values())) + 1):
            deadline.check()
            codes: dict[tuple[str, ...], int] = {}
            labels = -1 - np.arange(len(problem.graph.ops))
            for op, path in paths.items():
                if len(path) >= length:
                    labels[op] = codes.setdefault(path[:length], len(codes))
            keep = largest_acyclic(labels, ops, tails, heads)
            for op in ops[~keep[ops]].tolist():
                paths[op] = paths[op][: length - 1]

    def _members(
        self, problem: Problem, ops: list[int], paths: dict[int, tuple[str, ...]], deadline: Deadline
    ) -> list[Group | int]:
        """Return the groups and ops of the highest level."""
        by_path: dict[tuple[str, ...], list[int]] = {}
        for op in ops:
            for length in range(1, len(paths[op]) + 1):
                by_path.setdefault(paths[op][:length], []).append(op)
        below: dict[tuple[str, ...], list[Group | int]] = {(): []}
        for op in ops:
            below.setdefault(paths[op], []).append(op)
        for path in deadline.each(sorted(by_path, key=lambda path: -len(path))):
            parent = below.setdefault(path[:-1], [])
            members = below.get(path, [])
            if len(members) == 1:  # an op, or a module that contains everything
                parent.append(members[0])
            else:
                members = in_runs(problem, members, self.options.max_members)
                children = tuple(groups_of(in_order(problem, members)))
                parent.append(Group(".".join(path), np.array(by_path[path]), children=children))
        return in_order(problem, below[()])
