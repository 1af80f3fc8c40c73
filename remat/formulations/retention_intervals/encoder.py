"""Encoding of schedules as values of retention intervals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from remat.errors import ProblemError
from remat.formulations.base import Values
from remat.formulations.retention_intervals.layout import IntervalsLayout, grid_event
from remat.formulations.retention_intervals.variables import IntervalVariables
from remat.graphs.arrays import first_computes
from remat.modeling.rows import expand
from remat.problem.op_sequence import run_stages
from remat.runtime.arrays import Bool, Int


@dataclass(frozen=True)
class Gap:
    """Stages, from 0, whose events are spread to leave room for idle copies; used with the free order."""

    first: int
    last: int
    copies: Bool
    """Shape (copies,)."""


@dataclass(frozen=True)
class RunSequence:
    """Runs of nodes that form a schedule."""

    node: Int
    """Shape (steps,)."""
    place: Int
    """Index of each run among those of its node. Shape (steps,)."""
    live: dict[int, Int]
    """Tensors that stay live throughout the step, since it leaves out the ops that write them."""


class IntervalsEncoder:
    """Encoder that assigns the runs of one schedule to the events of a layout, and computes all variables.

    Raise ProblemError if a node has more runs than copies, or the order is fixed and runs are not staged. Raise it also
    if a run reads a tensor that no earlier run makes for others.

    `named` maps a node to its name in messages.
    """

    def __init__(
        self, layout: IntervalsLayout, runs: RunSequence, named: Callable[[int], str], gap: Gap | None = None
    ) -> None:
        self.layout, self.runs, self.named, self.gap = layout, runs, named, gap
        self.range: tuple[Int, Int] = self.layout.first, self.layout.last
        self.copy = self._copies()
        self.event = self._events()
        self.start, self.active = self._starts()

    def _copies(self) -> Int:
        """Return the copy of each run."""
        at, node = self.layout, self.runs.node
        count = np.bincount(node, minlength=len(at.copies))
        over = np.flatnonzero(count > at.copies)
        if len(over):
            who, copies = self.named(int(over[0])), at.copies[over[0]]
            raise ProblemError(
                f"the schedule runs {who} {count[over[0]]} times, the formulation has {copies} "
                f"{'copy' if copies == 1 else 'copies'} of it",
                "too-many-copies",
            )
        copy = np.empty(len(node), dtype=np.int64)
        copy[np.argsort(node, kind="stable")] = np.arange(len(node)) + np.repeat(
            at.copy_first - np.cumsum(count) + count, count
        )
        return copy

    def _events(self) -> Int:
        """Return the event of each run."""
        at, gap, node = self.layout, self.gap, self.runs.node
        if at.fixed:
            position = at.tables.position[node]
            stage = run_stages(position, len(at.copies), self.named, node)
            late = np.flatnonzero((stage > at.last_stage[node]) & (stage != position + 1))
            if len(late):
                who = self.named(int(node[late[0]]))
                raise ProblemError(f"the schedule runs {who} in stage {stage[late[0]]}, where it is of no use")
            return grid_event(stage, position + 1)
        event = np.arange(1, len(node) + 1, dtype=np.int64)
        if gap is not None:  # leave out events, evenly spaced, one for each idle copy of the gap
            idle = gap.copies.copy()
            idle[self.copy] = False
            first, last = self._steps(gap)
            event += np.clip((event - first) * int(idle.sum()) // max(1, last - first + 1), 0, int(idle.sum()))
        return event

    def _starts(self) -> tuple[Int, Bool]:
        """Return the start of each copy, and a mask of those that run; idle copies take unused events."""
        at = self.layout
        active = np.zeros(len(at.copy_node), dtype=np.bool_)
        active[self.copy] = True
        start = at.first.copy()
        start[self.copy] = at.time(self.event)
        if not at.fixed:
            taken = np.zeros(at.events + 1, dtype=np.bool_)
            taken[self.event] = True
            idle = np.flatnonzero(~active)
            if self.gap is not None:  # copies of the gap first: its events come before those at the end
                idle = idle[np.argsort(~self.gap.copies[idle], kind="stable")]
            start[idle] = at.time(np.flatnonzero(~taken)[1 : 1 + len(idle)])
        if self.gap is not None:
            self.range = low, high = self._range(self.gap, start, active)
            if at.fixed:
                start = np.where(~active & (low <= high), low, start)
        return start, active

    def _steps(self, gap: Gap) -> tuple[int, int]:
        """Return the first and last run in the stages of `gap`."""
        first = first_computes(self.runs.node)
        stage: Int = np.cumsum(first) - first
        return int(np.searchsorted(stage, gap.first)), int(np.searchsorted(stage, gap.last, side="right")) - 1

    def _range(self, gap: Gap, start: Int, active: Bool) -> tuple[Int, Int]:
        """Return the first and last event of each copy; first > last: it cannot move.

        The range covers the stages of `gap` and the current runs of the op, since copies are in sequence: a new run
        before another one takes its number.
        """
        at = self.layout
        if not at.fixed:
            first, last = self._steps(gap)
            begin, until = int(self.event[first - 1]) + 1 if first else 1, int(self.event[last])
            inner = np.full(len(start), begin, dtype=np.int64), np.full(len(start), until, dtype=np.int64)
        else:
            slot = at.slot
            inner = (
                grid_event(np.maximum(gap.first + 1, slot), slot),
                grid_event(np.full(len(slot), gap.last + 1), slot),
            )
        runs = np.flatnonzero(active & ((at.copy_rank > 0) | (not at.fixed)))
        least = np.full(len(at.copy_first), at.horizon)
        most = np.zeros(len(at.copy_first), dtype=np.int64)
        np.minimum.at(least, at.copy_node[runs], start[runs])
        np.maximum.at(most, at.copy_node[runs], start[runs])
        first_event = np.minimum(inner[0], least[at.copy_node])
        last_event = np.maximum(inner[1], most[at.copy_node])
        return np.maximum(at.first, first_event), np.minimum(at.last, last_event)

    def values(self, variables: IntervalVariables) -> Values:
        """Return the values of all variables of phase 2."""
        model, x = variables.model, variables.blocks
        values = np.zeros(model.num_vars, dtype=np.float64)
        values[x.start.index] = self.start
        values[x.active.index] = self.active
        choosing = variables.choice_counts[self.copy] > 0
        values[x.option.index[(variables.choice_first[self.copy] + self.runs.place)[choosing]]] = 1
        self._sets(variables, values)
        copy, units = np.nonzero(variables.after_table >= 0)
        values[x.after.index] = self.start[copy] + units
        self._instances(variables, values)
        self._buffers(variables, values)
        return values

    def _sets(self, variables: IntervalVariables, values: Values) -> None:
        """Set the variables of sets of options, true if one of the set is chosen."""
        at = self.layout
        place_of = np.full(len(at.copy_node), -1, dtype=np.int64)
        place_of[self.copy] = self.runs.place
        owner, rank = expand(variables.set_counts)
        first = np.searchsorted(at.tables.set_node, np.arange(len(at.copy_first)))
        number = first[at.copy_node[owner]] + rank
        taken = [place_of[copy] in at.tables.sets[k] for copy, k in zip(owner.tolist(), number.tolist(), strict=True)]
        values[variables.blocks.some.index] = taken

    def _instances(self, variables: IntervalVariables, values: Values) -> None:
        """Set the ends of instances, and the cover literals: the latest instance serves each read."""
        at, x = self.layout, variables.blocks
        made, read = at.made, at.read
        is_made = variables.holds(values, made.copy, made.runs) & self.active[made.copy]
        is_read = variables.holds(values, read.copy, read.runs) & self.active[read.copy]
        end = self.start[made.copy] + made.last + 1
        maker, reader = self.start[made.copy[at.pair_made]], self.start[read.copy[at.pair_read]]
        good = is_read[at.pair_read] & is_made[at.pair_made] & (maker < reader)
        latest = np.full(len(read), -1, dtype=np.int64)
        np.maximum.at(latest, at.pair_read[good], maker[good])
        lost = np.flatnonzero(is_read & (latest < 0))
        if len(lost):
            who = self.named(int(at.copy_node[read.copy[lost[0]]]))
            raise ProblemError(f"the schedule runs {who} before what it reads is made for others")
        serves = good & (maker == latest[at.pair_read])
        np.maximum.at(end, at.pair_made[serves], (reader + read.last[at.pair_read] + 1)[serves])
        for step, tensors in self.runs.live.items():  # live throughout the step, which does not write them
            start = self.start[self.copy[step]]
            run = at.tables.run_first[self.runs.node[step]] + self.runs.place[step]
            for tensor in tensors.tolist():
                mine = np.flatnonzero(is_made & (made.tensor == tensor) & (self.start[made.copy] < start))
                if len(mine):
                    last = mine[np.argmax(self.start[made.copy[mine]])]
                    end[last] = max(end[last], start + at.tables.run_segments[run])
        kept = np.flatnonzero(at.tables.kept[made.tensor])
        time = np.where(is_made[kept], self.start[made.copy[kept]], -1)
        final = np.full(len(at.tables.size), -1, dtype=np.int64)
        np.maximum.at(final, made.tensor[kept], time)
        keeps = is_made[kept] & (time == final[made.tensor[kept]])
        idle = ~self.active[made.copy[kept]]  # the rows "kept to the end" hold these as well
        end[kept[keeps | idle]] = at.horizon + 1
        values[x.keep.index] = keeps[np.isin(kept, variables.kept)]
        values[x.end.index] = end
        if len(x.cover):
            values[x.cover.index] = serves[variables.covered]

    def _buffers(self, variables: IntervalVariables, values: Values) -> None:
        """Set the only instance of each accumulation buffer, and the contributions of later copies."""
        at, x = self.layout, variables.blocks
        buffers = at.tables.buffers
        begin = np.full(len(buffers), at.horizon, dtype=np.int64)
        end = np.zeros(len(buffers), dtype=np.int64)
        filled, used = at.filled, at.used
        first = (at.copy_rank[filled.copy] == 0) & variables.holds(values, filled.copy, filled.runs)
        place = np.searchsorted(buffers, filled.tensor)
        np.minimum.at(begin, place[first], (self.start[filled.copy] + filled.begin)[first])
        np.maximum.at(end, place[first], (self.start[filled.copy] + filled.last + 1)[first])
        reads = self.active[used.copy] & variables.holds(values, used.copy, used.runs)
        place = np.searchsorted(buffers, used.tensor)
        np.maximum.at(end, place[reads], (self.start[used.copy] + used.last + 1)[reads])
        end[at.tables.kept[buffers]] = at.horizon + 1
        values[x.buffer_start.index] = begin
        values[x.buffer_end.index] = end
        again = variables.contributions
        masked = self.start[again.copy] + again.last + 1 <= end[np.searchsorted(buffers, again.tensor)]
        active = self.active[again.copy] & variables.holds(values, again.copy, again.runs)
        values[x.masked.index] = masked
        values[x.transient.index] = active & ~masked
