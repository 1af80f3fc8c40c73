"""Rotor's dynamic programme: the least cost of reversing a chain of blocks, for all amounts of memory at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from remat.compiled import KernelSet
from remat.deadline import Deadline
from remat.heuristics.rotor.chain import Chain
from remat.runtime.arrays import Float, Int

#: What is done with blocks: ``("sweep", first, last)`` runs them forward without saving, ``("forward", s, option)`` and
#: ``("backward", s, option)`` run one block as an option says.
Step = tuple[str, int, int]


def _example() -> None:
    from remat.heuristics.rotor.chain import BlockOption

    one = BlockOption(0, 1, 1, 1.0, 1.0, 1)
    chain = Chain(np.ones(2), np.ones(2, dtype=np.int64), np.zeros((2, 2, 2), dtype=np.int64),
                  np.zeros(3, dtype=np.int64), ((one,), (one,)))  # fmt: skip
    list(Programme.solve(chain, 4, 2).plan(3))


#: The compiled programme.
KERNELS = KernelSet("rotor", __name__, _example)


@dataclass(frozen=True, eq=False)
class Programme:
    r"""The table of a chain.

    With C(s, t, m) the least cost of running blocks s .. t forward and backward in m slots, their input and the
    gradient that comes in being there:

    .. math::
        C(s, t, m) = \min \begin{cases}
            c_{s,o} + C(s + 1, t, m - w_{s,o} - b_{s,s+1,t}) & m \ge \max(g_{t+1} + f_{s,o}, r_{s,o}) \\
            \sum_{j=s}^{k-1} u_j + C(k, t, m - b_{s,k,t}) + C(s, k - 1, m)
                & m \ge g_{t+1} + \max_{s \le j < k} (b_{s,j,t} + v_j)
        \end{cases}

    over options o and s < k <= t, where option o costs c forward and backward together, saves w bytes between, and
    needs f and r bytes forward and backward; u and v are cost and peak of running forward without saving; b is what is
    held of blocks before k for those from k on; and g is what is alive of gradients. For s = t the first line has no C,
    and cost and peak of running the block alone.

    Attributes
    ----------
    chain : Chain
    unit : int
        Bytes in a slot. What is held is rounded up to slots.
    table : float array, shape (L (L + 1) / 2, slots)
        C, upper triangle by rows; infinite where the slots do not suffice.

    Notes
    -----
    Beaumont et al., "Optimal checkpointing for heterogeneous chains" (Inria RR-9302, 2019), theorem 1, with several
    options of each block as in Rockmate (Zhao et al., ICML 2023). Optimal for the chain among schedules that are
    *memory persistent*: what is saved stays until it is used for the last time. O(L³ M) time, O(L² M) room.
    """

    chain: Chain
    unit: int
    table: Float

    @classmethod
    def solve(cls, chain: Chain, num_slots: int, unit: int, deadline: Deadline | None = None) -> Programme:
        """Fill in the table for 0 .. `num_slots` - 1 slots.

        Raises
        ------
        OverdueError
            At the deadline.
        """
        from remat.heuristics.rotor.programme_kernel import fill_row

        clock = Deadline() if deadline is None else deadline
        length = chain.num_blocks
        table = np.empty((length * (length + 1) // 2, num_slots))
        for s in range(length - 1, -1, -1):
            clock.check()
            fill_row(chain.tables, table, s, unit)
        return cls(chain, unit, table)

    @property
    def costs(self) -> Float:
        """The least cost of the whole chain for each number of slots, never increasing."""
        return self.table[self.chain.num_blocks - 1]

    @property
    def steps_in_cost(self) -> Int:
        """Numbers of slots at which the cost falls, from the fewest that suffice; each gives another schedule."""
        costs = self.costs
        before = np.concatenate([[np.inf], costs[:-1]])
        return np.flatnonzero(costs < before)

    def plan(self, num_slots: int) -> Iterator[Step]:
        """What to do, in order, with so many slots; nothing where they do not suffice."""
        from remat.heuristics.rotor.programme_kernel import best_step

        chain, unit = self.chain, self.unit
        tables = chain.tables
        if not np.isfinite(self.costs[num_slots]):
            return
        todo: list[tuple[str, int, int, int]] = [("reverse", 0, chain.num_blocks - 1, num_slots)]
        while todo:
            what, s, t, m = todo.pop()
            if what == "backward":
                yield what, s, t
                continue
            option, k = best_step(tables, self.table, s, t, m, unit)
            if option >= 0:
                number = int(option - tables.option_ptr[s])
                yield "forward", s, number
                todo.append(("backward", s, number, 0))
                if s < t:
                    held = int(tables.saved[option] + tables.between[s, s + 1, t])
                    todo.append(("reverse", s + 1, t, m - -(-held // unit)))
            else:
                yield "sweep", s, k - 1
                todo.append(("reverse", s, k - 1, m))
                todo.append(("reverse", k, t, m - -(-int(tables.between[s, k, t]) // unit)))
