"""Least bytes of tensors without which others cannot be made."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from remat.bounds.flow import UNLIMITED, maximum_flow
from remat.bounds.live_set_game import Live


class TensorCuts:
    """Minimum cuts between first tensors and others.

    Parameters
    ----------
    size : dict of int to int
        Bytes of each tensor.
    inputs : dict of int to Live
        Tensors of which each is made; none for first tensors.

    Examples
    --------
    Two tensors are made of one.

    >>> cuts = TensorCuts({0: 5, 1: 3, 2: 3}, {0: frozenset(), 1: frozenset({0}), 2: frozenset({0})})
    >>> cuts.least([1]), cuts.least([1, 2]), cuts.least([1, 2], frozenset({1}))
    (3, 5, 3)
    """

    def __init__(self, size: dict[int, int], inputs: dict[int, Live]) -> None:
        self._place = {tensor: place for place, tensor in enumerate(size)}
        n = len(size)
        self._source, self._sink = 2 * n, 2 * n + 1
        # Arcs with a capacity come first: from each tensor to the node behind it, from which its inputs are reached.
        arcs = [(place, n + place) for place in range(n)]
        for tensor, place in self._place.items():
            reads = inputs[tensor]
            arcs += [(n + place, self._place[read]) for read in reads] if reads else [(n + place, self._sink)]
        self._tail, self._head = np.array(arcs, dtype=np.int64).reshape(-1, 2).T
        self._capacity = np.full(len(arcs), UNLIMITED)
        self._capacity[:n] = list(size.values())

    def least(self, tensors: Iterable[int], covered: Live = frozenset()) -> int:
        """Return the least bytes of a set with a tensor of each path from a first tensor to one of `tensors`.

        Those of `covered` take no bytes.
        """
        goals = np.array([self._place[tensor] for tensor in tensors], dtype=np.int64)
        if not len(goals):
            return 0
        tail = np.concatenate([self._tail, np.full(len(goals), self._source)])
        capacity = np.concatenate([self._capacity, np.full(len(goals), UNLIMITED)])
        capacity[[self._place[tensor] for tensor in covered if tensor in self._place]] = 0
        head = np.concatenate([self._head, goals])
        return int(maximum_flow(tail, head, capacity, self._source, self._sink).optimal_flow())
