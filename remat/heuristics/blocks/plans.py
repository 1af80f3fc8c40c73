"""Plans of block checkpointing: which blocks are dropped together, and when they are recomputed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import isqrt

import numpy as np

from remat.problem.training_step import TrainingStep
from remat.runtime.arrays import Int

#: Largest number of segment sizes to try, and of values for each of the two numbers of other plans.
SIZES, PAIRS = 32, 24


@dataclass(frozen=True, order=True)
class Plan:
    """Plan of block checkpointing, in terms of blocks.

    Examples
    --------
    >>> Plan(k=2, dropped=5).segments(6)
    [(0, 2), (2, 4), (4, 5)]
    """

    k: int
    """Blocks in a segment, which is dropped and recomputed as a whole."""
    dropped: int
    """Blocks in segments, from the first one on; the values of later blocks are held."""
    offset: int = 0
    """Blocks in the first segment if that is shorter; 0: k."""
    inner: int = 0
    """Blocks in a part of a segment, if all parts but the last are dropped again after recomputation; 0: none."""

    def segments(self, num_blocks: int) -> list[tuple[int, int]]:
        """Return the first block of each segment, and the one after its last."""
        end = min(self.dropped, num_blocks)
        starts = [0, *range(self.offset or self.k, end, self.k)]
        return list(zip(starts, [*starts[1:], end], strict=True)) if end else []

    def events(self, ends: Int, when: Int) -> tuple[Int, Int, Int]:
        """Return when ops are recomputed, and the first and last ones, for :func:`.sequence_kernel.sequence_of`.

        `ends`, shape (blocks,): position after the last op of each block. `when`, shape (blocks,): position of the
        first backward op that belongs to each block or an earlier one.
        """
        found: list[tuple[int, int, int, int]] = []
        starts = [0, *ends.tolist()]
        for first, last in self.segments(len(ends)):
            found.append((int(when[last - 1]), 0, starts[first], starts[last]))
            if self.inner:
                for part in range(first, last - self.inner, self.inner):
                    to = part + self.inner
                    found.append((int(when[to - 1]), 1, starts[part], starts[to]))
        table = np.array(sorted(found), dtype=np.int64).reshape(-1, 4)
        return table[:, 0].copy(), table[:, 2].copy(), table[:, 3].copy()


def first_backward_of(step: TrainingStep, ends: Int) -> Int:
    """Return the position of the first backward op of a forward op before each of `ends`; shape as `ends`."""
    return step.first_backward + np.searchsorted(-step.mirror, -(ends - 1), side="left")


def spread(most: int, count: int) -> list[int]:
    """Return at most `count` integers from 1 to `most`, evenly spaced by their logarithm.

    Examples
    --------
    >>> spread(5, 12), spread(10_000, 6)
    ([1, 2, 3, 4, 5], [1, 6, 40, 251, 1585, 10000])
    """
    if most <= count:
        return list(range(1, most + 1))
    return sorted({round(most ** (place / (count - 1))) for place in range(count)})


def every_kth(num_blocks: int, k: int | None = None) -> Iterator[Plan]:
    """Yield plans with every block in a segment of k: for one k or many, and also with the first block apart."""
    for size in spread(num_blocks, SIZES) if k is None else [k]:
        yield Plan(size, num_blocks)
        if size > 1:  # embeddings
            yield Plan(size, num_blocks, 1)


def first_ones(num_blocks: int, k: int | None = None) -> Iterator[Plan]:
    """Yield plans with the first m blocks in segments of k, and the values of the others held."""
    for size in spread(num_blocks, PAIRS) if k is None else [k]:
        ends = {size * number for number in spread((num_blocks - 1) // size, PAIRS)}
        for m in sorted({*ends, num_blocks - 1} - {0}):
            yield Plan(size, m)


def nested(num_blocks: int, k: int | None = None) -> Iterator[Plan]:
    """Yield plans with segments of k whose parts are dropped again: parts of one block and of about √k blocks."""
    for size in spread(num_blocks, PAIRS) if k is None else [k]:
        for part in sorted(part for part in {1, isqrt(size), 2 * isqrt(size)} if part < size):
            for m in sorted({num_blocks, num_blocks - 1} - {0}):
                yield Plan(size, m, 0, part)


def near(plan: Plan, num_blocks: int, reach: float) -> Iterator[Plan]:
    """Yield plans that differ in one number by a share `reach` of it, or by one.

    Examples
    --------
    >>> [(plan.k, plan.dropped) for plan in near(Plan(8, 80), 100, 0.25)]
    [(6, 80), (10, 80), (8, 60), (8, 100)]
    """
    for name, most in (("k", num_blocks), ("dropped", num_blocks), ("inner", plan.k - 1)):
        value = getattr(plan, name)
        change = max(1, round(reach * value))
        for other in (value - change, value + change):
            if value and 0 < other <= most:
                yield replace(plan, **{name: other})


#: Families of plans by name.
FAMILIES = {"every": every_kth, "first": first_ones, "nested": nested}
