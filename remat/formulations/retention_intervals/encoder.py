"""From a schedule to values of the retention-interval model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from remat.errors import ProblemError
from remat.formulations.base import Values
from remat.formulations.sequence import Instances, op_sequence, stages_of
from remat.schedule import Schedule

if TYPE_CHECKING:
    from remat.formulations.retention_intervals import RetentionIntervals

Int = NDArray[np.int64]


@dataclass(frozen=True)
class Gap:
    """Stages, from 0, among whose events some idle copies are to be, where the order is free.

    Attributes
    ----------
    first, last : int
    copies : bool array, shape (copies,)
    """

    first: int
    last: int
    copies: NDArray[np.bool_]


class RetentionEncoder:
    """Places the computes of one schedule in the events of a formulation, and reads off all variables.

    Raises
    ------
    ProblemError
        If the schedule has more computes of an op than there are copies, or is not staged where the order is fixed.
    """

    def __init__(self, formulation: RetentionIntervals, schedule: Schedule, gap: Gap | None = None) -> None:
        self.formulation, self.gap = formulation, gap
        self.layout = formulation.layout
        problem = formulation.problem
        self.sequence = op_sequence(problem, schedule)
        self.instances = Instances.of(problem, self.sequence)
        self.range: tuple[Int, Int] = formulation.start_bounds()
        self.copy = self._copies()
        self.event = self._events()
        self.start, self.active = self._starts()

    def _copies(self) -> Int:
        """Copy that each compute is."""
        layout, graph = self.layout, self.formulation.problem.graph
        rank = np.empty(len(self.sequence), dtype=np.int64)
        seen = np.zeros(len(graph.ops), dtype=np.int64)
        for step, op in enumerate(self.sequence.tolist()):
            rank[step] = seen[op]
            seen[op] += 1
        limit = np.bincount(layout.copy_op, minlength=len(graph.ops))
        over = np.flatnonzero(seen > limit)
        if len(over):
            op = over[0]
            raise ProblemError(
                f"the schedule computes op {graph.ops[op].name!r} {seen[op]} times, the formulation has "
                f"{limit[op]} {'copy' if limit[op] == 1 else 'copies'} of it"
            )
        return layout.copy_first[self.sequence] + rank

    def _events(self) -> Int:
        """Event of each compute."""
        formulation, gap = self.formulation, self.gap
        if formulation.grid is None:
            event = np.arange(1, len(self.sequence) + 1, dtype=np.int64)
            if gap is not None:  # as many events are left out, evenly, as there are idle copies that want one
                idle = gap.copies.copy()
                idle[self.copy] = False
                first, last = self._steps(gap)
                event += np.clip((event - first) * int(idle.sum()) // (last - first + 1), 0, int(idle.sum()))
            return event
        stages = stages_of(formulation.problem, self.sequence)
        slots = formulation.problem.graph.arrays.position[self.sequence] + 1
        return formulation.grid.event(stages, slots)

    def _starts(self) -> tuple[Int, NDArray[np.bool_]]:
        """Start of each copy and whether it runs; idle copies take events that are left over."""
        formulation = self.formulation
        active = np.zeros(len(self.layout.copy_op), dtype=np.bool_)
        active[self.copy] = True
        start, _ = formulation.start_bounds()
        start = start.copy()
        start[self.copy] = self.event
        if formulation.grid is None:
            taken = np.zeros(formulation.horizon + 1, dtype=np.bool_)
            taken[self.event] = True
            idle = np.flatnonzero(~active)
            if self.gap is not None:  # the events that were left out come before those at the end
                idle = idle[np.argsort(~self.gap.copies[idle], kind="stable")]
            start[idle] = np.flatnonzero(~taken)[1 : 1 + len(idle)]
        if self.gap is not None:
            self.range = low, high = self._range(self.gap, start, active)
            if formulation.grid is not None:
                start = np.where(~active & (low <= high), low, start)
        return start, active

    def _steps(self, gap: Gap) -> tuple[int, int]:
        """First and last compute in the stages of `gap`."""
        first = np.zeros(len(self.sequence), dtype=np.bool_)
        first[np.unique(self.sequence, return_index=True)[1]] = True
        stage: Int = np.cumsum(first) - first
        return int(np.searchsorted(stage, gap.first)), int(np.searchsorted(stage, gap.last, side="right")) - 1

    def _range(self, gap: Gap, start: Int, active: NDArray[np.bool_]) -> tuple[Int, Int]:
        """First and last event of each copy in the stages of `gap`, and where its op runs now; none: first > last.

        The latter because copies are in sequence: one that comes in before another takes its number.
        """
        formulation, layout = self.formulation, self.layout
        low, high = formulation.start_bounds()
        if formulation.grid is None:
            first, last = self._steps(gap)
            begin, until = int(self.event[first - 1]) + 1 if first else 1, int(self.event[last])
            inner = np.full(len(low), begin, dtype=np.int64), np.full(len(low), until, dtype=np.int64)
        else:
            slot = formulation.problem.graph.arrays.position[layout.copy_op] + 1
            inner = (
                formulation.grid.event(np.maximum(gap.first + 1, slot), slot),
                formulation.grid.event(np.full(len(slot), gap.last + 1), slot),
            )
        runs = np.flatnonzero(active & ((layout.copy_rank > 0) | (formulation.grid is None)))
        least, most = (
            np.full(len(layout.copy_first), formulation.horizon),
            np.zeros(len(layout.copy_first), dtype=np.int64),
        )
        np.minimum.at(least, layout.copy_op[runs], start[runs])
        np.maximum.at(most, layout.copy_op[runs], start[runs])
        first_event = np.minimum(inner[0], least[layout.copy_op])
        last_event = np.maximum(inner[1], most[layout.copy_op])
        return np.maximum(low, first_event), np.minimum(high, last_event)

    def values(self) -> Values:
        """Values of all variables of phase 2."""
        formulation, layout = self.formulation, self.layout
        model, x = formulation.statement
        arrays = formulation.problem.graph.arrays
        values = np.zeros(model.num_vars, dtype=np.float64)
        end, live = self._ends()
        values[x.start.index] = self.start
        values[x.active.index] = self.active
        values[x.end.index] = end
        values[x.after.index] = self.start[formulation.singles] + 1
        begins, ends = self._buffers()
        values[x.buffer_start.index] = begins
        values[x.buffer_end.index] = ends
        contributing, into = formulation.contributions
        number = np.zeros(len(arrays.size), dtype=np.int64)
        number[layout.buffers] = np.arange(len(layout.buffers))
        masked = self.start[contributing] < ends[number[into]]
        values[x.masked.index] = masked
        values[x.transient.index] = self.active[contributing] & ~masked
        if len(x.cover):
            pair = formulation.covered
            instance = layout.pair_instance[pair]
            at = self.start[layout.read_copy[layout.pair_read[pair]]]
            reader = self.active[layout.read_copy[layout.pair_read[pair]]]
            serves = live[instance] & (self.start[layout.instance_copy[instance]] < at) & (at < end[instance])
            values[x.cover.index] = serves & reader
        return values

    def _end_event(self, last_use: Int) -> Int:
        """Exclusive end for a last use at each of the given steps."""
        return np.append(self.event, self.formulation.horizon)[last_use] + 1

    def _ends(self) -> tuple[Int, NDArray[np.bool_]]:
        """End of each instance of the layout and whether its copy runs."""
        layout, problem = self.layout, self.formulation.problem
        number = {
            (copy, tensor): k
            for k, (copy, tensor) in enumerate(
                zip(layout.instance_copy.tolist(), layout.instance_tensor.tolist(), strict=True)
            )
        }
        end = self.start[layout.instance_copy] + 1
        end[problem.kept[layout.instance_tensor]] = self.formulation.horizon + 1  # idle ones too, see "kept to the end"
        live = self.active[layout.instance_copy]
        ordinary = problem.graph.arrays.producers.counts[self.instances.tensor] == 1
        steps, tensors = self.instances.step[ordinary], self.instances.tensor[ordinary]
        where = [number[c, t] for c, t in zip(self.copy[steps].tolist(), tensors.tolist(), strict=True)]
        end[where] = self._end_event(self.instances.last_use[ordinary])
        return end, live

    def _buffers(self) -> tuple[Int, Int]:
        """Start and end of the one instance of each accumulation buffer."""
        layout, arrays = self.layout, self.formulation.problem.graph.arrays
        begins, ends = [], []
        for tensor in layout.buffers.tolist():
            first = self.start[layout.copy_first[arrays.producers[tensor]]]
            mine = self.instances.tensor == tensor
            use = self._end_event(self.instances.last_use[mine]) if mine.any() else first + 1
            # Contributions after the last read are transient, unless they are first ones.
            reads = self.instances.last_use[mine] > self.instances.step[mine]
            begins.append(int(first.min()))
            ends.append(max(int(first.max()) + 1, int(use[reads].max(initial=0))))
        return np.array(begins, dtype=np.int64), np.array(ends, dtype=np.int64)
