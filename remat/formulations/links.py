"""Links of timed stages: fetches and copies as choices, and transfers as flows over the parts of stages."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from remat.formulations.stages.choices import StageChoices
from remat.formulations.transfer_times import TransferTimes
from remat.modeling import Linear, Model, Vars
from remat.modeling.model import Named
from remat.modeling.rows import NONE, ONE, Term, column, expand, rows_from
from remat.problem import Problem
from remat.runtime.arrays import Int
from remat.schedule import Machine

#: Units of time in the cost of computing each op once: numbers in the model are then moderate.
UNITS = 10_000


class StageLinks:
    """Transfers of one model; `choices` are those of its stages. The last writer of a tensor ends its first stage."""

    def __init__(self, problem: Problem, machine: Machine, times: TransferTimes, choices: StageChoices) -> None:
        self.problem, self.machine, self.times, self.choices = problem, machine, times, choices
        self.at = choices.layout
        self.unit = max(1, problem.graph.base_cost // UNITS)

    @cached_property
    def fetches(self) -> tuple[Int, Int]:
        """(stage, tensor) of every fetch that is a choice: where retention is one, too."""
        stage, tensor, _ = self.choices.retained
        moves = self.choices.apart[tensor]
        return stage[moves], tensor[moves]

    @cached_property
    def fetch_number(self) -> Int:
        """[stage, tensor]: number of the fetch, or NONE."""
        return self._numbers(self.fetches)

    def _numbers(self, pairs: tuple[Int, Int]) -> Int:
        """Return a table [stage, tensor] with the number of each pair, and NONE elsewhere."""
        table = np.full((self.at.n + 1, len(self.at.size)), NONE, dtype=np.int64)
        table[pairs] = np.arange(len(pairs[0]))
        return table

    @cached_property
    def moved(self) -> Int:
        """Tensors that can be fetched."""
        return np.unique(self.fetches[1])

    @cached_property
    def retained_on(self) -> Int:
        """[stage, tensor]: number of S out of the stage, ONE, or NONE; shape (stages, tensors)."""
        at = self.at
        onward = self.choices.s_table[1:].copy()
        stage, tensor = np.indices(onward.shape)
        onward[(onward == NONE) & (stage >= at.first_writer[tensor]) & (stage + 1 < at.s_from[tensor])] = ONE
        return onward

    @cached_property
    def _every_stage(self) -> tuple[Int, Int]:
        """(stage, tensor) of every stage and every tensor that can be fetched, by tensor."""
        owner, stage = expand(np.full(len(self.moved), self.at.n))
        return stage, self.moved[owner]

    @cached_property
    def writing(self) -> tuple[Int, Int]:
        """(stage, tensor) in which a write may be under way at the end, by tensor."""
        stage, tensor = self._every_stage
        may = (stage >= self.at.first_writer[tensor]) & (self.retained_on[stage, tensor] != NONE)
        return stage[may], tensor[may]

    @cached_property
    def reading(self) -> tuple[Int, Int]:
        """(stage, tensor) in which a read may be under way when the last op begins, by tensor."""
        stage, tensor = self._every_stage
        may = (self.retained_on[stage, tensor] >= 0) & ~self.at.fixed[stage, tensor]
        may &= stage >= self.at.s_from[tensor]
        return stage[may], tensor[may]

    def add(self, model: Model) -> None:
        """Add the variables of links; F comes before rows that need it."""
        n, links = self.at.n, 2
        model.booleans("F", len(self.fetches[0]))
        model.booleans("W", len(self.moved))
        model.continuous("P", len(self.reading[0]), 0, 1)
        model.continuous("Q", len(self.writing[0]), 0, 1)
        model.continuous("stall", (2, n))
        model.continuous("work", (links, 2, n))
        model.continuous("backlog", (links, 2, n))

    def add_rows(self, model: Model) -> None:
        """Add (10) to (15)."""
        x, at = model.named, self.at
        fetch, copy = np.arange(len(x.F)), np.searchsorted(self.moved, self.fetches[1])
        rows = [rows_from("(10) fetched from a copy", (fetch, x.F.index, 1), (fetch, x.W[copy], -1),
                          num_rows=len(fetch), upper=0)]  # fmt: skip
        if self.machine.host is not None:
            size = self.problem.graph.arrays.size[self.moved]
            unit = int(np.gcd.reduce(size)) if len(size) else 1
            rows.append(rows_from("(11) host memory", (0, x.W.index, size // unit), num_rows=1,
                                  upper=self.machine.host // unit))  # fmt: skip
        run_stage, run_op = self.choices.runs
        cost = self.problem.graph.arrays.cost[self.problem.graph.arrays.order]
        stage = np.arange(at.n)
        again: Term = (run_stage, x.R.index, -cost[run_op] / self.unit)
        for part, compute, sure in ((0, again, 0.0), (1, (0, NONE, 0), cost / self.unit)):
            spent = [(stage, x.work[link, part], 1) for link in (0, 1)]
            for each in [[work] for work in spent] if self.machine.full_duplex else [spent]:
                rows.append(rows_from("(12) work on a link", *each, compute, (stage, x.stall[part], -1),
                                      num_rows=at.n, upper=sure))  # fmt: skip
        rows += self._backlogs(x)
        rows += [*self._reading(x), *self._writing(x)]
        model.add(*rows)

    def _backlogs(self, x: Named) -> list[Linear]:
        """Return (13): what is issued and not yet done."""
        n = self.at.n
        stage, tensor = self.fetches
        fetched: Term = (stage, x.F.index, -self.times.read[tensor] / self.unit)
        written: Term = (self.at.first_writer[self.moved], x.W.index, -self.times.write[self.moved] / self.unit)
        rows = []
        for link, first, second in ((0, fetched, (0, NONE, 0)), (1, (0, NONE, 0), written)):
            for part, issued in ((0, first), (1, second)):
                now = np.arange(n)
                before = x.backlog[link, 0] if part else np.concatenate([[NONE], x.backlog[link, 1, :-1]])
                rows.append(
                    rows_from("(13) backlog", (now, x.backlog[link, part], 1), (now, before, -1), issued,
                              (now, x.work[link, part], 1), num_rows=n, lower=0, upper=0)
                )  # fmt: skip
        return rows

    def _under_way(
        self, name: str, pairs: tuple[Int, Int], share: Vars, S: Vars, *, time: Int, backlog: Int
    ) -> list[Linear]:  # fmt: skip
        """Return rows by which only tensors that are retained have transfers under way, which take `time`."""
        stage, tensor = pairs
        n, own = self.at.n, np.arange(len(share))
        retained = column(S, self.retained_on[stage, tensor])
        return [
            rows_from(f"{name} of what is retained", (own, share.index, 1), (own, retained, -1),
                      num_rows=len(own), upper=0),
            rows_from(f"{name} at the end", (np.arange(n), backlog, 1), (stage, share.index, -time[tensor] / self.unit),
                      num_rows=n, upper=0),
        ]  # fmt: skip

    def _reading(self, x: Named) -> list[Linear]:
        """Return (14): a tensor whose read is under way was fetched, is retained, and has not been read."""
        stage, tensor = self.reading
        own, number = np.arange(len(stage)), self._numbers(self.reading)
        before = np.where(stage > 0, number[stage - 1, tensor], NONE)
        read_stage, read_tensor, reader, _ = self.choices.reads
        mine = np.flatnonzero(number[read_stage, read_tensor] >= 0)
        row = np.arange(len(mine))
        reads = column(x.P, number[read_stage[mine], read_tensor[mine]])
        runs = column(x.R, self.choices.run_number[read_stage[mine], reader[mine]])
        return [
            rows_from("(14) begun", (own, x.P.index, 1), (own, column(x.P, before), -1),
                      (own, column(x.F, self.fetch_number[stage, tensor]), -1), num_rows=len(own), upper=0),
            rows_from("(14) not yet read", (row, reads, 1), (row, runs, 1), num_rows=len(row), upper=1),
            *self._under_way("(14) reads", self.reading, x.P, x.S, time=self.times.read, backlog=x.backlog[0, 0]),
        ]  # fmt: skip

    def _writing(self, x: Named) -> list[Linear]:
        """Return (15): a tensor whose write is under way is copied, and has been retained since its first compute."""
        stage, tensor = self.writing
        own, number = np.arange(len(stage)), self._numbers(self.writing)
        first = stage == self.at.first_writer[tensor]
        earlier = column(x.Q, np.where(first, NONE, number[stage - 1, tensor]))
        before = np.where(first, x.W[np.searchsorted(self.moved, tensor)], earlier)
        return [
            rows_from("(15) begun", (own, x.Q.index, 1), (own, before, -1), num_rows=len(own), upper=0),
            *self._under_way("(15) writes", self.writing, x.Q, x.S, time=self.times.write, backlog=x.backlog[1, 1]),
        ]
