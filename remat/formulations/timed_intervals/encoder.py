"""Programs of steps from values of timed intervals, and values from programs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from remat.errors import ProblemError
from remat.formulations.base import Values
from remat.formulations.programs import COMPUTE, DISCARD, FETCH, FREE, OFFLOAD, Program
from remat.formulations.timed_intervals.rows import TimedRows
from remat.modeling.model import Named
from remat.problem import Problem
from remat.problem.op_sequence import standing_buffers
from remat.runtime.arrays import Int
from remat.schedule.timing import Durations, time_streams


class Computes(NamedTuple):
    """Copies that run, by start, with their starts and ends."""

    copy: Int
    start: Int
    finish: Int

    @classmethod
    def of(cls, x: Named, values: Int) -> Computes:
        """Return the computes that values represent."""
        copy = np.flatnonzero(values[x.active.index])
        copy = copy[np.argsort(values[x.start[copy]], kind="stable")]
        return cls(copy, values[x.start[copy]], values[x.finish[copy]])

    def gap_before(self, time: Int) -> Int:
        """Return the last times, not after `time`, at which no compute is under way."""
        return self._gap(time, np.searchsorted(self.start, time, side="right") - 1, self.start)

    def gap_after(self, time: Int) -> Int:
        """Return the first times, not before `time`, at which no compute is under way."""
        return self._gap(time, np.searchsorted(self.start, time, side="left") - 1, self.finish)

    def _gap(self, time: Int, last: Int, edge: Int) -> Int:
        """Return each time, or an edge of the `last` compute begun by then if that is still under way."""
        if not len(self.copy):
            return time
        within = (last >= 0) & (time < self.finish[last])
        return np.where(within, edge[last], time)


def decoded(rows: TimedRows, values: Values) -> Program:
    """Return the program that values represent.

    Transfers are issued as late as they start on time: where they start during a compute, before it. So those that
    start later on a link are issued later. Frees and discards during a compute follow it. At one time, frees and
    discards come first: what is issued then may need their memory.
    """
    at, x = rows.layout, rows.x
    tables, number = at.copies.tables, values.round().astype(np.int64)
    computes = Computes.of(x, number)
    ops = at.copies.copy_node[computes.copy]
    exists = np.concatenate([number[x.active[at.copies.made.copy]], number[x.fetched.index]]) > 0
    spent, adder = _fleeting(rows.problem, ops)
    end = np.concatenate([number[x.end[exists]], number[x.buffer_end.index], computes.finish[adder]])
    gone = np.concatenate([at.instance_tensor[exists], tables.buffers, spent])
    gone, end = gone[end < rows.end_of_time], end[end < rows.end_of_time]
    fetched, copied = np.flatnonzero(number[x.fetched.index]), np.flatnonzero(number[x.copied.index])
    read_start, write_start = number[x.read_start[fetched]], number[x.write_start[copied]]
    discarded = copied if at.is_limited else copied[:0]
    discard = number[x.discard[discarded]]
    # time, rank at one time, time of its own, kind, target
    steps = [
        (computes.gap_after(end), 0, end, FREE, gone),
        (computes.gap_after(discard), 0, discard, DISCARD, at.writes.tensor[discarded]),
        (computes.gap_before(write_start), 1, write_start, OFFLOAD, at.writes.tensor[copied]),
        (computes.gap_before(read_start), 1, read_start, FETCH, at.fetches.tensor[fetched]),
        (computes.start, 2, computes.start, COMPUTE, ops),
    ]
    columns = [np.concatenate(each) for each in zip(*(np.broadcast_arrays(*step) for step in steps), strict=True)]
    order = np.lexsort(columns[2::-1])
    return Program(columns[3][order].tolist(), columns[4][order].tolist())


def _fleeting(problem: Problem, ops: Int) -> tuple[Int, Int]:
    """Return accumulation buffers that nothing reads, with the positions in `ops` of those that contribute to them."""
    arrays = problem.graph.arrays
    fleeting = (arrays.producers.counts > 1) & ~standing_buffers(problem)[0]
    position, place = arrays.op_outputs.where(fleeting).entries(ops)
    return arrays.op_outputs.where(fleeting).indices[place], position


class ProgramEncoder:
    """Encoder of one schedule as values of timed intervals.

    Its steps take place when the schedule's do; instances and copies end as early as they can.

    Raise ProblemError if the schedule breaks the rules of the graph, or uses more copies, fetches or writes than the
    formulation has.
    """

    def __init__(self, rows: TimedRows, program: Program) -> None:
        self.rows, self.layout, self.x = rows, rows.layout, rows.x
        self.program = program
        self.values = rows.model.lower.astype(np.int64)
        self._idle()
        self._pairs()

    def _idle(self) -> None:
        """Set the dependent times of what is not used."""
        x, at, values = self.x, self.layout, self.values
        values[x.finish.index] = values[x.start.index] + at.duration
        values[x.discard.index] = values[x.written[: len(x.discard)]]

    def _pairs(self) -> None:
        """Number instances, reads and pairs by what they belong to."""
        at = self.layout
        made, read = at.copies.made, at.copies.read
        self.made = _numbers(made.copy, made.tensor)
        self.read = _numbers(read.copy, read.tensor)
        self.cover = _numbers(at.read_pair, at.read_instance)
        self.origin = _numbers(at.origin_write, at.origin_instance)
        self.source = _numbers(at.source_fetch, at.source_write)
        size = len(at.copies.tables.size)
        self.first_fetch, self.first_write = (
            np.searchsorted(each.tensor, np.arange(size + 1)).tolist() for each in (at.fetches, at.writes)
        )

    def encode(self) -> Values:
        """Return the values of all variables."""
        at, x, values, problem = self.layout, self.x, self.values, self.rows.problem
        run = problem.simulate(self.program.schedule(problem, ""))
        if run.violations:
            raise ProblemError(f"the schedule is invalid: {run.violations[0]}")
        durations = Durations(
            at.in_ticks(problem.graph.arrays.cost).tolist(),
            *(_by_tensor(each.tensor, each.time, len(problem.kept)) for each in (at.writes, at.fetches)),
        )
        timing = time_streams(run, durations, full_duplex=at.machine.full_duplex)
        self.used = np.zeros(len(problem.graph.ops), dtype=np.int64)
        self.fetches, self.writes = ([0] * len(problem.kept) for _ in range(2))
        self.now: dict[int, int] = {}  # the instance of each tensor that is live, and the write of its copy
        self.copy: dict[int, int] = {}
        actions = {COMPUTE: self._compute, OFFLOAD: self._offload, FETCH: self._fetch}
        times = zip(*self.program, timing.start.tolist(), timing.end.tolist(), strict=True)
        for kind, target, start, end in times:
            if kind in actions:
                actions[kind](target, start, end)
        self._issues()
        for tensor in np.unique(at.instance_tensor[at.kept]).tolist():
            values[x.end[self.now[tensor]]] = self.rows.end_of_time
            values[x.keep[np.searchsorted(at.kept, self.now[tensor])]] = 1
        self._buffers()
        values[x.time.index] = at.in_units(timing.time)
        return values.astype(np.float64)

    def _lives_until(self, instance: int, time: int) -> None:
        index = self.x.end[instance]
        self.values[index] = max(int(self.values[index]), time)

    def _compute(self, op: int, start: int, end: int) -> None:
        at, x, values = self.layout, self.x, self.values
        copy = int(at.copies.copy_first[op] + self.used[op])
        self.used[op] += 1
        if self.used[op] > at.copies.copies[op]:
            raise self._too_many("computes", self.rows.problem.graph.op_names[op], int(at.copies.copies[op]))
        values[x.active[copy]], values[x.start[copy]], values[x.finish[copy]] = 1, start, end
        arrays = self.rows.problem.graph.arrays
        for tensor in arrays.op_inputs[op].tolist():
            read = self.read.get((copy, tensor))
            if read is not None:
                instance = self.now[tensor]
                values[x.cover[self.cover[read, instance]]] = 1
                self._lives_until(instance, end)
        for tensor in arrays.op_outputs[op].tolist():
            made = self.made.get((copy, tensor))
            if made is not None:
                self.now[tensor] = made
                self._lives_until(made, end)

    def _offload(self, tensor: int, start: int, end: int) -> None:
        x, values = self.x, self.values
        write = self._next(tensor, self.writes, self.first_write, "offloads")
        values[x.copied[write]], values[x.write_start[write]], values[x.written[write]] = 1, start, end
        origin = self.origin.get((write, self.now[tensor]))
        if origin is None:
            raise ProblemError(f"the schedule offloads {self._name(tensor)} a second time")
        values[x.origin[origin]] = 1
        self._lives_until(self.now[tensor], end)
        self._held_until(write, end)
        self.copy[tensor] = write

    def _fetch(self, tensor: int, start: int, end: int) -> None:
        x, values = self.x, self.values
        fetch = self._next(tensor, self.fetches, self.first_fetch, "fetches")
        values[x.fetched[fetch]], values[x.read_start[fetch]], values[x.arrival[fetch]] = 1, start, end
        write = self.copy[tensor]
        values[x.source[self.source[fetch, write]]] = 1
        self._held_until(write, end)
        self.now[tensor] = len(self.layout.copies.made) + fetch
        self._lives_until(self.now[tensor], end)

    def _held_until(self, write: int, time: int) -> None:
        if len(self.x.discard):
            index = self.x.discard[write]
            self.values[index] = max(int(self.values[index]), time)

    def _next(self, tensor: int, used: list[int], first: list[int], verb: str) -> int:
        """Return the next transfer of a tensor."""
        number = first[tensor] + used[tensor]
        used[tensor] += 1
        if number >= first[tensor + 1]:
            raise self._too_many(verb, self._name(tensor), first[tensor + 1] - first[tensor])
        return number

    def _name(self, tensor: int) -> str:
        return self.rows.problem.graph.tensor_names[tensor]

    @staticmethod
    def _too_many(verb: str, name: str, most: int) -> ProblemError:
        return ProblemError(f"the schedule {verb} {name!r} more than {most} times, the limit of the model", "too-many")

    def _issues(self) -> None:
        """Issue transfers as late as possible."""
        x, values = self.x, self.values
        computes = Computes.of(x, values)
        values[x.issue.index] = computes.gap_before(values[x.read_start.index])
        values[x.reserve.index] = computes.gap_before(values[x.write_start[: len(x.reserve)]])

    def _buffers(self) -> None:
        at, x, values = self.layout.copies, self.x, self.values
        buffers, filled, used = at.tables.buffers, at.filled, at.used
        begin, end = np.full(len(buffers), self.rows.horizon), np.zeros(len(buffers), dtype=np.int64)
        np.minimum.at(begin, np.searchsorted(buffers, filled.tensor), values[x.start[filled.copy]])
        np.maximum.at(end, np.searchsorted(buffers, filled.tensor), values[x.finish[filled.copy]])
        reads = values[x.active[used.copy]] > 0
        last = values[x.finish[used.copy[reads]]]
        np.maximum.at(end, np.searchsorted(buffers, used.tensor[reads]), last)
        end[at.tables.kept[buffers]] = self.rows.end_of_time
        values[x.buffer_start.index], values[x.buffer_end.index] = begin, end


def _numbers(first: Int, second: Int) -> dict[tuple[int, int], int]:
    """Return the numbers of pairs."""
    return {pair: number for number, pair in enumerate(zip(first.tolist(), second.tolist(), strict=True))}


def _by_tensor(tensor: Int, time: Int, tensors: int) -> list[int]:
    """Return the times of transfers by tensor; 0 where there is none."""
    table = np.zeros(tensors, dtype=np.int64)
    table[tensor] = time
    return table.tolist()
