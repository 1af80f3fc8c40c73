"""Rotor's dynamic programme: the least cost of reversing a chain of blocks, for all amounts of memory at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from remat.heuristics.rotor.chain import Chain
from remat.runtime.arrays import Float, Int
from remat.runtime.compiled import KernelSet
from remat.runtime.deadline import Deadline

#: Step of a plan: ``("sweep", first, last)`` runs blocks forward without saving, ``("forward", s, option)`` and
#: ``("backward", s, option)`` run one block by an option.
Step = tuple[str, int, int]


def _example() -> None:
    from remat.heuristics.rotor.chain import BlockOption

    one = BlockOption(0, 1, 1, 1.0, 1.0, 1)
    chain = Chain(np.ones(2), np.ones(2, dtype=np.int64), np.zeros((2, 2, 2), dtype=np.int64),
                  np.zeros(3, dtype=np.int64), ((one,), (one,)))  # fmt: skip
    list(Programme.solve(chain, 4, 2).plan(3))


#: Kernel of the programme.
KERNELS = KernelSet("rotor", __name__, _example)


@dataclass(frozen=True, eq=False)
class Programme:
    r"""Solved dynamic programme of a chain.

    Let C(s, t, m) be the least cost of running blocks s .. t forward and backward in m slots, given their input and the
    gradient that comes in:

    .. math::
        C(s, t, m) = \min \begin{cases}
            c_{s,o} + C(s + 1, t, m - w_{s,o} - b_{s,s+1,t}) & m \ge \max(g_{t+1} + f_{s,o}, r_{s,o}) \\
            \sum_{j=s}^{k-1} u_j + C(k, t, m - b_{s,k,t}) + C(s, k - 1, m)
                & m \ge g_{t+1} + \max_{s \le j < k} (b_{s,j,t} + v_j)
        \end{cases}

    over options o and s < k <= t. Option o costs c forward and backward together, saves w bytes between, and needs f
    and r bytes forward and backward; u and v are cost and peak of running forward without saving; b is the memory of
    blocks before k held for those from k on; and g is the memory of live gradients. For s = t the first line has no C,
    and has cost and peak of running the block alone.

    Attributes
    ----------
    chain : Chain
    unit : int
        Bytes in a slot. Sizes are rounded up to slots.
    table : float array, shape (L, L, slots)
        C for s <= t; infinite if the slots do not suffice.
    choice : int16 array, shape (L, L, slots)
        First step: the number of an option of block s, or -j for running j blocks forward without saving.

    Notes
    -----
    Beaumont et al., "Optimal checkpointing for heterogeneous chains" (Inria RR-9302, 2019), theorem 1, with several
    options of each block as in Rockmate (Zhao et al., ICML 2023). Optimal for the chain among schedules that are
    *memory persistent*: saved values stay until their last use. O(L³ M) time, O(L² M) memory.
    """

    chain: Chain
    unit: int
    table: Float
    choice: NDArray[np.int16]

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
        table = np.empty((length, length, num_slots))  # unwritten pages take no memory
        choice = np.empty(table.shape, dtype=np.int16)
        for s in range(length - 1, -1, -1):
            clock.check()
            fill_row(chain.tables, table, choice, s, unit)
        return cls(chain, unit, table, choice)

    @property
    def costs(self) -> Float:
        """Least cost of the whole chain for each number of slots, never increasing."""
        return self.table[0, -1]

    @property
    def steps_in_cost(self) -> Int:
        """Numbers of slots at which the cost falls, from the fewest that suffice; each gives a different schedule."""
        costs = self.costs
        before = np.concatenate([[np.inf], costs[:-1]])
        return np.flatnonzero(costs < before)

    def plan(self, num_slots: int) -> Iterator[Step]:
        """Yield the steps for this number of slots, in order; nothing if the slots do not suffice."""
        chain, unit = self.chain, self.unit
        if not np.isfinite(self.costs[num_slots]):
            return
        todo: list[tuple[str, int, int, int]] = [("reverse", 0, chain.num_blocks - 1, num_slots)]
        while todo:
            what, s, t, m = todo.pop()
            if what == "backward":
                yield what, s, t
                continue
            choice = int(self.choice[s, t, m])
            if choice >= 0:
                yield "forward", s, choice
                todo.append(("backward", s, choice, 0))
                if s < t:
                    held = chain.options[s][choice].saved + int(chain.between[s, s + 1, t])
                    todo.append(("reverse", s + 1, t, m - -(-held // unit)))
            else:
                k = s - choice
                yield "sweep", s, k - 1
                todo.append(("reverse", s, k - 1, m))
                todo.append(("reverse", k, t, m - -(-int(chain.between[s, k, t]) // unit)))
