"""Gaps: the stretches of a fixed order through which a tensor is either retained or regained by recomputation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from remat.problem import Problem
from remat.runtime.arrays import Int


@dataclass(frozen=True, eq=False)
class Gaps:
    """Gaps of all tensors, from event to next event.

    Positions are those of first computes in the reference order. Events of a tensor are the first computes of its
    writers and readers, and the end of the schedule, position n, where it is kept. At an event it is live. A gap is a
    pair of consecutive events with first computes of other ops in between. Graph inputs, which never leave, empty
    tensors, and what nobody reads or keeps have no gaps.

    Attributes
    ----------
    tensor, start, end : int64 arrays, shape (gaps,)
    cause_gap, cause_op, cause_end : int64 arrays, shape (causes,)
        A tensor that is not retained through gap `cause_gap` makes op `cause_op` run again after event `start` of the
        gap and before event `cause_end`. For a tensor with one writer that is the writer, before the end of the gap;
        for an accumulation buffer every writer that ran already, before the next reader.
    """

    tensor: Int
    start: Int
    end: Int
    cause_gap: Int
    cause_op: Int
    cause_end: Int

    @classmethod
    def of(cls, problem: Problem) -> Gaps:
        """The gaps of a problem's reference order."""
        arrays = problem.graph.arrays
        num_ops = len(arrays.cost)
        writers, readers = arrays.producers, arrays.consumers
        kept = np.flatnonzero(problem.kept)
        tensor = np.concatenate([writers.rows, readers.rows, kept])
        when = np.concatenate(
            [arrays.position[writers.indices], arrays.position[readers.indices], np.full(len(kept), num_ops)]
        )
        needs = np.concatenate(
            [np.zeros(len(writers.indices), bool), np.ones(len(tensor) - len(writers.indices), bool)]
        )
        wanted = ((readers.counts > 0) | problem.kept) & (arrays.size > 0) & ~arrays.is_input
        tensor, when, needs = (column[wanted[tensor]] for column in (tensor, when, needs))
        by_time = np.lexsort((when, tensor))
        tensor, when, needs = tensor[by_time], when[by_time], needs[by_time]
        is_gap = (tensor[1:] == tensor[:-1]) & (when[1:] > when[:-1] + 1)
        first = np.flatnonzero(is_gap)
        # The next event, this gap's end or later, at which the whole tensor is needed.
        following = np.where(needs, np.arange(len(needs)), len(needs))
        following = np.minimum.accumulate(following[::-1])[::-1]
        start, end, until = when[first], when[first + 1], when[following[first + 1]]
        of = tensor[first]
        gap, entry = writers.entries(of)
        op = writers.indices[entry]
        ran = arrays.position[op] <= start[gap]
        return cls(of, start, end, gap[ran], op[ran], until[gap[ran]])
