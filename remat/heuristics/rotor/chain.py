"""A training step as a chain of blocks: what running, saving and reversing each of them takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from remat.runtime.arrays import Float, Int

NONE: Int = np.zeros(0, dtype=np.int64)


class ChainTables(NamedTuple):
    """A chain of L blocks, in bytes and units of cost.

    `sweep_cost`, `sweep_peak` : shape (L,); running a block forward without saving, and what that needs at a time.
    `between[s, k, t]` : shape (L, L, L); what blocks s .. k - 1 write and the forward or backward parts of k .. t read.
    `above` : shape (L + 1,); what is alive, and is no block's below, once blocks t + 1 .. are reversed, at t + 1.
    `option_ptr` : shape (L + 1,); the options of block s are ``option_ptr[s] .. option_ptr[s + 1] - 1``, each with
    what it saves besides `between`, what its forward part needs besides `above`, its backward part, and its cost; and
    what its forward part needs, and the cost, where no block after it is to be reversed.
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
    """One way to run a block: what it saves for its backward part, and what that takes.

    Attributes
    ----------
    saved : int
        Bytes between forward and backward part, besides what the block after it reads.
    forward_peak : int
        Bytes of the block's own values while it runs forward.
    backward_peak : int
        Bytes while it runs backward, with the gradients that are there.
    cost : float
        Of forward and backward part together, recomputations in the backward part included.
    alone_cost : float
        Without what only the blocks after it need of the forward part: for the last block of those to be reversed,
        whose forward part has run before.
    alone_peak : int
        Of its forward part then.
    backward : int64 array
        The ops of the backward part in order, recomputations included.
    alone : int64 array
        The ops of the forward part that `alone_cost` counts.
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
    """Blocks in a row, in the words of :class:`ChainTables`.

    Attributes
    ----------
    sweep_cost : float array, shape (blocks,)
    sweep_peak : int64 array, shape (blocks,)
    between : int64 array, shape (blocks, blocks, blocks)
    above : int64 array, shape (blocks + 1,)
    options : tuple of tuples of BlockOption
        Those of each block, at least one.
    swept : tuple of int64 arrays
        The ops that `sweep_cost` counts.
    """

    sweep_cost: Float
    sweep_peak: Int
    between: Int
    above: Int
    options: tuple[tuple[BlockOption, ...], ...]
    swept: tuple[Int, ...] = ()

    @property
    def num_blocks(self) -> int:
        """Blocks, the loss included."""
        return len(self.options)

    @cached_property
    def tables(self) -> ChainTables:
        """For the compiled programme."""
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
