"""An ordering problem as lifetimes of tensors, which can be read backwards and cut down to some of its ops."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from remat.graphs.arrays import Csr, frozen
from remat.ordering.instance import OrderInstance

Int = NDArray[np.int64]
Bool = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Lifetimes:
    """An ordering problem as lifetimes: a tensor lives from the first of its first ops to the last of its last ops.

    This form is its own mirror image: with both exchanged and every dependence turned round, orders read backwards
    have the same memory at each step.

    Attributes
    ----------
    size, workspace : int64 arrays, shapes (tensors,) and (ops,)
        Bytes.
    begins, ends : Csr
        For each op the tensors that it may begin and that it may end; the former are among the latter.
    predecessors, successors : Csr
        Ops that come before and after each op.
    live, kept : bool arrays, shape (tensors,)
        Which live from the start and to the end.
    held : int
        Bytes throughout.
    """

    size: Int
    workspace: Int
    begins: Csr
    ends: Csr
    predecessors: Csr
    successors: Csr
    live: Bool
    kept: Bool
    held: int

    @classmethod
    def of(cls, instance: OrderInstance) -> Lifetimes:
        """Those of an instance."""
        reads, writes = instance.op_inputs, instance.op_outputs
        rows = np.concatenate([reads.rows, writes.rows])
        ends = Csr.from_pairs(rows, np.concatenate([reads.indices, writes.indices]), instance.num_ops)
        return cls(
            instance.size, instance.workspace, writes, ends, instance.predecessors, instance.successors,
            instance.live, instance.kept, instance.held,
        )  # fmt: skip

    @property
    def mirrored(self) -> Lifetimes:
        """The same from the end to the start."""
        return replace(
            self, begins=self.ends, ends=self.begins, predecessors=self.successors, successors=self.predecessors,
            live=self.kept, kept=self.live,
        )  # fmt: skip

    @cached_property
    def op_bytes(self) -> Int:
        """Bytes at the step of each op at the least: what is held, what it may end, its workspace."""
        sums = np.zeros(len(self.workspace), dtype=np.int64)
        np.add.at(sums, self.ends.rows, self.size[self.ends.indices])
        return frozen(self.held + self.workspace + sums)
