"""Partition of chains: blocks in order, neighbours in groups, and groups in larger groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from remat.errors import ProblemError
from remat.hierarchy.groups import Group
from remat.hierarchy.labels import Labels, articulation_labels, module_labels, name_labels
from remat.hierarchy.partition.base import Partitioner, groupable
from remat.problem import Problem
from remat.runtime.arrays import Int
from remat.runtime.checked_options import Options, Range
from remat.runtime.deadline import Deadline

#: Sources of blocks.
SOURCES: dict[str, Callable[[Problem, Int, int], Labels]] = {
    "modules": module_labels, "names": name_labels, "articulation": articulation_labels
}  # fmt: skip
#: Share of the bytes of all forward values that side tensors may hold, in hundredths.
MAX_SIDE = 10


@dataclass(frozen=True)
class BlocksOptions(Options):
    """Options of :class:`Blocks`.

    Attributes
    ----------
    most : int
        Most groups in a group, and at the highest level.
    """

    most: Annotated[int, Range(2)] = 20


class Blocks(Partitioner):
    """Chain of blocks of a graph (:func:`forward_blocks`), if it has one.

    More than `most` blocks are joined to groups of neighbours, as evenly as their number allows, at every level.

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
        """Join groups until at most `most` are left, each with at most `most` children."""
        if len(groups) <= self.options.most:
            return groups
        parts = np.array_split(np.arange(len(groups)), self.options.most)
        return [_together(self._split([groups[k] for k in part])) for part in parts]


def _together(groups: list[Group]) -> Group:
    if len(groups) == 1:
        return groups[0]
    first, last = groups[0].name.split(" .. ")[0], groups[-1].name.split(" .. ")[-1]
    return Group(f"{first} .. {last}", np.concatenate([group.forward for group in groups]), children=tuple(groups))


def forward_blocks(
    problem: Problem,
    source: Literal["auto", "modules", "names", "articulation"] = "auto",
    *,
    max_side: int = MAX_SIDE,
) -> list[Group]:
    """Return the forward ops of a training graph, or all ops of another graph, as a chain of blocks.

    Every op is in one block. Blocks read their own values, those of the block before, graph inputs, and *side tensors*:
    values that live across a block that neither writes nor last reads them, such as masks, the output of an encoder,
    and the skips of a U-Net.

    Parameters
    ----------
    problem : Problem
    source : {"auto", "modules", "names", "articulation"}
        ``"modules"``: numbered modules in ``meta["modules"]`` (op name to dotted path, such as ``layers.3.attn``), and
        the ops between them. ``"names"``: the same from the names of ops (``block3_conv1``). ``"articulation"``:
        runs between ops through which all later ones depend on the earlier ones. ``"auto"``: the first of these that
        makes at least two blocks.
    max_side : int
        Hundredths of the bytes of all forward values that side tensors may hold. Blocks are joined until they do.

    Raises
    ------
    ProblemError
        If the source does not give at least two blocks, with the reason.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> [block.ops.tolist() for block in forward_blocks(Problem(unit_chain(4)))]
    [[0], [1], [2], [3]]
    """
    if source != "auto" and source not in SOURCES:
        raise ProblemError(f"blocks come from auto, modules, names or articulation, not {source!r}", "unknown-source")
    ops = groupable(problem)
    faults: list[ProblemError] = []
    for name in SOURCES if source == "auto" else [source]:
        try:
            return _joined(problem, SOURCES[name](problem, ops, max_side), name, max_side)
        except ProblemError as fault:
            faults.append(fault)
    raise faults[-1]


def _joined(problem: Problem, labels: Labels, source: str, max_side: int) -> list[Group]:
    """Join runs of one label until side tensors hold few bytes."""
    arrays = problem.graph.arrays
    starts = np.flatnonzero(np.diff(labels.label, prepend=-2))
    names = [labels.names[label] for label in labels.label[starts].tolist()]
    block = np.full(len(arrays.cost), -1, dtype=np.int64)
    block[labels.ops] = np.searchsorted(starts, np.arange(len(labels.ops)), side="right") - 1
    first, last = arrays.lifetimes(block)
    side = np.flatnonzero(last > first + 1)
    side = side[np.argsort(arrays.size[side], kind="stable")]
    allowed = np.cumsum(arrays.size[side]) * 100 <= max_side * int(arrays.size[first < len(names)].sum())
    begins = np.ones(len(names), dtype=np.bool_)
    for tensor in side[~allowed].tolist():
        begins[first[tensor] + 2 : last[tensor] + 1] = False
    heads = np.flatnonzero(begins)
    if len(heads) < 2:
        raise ProblemError(f"graph {problem.graph.name!r} is no chain of blocks by {source}: {labels.reason}", "chain")
    found = []
    for head, tail, ops in zip(heads, [*heads[1:] - 1, -1], np.split(labels.ops, starts[heads[1:]]), strict=True):
        name = names[head] if begins[tail] else f"{names[head]} .. {names[tail]}"
        found.append(Group(name, ops[np.argsort(arrays.position[ops])]))
    return found
