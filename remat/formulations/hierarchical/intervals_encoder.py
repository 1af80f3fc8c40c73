"""From a schedule to values of the hierarchical retention intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from remat.errors import ProblemError
from remat.formulations.base import Values
from remat.formulations.hierarchical import recognition
from remat.formulations.hierarchical.recognition import FoundRun
from remat.modeling.check import cumulative_use
from remat.modeling.rows import expand
from remat.schedule import Schedule

if TYPE_CHECKING:
    from remat.formulations.hierarchical.intervals import HierarchicalIntervals

Int = NDArray[np.int64]


def encoded(formulation: HierarchicalIntervals, schedule: Schedule) -> Values:
    """Values that stand for a schedule; where its runs can be read in two ways, those that claim less.

    Raises
    ------
    ProblemError
        If the schedule has a run that no option is, more runs of a node than there are copies, is not staged where the
        order is fixed, or reads what only a run of its own made.
    """

    def claim(values: Values) -> tuple[float, float]:
        memory, objective = formulation.rows(formulation.statement).memory(), formulation.statement.model.objective
        return max(formulation.capacity, cumulative_use(memory, values)[1].max(initial=0)), objective.value(values)

    whole = formulation.whole
    return recognition.encoded(whole, schedule, lambda runs: IntervalsEncoder(formulation, runs).values(), claim)


class IntervalsEncoder:
    """Places the runs of one schedule in the events of a formulation, and reads off all variables.

    Raises
    ------
    ProblemError
        If there are more runs of a node than copies, they are not staged where the order is fixed, or one reads what
        only a run of its own made.
    """

    def __init__(self, formulation: HierarchicalIntervals, steps: list[FoundRun]) -> None:
        self.formulation, self.layout = formulation, formulation.layout
        whole, at = formulation.whole, formulation.layout
        self.node = np.array([step.node for step in steps], dtype=np.int64)
        first = at.tables.run_first.tolist()
        places = [[run.option for run in whole.runs(step.node)].index(step.option) for step in steps]
        self.place = np.array(places, dtype=np.int64)
        self.run = np.array([first[step.node] for step in steps], dtype=np.int64) + self.place
        self.live = [step.live for step in steps]
        self.copy = self._copies()
        self.start = self._starts()

    def _copies(self) -> Int:
        """Copy that each run is."""
        at = self.layout
        rank = np.empty(len(self.node), dtype=np.int64)
        seen = np.zeros(len(at.copy_first), dtype=np.int64)
        for step, node in enumerate(self.node.tolist()):
            rank[step] = seen[node]
            seen[node] += 1
        over = np.flatnonzero(seen > at.copies)
        if len(over):
            node = int(over[0])
            count = int(at.copies[node])
            raise ProblemError(
                f"the schedule runs {self.formulation.whole.nodes[node].name!r} {seen[node]} times, the formulation "
                f"has {count} {'copy' if count == 1 else 'copies'} of it"
            )
        return at.copy_first[self.node] + rank

    def _starts(self) -> Int:
        """Start of each copy; idle copies take events that are left over."""
        at = self.layout
        start = at.first.copy()
        if at.grid is None:
            event = np.arange(1, len(self.node) + 1, dtype=np.int64)
            idle = np.ones(len(start), dtype=np.bool_)
            idle[self.copy] = False
            start[idle] = at.time(np.arange(len(event) + 1, at.events + 1))
        else:
            event = at.grid.event(self._stages(), self.node + 1)
        start[self.copy] = at.time(event)
        return start

    def _stages(self) -> Int:
        """Stage of each run, from 1."""
        names = [node.name for node in self.formulation.whole.nodes]
        stages = np.empty(len(self.node), dtype=np.int64)
        done, last = 0, -1
        for step, node in enumerate(self.node.tolist()):
            if node > done or node <= last or done == len(names):
                raise ProblemError(f"run {step} of the schedule, {names[node]!r}, is where stages cannot express it")
            stages[step], last = done + 1, node
            if node == done:
                done, last = done + 1, -1
        late = np.flatnonzero((stages > self.layout.last_stage[self.node]) & (stages != self.node + 1))
        if len(late):
            raise ProblemError(f"run {late[0]} of the schedule, {names[self.node[late[0]]]!r}, is of no use")
        return stages

    def values(self) -> Values:
        """Values of all variables."""
        formulation, at = self.formulation, self.layout
        variables = formulation.statement
        model, x = variables.model, variables.blocks
        values = np.zeros(model.num_vars, dtype=np.float64)
        values[x.start.index] = self.start
        values[x.active.index[self.copy]] = 1
        choosing = formulation.statement.choice_counts[self.copy] > 0
        values[x.option.index[(formulation.statement.choice_first[self.copy] + self.place)[choosing]]] = 1
        self._sets(values)
        copy, units = np.nonzero(formulation.statement.tick_table >= 0)
        values[x.tick.index] = self.start[copy] + units
        self._instances(values)
        if len(at.tables.buffers):
            self._buffers(values)
        if formulation.asks_peak:
            _, used = cumulative_use(formulation.rows(variables).memory(), values)
            values[model.objective.index] = used.max(initial=0)
        return values

    def _sets(self, values: Values) -> None:
        """Sets of options of which one is taken."""
        formulation, at, x = self.formulation, self.layout, self.formulation.statement.blocks
        place_of = np.full(len(at.copy_node), -1, dtype=np.int64)
        place_of[self.copy] = self.place
        owner, rank = expand(formulation.statement.set_counts)
        first = np.searchsorted(at.tables.set_node, np.arange(len(at.copy_first)))
        number = first[at.copy_node[owner]] + rank
        taken = [place_of[copy] in at.tables.sets[k] for copy, k in zip(owner.tolist(), number.tolist(), strict=True)]
        values[x.some.index] = taken

    def _instances(self, values: Values) -> None:
        """Ends of instances, and which of them serves each read: the latest there is."""
        formulation, at, x = self.formulation, self.layout, self.formulation.statement.blocks
        made, read = at.made, at.read
        is_made = formulation.statement.holds(values, made.copy, made.runs)
        is_read = formulation.statement.holds(values, read.copy, read.runs)
        is_made &= np.isin(made.copy, self.copy)
        is_read &= np.isin(read.copy, self.copy)
        end = self.start[made.copy] + np.where(is_made, made.last + 1, made.begin)
        good = is_read[at.pair_read] & is_made[at.pair_made]
        maker, reader = self.start[made.copy[at.pair_made]], self.start[read.copy[at.pair_read]]
        good &= maker < reader
        latest = np.full(len(read), -1, dtype=np.int64)
        np.maximum.at(latest, at.pair_read[good], maker[good])
        lost = np.flatnonzero(is_read & (latest < 0))
        if len(lost):
            node = formulation.whole.nodes[int(at.copy_node[read.copy[lost[0]]])].name
            raise ProblemError(f"the schedule has {node!r} read what no run before it makes for others")
        serves = good & (maker == latest[at.pair_read])
        np.maximum.at(end, at.pair_made[serves], (reader + read.last[at.pair_read] + 1)[serves])
        for step, tensors in enumerate(self.live):  # there throughout, so that they need not be made inside
            start = self.start[self.copy[step]]
            for tensor in tensors.tolist():
                mine = np.flatnonzero(is_made & (made.tensor == tensor) & (self.start[made.copy] < start))
                if len(mine):
                    last = mine[np.argmax(self.start[made.copy[mine]])]
                    end[last] = max(end[last], start + at.tables.run_segments[self.run[step]])
        kept = formulation.statement.kept
        final = np.full(len(at.tables.size), -1, dtype=np.int64)
        time = np.where(is_made[kept], self.start[made.copy[kept]], -1)
        np.maximum.at(final, made.tensor[kept], time)
        keeps = is_made[kept] & (time == final[made.tensor[kept]])
        end[kept[keeps]] = at.horizon + 1
        values[x.keep.index] = keeps
        values[x.end.index] = end
        values[x.cover.index] = serves[formulation.statement.covered]

    def _buffers(self, values: Values) -> None:
        """The one instance of each accumulation buffer, and contributions of later copies."""
        formulation, at, x = self.formulation, self.layout, self.formulation.statement.blocks
        buffers = at.tables.buffers
        begin = np.full(len(buffers), at.horizon, dtype=np.int64)
        end = np.zeros(len(buffers), dtype=np.int64)
        filled, used = at.filled, at.used
        first = (at.copy_rank[filled.copy] == 0) & formulation.statement.holds(values, filled.copy, filled.runs)
        place = np.searchsorted(buffers, filled.tensor)
        np.minimum.at(begin, place[first], (self.start[filled.copy] + filled.begin)[first])
        np.maximum.at(end, place[first], (self.start[filled.copy] + filled.last + 1)[first])
        running = np.isin(used.copy, self.copy) & formulation.statement.holds(values, used.copy, used.runs)
        place = np.searchsorted(buffers, used.tensor)
        np.maximum.at(end, place[running], (self.start[used.copy] + used.last + 1)[running])
        end[formulation.problem.kept[buffers]] = at.horizon + 1
        values[x.buffer_start.index] = begin
        values[x.buffer_end.index] = end
        again = formulation.statement.contributions
        masked = self.start[again.copy] + again.last + 1 <= end[np.searchsorted(buffers, again.tensor)]
        active = np.isin(again.copy, self.copy) & formulation.statement.holds(values, again.copy, again.runs)
        values[x.masked.index] = masked
        values[x.transient.index] = active & ~masked
