"""A partition of chains: blocks in order, neighbours in groups, these in larger groups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from remat.deadline import Deadline
from remat.errors import ProblemError
from remat.heuristics.options import check_types
from remat.hierarchy.chain import forward_blocks
from remat.hierarchy.partition.base import Partitioner
from remat.hierarchy.tree import Group, Int
from remat.problem import Problem


@dataclass(frozen=True)
class BlocksOptions:
    """Options of :class:`Blocks`.

    Attributes
    ----------
    most : int
        Most groups in a group, and at the highest level.
    """

    most: int = 20

    def __post_init__(self) -> None:
        check_types(self)
        if self.most < 2:
            raise ProblemError(f"most must be at least 2, not {self.most}")


class Blocks(Partitioner):
    """The chain of blocks of a graph (:func:`~remat.hierarchy.chain.chain_of_blocks`), where there is one.

    Where there are more than `most` blocks, neighbours are put together until there are no more than that, as evenly as
    their number allows; and so within each group.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> print(Blocks(BlocksOptions(3)).partition(Problem(unit_chain(8))))
    group           ops  bytes in  bytes out
    unit-chain-8    9+8         0          0
      f0 .. f2      3+3         0          1
        f0          1+1         0          1
        f1 × 2      1+1         1          1
      f3 .. f5      3+3         1          1
        f3 × 3      1+1         1          1
      f6 .. f7      2+2         1          1
        f6 × 2      1+1         1          1
      1 forward op
    """

    name = "blocks"
    options_type = BlocksOptions

    def forward_groups(self, problem: Problem, ops: Int, deadline: Deadline) -> list[Group]:
        return self._split(forward_blocks(problem))

    def _split(self, groups: list[Group]) -> list[Group]:
        """At most so many groups, each of which has at most so many."""
        if len(groups) <= self.options.most:
            return groups
        parts = np.array_split(np.arange(len(groups)), self.options.most)
        return [_together(self._split([groups[k] for k in part])) for part in parts]


def _together(groups: list[Group]) -> Group:
    if len(groups) == 1:
        return groups[0]
    first, last = groups[0].name.split(" .. ")[0], groups[-1].name.split(" .. ")[-1]
    return Group(f"{first} .. {last}", np.concatenate([group.forward for group in groups]), children=tuple(groups))
