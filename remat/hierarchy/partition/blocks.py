"""Partition of chains: blocks in order, neighbours in groups, and groups in larger groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from remat.errors import ProblemError
from remat.graphs.arrays import Csr
from remat.heuristics.forward_blocks import articulation_cuts, module_paths, name_paths, numbered_blocks
from remat.hierarchy.groups import Group
from remat.hierarchy.pairing import largest_acyclic
from remat.hierarchy.partition.base import Partitioner, groupable
from remat.hierarchy.tree import dependencies, topological
from remat.problem import Problem
from remat.runtime.arrays import Int
from remat.runtime.checked_options import Options, Range
from remat.runtime.deadline import Deadline

#: Largest share of the bytes of all forward values that side tensors may hold, in percent.
MAX_SIDE = 10


@dataclass(frozen=True, eq=False)
class Labels:
    """Ops in a topological order, and the block of each."""

    ops: Int
    label: Int
    """Equal for the ops of one block, which are contiguous."""
    names: dict[int, str]
    reason: str
    """Why the graph has no more blocks; quoted where one block is too few."""


def _modules(problem: Problem, ops: Int, _: int) -> Labels:
    """Label by the numbered modules of ``meta["modules"]`` (op name to dotted path) and the ops between them."""
    return _numbered(problem, ops, module_paths(problem, ops), "no numbered modules with several ops each")


def _names(problem: Problem, ops: Int, _: int) -> Labels:
    """Label by the numbers in the names of ops, such as ``block3_conv1`` or ``layers.3.mlp.up``."""
    reason = "its ops are not named by numbered blocks of several ops each"
    return _numbered(problem, ops, name_paths(problem, ops), reason)


def _articulation(problem: Problem, ops: Int, max_side: int) -> Labels:
    """Label the runs between articulation points."""
    cuts = articulation_cuts(problem, ops, max_side)
    label = np.repeat(np.arange(len(cuts)), np.diff([*cuts, len(ops)]))
    names = {number: problem.graph.op_names[ops[cut]] for number, cut in enumerate(cuts)}
    return Labels(ops, label, names, "no op is one that all later ones depend on the earlier ones through")


def _numbered(problem: Problem, ops: Int, paths: list[tuple[str, ...]], reason: str) -> Labels:
    """Label by numbered blocks."""
    blocks = numbered_blocks(paths)
    if not blocks:
        raise ProblemError(f"graph {problem.graph.name!r} is no chain of blocks: {reason}")
    names: dict[int, str] = {}
    codes: dict[tuple[str, ...], int] = {}
    labels = np.full(len(problem.graph.ops), -1, dtype=np.int64)
    for op, block in zip(ops.tolist(), blocks, strict=True):
        if block:
            labels[op] = codes.setdefault(block, len(codes))
            names[int(labels[op])] = ".".join(block)
    return _in_pieces(problem, dict(zip(ops.tolist(), paths, strict=True)), labels, names, reason)


def _in_pieces(
    problem: Problem, paths: dict[int, tuple[str, ...]], labels: Int, names: dict[int, str], reason: str
) -> Labels:
    """Return ops in an order in which each label is contiguous.

    Ops without a label (-1) get new labels, equal for neighbours in this order.
    """
    arrays, ops, count = problem.graph.arrays, np.array(list(paths)), len(names)
    tails, heads = dependencies(problem, ops)
    alone = count + np.arange(len(labels))
    labels = np.where(labels >= 0, labels, alone)
    labels = np.where(largest_acyclic(labels, ops, tails, heads), labels, alone)
    found, first, node = np.unique(labels[ops], return_index=True, return_inverse=True)
    number = np.empty(len(labels), dtype=np.int64)
    number[ops] = node
    tails, heads = number[tails], number[heads]
    apart = tails != heads
    follow = Csr.distinct(tails[apart], heads[apart], len(found)).lists()
    rank = np.empty(len(found), dtype=np.int64)
    rank[topological(follow, arrays.position[ops[first]].tolist())] = np.arange(len(found))
    ops = ops[np.argsort(rank[node], kind="stable")]
    lonely = labels[ops] >= count
    begins = lonely & ~np.append(False, lonely[:-1])
    label = np.where(lonely, count - 1 + np.cumsum(begins), labels[ops])
    for k in np.flatnonzero(begins).tolist():
        names[int(label[k])] = ".".join(paths[ops[k]][:1]) or problem.graph.op_names[ops[k]]
    return Labels(ops, label, names, reason)


#: Sources of blocks.
SOURCES: dict[str, Callable[[Problem, Int, int], Labels]] = {
    "modules": _modules, "names": _names, "articulation": _articulation
}  # fmt: skip


@dataclass(frozen=True)
class BlocksOptions(Options):
    """Options of :class:`Blocks`."""

    most: Annotated[int, Range(2)] = 20
    """Most groups in a group, and at the highest level."""


class Blocks(Partitioner):
    """Chain of blocks of a graph (:func:`block_chain`), if it has one.

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
        return self._split(block_chain(problem))

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


def block_chain(
    problem: Problem, source: Literal["auto", "modules", "names", "articulation"] = "auto", *, max_side: int = MAX_SIDE
) -> list[Group]:
    """Return the forward ops of a training graph, or all ops of another graph, as a chain of blocks.

    Every op is in one block. Blocks read their own values, those of the block before, graph inputs, and *side tensors*.
    These live across a block that neither writes nor last reads them, such as masks, the output of an encoder, and the
    skips of a U-Net.

    Parameters
    ----------
    source : {"auto", "modules", "names", "articulation"}
        ``"modules"``: numbered modules in ``meta["modules"]`` (op name to dotted path, such as ``layers.3.attn``), and
        the ops between them. ``"names"``: the same from the names of ops (``block3_conv1``). ``"articulation"``:
        runs between ops through which all later ones depend on the earlier ones. ``"auto"``: the first of these that
        makes at least two blocks.
    max_side : int
        Percentage of the bytes of all forward values that side tensors may hold. Blocks are joined to meet it.

    Raises
    ------
    ProblemError
        If the source does not give at least two blocks, with the reason.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> [block.ops.tolist() for block in block_chain(Problem(unit_chain(4)))]
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
