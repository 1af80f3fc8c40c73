"""Sets of checkpoints: candidates, choices among them, and the retention decisions that follow from a set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from math import isqrt
from typing import TYPE_CHECKING, cast

import numpy as np

from remat.heuristics.retention import kept_beside_others
from remat.problem import Problem
from remat.problem.training_step import TrainingStep
from remat.runtime.arrays import Bool

if TYPE_CHECKING:
    import networkx as nx


def all_forward_ops(step: TrainingStep) -> list[int]:
    """Return every forward op, in reference order."""
    return list(range(step.num_forward))


def articulation_points(step: TrainingStep) -> list[int]:
    """Return the forward ops on every path from the first forward op to the last one, these two included.

    Paths may follow dependencies in both directions, so nothing crosses between two neighbours in the list. In
    reference order. If the forward ops are not connected, for example with separate counters, first and last are those
    of the largest component. O(ops + edges).

    Notes
    -----
    Jain et al., MLSys 2020, appendix B.1: "vertices that disconnect the forward pass DAG", with an entry before the
    first and an exit after the last node in its published program. Ops that only cut off a dead end, such as a
    statistic without readers, do not count here; the networks of the paper have none.

    Examples
    --------
    >>> from remat.graphs.zoo import unet
    >>> from remat.problem import Problem
    >>> len(articulation_points(TrainingStep.of(Problem(unet()))))
    10
    """
    import networkx as nx  # takes some tenths of a second, and few methods need it

    count = step.num_forward
    forward: nx.Graph[int] = nx.Graph()
    forward.add_nodes_from(range(count))
    forward.add_edges_from((u, v) for u, v in zip(*(x.tolist() for x in step.edges), strict=True) if v < count)
    network = max(nx.connected_components(forward), key=lambda part: (len(part), -min(part)))
    first, last = min(network), max(network)
    if len(network) <= 2:
        return sorted(network)
    # With an edge between first and last, ops on a path between them lie on a cycle with that edge.
    closed = nx.Graph(forward.subgraph(network))
    closed.add_edge(first, last)
    parts = cast("Iterator[set[int]]", nx.biconnected_components(closed))
    between = next(part for part in parts if {first, last} <= part)
    return sorted({first, last, *nx.articulation_points(forward.subgraph(between))})


def every_square_root(candidates: Sequence[int]) -> list[int]:
    """Return every k-th candidate, with k the square root of their number, rounded down.

    Examples
    --------
    >>> every_square_root([0, 1, 2, 3, 4, 5, 6])
    [1, 3, 5]
    """
    k = isqrt(len(candidates))
    return list(candidates[k - 1 :: k]) if k else []


def greedy(step: TrainingStep, candidates: Sequence[int], segment_bytes: int) -> list[int]:
    """Return the candidates at which more than `segment_bytes` have been written since the last checkpoint.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> from remat.problem import Problem
    >>> greedy(TrainingStep.of(Problem(unit_chain(7))), range(7), 2)
    [2, 5]
    """
    allowed = set(candidates)
    chosen, written = [], 0
    for op, size in enumerate(step.sizes.tolist()):
        written += size
        if op in allowed and written > segment_bytes:
            chosen.append(op)
            written = 0
    return chosen


def greedy_sweep(step: TrainingStep, candidates: Sequence[int], values: int) -> Iterator[list[int]]:
    """Yield the distinct choices of :func:`greedy` for `values` segment sizes, from the largest value to their sum."""
    least, most = int(step.sizes.max()), int(step.sizes.sum())
    seen = set()
    for k in range(values):
        chosen = greedy(step, candidates, least + (most - least) * k // max(1, values - 1))
        if tuple(chosen) not in seen:
            seen.add(tuple(chosen))
            yield chosen


def retained_with(step: TrainingStep, checkpoints: Iterable[int]) -> Bool:
    """Return S, the values retained into each stage, for a set of checkpoints among the forward ops.

    The checkpoints cut forward and loss into *segments*, each of which begins with its checkpoint (the first one with
    op 0). In the forward pass a segment is held until it is complete. In the backward pass it is recomputed from its
    checkpoint and held while gradients of its ops are computed (:attr:`TrainingStep.mirror`), as are its gradients.
    Checkpoints are held until the end, losses and gradients until their last use. Every value is held for the first
    compute of each op that reads it, so a value read across segments is recomputed once more.

    Many retained values are not read again ("dead retention"), above all checkpoints after their segment. Frees at last
    use drop them without a change of the computes.

    `checkpoints`: positions of forward ops.

    Returns
    -------
    bool array, shape (ops, ops)
        As taken by :func:`remat.heuristics.retention.recomputation_for`.

    Notes
    -----
    The rule of Checkmate's baselines (Jain et al., MLSys 2020, appendix B): the paper only says "generate checkpoint
    matrix S from the resulting checkpoint set", and the rule is that of its published program. Here it covers graphs
    whose backward pass has another number of ops than the forward pass.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> from remat.problem import Problem
    >>> S = retained_with(TrainingStep.of(Problem(unit_chain(3))), [1])
    >>> ["".join("-x"[bit] for bit in row) for row in S.astype(int).tolist()]
    ['-------', 'x------', '-x-----', '-xx----', '-xxx---', '-xxxx--', 'xx---x-']
    """
    num_ops, end = len(step.problem.graph.ops), step.first_backward
    S = np.zeros((num_ops, num_ops), dtype=np.bool_)
    producer, consumer = step.edges
    S[consumer, producer] = True
    late = producer >= step.num_forward
    for u, v in zip(producer[late].tolist(), consumer[late].tolist(), strict=True):
        S[u + 1 : v + 1, u] = True
    chosen = sorted(set(checkpoints))
    for u in (*chosen, *kept_ops(step.problem)):
        S[u + 1 :, u] = True
    for a, b in pairwise(sorted({0, *chosen, end})):
        for t in range(a + 1, min(b, num_ops - 1) + 1):
            S[t, a : min(t, b)] = True
        # Backward ops are sorted by segment, the last segment first.
        here = np.flatnonzero((step.mirror >= a) & (step.mirror < b)) + end
        S[here, a:b] = True
        for t in here.tolist():
            S[t, here[0] : t] = True
    return S


def kept_ops(problem: Problem) -> list[int]:
    """Return the positions of ops that have outputs to be kept at the end, and no other outputs."""
    arrays = problem.graph.arrays
    kept = problem.kept & ~kept_beside_others(problem)
    return np.unique(arrays.position[arrays.writes_of(kept)[0]]).tolist()
