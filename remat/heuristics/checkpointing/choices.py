"""Which values may be checkpoints, and which of them are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isqrt

import networkx as nx

from remat.heuristics.checkpointing.step import TrainingStep


def all_forward_ops(step: TrainingStep) -> list[int]:
    """Every forward op, in reference order."""
    return list(range(step.num_forward))


def articulation_points(step: TrainingStep) -> list[int]:
    """Forward ops without which the forward graph falls apart, and the first and last one; in reference order.

    The forward graph is taken without directions, with an entry before every op that reads no other forward op, and an
    exit after every op that no other forward op reads; so what a single-entry network ends with cuts it off from its
    exit. O(ops + edges).

    Notes
    -----
    Jain et al., MLSys 2020, appendix B.1: "vertices that disconnect the forward pass DAG"; the entry and exit are those
    of its published program.

    Examples
    --------
    >>> from remat.graphs.zoo import unet
    >>> from remat.problem import Problem
    >>> len(articulation_points(TrainingStep.of(Problem(unet()))))
    10
    """
    count = step.num_forward
    entry, exit_ = -1, count
    pairs = [(u, v) for u, v in zip(*(x.tolist() for x in step.edges), strict=True) if v < count]
    forward: nx.Graph[int] = nx.Graph(pairs)
    reading, read = {v for _, v in pairs}, {u for u, _ in pairs}
    forward.add_edges_from((entry, v) for v in range(count) if v not in reading)
    forward.add_edges_from((u, exit_) for u in range(count) if u not in read)
    return sorted({*nx.articulation_points(forward), 0, count - 1} - {entry, exit_})


def every_square_root(candidates: Sequence[int]) -> list[int]:
    """Every k-th candidate, with k the square root of their number, rounded down.

    Examples
    --------
    >>> every_square_root([0, 1, 2, 3, 4, 5, 6])
    [1, 3, 5]
    """
    k = isqrt(len(candidates))
    return list(candidates[k - 1 :: k]) if k else []


def greedy(step: TrainingStep, candidates: Sequence[int], segment_bytes: int) -> list[int]:
    """A checkpoint at each candidate at which more than `segment_bytes` have been written since the last one.

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
    """The different choices of :func:`greedy` for `values` segment sizes, from the largest value to all together."""
    least, most = int(step.sizes.max()), int(step.sizes.sum())
    seen = set()
    for k in range(values):
        chosen = greedy(step, candidates, least + (most - least) * k // max(1, values - 1))
        if tuple(chosen) not in seen:
            seen.add(tuple(chosen))
            yield chosen
