"""Model of the hierarchical programme with a second memory: items that can be moved, and their links."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from remat.formulations.h_ilp.layout import Tables
from remat.formulations.h_ilp.phases import Apart, Phases
from remat.formulations.h_ilp.rows import Program
from remat.formulations.links import Items, LinkFlows
from remat.modeling.rows import NONE, ONE, column, rows_from
from remat.problem import Problem
from remat.problem.transfer_times import TransferTimes
from remat.runtime.arrays import Bool, Int


@dataclass(frozen=True, eq=False)
class Movable:
    """Data and phantoms that can be moved: first all such data, then all such phantoms. Together they are the items."""

    at: Tables
    times: TransferTimes

    @cached_property
    def data(self) -> Int:
        """Data with one contributor, by number in `Tables`."""
        return np.flatnonzero(self.times.movable[self.at.tensor] & (self.at.makers == 1))

    @cached_property
    def phantoms(self) -> Int:
        """Phantoms all of whose tensors can be moved, by number in `Tables`."""
        saved = self.at.saved[self.at.phantom_forward] > 0
        whole = [self.times.movable[self._phantom(i)].all() for i in range(len(saved))]
        return np.flatnonzero(saved & np.array(whole, dtype=np.bool_))

    def _phantom(self, number: int) -> Int:
        return self.at.runs[int(self.at.phantom_forward[number])].phantom

    @cached_property
    def tensors(self) -> list[Int]:
        """Tensors of each item."""
        data = [np.array([tensor]) for tensor in self.at.tensor[self.data].tolist()]
        return data + [self._phantom(i) for i in self.phantoms.tolist()]

    def total(self, of_tensors: Int) -> Int:
        """Return the sum over the tensors of each item."""
        return np.array([int(of_tensors[each].sum()) for each in self.tensors], dtype=np.int64)

    @cached_property
    def maker(self) -> Int:
        """Node that makes each item."""
        return np.concatenate([self.at.maker[self.data], self.at.node[self.at.phantom_forward[self.phantoms]]])

    @property
    def apart(self) -> Apart:
        """Masks of the items among data and phantoms."""
        masks = Apart.none(self.at)
        masks.data[self.data] = True
        masks.phantoms[self.phantoms] = True
        return masks

    def item_of(self, mask: Bool, first: int) -> Int:
        """Return the items of those in a mask, numbered from `first`; NONE for others."""
        return np.where(mask, first + np.cumsum(mask) - 1, NONE)


class TimedProgram(Program):
    """Model of :class:`~remat.formulations.timed_h_ilp.TimedHIlp`."""

    def __init__(self, name: str, problem: Problem, phases: Phases, movable: Movable) -> None:
        self.problem, self.movable = problem, movable
        super().__init__(name, phases, phases.at.clock)

    @cached_property
    def links(self) -> LinkFlows:
        """Links; their variables come before the rows of phantoms and data."""
        at, phases, movable = self.at, self.phases, self.movable
        data, phantoms = movable.data, movable.phantoms
        kept = np.hstack([phases.kept[:-1, data], phases.phantom_kept[:-1, phantoms]])
        stage, item = np.nonzero(kept != NONE)
        onward = np.hstack([self.levels.P[1:, data], self.levels.Sp[1:, phantoms]])
        needed = np.zeros(onward.shape, dtype=np.bool_)
        sure = at.hard & (self._data_item[at.read_data] != NONE)
        needed[at.read_node[sure], self._data_item[at.read_data[sure]]] = True
        size = at.whole.arrays.size
        return LinkFlows(
            self.problem, self.model,
            Items(movable.maker, movable.total(size), movable.total(movable.times.write),
                  movable.total(movable.times.read), stage, item, onward, needed, *self._item_reads()),
        )  # fmt: skip

    @cached_property
    def _data_item(self) -> Int:
        return self.movable.item_of(self.movable.apart.data, 0)

    @cached_property
    def _phantom_item(self) -> Int:
        return self.movable.item_of(self.movable.apart.phantoms, len(self.movable.data))

    def _item_reads(self) -> tuple[Int, Int, Int, Int]:
        """Return phase and item of each read of an item, and index and column of the runs that read."""
        at, phases = self.at, self.phases
        t, read, *_ = phases.reads
        place, term = phases.read_terms
        item = self._data_item[at.read_data[read]]
        mine = item != NONE
        chosen = mine[place]
        phantoms = self.movable.phantoms
        back = at.phantom_backward[phantoms]
        t_back, number = np.nonzero(phases.may[:, at.node[back]])
        return (
            np.concatenate([t[mine], t_back]),
            np.concatenate([item[mine], self._phantom_item[phantoms[number]]]),
            np.concatenate([(np.cumsum(mine) - 1)[place[chosen]], int(mine.sum()) + np.arange(len(t_back))]),
            column(self.R, np.concatenate([term[chosen], phases.run_column(t_back, back[number])])),
        )

    def _data_otherwise(self, t: Int, d: Int) -> tuple[Int, ...]:
        return (self.links.fetched(t, self._data_item[d]),)

    def _phantoms_otherwise(self, t: Int, phantom: Int) -> tuple[Int, ...]:
        return (self.links.fetched(t, self._phantom_item[phantom]),)

    def _minimise(self) -> None:
        """Add the rows of links, and set the objective."""
        at, phases, links = self.at, self.phases, self.links
        slot, choice = phases.run_choice
        sure = np.flatnonzero(phases.sure)
        slots = np.concatenate([slot, sure])
        run = np.concatenate([self.R.index, np.full(len(sure), ONE)])
        cost = at.cost[np.concatenate([choice, at.first[phases.run_node[sure]]])]
        t = phases.run_phase[slots]
        last = t == phases.run_node[slots]
        links.add_rows(self.model, (t[~last], run[~last], cost[~last]), (t[last], run[last], cost[last]))
        self._written_option()
        super()._minimise()
        links.minimise_stalls(self.model)

    def _written_option(self) -> None:
        """Add (t7): a phantom is written only if its layer first runs with its option."""
        at, phantoms = self.at, self.movable.phantoms
        ahead = at.phantom_forward[phantoms]
        node = at.node[ahead]
        first = column(self.R, self.phases.run_column(node, ahead))
        copies = self.links.W[self._phantom_item[phantoms]]
        row = np.arange(len(phantoms))
        self.model.add(
            rows_from("(t7) written as first made", (row, copies, 1), (row, first, -1), num_rows=len(row), upper=0)
        )
