"""Chains of blocks: the forward pass as a sequence of groups, each of which reads the one before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, overload

import numpy as np

from remat.deadline import Deadline
from remat.errors import ProblemError
from remat.hierarchy.labels import Labels, articulation_labels, hierarchy_labels, module_labels, name_labels
from remat.hierarchy.pairing import attach_backward
from remat.hierarchy.partition.base import groupable
from remat.hierarchy.tree import Group, Hierarchy, Int
from remat.problem import Problem

Made = TypeVar("Made")

#: Where blocks come from.
Source = Literal["auto", "modules", "names", "articulation"]

#: Side tensors may hold this share of the bytes of all forward values, in hundredths.
MAX_SIDE = 10


@dataclass(frozen=True, eq=False)
class Chain(Sequence[Group]):
    """Blocks in order; a sequence of :class:`~remat.hierarchy.tree.Group`.

    Every forward op is in a block. The forward ops of a block read values of the same block, of the block before,
    graph inputs, and side tensors of earlier blocks.

    Attributes
    ----------
    hierarchy : Hierarchy
        Its root has the blocks as children; the loss and backward ops that belong to no block stand alone there.
    side : int64 array
        Side tensors, as positions in ``graph.tensors``: values that live across a block that neither makes nor reads
        them last, such as masks, the output of an encoder, and the skips of a U-Net. Ascending.
    source : str
        Where the blocks come from.
    """

    hierarchy: Hierarchy
    side: Int
    source: str

    @property
    def problem(self) -> Problem:
        """The problem whose graph it is."""
        return self.hierarchy.problem

    @property
    def blocks(self) -> tuple[Group, ...]:
        """The blocks in order."""
        return self.hierarchy.root.children

    @overload
    def __getitem__(self, index: int) -> Group: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Group, ...]: ...
    def __getitem__(self, index: int | slice) -> Group | tuple[Group, ...]:
        return self.blocks[index]

    def __len__(self) -> int:
        return len(self.blocks)

    def __iter__(self) -> Iterator[Group]:
        return iter(self.blocks)

    def links(self) -> list[Int]:
        """For each block, the tensors that later blocks read of it, side tensors among them; the last hands on none."""
        arrays = self.problem.graph.arrays
        first, last = _lives(self.problem, [block.forward for block in self.blocks])
        written = [np.unique(np.concatenate([arrays.op_outputs[op] for op in block.forward])) for block in self.blocks]
        return [tensors[last[tensors] > first[tensors]] for tensors in written]

    def merged(self, count: int) -> Chain:
        """The same chain with at most `count` blocks: neighbours together, so that costs are as even as they can be.

        Raises
        ------
        ProblemError
            If `count` is less than 1.
        """
        if count < 1:
            raise ProblemError(f"a chain has at least one block, not {count}")
        if count >= len(self):
            return self
        cost = self.problem.graph.arrays.cost
        done = np.cumsum([max(1, int(cost[block.forward].sum())) for block in self.blocks])
        runs = np.minimum(count - 1, (2 * done - np.diff(done, prepend=0)) * count // (2 * int(done[-1])))
        parts: dict[int, list[Group]] = {}
        for run, block in zip(runs.tolist(), self.blocks, strict=True):
            parts.setdefault(run, []).append(block)
        return _chain(self.problem, [_joined(blocks) for blocks in parts.values()], self.source)

    def __repr__(self) -> str:
        side = f", {len(self.side)} side tensors" if len(self.side) else ""
        return f"Chain({self.hierarchy.graph.name!r}, {len(self)} blocks from {self.source}{side})"


def chain_of_blocks(
    problem: Problem,
    source: Source | Hierarchy = "auto",
    *,
    max_side: int = MAX_SIDE,
    deadline: Deadline | None = None,
) -> Chain:
    """The forward pass of a training graph (or a whole graph without a backward pass) as a chain of blocks.

    Parameters
    ----------
    problem : Problem
    source : {"auto", "modules", "names", "articulation"} or Hierarchy
        ``"modules"``: numbered modules in ``meta["modules"]`` (op name to dotted path, such as ``layers.3.attn``), and
        what lies between them. ``"names"``: the same from the names of ops (``block3_conv1``). ``"articulation"``:
        between ops that all later ones depend on the earlier ones through. A hierarchy: its highest groups.
        ``"auto"``: the first of these that makes at least two blocks.
    max_side : int
        Side tensors may hold so many hundredths of the bytes of all forward values. Blocks are joined until they do.

    Raises
    ------
    ProblemError
        If what is asked for does not make at least two blocks, with the reason.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> chain = chain_of_blocks(Problem(unit_chain(4)))
    >>> chain, [(block.forward.tolist(), block.backward.tolist()) for block in chain]
    (Chain('unit-chain-4', 4 blocks from articulation), [([0], [8]), ([1], [7]), ([2], [6]), ([3], [5])])
    """
    return _first(problem, source, max_side, lambda blocks, name: _chain(problem, blocks, name, deadline))


def forward_blocks(problem: Problem, *, max_side: int = MAX_SIDE) -> list[Group]:
    """The blocks of :func:`chain_of_blocks`, with their forward ops alone.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> [block.ops.tolist() for block in forward_blocks(Problem(unit_chain(4)))]
    [[0], [1], [2], [3]]
    """
    return _first(problem, "auto", max_side, lambda blocks, _: _in_order(problem, blocks))


def _first(
    problem: Problem, source: Source | Hierarchy, max_side: int, made: Callable[[list[Group], str], Made]
) -> Made:
    """What is made of the blocks of the first source that there are any from."""
    if isinstance(source, Hierarchy):
        return made(_joined_until(hierarchy_labels(source), problem, "hierarchy", max_side), "hierarchy")
    makers: dict[str, Callable[[Problem, Int, int], Labels]] = {
        "modules": module_labels,
        "names": name_labels,
        "articulation": articulation_labels,
    }
    if source != "auto" and source not in makers:
        raise ProblemError(f"blocks come from auto, modules, names, articulation or a hierarchy, not {source!r}")
    ops = groupable(problem)
    faults: list[ProblemError] = []
    for name in makers if source == "auto" else [source]:
        try:
            return made(_joined_until(makers[name](problem, ops, max_side), problem, name, max_side), name)
        except ProblemError as fault:
            faults.append(fault)
    raise faults[-1]


def _joined_until(labels: Labels, problem: Problem, source: str, max_side: int) -> list[Group]:
    """The runs of one label, joined until few bytes pass them by."""
    size = problem.graph.arrays.size
    runs = _runs(labels)
    blocks = [Group(name, ops) for name, ops in runs]
    total = int(size[_made(problem, labels.ops)].sum())
    first, last = _lives(problem, [block.forward for block in blocks])
    side = np.flatnonzero(last > first + 1)
    side = side[np.argsort(size[side], kind="stable")]
    allowed = np.cumsum(size[side]) * 100 <= max_side * total
    joined = np.zeros(len(blocks), dtype=np.bool_)  # with the block before
    for tensor in side[~allowed].tolist():
        joined[first[tensor] + 2 : last[tensor] + 1] = True
    parts: list[list[Group]] = []
    for block, join in zip(blocks, joined.tolist(), strict=True):
        if join:
            parts[-1].append(block)
        else:
            parts.append([block])
    if len(parts) < 2:
        raise ProblemError(f"graph {problem.graph.name!r} is no chain of blocks by {source}: {labels.reason}")
    return [_joined(part) for part in parts]


def _runs(labels: Labels) -> list[tuple[str, Int]]:
    """Blocks by name: neighbours of one label; those without one, together."""
    starts = np.flatnonzero(np.diff(labels.label, prepend=-2))
    pieces = np.split(labels.ops, starts[1:])
    return [(labels.names[int(labels.label[a])], ops) for a, ops in zip(starts.tolist(), pieces, strict=True)]


def _joined(blocks: list[Group]) -> Group:
    if len(blocks) == 1:
        return blocks[0]
    return Group(f"{blocks[0].name} .. {blocks[-1].name}", np.concatenate([block.forward for block in blocks]))


def _chain(problem: Problem, blocks: list[Group], source: str, deadline: Deadline | None = None) -> Chain:
    ordered = _in_order(problem, blocks)
    hierarchy = attach_backward(problem, ordered, deadline)
    hierarchy.check()
    first, last = _lives(problem, [block.forward for block in ordered])
    return Chain(hierarchy, np.flatnonzero(last > first + 1), source)


def _in_order(problem: Problem, blocks: list[Group]) -> list[Group]:
    """The blocks, the ops of each in the reference order."""
    position = problem.graph.arrays.position
    return [Group(block.name, block.forward[np.argsort(position[block.forward])]) for block in blocks]


def _made(problem: Problem, ops: Int) -> Int:
    """Tensors that these ops write."""
    arrays = problem.graph.arrays
    return np.unique(np.concatenate([arrays.op_outputs[op] for op in ops.tolist()]))


def _lives(problem: Problem, blocks: list[Int]) -> tuple[Int, Int]:
    """The first block that writes each tensor and the last that reads or writes it; both -1 for all others."""
    arrays = problem.graph.arrays
    number = np.full(len(arrays.cost), -1, dtype=np.int64)
    for k, ops in enumerate(blocks):
        number[ops] = k
    first = np.full(len(arrays.size), len(blocks), dtype=np.int64)
    last = np.full(len(arrays.size), -1, dtype=np.int64)
    writer = number[arrays.producers.indices]
    written = arrays.producers.rows[writer >= 0]
    np.minimum.at(first, written, writer[writer >= 0])
    np.maximum.at(last, written, writer[writer >= 0])
    np.maximum.at(last, arrays.consumers.rows, number[arrays.consumers.indices])
    nowhere = first == len(blocks)
    first[nowhere] = last[nowhere] = -1
    return first, last
