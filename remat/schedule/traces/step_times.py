"""Start times of compute steps in nanoseconds, derived from costs."""

from __future__ import annotations

from dataclasses import dataclass

from remat.graphs import ComputeGraph
from remat.runtime.arrays import Int

#: Nanoseconds per unit of cost, for units of time.
_NANOSECONDS = {"ns": 1, "us": 1000}
#: Costs in other units are scaled by a power of ten so that their sum is at most this long.
_LONGEST_US = 10_000_000


@dataclass(frozen=True)
class StepTimes:
    """Start times of compute steps."""

    begin: tuple[int, ...]
    """Nanoseconds; each step ends where the next one starts, at least one nanosecond later."""
    per_microsecond: int | None
    """Cost drawn as a microsecond, if costs are not times; None if they are."""

    @classmethod
    def of(cls, graph: ComputeGraph, ops: Int) -> StepTimes:
        """Return the times of the ops of compute steps.

        Examples
        --------
        >>> import numpy as np
        >>> from remat.graphs import GraphBuilder
        >>> b = GraphBuilder("chain", cost_unit="us")
        >>> names = [b.op("a", size=4, cost=3), b.op("b", size=2), b.op("c", size=1, cost=1)]
        >>> StepTimes.of(b.build(), np.array([0, 1, 2])).begin
        (0, 3000, 3001, 4000)
        """
        cost = graph.arrays.cost.tolist()
        costs = [cost[op] for op in ops.tolist()]
        total, unit = sum(costs), _NANOSECONDS.get(graph.cost_unit)
        scale = None
        if unit is None:
            scale = 1
            while total > _LONGEST_US * scale:
                scale *= 10
        spent, begin = 0, [0]
        for each in costs:
            spent += each if total else 1
            exact = spent * unit if unit is not None else spent * 1000 // (scale or 1)
            begin.append(max(begin[-1] + 1, exact))
        return cls(tuple(begin), scale)
