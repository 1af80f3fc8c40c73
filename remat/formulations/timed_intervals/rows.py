"""Variables and constraints of timed intervals, with their numbers in the formulation's docstring."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from remat.formulations.timed_intervals.layout import TimedLayout, Transfers
from remat.graphs.arrays import Csr
from remat.modeling import ALWAYS, Clauses, Cumulative, Linear, Model, NoOverlap
from remat.modeling.model import Named
from remat.modeling.rows import Term, difference_rows, rows_from
from remat.problem.op_sequence import MemoryScale
from remat.runtime.arrays import Int
from remat.runtime.deadline import Deadline
from remat.schedule import OrderRule


class TimedRows:
    """Variables and constraints of one model.

    `scale` is that of the device; `most_time` is the largest time of a schedule, in cost units.
    """

    def __init__(self, layout: TimedLayout, model: Model, scale: MemoryScale, most_time: int) -> None:
        self.layout, self.model, self.scale = layout, model, scale
        self.problem = layout.problem
        self.horizon = min(layout.horizon, layout.ticks * (most_time + 1) - 1)
        self.end_of_time = self.horizon + 1
        self._add_variables(most_time)

    @cached_property
    def x(self) -> Named:
        """Blocks of variables."""
        return self.model.named

    def _add_variables(self, most_time: int) -> None:
        at, model, h = self.layout, self.model, self.horizon
        copies, fetches, writes = len(at.duration), len(at.fetches), len(at.writes)
        hosted = writes if at.is_limited else 0
        first = self._least_starts()
        model.booleans("active", copies, lower=(at.copies.copy_rank == 0).astype(np.int64))  # (7)
        model.integers("start", copies, first, np.maximum(first, h - at.duration))
        model.integers("finish", copies, first + at.duration, np.maximum(first + at.duration, h))
        model.booleans("fetched", fetches)
        model.integers("issue", fetches, 0, h)
        self._add_transfers("read_start", "arrival", at.fetches.time)
        model.booleans("copied", writes)
        self._add_transfers("write_start", "written", at.writes.time)
        model.integers("reserve", hosted, 0, h)
        model.integers("discard", hosted, 0, np.maximum(h, at.writes.time[:hosted]))
        made = at.copies.made.copy
        least = np.concatenate([(first + at.duration)[made], np.zeros(fetches, dtype=np.int64)])
        model.integers("end", len(least), least, np.maximum(self.end_of_time, least))
        model.booleans("cover", len(at.read_pair))
        model.booleans("origin", len(at.origin_write))
        model.booleans("source", len(at.source_fetch))
        model.booleans("keep", len(at.kept))
        buffers = len(at.copies.tables.buffers)
        model.integers("buffer_start", buffers, 0, h)
        model.integers("buffer_end", buffers, 0, self.end_of_time)
        base = self.problem.graph.base_cost
        model.integers("time", 1, base, max(base, most_time))

    def _add_transfers(self, start: str, end: str, time: Int) -> None:
        """Add blocks of starts and ends; a transfer that takes longer than the horizon is never used."""
        self.model.integers(start, len(time), 0, np.maximum(0, self.horizon - time))
        self.model.integers(end, len(time), time, np.maximum(self.horizon, time))

    def _least_starts(self) -> Int:
        """Return times before which no copy starts; with a fixed order, other ops precede it."""
        at = self.layout
        if self.problem.order is not OrderRule.FIXED:
            return np.zeros(len(at.duration), dtype=np.int64)
        ordered = at.duration[at.first_copies]
        before = np.empty(len(ordered), dtype=np.int64)
        before[self.problem.graph.arrays.order] = np.cumsum(ordered) - ordered
        return before[at.copies.copy_node]

    # -- literals and times of instances -----------------------------------------------------------------------------

    @cached_property
    def active(self) -> Int:
        """Literal that is true if the copy runs; shape (copies,)."""
        return np.where(self.layout.copies.copy_rank == 0, ALWAYS, self.x.active.index)

    @cached_property
    def presence(self) -> Int:
        """Literal that is true if the instance exists; shape (instances,)."""
        return np.concatenate([self.active[self.layout.copies.made.copy], self.x.fetched.index])

    @cached_property
    def begin(self) -> Int:
        """Variable of the time from which each instance takes memory."""
        return np.concatenate([self.x.start[self.layout.copies.made.copy], self.x.issue.index])

    @cached_property
    def ready(self) -> Int:
        """Variable of the time from which each instance can be read."""
        return np.concatenate([self.x.finish[self.layout.copies.made.copy], self.x.arrival.index])

    # -- constraints -------------------------------------------------------------------------------------------------

    def add_all(self, deadline: Deadline) -> None:
        """Add all constraints and the objective."""
        steps = [
            self._durations, self._instances, self._sequences, self._reads, self._streams, self._writes, self._fetches,
            self._memory, self._host, self._keep, self._buffers, self._loads,
            self._uses, self._limit, self._minimise,
        ]  # fmt: skip
        for step in deadline.each(steps, 1):
            step()

    def _limit(self) -> None:
        """Add (17), the time limit."""
        limit = self.layout.machine.longest_time(self.problem.graph)
        if limit is not None:
            self.model.add(rows_from("(17) time limit", (0, self.x.time.index, 1), num_rows=1, upper=limit))

    def _minimise(self) -> None:
        """Set the objective (1)."""
        at, x = self.layout, self.x
        if self.problem.objective.includes_time:
            self.model.minimize(x.time.index, 1)
            return
        cost = self.problem.graph.arrays.cost[at.copies.copy_node]
        write, read = map(np.array, at.machine.transfer_energies(self.problem.graph))
        index = np.concatenate([x.active.index, x.fetched.index, x.copied.index])
        self.model.minimize(index, np.concatenate([cost, read[at.fetches.tensor], write[at.writes.tensor]]))

    def _add(self, name: str, later: Int, sooner: Int, literal: Int | None = None) -> None:
        """Require that one time is not before another one, if a literal is true."""
        self.model.add(difference_rows(name, later, sooner, 0, literal))

    def _durations(self) -> None:
        at, x = self.layout, self.x
        for name, later, sooner, time in (
            ("computes", x.finish, x.start, at.duration), ("reads", x.arrival, x.read_start, at.fetches.time),
            ("writes", x.written, x.write_start, at.writes.time),
        ):  # fmt: skip
            self.model.add(difference_rows(f"(2) durations of {name}", later.index, sooner.index, time, exact=True))

    def _instances(self) -> None:
        """Add (3): an instance lives until it is complete, and instances of a tensor do not overlap."""
        at, x = self.layout, self.x
        self._add("(3) end when complete", x.end.index, self.ready, self.presence)
        several = np.flatnonzero(at.by_tensor.counts > 1)
        some = at.by_tensor.indices[at.by_tensor.entries(several)[1]]
        indptr = np.concatenate([[0], np.cumsum(at.by_tensor.counts[several])])
        self.model.add(NoOverlap("(3) one at a time", indptr, self.begin[some], x.end.index[some], self.presence[some]))

    def _sequences(self) -> None:
        """Add (4): copies, fetches and writes are used in sequence."""
        at, x = self.layout, self.x
        later = np.flatnonzero(at.copies.copy_rank > 0)
        self._add("(4) copies", x.start[later], x.finish[later - 1], x.active[later])
        for name, literal, rank in (
            ("computes", x.active.index, at.copies.copy_rank - 1), ("fetches", x.fetched.index, at.fetches.rank),
            ("writes", x.copied.index, at.writes.rank),
        ):  # fmt: skip
            later = np.flatnonzero(rank > 0)
            self.model.add(Clauses.pairs(f"(4) {name} in sequence", ~literal[later], literal[later - 1]))
        later = np.flatnonzero(at.fetches.rank > 0)
        self._add("(4) one fetch after the other", x.issue[later], x.arrival[later - 1], x.fetched[later])
        if self.problem.order is OrderRule.FIXED:
            first = at.first_copies
            self._add("(4) reference order", x.start[first[1:]], x.finish[first[:-1]])

    def _choices(self, name: str, wanted: Int, owner: Int, literal: Int, given: Int) -> None:
        """Require one of the owner's literals where `wanted` is true, each only where `given` is."""
        sure, always = given != ALWAYS, wanted == ALWAYS
        groups = np.concatenate([owner, np.flatnonzero(~always)])
        self.model.add(
            Clauses.grouped(name, groups, np.concatenate([literal, ~wanted[~always]]), len(wanted)),
            Clauses.pairs(f"{name} that exists", ~literal[sure], given[sure]),
        )

    def _reads(self) -> None:
        """Add (5)."""
        at, x = self.layout, self.x
        reader, instance, cover = at.copies.read.copy, at.read_instance, x.cover.index
        self._choices("(5) some instance", self.active[reader], at.read_pair, cover, self.presence[instance])
        self._add("(5) complete before", x.start[reader[at.read_pair]], self.ready[instance], cover)
        self._add("(5) live until read", x.end[instance], x.finish[reader[at.read_pair]], cover)

    def _streams(self) -> None:
        """Add (6): computes do not overlap, nothing is issued during one, and transfers on one link do not overlap."""
        x = self.x
        points = np.concatenate([x.issue.index, x.reserve.index])
        issued = np.concatenate([x.fetched.index, x.copied.index[: len(x.reserve)]])
        reads = (x.read_start.index, x.arrival.index, x.fetched.index)
        writes = (x.write_start.index, x.written.index, x.copied.index)
        links = [reads, writes]
        if not self.layout.machine.full_duplex:
            links = [tuple(np.concatenate(each) for each in zip(reads, writes, strict=True))]  # type: ignore[list-item]
        computes = (
            np.concatenate([x.start.index, points]), np.concatenate([x.finish.index, points]),
            np.concatenate([self.active, issued]),
        )  # fmt: skip
        streams = [computes, *links]
        indptr = np.concatenate([[0], np.cumsum([len(stream[0]) for stream in streams])])
        self.model.add(NoOverlap("(6) streams", indptr, *(np.concatenate(each) for each in zip(*streams, strict=True))))

    def _writes(self) -> None:
        """Add (8): a write copies an instance that is complete, and that lives until the copy is."""
        at, x = self.layout, self.x
        write, instance, origin = at.origin_write, at.origin_instance, x.origin.index
        self._choices("(8) a write has an origin", x.copied.index, write, origin, self.presence[instance])
        begin = x.reserve if at.is_limited else x.write_start
        self._add("(8) complete before a write", begin[write], self.ready[instance], origin)
        self._add("(8) live until written", x.end[instance], x.written[write], origin)

    def _fetches(self) -> None:
        """Add (9): a fetch is issued before it starts, and reads a copy that is written."""
        at, x = self.layout, self.x
        fetch, write, source = at.source_fetch, at.source_write, x.source.index
        self._choices("(9) a fetch has a source", x.fetched.index, fetch, source, x.copied[write])
        self._add("(9) issued before", x.read_start.index, x.issue.index)
        self._add("(9) written before a fetch", x.read_start[fetch], x.written[write], source)
        if at.is_limited:
            self._add("(9) held until read", x.discard[write], x.arrival[fetch], source)

    def _memory(self) -> None:
        """Add (10), the memory of the device."""
        at, tables, x = self.layout, self.layout.copies.tables, self.x
        demand = np.zeros(len(at.copies.copies), dtype=np.int64)
        demand[tables.run_node[tables.piece_run]] = tables.piece_demand
        working = np.flatnonzero(demand[at.copies.copy_node])
        always = np.full(len(tables.buffers), ALWAYS, dtype=np.int64)
        start = [self.begin, x.start[working], x.buffer_start.index]
        end = [x.end.index, x.finish[working], x.buffer_end.index]
        units = [tables.size[at.instance_tensor], demand[at.copies.copy_node[working]], tables.size[tables.buffers]]
        self.model.add(
            Cumulative(
                "(10) device memory", np.concatenate(start), np.concatenate(end),
                np.concatenate(units) // self.scale.unit, np.concatenate([self.presence, self.active[working], always]),
                self.scale.capacity,
            )
        )  # fmt: skip

    def _host(self) -> None:
        """Add (11), copies on the host, and (12), its memory."""
        at, x = self.layout, self.x
        if not at.is_limited or at.machine.host is None:
            return
        self._add("(11) reserved before", x.write_start.index, x.reserve.index)
        self._add("(11) discarded when written", x.discard.index, x.written.index)
        later = np.flatnonzero(at.writes.rank > 0)
        self._add("(11) one copy at a time", x.reserve[later], x.discard[later - 1], x.copied[later])
        size = self.problem.graph.arrays.size[at.writes.tensor]
        unit = int(np.gcd.reduce(size)) or 1
        self.model.add(
            Cumulative(
                "(12) host memory",
                x.reserve.index,
                x.discard.index,
                size // unit,
                x.copied.index,
                at.machine.host // unit,
            )
        )  # fmt: skip

    def _keep(self) -> None:
        """Add (13): an instance of each tensor to keep lives to the end."""
        at, x = self.layout, self.x
        tensors, group = np.unique(at.instance_tensor[at.kept], return_inverse=True)
        wanted = np.full(len(tensors), ALWAYS, dtype=np.int64)
        self._choices("(13) something is kept", wanted, group, x.keep.index, self.presence[at.kept])
        self.model.add(self._to_the_end("(13) kept to the end", x.end[at.kept], x.keep.index))

    def _to_the_end(self, name: str, end: Int, literal: Int | None = None) -> Linear:
        row = np.arange(len(end), dtype=np.int64)
        return Linear.rows(name, row, end, 1, lower=float(self.end_of_time), num_rows=len(row), enforce=literal)

    def _buffers(self) -> None:
        """Add (14): a buffer lives from its first contribution to its last read, and is complete before any."""
        at, tables, x = self.layout.copies, self.layout.copies.tables, self.x
        if not len(tables.buffers):
            return
        number = np.full(len(tables.size), -1, dtype=np.int64)
        number[tables.buffers] = np.arange(len(tables.buffers))
        filled, used = at.filled, at.used
        writers = Csr.from_pairs(filled.tensor, filled.copy, len(tables.size))
        use, place = writers.entries(used.tensor)
        reading = self.active[used.copy]
        self._add("(14) begins", x.start[filled.copy], x.buffer_start[number[filled.tensor]])
        self._add("(14) filled", x.buffer_end[number[filled.tensor]], x.finish[filled.copy])
        self._add("(14) complete", x.start[used.copy[use]], x.finish[writers.indices[place]], reading[use])
        self._add("(14) live until read", x.buffer_end[number[used.tensor]], x.finish[used.copy], reading)
        self.model.add(self._to_the_end("(14) kept", x.buffer_end[np.flatnonzero(tables.kept[tables.buffers])]))

    def _loads(self) -> None:
        """Add (15): the time covers all computes and reads; implied rows state the load of each stream."""
        at, x = self.layout, self.x
        last = at.first_copies[-1:] if self.problem.order is OrderRule.FIXED else at.first_copies
        for name, end, literal in (
            ("first computes", x.finish[last], self.active[last]),
            ("recomputations", x.finish.index, self.active),
            ("fetches", x.arrival.index, x.fetched.index),
        ):
            row = np.arange(len(end))
            self.model.add(
                rows_from(f"(15) {name}", (row, x.time.index, at.ticks), (row, end, -1), num_rows=len(row),
                          lower=1 - at.ticks, enforce=literal)
            )  # fmt: skip
        computes = (0, x.active.index, -at.duration)
        loads: list[list[Term]] = [[computes]]
        moves = [self._load(x.fetched.index, at.fetches), self._load(x.copied.index, at.writes)]
        loads += [[move] for move in moves] if at.machine.full_duplex else [moves]
        for load in loads:
            self.model.add(rows_from("(15) load", (0, x.time.index, at.ticks), *load, num_rows=1, lower=1 - at.ticks))

    def _uses(self) -> None:
        """Add (16): recomputations, fetches and writes serve a read, a write, a fetch or the end."""
        at, x = self.layout, self.x
        made = at.copies.made.copy
        instances = np.concatenate([at.read_instance, at.origin_instance, at.kept])
        literal = np.concatenate([x.cover.index, x.origin.index, x.keep.index])
        computed = instances < len(made)
        copy = made[instances[computed]]
        again = at.copies.copy_rank[copy] > 0
        for name, what, owner, uses in (
            ("recomputations", x.active.index[at.copies.copy_rank > 0],
             (np.cumsum(at.copies.copy_rank > 0) - 1)[copy[again]], literal[computed][again]),
            ("fetches", x.fetched.index, instances[~computed] - len(made), literal[~computed]),
            ("writes", x.copied.index, at.source_write, x.source.index),
        ):  # fmt: skip
            groups, literals = np.concatenate([owner, np.arange(len(what))]), np.concatenate([uses, ~what])
            self.model.add(Clauses.grouped(f"(16) {name} are used", groups, literals, len(what)))

    @staticmethod
    def _load(literal: Int, transfers: Transfers) -> Term:
        return 0, literal, -transfers.time
