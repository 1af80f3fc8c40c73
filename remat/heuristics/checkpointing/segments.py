"""Retention decisions for a set of checkpoints: forward at once, backward segment by segment."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from remat.heuristics.retention import kept_beside_others
from remat.problem import Problem
from remat.problem.training_step import TrainingStep
from remat.runtime.arrays import Bool


def retained_with(step: TrainingStep, checkpoints: Iterable[int]) -> Bool:
    """Return S, the values retained into each stage, for a set of checkpoints among the forward ops.

    The checkpoints cut forward and loss into *segments*, each of which begins with its checkpoint (the first one with
    op 0). In the forward pass a segment is held until it is complete. In the backward pass it is recomputed from its
    checkpoint and held while gradients of its ops are computed (:attr:`TrainingStep.mirror`), as are its gradients.
    Checkpoints are held until the end, losses and gradients until their last use. Every value is held for the first
    compute of each op that reads it, so a value read across segments is recomputed once more.

    Many retained values are not read again ("dead retention"), above all checkpoints after their segment. Frees at last
    use drop them without a change of the computes.

    Parameters
    ----------
    checkpoints : iterable of int
        Positions of forward ops.

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
    return np.unique(arrays.position[arrays.producers.indices[kept[arrays.producers.rows]]]).tolist()
