"""Chain of blocks, and Rotor's dynamic programme: the least cost of reversing it, for all amounts of memory at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from remat.runtime.arrays import Float, Int
from remat.runtime.compiled import KernelSet
from remat.runtime.deadline import Deadline

NONE: Int = np.zeros(0, dtype=np.int64)


class ChainTables(NamedTuple):
    """Chain of L blocks, in bytes and units of cost.

    `sweep_cost`, `sweep_peak` : shape (L,); cost and peak of running a block forward without saving.
    `between[s, k, t]` : shape (L, L, L); bytes that blocks s .. k - 1 write and forward or backward parts of k .. t
    read.
    `above` : shape (L + 1,); at t + 1, live bytes once blocks t + 1 .. are reversed, except those of earlier blocks.
    `option_ptr` : shape (L + 1,); the options of block s are ``option_ptr[s] .. option_ptr[s + 1] - 1``. Each has the
    bytes it saves in addition to `between`, the peak of its forward part in addition to `above`, the peak of its
    backward part, and its cost. It also has peak of the forward part and cost if no later block is to be reversed.
    """

    sweep_cost: Float
    sweep_peak: Int
    between: Int
    above: Int
    option_ptr: Int
    saved: Int
    forward_peak: Int
    backward_peak: Int
    option_cost: Float
    alone_peak: Int
    alone_cost: Float


@dataclass(frozen=True)
class BlockOption:
    """Option of a block: a set of values saved for its backward part, with cost and memory."""

    saved: int
    """Bytes between forward and backward part, in addition to those that the next block reads."""
    forward_peak: int
    """Bytes of the block's own values during its forward part."""
    backward_peak: int
    """Bytes during its backward part, including live gradients."""
    cost: float
    """Cost of forward and backward part together, including recomputations in the backward part."""
    alone_cost: float
    """The same without forward ops that only later blocks need, for the last block to reverse: its forward part has
    run before."""
    alone_peak: int
    """Peak of the forward part in that case."""
    backward: Int = field(default_factory=lambda: NONE, compare=False)
    """Ops of the backward part in order, recomputations included."""
    alone: Int = field(default_factory=lambda: NONE, compare=False)
    """Ops of the forward part that `alone_cost` counts."""


@dataclass(frozen=True, eq=False)
class Chain:
    """Chain of blocks, with the quantities of :class:`ChainTables`."""

    sweep_cost: Float
    """Shape (blocks,)."""
    sweep_peak: Int
    """Shape (blocks,)."""
    between: Int
    """Shape (blocks, blocks, blocks)."""
    above: Int
    """Shape (blocks + 1,)."""
    options: tuple[tuple[BlockOption, ...], ...]
    """Options of each block, at least one."""
    swept: tuple[Int, ...] = ()
    """Ops that `sweep_cost` counts."""

    @property
    def num_blocks(self) -> int:
        """Number of blocks, the loss included."""
        return len(self.options)

    @cached_property
    def tables(self) -> ChainTables:
        """Arrays for the kernel of the programme."""
        flat = [option for some in self.options for option in some]

        def column(name: str, kind: type = np.int64) -> NDArray:
            return np.array([getattr(option, name) for option in flat], dtype=kind)

        counts = np.array([len(some) for some in self.options], dtype=np.int64)
        return ChainTables(
            self.sweep_cost, self.sweep_peak, self.between, self.above,
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), column("saved"), column("forward_peak"),
            column("backward_peak"), column("cost", np.float64),
            column("alone_peak"), column("alone_cost", np.float64),
        )  # fmt: skip


#: Step of a plan: ``("sweep", first, last)`` runs blocks forward without saving, ``("forward", s, option)`` and
#: ``("backward", s, option)`` run one block by an option.
Step = tuple[str, int, int]


def _example() -> None:

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
    and r bytes forward and backward. The cost and the peak of running forward without saving are u and v. Blocks before
    k hold the memory b for those from k on, and live gradients take g. For s = t the first line has no C, and has cost
    and peak of running the block alone.

    Notes
    -----
    Beaumont et al., "Optimal checkpointing for heterogeneous chains" (Inria RR-9302, 2019), theorem 1, with several
    options of each block as in Rockmate (Zhao et al., ICML 2023). Optimal for the chain among schedules that are
    *memory persistent*: saved values stay until their last use. O(L³ M) time, O(L² M) memory.
    """

    chain: Chain
    unit: int
    """Bytes in a slot. Sizes are rounded up to slots."""
    table: Float
    """C for s <= t; infinite if the slots do not suffice. Shape (L, L, slots)."""
    choice: NDArray[np.int16]
    """First step: the number of an option of block s, or -j for running j blocks forward without saving. Shape (L, L,
    slots)."""

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

    def plan(self, num_slots: int, first: int = 0, last: int | None = None) -> Iterator[Step]:
        """Yield the steps for this number of slots, in order; nothing if the slots do not suffice.

        They reverse the blocks `first` .. `last`, by default all.
        """
        chain, unit = self.chain, self.unit
        last = chain.num_blocks - 1 if last is None else last
        if not np.isfinite(self.table[first, last, num_slots]):
            return
        todo: list[tuple[str, int, int, int]] = [("reverse", first, last, num_slots)]
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
