"""Links between two memories in models with stages: fetches and copies as choices, transfers as flows over stages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from remat.modeling import Linear, Model
from remat.modeling.rows import NONE, Term, column, expand, rows_from
from remat.problem import Problem
from remat.runtime.arrays import Bool, Int

#: Units of time in the cost of computing each op once: numbers in the model are then moderate.
UNITS = 10_000


@dataclass(frozen=True, eq=False)
class Items:
    """Items that can be moved: each is a tensor, or several that move together. Tables have shape (stages, items).

    Attributes
    ----------
    first : int64 array, shape (items,)
        Stage that ends with the first compute of its writer.
    size, write, read : int64 arrays, shape (items,)
        Bytes; times of transfers in cost units.
    fetch_stage, fetch_item : int64 arrays, shape (fetches,)
        Every fetch that is a choice.
    onward : int64 table
        Column of the retention out of the stage; ONE, also at the end for what must be alive there; or NONE.
    needed : bool table
        True if the last op of the stage reads the item in any case.
    read_stage, read_item : int64 arrays, shape (reads,)
        Other reads.
    read_place, read_column : int64 arrays of one shape
        Runs that read: index of the read, and column of the run. At most one of a read's runs takes place.
    """

    first: Int
    size: Int
    write: Int
    read: Int
    fetch_stage: Int
    fetch_item: Int
    onward: Int
    needed: Bool
    read_stage: Int
    read_item: Int
    read_place: Int
    read_column: Int

    @cached_property
    def fetch_number(self) -> Int:
        """[stage, item]: number of the fetch, or NONE."""
        return self.numbers(self.fetch_stage, self.fetch_item)

    def numbers(self, stage: Int, item: Int) -> Int:
        """Return a table with the number of each pair of a stage and an item, and NONE elsewhere."""
        table = np.full(self.onward.shape, NONE, dtype=np.int64)
        table[stage, item] = np.arange(len(stage))
        return table

    @cached_property
    def _every_stage(self) -> tuple[Int, Int]:
        """(stage, item) of every stage and every item, by item."""
        stages, items = self.onward.shape
        item, stage = expand(np.full(items, stages))
        return stage, item

    @cached_property
    def writing(self) -> tuple[Int, Int]:
        """(stage, item) in which a write may be under way at the end, by item."""
        stage, item = self._every_stage
        may = (stage >= self.first[item]) & (self.onward[stage, item] != NONE)
        return stage[may], item[may]

    @cached_property
    def reading(self) -> tuple[Int, Int]:
        """(stage, item) in which a read may be under way when the last op begins, by item."""
        stage, item = self._every_stage
        fetched = self.fetch_number != NONE
        begun = np.where(fetched.any(axis=0), fetched.argmax(axis=0), len(fetched))
        may = (self.onward[stage, item] != NONE) & ~self.needed[stage, item] & (stage >= begun[item])
        return stage[may], item[may]


class LinkFlows:
    """Variables and rows of the links in a model with stages, which have two parts: recomputations, and the last op.

    Variables, as in :class:`~remat.formulations.timed_stages.TimedStages`: F, fetches; W, copies; G and H, what is
    under way; `stall`, `work` and `backlog` of each part. Rows have the numbers of that class, (t1) to (t6).
    """

    def __init__(self, problem: Problem, model: Model, items: Items) -> None:
        assert problem.machine is not None
        self.problem, self.machine, self.items = problem, problem.machine, items
        self.unit = max(1, problem.graph.base_cost // UNITS)
        """Cost units per unit of time in the model."""
        self.stages, links = len(items.onward), 2
        self.F = model.booleans("F", len(items.fetch_stage))
        self.W = model.booleans("W", len(items.first))
        self.G = model.continuous("G", len(items.reading[0]), 0, 1)
        self.H = model.continuous("H", len(items.writing[0]), 0, 1)
        self.stall = model.continuous("stall", (2, self.stages))
        self.work = model.continuous("work", (links, 2, self.stages))
        self.backlog = model.continuous("backlog", (links, 2, self.stages))

    def fetched(self, stage: Int, item: Int) -> Int:
        """Return the columns of fetches; NONE for those that are no choice, and for item NONE."""
        number = np.where(item >= 0, self.items.fetch_number[stage, item], NONE) if len(self.items.first) else item
        return column(self.F, number)

    def add_rows(self, model: Model, again: Term, last: Term) -> None:
        """Add (t1) to (t6).

        `again` and `last` are the computes of both parts: stage, column of the run or ONE, and cost.
        """
        model.add(*self._copies(), *self._works(again, last), *self._backlogs(), *self._reading(), *self._writing())

    def minimise_stalls(self, model: Model) -> None:
        """Add the stalls to the objective."""
        cost, stall = model.objective, self.stall.index.ravel()
        index = np.concatenate([cost.index, stall])
        weights = np.concatenate([cost.coefficient, np.full(len(stall), float(self.unit))])
        model.minimize(index, weights, cost.constant)

    def _copies(self) -> list[Linear]:
        """Return (t1) and (t2)."""
        items, fetch = self.items, np.arange(len(self.F))
        copies = self.W[items.fetch_item]
        rows = [rows_from("(t1) fetched from a copy", (fetch, self.F.index, 1), (fetch, copies, -1),
                          num_rows=len(fetch), upper=0)]  # fmt: skip
        if self.machine.host is not None:
            unit = int(np.gcd.reduce(items.size)) or 1
            rows.append(rows_from("(t2) host memory", (0, self.W.index, items.size // unit), num_rows=1,
                                  upper=self.machine.host // unit))  # fmt: skip
        return rows

    def _works(self, *computes: Term) -> list[Linear]:
        """Return (t3): a link works at most as long as a part takes."""
        rows, now = [], np.arange(self.stages)
        for part, (stage, run, cost) in enumerate(computes):
            spent = [(now, self.work[link, part], 1) for link in (0, 1)]
            time = (stage, run, -np.asarray(cost) / self.unit)
            for each in [[work] for work in spent] if self.machine.full_duplex else [spent]:
                rows.append(rows_from("(t3) work on a link", *each, time, (now, self.stall[part], -1),
                                      num_rows=self.stages, upper=0))  # fmt: skip
        return rows

    def _backlogs(self) -> list[Linear]:
        """Return (t4): what is issued and not yet done."""
        items, nothing = self.items, (0, NONE, 0)
        fetched: Term = (items.fetch_stage, self.F.index, -items.read[items.fetch_item] / self.unit)
        written: Term = (items.first, self.W.index, -items.write / self.unit)
        rows = []
        for link, first, second in ((0, fetched, nothing), (1, nothing, written)):
            for part, issued in ((0, first), (1, second)):
                now = np.arange(self.stages)
                before = self.backlog[link, 0] if part else np.concatenate([[NONE], self.backlog[link, 1, :-1]])
                rows.append(
                    rows_from("(t4) backlog", (now, self.backlog[link, part], 1), (now, before, -1), issued,
                              (now, self.work[link, part], 1), num_rows=self.stages, lower=0, upper=0)
                )  # fmt: skip
        return rows

    def _under_way(self, name: str, pairs: tuple[Int, Int], share: Int, time: Int, backlog: Int) -> list[Linear]:
        """Return rows by which only items that are retained have transfers under way, which take `time`."""
        (stage, item), own = pairs, np.arange(len(share))
        return [
            rows_from(f"{name} of what is retained", (own, share, 1), (own, self.items.onward[stage, item], -1),
                      num_rows=len(own), upper=0),
            rows_from(f"{name} at the end", (np.arange(self.stages), backlog, 1),
                      (stage, share, -time[item] / self.unit), num_rows=self.stages, upper=0),
        ]  # fmt: skip

    def _reading(self) -> list[Linear]:
        """Return (t5): an item whose read is under way was fetched, is retained, and has not been read."""
        items, (stage, item) = self.items, self.items.reading
        own, number = np.arange(len(stage)), items.numbers(stage, item)
        before = np.where(stage > 0, number[stage - 1, item], NONE)
        under_way = column(self.G, number[items.read_stage, items.read_item])
        mine = under_way >= 0
        place = (np.cumsum(mine) - 1)[items.read_place]
        reads = mine[items.read_place]
        rows = int(mine.sum())
        return [
            rows_from("(t5) begun", (own, self.G.index, 1), (own, column(self.G, before), -1),
                      (own, self.fetched(stage, item), -1), num_rows=len(own), upper=0),
            rows_from("(t5) not yet read", (np.arange(rows), under_way[mine], 1),
                      (place[reads], items.read_column[reads], 1), num_rows=rows, upper=1),
            *self._under_way("(t5) reads", items.reading, self.G.index, items.read, self.backlog[0, 0]),
            rows_from("(t5) all have arrived", (0, self.backlog[0, 1, -1:], 1), num_rows=1, upper=0),
        ]  # fmt: skip

    def _writing(self) -> list[Linear]:
        """Return (t6): an item whose write is under way is copied, and has been retained since its first compute."""
        items, (stage, item) = self.items, self.items.writing
        own, number = np.arange(len(stage)), items.numbers(stage, item)
        first = stage == items.first[item]
        earlier = column(self.H, np.where(first, NONE, number[stage - 1, item]))
        before = np.where(first, self.W[item], earlier)
        return [
            rows_from("(t6) begun", (own, self.H.index, 1), (own, before, -1), num_rows=len(own), upper=0),
            *self._under_way("(t6) writes", items.writing, self.H.index, items.write, self.backlog[1, 1]),
        ]
