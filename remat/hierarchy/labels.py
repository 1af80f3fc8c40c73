"""Block labels of forward ops, in an order in which each block is contiguous."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

import numpy as np

from remat.errors import ProblemError
from remat.graphs.arrays import Csr, staircase
from remat.heuristics.forward_blocks import module_paths
from remat.hierarchy.pairing import largest_acyclic
from remat.hierarchy.tree import dependencies, topological
from remat.problem import Problem
from remat.runtime.arrays import Int

#: Split a numbered module with more than this share of the ops, if it consists of numbered modules.
LARGE = 0.25
#: Share of the forward ops, and number of readers, from which a value is a candidate for a side tensor.
LONG, MANY = 0.2, 3


@dataclass(frozen=True, eq=False)
class Labels:
    """Ops in a topological order, and the block of each."""

    ops: Int
    label: Int
    """Equal for the ops of one block, which are contiguous."""
    names: dict[int, str]
    reason: str
    """Why the graph has no more blocks; quoted where one block is too few."""


def module_labels(problem: Problem, ops: Int, _: int = 0) -> Labels:
    """Label by the numbered modules of ``meta["modules"]`` (op name to dotted path) and the ops between them."""
    paths = module_paths(problem, ops)
    return numbered(problem, ops, paths, "no numbered modules with several ops each")


def name_labels(problem: Problem, ops: Int, _: int = 0) -> Labels:
    """Label by the numbers in the names of ops, such as ``block3_conv1`` or ``layers.3.mlp.up``."""
    paths = [_name_path(problem.graph.op_names[op]) for op in ops.tolist()]
    return numbered(problem, ops, paths, "its ops are not named by numbered blocks of several ops each")


def articulation_labels(problem: Problem, ops: Int, max_side: int) -> Labels:
    """Label the runs between articulation points: all dependencies of later ops on earlier ones pass through them.

    Ignore values with a long life (:data:`LONG`) and many readers, the smallest first, while they hold at most
    `max_side` hundredths of all bytes.
    """
    arrays = problem.graph.arrays
    first, last, long = long_lived(problem, ops)
    long = long[np.argsort(arrays.size[long], kind="stable")]
    total = int(arrays.size[first < len(ops)].sum())
    last[long[np.cumsum(arrays.size[long]) * 100 <= max_side * total]] = -1
    until = arrays.op_outputs.highest(last, -1)[ops]  # the last op that reads what each op writes
    read = np.flatnonzero(until > np.arange(len(ops)))
    crossing = staircase(read, until[read] - 1, np.ones_like(read), len(ops))
    label, current, latest, begun = np.zeros(len(ops), dtype=np.int64), 0, -1, -1
    ends = until.tolist()
    for k, count in enumerate(crossing.tolist()):
        label[k] = current
        if ends[k] > k:
            latest = k  # of those that cross, the one that began last
        if count == 1 and latest > begun and ends[latest] > k:
            current, begun = current + 1, k
    starts = np.flatnonzero(np.diff(label, prepend=-1))
    names = {int(label[k]): problem.graph.op_names[ops[k]] for k in starts.tolist()}
    return Labels(ops, label, names, "no op is one that all later ones depend on the earlier ones through")


def long_lived(problem: Problem, ops: Int) -> tuple[Int, Int, Int]:
    """Return the first writer and last reader of each tensor, and the tensors with a long life and many readers.

    Writers and readers are places in `ops`, shape (tensors,): at least the number of ops, and -1, where there is none.
    A life of at least the share :data:`LONG` of the ops is long; :data:`MANY` readers are many.
    """
    arrays = problem.graph.arrays
    place = np.full(len(arrays.cost), -1, dtype=np.int64)
    place[ops] = np.arange(len(ops))
    first, last = arrays.lifetimes(place)[0], arrays.consumers.highest(place, -1)
    many = arrays.consumers.sums(np.where(place < 0, 0, 1)) >= MANY
    return first, last, np.flatnonzero((first < len(ops)) & (last - first >= LONG * len(ops)) & many)


def _name_path(name: str) -> tuple[str, ...]:
    inner = re.sub(r"^\w+\[(.*)\]$", r"\1", name)
    # block3 is block 3, but the 2 of pool2d numbers nothing
    parts = [p for part in re.split(r"[^A-Za-z0-9]+", inner) for p in re.split(r"(?<=[A-Za-z])(?=[0-9]+$)", part) if p]
    return tuple(parts[:-1]) if parts and not parts[-1].isdigit() else tuple(parts[:-2])


def numbered(problem: Problem, ops: Int, paths: list[tuple[str, ...]], reason: str) -> Labels:
    """Label by the first number in the path of each op, or by a later one where these blocks are large."""
    number = 1
    keys = [_key(path, number) for path in paths]
    while True:
        counts = Counter(key for key in keys if key)
        deeper = [_key(path, number + 1) for path in paths]
        large = max(counts.values(), default=0) > LARGE * len(ops)
        if not large or 2 * sum(map(bool, deeper)) < sum(counts.values()):
            break
        keys, number = [d or k for d, k in zip(deeper, keys, strict=True)], number + 1
    covered = sum(counts.values())
    if len(counts) < 2 or covered < 2 * len(counts) or 2 * covered < len(ops):
        raise ProblemError(f"graph {problem.graph.name!r} is no chain of blocks: {reason}")
    names: dict[int, str] = {}
    codes: dict[tuple[str, ...], int] = {}
    labels = np.full(len(problem.graph.ops), -1, dtype=np.int64)
    for op, key in zip(ops.tolist(), keys, strict=True):
        if key:
            labels[op] = codes.setdefault(key, len(codes))
            names[int(labels[op])] = ".".join(key)
    return _in_pieces(problem, dict(zip(ops.tolist(), paths, strict=True)), labels, names, reason)


def _key(path: tuple[str, ...], number: int) -> tuple[str, ...]:
    """Return the path up to its number-th number; empty if there is none."""
    seen = 0
    for length, part in enumerate(path, 1):
        seen += part.isdigit()
        if seen == number:
            return path[:length]
    return ()


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
