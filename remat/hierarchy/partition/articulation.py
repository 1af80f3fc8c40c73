"""Partition at articulation points: all dependencies of later ops on earlier ones pass through them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from remat.heuristics.forward_blocks import articulation_cuts
from remat.hierarchy.groups import Group
from remat.hierarchy.partition.base import Partitioner, groups_of, in_runs, joined
from remat.problem import Problem
from remat.runtime.arrays import Int
from remat.runtime.checked_options import Options, Range
from remat.runtime.deadline import Deadline

#: Most levels of articulation points inside groups: a U-Net has one for each skip.
MAX_DEPTH = 50
#: Articulation points divide a group only if its largest part has at most this share of the ops.
UNDIVIDED = 0.95


@dataclass(frozen=True)
class ArticulationOptions(Options):
    """Options of a partition by articulation points."""

    max_group: Annotated[int, Range(2)] = 20
    """Groups with more ops than this are divided at articulation points inside."""
    max_members: Annotated[int, Range(2)] = 32
    """In a group with more members than this (groups and ops), neighbours are joined."""
    max_side: Annotated[int, Range(0)] = 10
    """Percentage of the bytes of all values up to which long-lived values with many readers may cross cuts."""


class Articulation(Partitioner):
    """Groups between articulation points, and inside large groups again, ignoring the value that starts the group.

    Groups are runs of the reference order. A large group without such points is cut into runs of equal length.

    Examples
    --------
    >>> from remat.graphs.zoo.transformers import gpt
    >>> [len(group.forward) for group in Articulation().partition(Problem(gpt(layers=3))).root.children]
    [2, 10, 5, 10, 5, 10, 5]
    """

    name = "articulation"
    options_type = ArticulationOptions

    def forward_groups(self, problem: Problem, ops: Int, deadline: Deadline) -> list[Group]:
        return groups_of(in_runs(problem, self._members(problem, ops, deadline, MAX_DEPTH), self.options.max_members))

    def _members(self, problem: Problem, ops: Int, deadline: Deadline, depth: int) -> list[Group | int]:
        deadline.check()
        cuts = articulation_cuts(problem, ops, self.options.max_side)
        members: list[Group | int] = []
        for piece in np.split(ops, cuts[1:]):
            if len(piece) == 1:
                members.append(int(piece[0]))
            elif len(piece) <= self.options.max_group:
                members.append(joined(problem, piece.tolist()))
            else:  # without the first op, whose output may be read everywhere
                inside: list[Group | int] = piece[1:].tolist()
                cuts = articulation_cuts(problem, piece[1:], self.options.max_side)
                if depth and np.diff([*cuts, len(inside)]).max() <= UNDIVIDED * len(piece):
                    inside = self._members(problem, piece[1:], deadline, depth - 1)
                inside = in_runs(problem, inside, self.options.max_members)
                members.append(Group(joined(problem, piece.tolist()).name, piece, children=tuple(groups_of(inside))))
        return members
