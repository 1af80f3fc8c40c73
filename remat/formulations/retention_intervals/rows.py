"""Constraints of retention intervals, with their numbers in the formulation's docstring."""

from __future__ import annotations

import numpy as np

from remat.formulations.retention_intervals.layout import grid_event
from remat.formulations.retention_intervals.tables import EVERY
from remat.formulations.retention_intervals.variables import IntervalVariables
from remat.graphs.arrays import Csr
from remat.modeling import ALWAYS, AllDifferent, Clauses, Cumulative, Domain, Linear, Reservoir
from remat.modeling.rows import ONE, difference_rows, expand, rows_from
from remat.runtime.arrays import Int
from remat.runtime.deadline import Deadline


class IntervalRows:
    """Constraints on the variables of one model.

    `unit` is in bytes, `capacity` in units; `tau` is the variable of the capacity, if it is one.
    """

    def __init__(self, variables: IntervalVariables, unit: int, capacity: int, tau: int | None = None) -> None:
        self.variables, self.layout = variables, variables.layout
        self.x, self.model = variables.blocks, variables.model
        self.unit, self.capacity, self.tau = unit, capacity, tau

    def add_all(self, deadline: Deadline) -> None:
        """Add all constraints."""
        covers = self._covers if self.variables.has_covers else self._reservoirs
        steps = [self._times, self._instances, self._after, lambda: self.model.add(self.memory()), covers, self._keep]
        if len(self.layout.tables.buffers):
            steps.append(self._buffers)
        if not self.layout.tables.is_plain:
            steps.append(self._options)
        if self.layout.tables.compute_limits is not None:
            steps.append(self._limits)
        for step in deadline.each(steps, 1):
            step()

    def _times(self) -> None:
        """Add (6) and the windows, or (11)."""
        at, x = self.layout, self.x
        if not at.fixed:
            self.model.add(AllDifferent("(6) different starts", x.start.index))
            if at.width > 1:
                events = np.tile(np.arange(1, at.events + 1), len(at.copy_node))
                indptr = np.arange(len(at.copy_node) + 1) * at.events
                self.model.add(Domain("windows", x.start.index, indptr, at.time(events)))
            return
        later = np.flatnonzero(at.copy_rank > 0)
        slot = at.slot[later]
        least = slot + at.copy_rank[later]
        stages = at.last_stage[at.copy_node[later]] - least + 1
        owner, rank = expand(stages)
        values = at.time(grid_event(least[owner] + rank, slot[owner]))
        self.model.add(Domain("(11) stage grid", x.start[later], np.concatenate([[0], np.cumsum(stages)]), values))

    def _options(self) -> None:
        """Add (8)."""
        at, x = self.layout, self.x
        copy, rank = expand(self.variables.choice_counts)
        choosing = np.flatnonzero(self.variables.choice_counts)
        row_of = np.full(len(at.copy_node), -1, dtype=np.int64)
        row_of[choosing] = row = np.arange(len(choosing))
        owner, rank = expand(self.variables.set_counts)
        first = np.searchsorted(at.tables.set_node, np.arange(len(at.copy_first)))
        members = [at.tables.sets[k] for k in (first[at.copy_node[owner]] + rank).tolist()]
        own = np.arange(len(owner))
        part = np.repeat(own, [len(each) for each in members])
        which = np.array([place for each in members for place in each], dtype=np.int64)
        options = x.option.index[self.variables.choice_first[owner[part]] + which] if len(part) else part
        self.model.add(
            rows_from("(8) one option", (row_of[copy], x.option.index, 1), (row, x.active.index[choosing], -1),
                      num_rows=len(row), lower=0, upper=0),
            rows_from("(8) one of some", (part, options, 1), (own, x.some.index, -1),
                      num_rows=len(own), lower=0, upper=0),
        )  # fmt: skip

    def _limits(self) -> None:
        """Add the rows (14) that the copies can exceed."""
        at, tables, limits = self.layout, self.layout.tables, self.layout.tables.compute_limits
        assert limits is not None
        node = tables.run_node[limits.run]
        entry, rank = expand(at.copies[node])
        copy, place = at.copy_first[node[entry]] + rank, (limits.run - tables.run_first[node])[entry]
        place[self.variables.choice_counts[copy] == 0] = EVERY
        row, times = limits.row[entry], limits.times[entry]
        tight = np.bincount(row, times, minlength=len(limits.most)) > limits.most
        mine = tight[row]
        literal = self.variables.literal(copy[mine], place[mine])
        computes = ((np.cumsum(tight) - 1)[row[mine]], np.where(literal == ALWAYS, ONE, literal), times[mine])
        upper = limits.most[tight]
        self.model.add(rows_from("(14) limits of computes", computes, num_rows=len(upper), upper=upper))

    def _instances(self) -> None:
        """Add (2) and (3)."""
        at, x, made = self.layout, self.x, self.layout.made
        guard = self.variables.literal(made.copy, made.runs)
        self.model.add(
            difference_rows("(2) end after start", x.end.index, x.start.index[made.copy], made.last + 1, guard)
        )
        key = made.copy * len(at.tables.size) + made.tensor
        order = np.argsort(key, kind="stable")
        following = key + len(at.tables.size)
        low, high = (np.searchsorted(key[order], following, side=side) for side in ("left", "right"))
        last = at.copy_rank[made.copy] + 1 == at.copies[at.copy_node[made.copy]]
        one, rank = expand(np.where(last, 0, high - low))
        other = order[low[one] + rank]
        start = x.start.index[made.copy[other]]
        self.model.add(
            difference_rows("(3) one after the other", start, x.end.index[one], -made.begin[other], guard[other])
        )
        if not at.tables.is_plain:  # otherwise the rows of instances imply these
            later = np.flatnonzero(at.copy_rank > 0)
            self.model.add(
                difference_rows("(3) windows", x.start[later], x.start[later - 1], at.width, x.active[later])
            )
        again = np.flatnonzero(at.copy_rank > 1)
        self.model.add(Clauses.pairs("(3) in sequence", ~x.active[again], x.active[again - 1]))

    def _after(self) -> None:
        copy, units = np.nonzero(self.variables.after_table >= 0)
        self.model.add(difference_rows("after", self.x.after.index, self.x.start.index[copy], units, exact=True))

    def memory(self) -> Cumulative:
        """Return (4), or (13) if the capacity is a variable."""
        at, tables, x, time, literal = (
            self.layout,
            self.layout.tables,
            self.x,
            self.variables.time,
            self.variables.literal,
        )
        made, again = at.made, self.variables.contributions
        copy, piece = self.variables.pieces
        place = tables.piece_run[piece] - tables.run_first[at.copy_node[copy]]
        place[self.variables.choice_counts[copy] == 0] = EVERY
        always = np.full(len(tables.buffers), ALWAYS, dtype=np.int64)
        start = [time(made.copy, made.begin), time(copy, tables.piece_begin[piece]), x.buffer_start.index,
                 time(again.copy, again.begin)]  # fmt: skip
        end = [x.end.index, time(copy, tables.piece_end[piece]), x.buffer_end.index, time(again.copy, again.last + 1)]
        demand = [tables.size[made.tensor], tables.piece_demand[piece], tables.size[tables.buffers],
                  tables.size[again.tensor]]  # fmt: skip
        presence = [literal(made.copy, made.runs), literal(copy, place), always, x.transient.index]
        return Cumulative(
            "(4) memory", np.concatenate(start), np.concatenate(end), np.concatenate(demand) // self.unit,
            np.concatenate(presence), self.capacity, self.tau,
        )  # fmt: skip

    def _covers(self) -> None:
        """Add (5) with a literal for each pair of a read and an instance, except for reads without a choice."""
        at, x, read, made = self.layout, self.x, self.layout.read, self.layout.made
        covered = self.variables.covered
        wanted = self.variables.literal(read.copy, read.runs)
        literal = wanted[at.pair_read]  # without a choice, the rows hold whenever the reader runs
        literal[covered] = x.cover.index
        reader, maker = x.start.index[read.copy[at.pair_read]], x.start.index[made.copy[at.pair_made]]
        end, held = x.end.index[at.pair_made], read.last[at.pair_read] + 1
        given = self.variables.literal(made.copy, made.runs)[at.pair_made[covered]]
        unsure = given != ALWAYS
        choice = np.ones(len(read), dtype=np.bool_)
        choice[np.delete(at.pair_read, covered)] = False
        number = np.cumsum(choice) - 1
        guard = np.flatnonzero(choice & (wanted != ALWAYS))
        self.model.add(
            difference_rows("(5) computed before", reader, maker, at.width, literal),
            difference_rows("(5) still live", end, reader, held, literal),
            Clauses.pairs("(5) by one that runs", ~x.cover.index[unsure], given[unsure]),
            Clauses.grouped(
                "(5) some instance", np.concatenate([number[at.pair_read[covered]], number[guard]]),
                np.concatenate([x.cover.index, ~wanted[guard]]), int(choice.sum()),
            ),
        )  # fmt: skip

    def _reservoirs(self) -> None:
        """Add (10): the level is the number of live instances, less one while the reader runs."""
        at, x, active = self.layout, self.x, self.variables.active
        reads, group = np.unique(at.pair_read, return_inverse=True)
        copy, reader = at.made.copy[at.pair_made], at.read.copy[reads]
        own = np.arange(len(reads), dtype=np.int64)
        one = np.ones(len(group), dtype=np.int64)
        which = np.concatenate([group, group, own, own])
        guard = np.concatenate([active[copy], active[copy], active[reader], active[reader]])
        time = np.concatenate([x.start[copy], x.end[at.pair_made], x.start[reader], x.start[reader]])
        offset = np.concatenate([one, 0 * one, 0 * own, 0 * own + 1])
        change = np.concatenate([one, -one, 0 * own - 1, 0 * own + 1])
        by = np.argsort(which, kind="stable")
        indptr = np.concatenate([[0], np.cumsum(np.bincount(which, minlength=len(reads)))])
        self.model.add(Reservoir("(5) reservoirs", indptr, time[by], offset[by], change[by], guard[by]))

    def _keep(self) -> None:
        """Hold tensors to keep until the end: the instance of the last copy that runs, or a chosen one."""
        at, x, made = self.layout, self.x, self.layout.made
        plain = np.flatnonzero(at.tables.kept[made.tensor] & (made.runs == EVERY))
        copy = made.copy[plain]
        last = at.copy_rank[copy] + 1 == at.copies[at.copy_node[copy]]
        # Copy i holds to the end unless copy i + 1 runs; the last copy if it runs.
        literal = np.where(last, x.active[copy], ~x.active.index[np.minimum(copy + 1, len(at.copy_node) - 1)])
        literal[last & (at.copy_rank[copy] == 0)] = ALWAYS
        # An instance of an idle copy may end anywhere, so the same row can hold it to the end.
        self.model.add(self._to_the_end("kept to the end", x.end.index[plain], literal))
        chosen = self.variables.kept
        if not len(chosen):
            return
        given = self.variables.literal(made.copy[chosen], made.runs[chosen])
        tensors, group = np.unique(made.tensor[chosen], return_inverse=True)
        self.model.add(
            Clauses.pairs("kept by one that is made", ~x.keep.index, given),
            Clauses.grouped("something is kept", group, x.keep.index, len(tensors)),
            self._to_the_end("chosen to be kept", x.end.index[chosen], x.keep.index),
        )

    def _to_the_end(self, name: str, end: Int, literal: Int | None = None) -> Linear:
        row = np.arange(len(end), dtype=np.int64)
        return Linear.rows(name, row, end, 1, lower=float(self.layout.horizon + 1), num_rows=len(row), enforce=literal)

    def _buffers(self) -> None:
        """Add accumulation buffers: one instance from the first contribution to the last read."""
        at, tables, x, literal = self.layout, self.layout.tables, self.x, self.variables.literal
        number = np.full(len(tables.size), -1, dtype=np.int64)
        number[tables.buffers] = np.arange(len(tables.buffers))
        first = at.filled.only(at.copy_rank[at.filled.copy] == 0)
        first = first.only(np.argsort(first.tensor, kind="stable"))
        filling = literal(first.copy, first.runs)
        guard = None if (filling == ALWAYS).all() else filling
        start, buffer = x.start.index[first.copy], number[first.tensor]
        used, again = at.used, self.variables.contributions
        reading, running = literal(used.copy, used.runs), literal(again.copy, again.runs)
        writers = Csr.from_pairs(first.tensor, first.copy, len(tables.size))
        use, place = writers.entries(used.tensor)
        pairs = np.unique(np.stack([use, writers.indices[place]]), axis=1)
        pairs = pairs[:, at.copy_node[used.copy[pairs[0]]] != at.copy_node[pairs[1]]]
        clause = np.arange(len(again), dtype=np.int64)
        self.model.add(
            difference_rows("buffer begins", start, x.buffer_start.index[buffer], -first.begin, guard),
            difference_rows("buffer filled", x.buffer_end.index[buffer], start, first.last + 1, guard),
            difference_rows("buffer complete", x.start.index[used.copy[pairs[0]]], x.start.index[pairs[1]], at.width,
                            reading[pairs[0]]),
            difference_rows("buffer live", x.buffer_end.index[number[used.tensor]], x.start.index[used.copy],
                            used.last + 1, reading),
            self._to_the_end("buffer kept", x.buffer_end.index[tables.kept[tables.buffers]]),
            difference_rows("masked while live", x.buffer_end.index[number[again.tensor]], x.start.index[again.copy],
                            again.last + 1, x.masked.index),
            Clauses.grouped("masked or transient", np.tile(clause, 3),
                            np.concatenate([~running, x.masked.index, x.transient.index]), len(again)),
        )  # fmt: skip

    def minimise_cost(self) -> None:
        """Set the objective (1)."""
        at, tables, x = self.layout, self.layout.tables, self.x
        copy, place = expand(self.variables.choice_counts)
        chosen = tables.run_cost[tables.run_first[at.copy_node[copy]] + place]
        plain = np.flatnonzero((self.variables.choice_counts == 0) & (at.copy_rank > 0))
        sure = int(tables.run_cost[tables.run_first[:-1][np.diff(tables.run_first) == 1]].sum())
        index = np.concatenate([x.option.index, x.active.index[plain]])
        cost = np.concatenate([chosen, tables.run_cost[tables.run_first[at.copy_node[plain]]]])
        self.model.minimize(index, cost, sure)
