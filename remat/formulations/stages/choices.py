"""Choices of the stage formulation, and index tables over them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from remat.formulations.stages.layout import StageLayout
from remat.modeling.rows import NONE, ONE, expand, last_of
from remat.problem import Problem
from remat.runtime.arrays import Bool, Int


@dataclass(frozen=True, eq=False)
class StageChoices:
    """Numbers of the possible recomputations, retentions and reads."""

    problem: Problem
    layout: StageLayout
    check: Callable[[], None]
    """Called before each table is built; checks the deadline."""
    apart: Bool
    """Tensors for which each retention is a choice of its own; shape (tensors,)."""

    @cached_property
    def runs(self) -> tuple[Int, Int]:
        """(stage, op) of every recomputation that is a choice, stage by stage."""
        self.check()
        stage, op = np.nonzero(self.layout.may_run)
        return stage, op

    @cached_property
    def run_number(self) -> Int:
        """[stage, op]: number of the recomputation in `runs`, or NONE; shape (stages, ops)."""
        self.check()
        table = np.full((self.layout.n, self.layout.n), NONE, dtype=np.int64)
        table[self.runs] = np.arange(len(self.runs[0]))
        return table

    @cached_property
    def retained(self) -> tuple[Int, Int, Int]:
        """(stage, tensor, number) of every retention that is a choice, tensor by tensor.

        A tensor that a stage neither reads nor computes can be freed before it just as well. Retention into such a
        stage and out of it are therefore one choice, with one number.
        """
        at = self.layout
        self.check()
        tensor, rank = expand(np.maximum(0, at.s_until - at.s_from + 1))
        stage = at.s_from[tensor] + rank
        writer = np.where(at.is_buffer[tensor], stage, at.first_writer[tensor])  # buffers are not recomputed
        idle = ~(at.fixed | self.is_read)[stage - 1, tensor] & ~at.may_run[stage - 1, writer] & ~self.apart[tensor]
        return stage, tensor, np.cumsum((rank == 0) | ~idle) - 1

    @cached_property
    def s_table(self) -> Int:
        """[stage, tensor]: number of S in `retained`; NONE: no choice, ONE: always retained; shape (n + 1, tensors)."""
        at = self.layout
        self.check()
        table = np.full((at.n + 1, len(at.size)), NONE, dtype=np.int64)
        stage, tensor = np.indices(table.shape)
        table[at.is_buffer[tensor] & (stage > at.first_writer[tensor]) & (stage <= at.last_writer[tensor])] = ONE
        stage, tensor, number = self.retained
        table[stage, tensor] = number
        return table

    @cached_property
    def reads(self) -> tuple[Int, Int, Int, Bool]:
        """(stage, tensor, reader, is last) of reads by recomputations of tensors that are not live in any case.

        Sorted by stage, then tensor, then reader.
        """
        at = self.layout
        stage, op = self.runs
        counts = np.bincount(at.use_op, minlength=at.n)
        self.check()
        by_op = np.argsort(at.use_op, kind="stable")
        run, rank = expand(counts[op])
        use = by_op[(np.cumsum(counts) - counts)[op[run]] + rank]
        stage, reader, tensor = stage[run], op[run], at.use_tensor[use]
        loose = ~at.fixed[stage, tensor]
        stage, reader, tensor = stage[loose], reader[loose], tensor[loose]
        self.check()
        by = np.lexsort((reader, tensor, stage))
        stage, reader, tensor = stage[by], reader[by], tensor[by]
        return stage, tensor, reader, last_of(stage, tensor)

    @cached_property
    def is_read(self) -> Bool:
        """[stage, tensor]: true if some recomputation in the stage may read the tensor."""
        self.check()
        table = np.zeros((self.layout.n, len(self.layout.size)), dtype=np.bool_)
        table[self.reads[0], self.reads[1]] = True
        return table

    @cached_property
    def carried(self) -> tuple[Int, Int]:
        """[stage, tensor]: number of S into the stage, and of S into the next one."""
        at = self.layout
        self.check()
        into, onward = self.s_table[:-1].copy(), self.s_table[1:].copy()
        stage, _ = np.indices(into.shape)
        into[stage <= at.first_writer] = NONE
        onward[(stage < at.first_writer) | at.fixed] = NONE
        return into, onward

    @cached_property
    def tight(self) -> Bool:
        """Mask of the `runs` that could exceed the budget if every useful tensor were live."""
        at = self.layout
        into, onward = self.carried
        stage, op = self.runs
        self.check()
        load = np.zeros((at.n, at.n + 1), dtype=np.int64)
        k, t = np.nonzero(at.first_writer < np.arange(at.n)[:, None])
        before = (into[k, t] != NONE) * at.size[t]
        after = (at.fixed[k, t] | self.is_read[k, t] | (onward[k, t] != NONE)) * at.size[t]
        np.add.at(load[:, 0], k, before)
        np.add.at(load, (k, at.first_writer[t]), after - before)
        self.check()
        k, t, reader, last = self.reads
        gone = last & (onward[k, t] == NONE)
        np.subtract.at(load, (k[gone], reader[gone] + 1), at.size[t[gone]])
        most = np.cumsum(load, axis=1)[stage, op] + at.workspace[op] + self.spare[0][op]
        return most > at.capacity

    @cached_property
    def spare(self) -> tuple[Int, Bool]:
        """Units of outputs, by op, that a recomputation may compute without a use; and a mask of these tensors."""
        at, arrays = self.layout, self.problem.graph.arrays
        several = (arrays.op_outputs.counts > 1)[arrays.producers.indices]
        some = at.is_buffer.copy()
        some[arrays.producers.rows[several]] = True
        spare = np.zeros(at.n, dtype=np.int64)
        mine = some[arrays.op_outputs.indices]
        np.add.at(spare, arrays.position[arrays.op_outputs.rows[mine]], at.size[arrays.op_outputs.indices[mine]])
        return spare, some
