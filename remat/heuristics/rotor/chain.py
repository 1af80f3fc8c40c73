"""Training step as a chain of blocks: cost and memory of running, saving and reversing each of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from remat.runtime.arrays import Float, Int

NONE: Int = np.zeros(0, dtype=np.int64)


class ChainTables(NamedTuple):
    """Chain of L blocks, in bytes and units of cost.

    `sweep_cost`, `sweep_peak` : shape (L,); cost and peak of running a block forward without saving.
    `between[s, k, t]` : shape (L, L, L); bytes that blocks s .. k - 1 write and forward or backward parts of k .. t
    read.
    `above` : shape (L + 1,); at t + 1, live bytes once blocks t + 1 .. are reversed, except those of earlier blocks.
    `option_ptr` : shape (L + 1,); the options of block s are ``option_ptr[s] .. option_ptr[s + 1] - 1``. Each has the
    bytes it saves in addition to `between`, the peak of its forward part in addition to `above`, the peak of its
    backward part, and its cost; and peak of the forward part and cost if no later block is to be reversed.
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
    """Option of a block: a set of values saved for its backward part, with cost and memory.

    Attributes
    ----------
    saved : int
        Bytes between forward and backward part, in addition to those that the next block reads.
    forward_peak : int
        Bytes of the block's own values during its forward part.
    backward_peak : int
        Bytes during its backward part, including live gradients.
    cost : float
        Cost of forward and backward part together, including recomputations in the backward part.
    alone_cost : float
        The same without forward ops that only later blocks need: for the last block of those to be reversed, whose
        forward part has run before.
    alone_peak : int
        Peak of its forward part then.
    backward : int64 array
        Ops of the backward part in order, recomputations included.
    alone : int64 array
        Ops of the forward part that `alone_cost` counts.
    """

    saved: int
    forward_peak: int
    backward_peak: int
    cost: float
    alone_cost: float
    alone_peak: int
    backward: Int = field(default_factory=lambda: NONE, compare=False)
    alone: Int = field(default_factory=lambda: NONE, compare=False)


@dataclass(frozen=True, eq=False)
class Chain:
    """Chain of blocks, with the quantities of :class:`ChainTables`.

    Attributes
    ----------
    sweep_cost : float array, shape (blocks,)
    sweep_peak : int64 array, shape (blocks,)
    between : int64 array, shape (blocks, blocks, blocks)
    above : int64 array, shape (blocks + 1,)
    options : tuple of tuples of BlockOption
        Options of each block, at least one.
    swept : tuple of int64 arrays
        Ops that `sweep_cost` counts.
    """

    sweep_cost: Float
    sweep_peak: Int
    between: Int
    above: Int
    options: tuple[tuple[BlockOption, ...], ...]
    swept: tuple[Int, ...] = ()

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
