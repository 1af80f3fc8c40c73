"""Variables of the hierarchical programme by phase, and tables of their columns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from remat.formulations.h_ilp.layout import Tables
from remat.modeling.rows import NONE, ONE, expand, last_of
from remat.runtime.arrays import Bool, Int


class Touches(NamedTuple):
    """Reads, or makes, in the phases in which their nodes may run; sorted by phase, then datum, then node."""

    t: Int
    item: Int
    """Number of the read or make in `Tables`; its phase is in `t`."""
    last: Bool
    """True for the datum's last read or make in that phase."""
    keys: Int
    """Key of each read or make, ascending."""
    total: int
    """Number of reads or makes in `Tables`."""

    @classmethod
    def of(cls, may: Bool, node: Int, data: Int) -> Touches:
        """Number the touches of nodes that may run."""
        t, item = np.nonzero(may[:, node])
        return cls(t, item, last_of(t, data[item]), t * len(node) + item, len(node))

    def place(self, t: Int | int, item: Int | int) -> Int:
        """Return the indices of reads or makes among these, in phases in which their nodes may run."""
        return np.searchsorted(self.keys, np.asarray(t) * self.total + item)


class Apart(NamedTuple):
    """Data and phantoms for which the retention into each phase is a choice of its own: they may come from a host."""

    data: Bool
    phantoms: Bool

    @classmethod
    def none(cls, tables: Tables) -> Apart:
        """Return masks without any."""
        data, phantoms = len(tables.tensor), len(tables.phantom_layer)
        return cls(np.zeros(data, dtype=np.bool_), np.zeros(phantoms, dtype=np.bool_))


class Phases:
    """Numbers of the possible runs, retentions and reads in each phase.

    `may[t, k]` is true if node k may run in phase t. `now` lists the phases of its rows, ascending, if these are only a
    sample; only `until`, `active` and `phantom_runs` are then valid.
    """

    def __init__(self, tables: Tables, may: Bool, now: Int | None = None, apart: Apart | None = None) -> None:
        self.at, self.may = tables, may
        self.apart = apart or Apart.none(tables)
        now = np.arange(tables.T) if now is None else now
        self.run_phase, self.run_node = np.nonzero(may)
        """Every (phase, node) that may run, sorted by phase, then node."""
        self.slot = np.full(may.shape, NONE, dtype=np.int64)
        """[phase, node]: number of the slot, or NONE."""
        self.slot[self.run_phase, self.run_node] = np.arange(len(self.run_phase))
        last_run = np.where(may.any(axis=0), now[::-1][may[::-1].argmax(axis=0)], 0)
        last_run = self.last_run = np.maximum(last_run, np.arange(tables.T))  # the first compute is in phase k
        until = np.full(len(tables.tensor), -1, dtype=np.int64)
        np.maximum.at(until, tables.read_data, last_run[tables.read_node])
        until[tables.kept] = tables.T
        self.until = until
        """Last phase into which retaining the datum can be useful; T if it is kept to the end."""

    @cached_property
    def sure(self) -> Bool:
        """Mask of the slots with a single choice that must run, and hence no column."""
        return (self.run_phase == self.run_node) & (self.at.num[self.run_node] == 1)

    @cached_property
    def run_choice(self) -> tuple[Int, Int]:
        """(slot, choice) of every column of R."""
        slot, rank = expand(np.where(self.sure, 0, self.at.num[self.run_node]))
        return slot, self.at.first[self.run_node[slot]] + rank

    def run_column(self, t: Int, choice: Int) -> Int:
        """Return the number of R for a choice of a node in a phase; NONE if the node cannot run, ONE if it must."""
        slot = self.slot[t, self.at.node[choice]]
        if not len(slot):
            return slot
        number = np.searchsorted(self.run_choice[0], slot) + choice - self.at.first[self.at.node[choice]]
        return np.where(slot == NONE, NONE, np.where(self.sure[slot], ONE, number))

    @cached_property
    def active(self) -> Bool:
        """[t, d]: true if a node that may run in phase t reads or makes d; shape (T, data)."""
        at = self.at
        table = np.zeros((len(self.may), len(at.tensor)), dtype=np.bool_)
        for node, data in ((at.read_node, at.read_data), (at.make_node, at.make_data)):
            for t in at.clock.each(range(len(self.may)), 16):
                table[t, data[self.may[t, node]]] = True
        return table

    def _numbered(self, from_: Int, to: Int, moves: Bool) -> Int:
        """Number retentions into phases ``from_ <= t <= to``; a phase without `moves` passes its number on."""
        T = self.at.T
        table = np.full((T + 1, len(from_)), NONE, dtype=np.int64)
        owner, rank = expand(np.maximum(0, np.minimum(to, T - 1) - from_ + 1))
        t = from_[owner] + rank
        fresh = (rank == 0) | moves[t - 1, owner]
        table[t, owner] = np.cumsum(fresh) - 1
        return table

    @cached_property
    def kept(self) -> Int:
        """[t, d]: number of P, NONE or ONE; shape (T + 1, data)."""
        table = self._numbered(self.at.maker + 1, self.until, self.active | self.apart.data)
        table[-1, self.at.kept] = ONE
        return table

    @cached_property
    def parts(self) -> Int:
        """Makes that contribute to an accumulation buffer."""
        return np.flatnonzero(self.at.makers[self.at.make_data] > 1)

    @cached_property
    def part_of(self) -> Int:
        """Index of each make in `parts`, or NONE."""
        table = np.full(len(self.at.make_data), NONE, dtype=np.int64)
        table[self.parts] = np.arange(len(self.parts))
        return table

    @cached_property
    def contribution_kept(self) -> Int:
        """[t, index in `parts`]: number of S; shape (T + 1, parts)."""
        node, data = self.at.make_node[self.parts], self.at.make_data[self.parts]
        table = self._numbered(node + 1, self.until[data], self.active[:, data])
        table[-1, self.at.kept[data]] = ONE
        return table

    @cached_property
    def contribution(self) -> Int:
        """[t, index in `parts`]: number of K; shape (T, parts)."""
        node = self.at.make_node[self.parts]
        table = np.full((self.at.T, len(node)), NONE, dtype=np.int64)
        there = np.nonzero(self.may[:, node])
        table[there] = np.arange(len(there[0]))
        return table

    @cached_property
    def phantom_runs(self) -> tuple[Bool, Bool]:
        """[t, phantom]: true if the forward, and the backward node may run in phase t; shapes (T, phantoms)."""
        at = self.at
        return self.may[:, at.node[at.phantom_forward]], self.may[:, at.node[at.phantom_backward]]

    @cached_property
    def phantom_kept(self) -> Int:
        """[t, phantom]: number of Sp; shape (T + 1, phantoms)."""
        at = self.at
        ahead, back = self.phantom_runs
        first, last = at.node[at.phantom_forward] + 1, self.last_run[at.node[at.phantom_backward]]
        return self._numbered(first, last, ahead | back | self.apart.phantoms)

    @cached_property
    def phantom(self) -> tuple[Int, Int]:
        """[t, phantom]: number of Q if it is a variable, else NONE; and its kind, 0: variable, 1: Sp[t+1], 2: Sp[t]."""
        ahead, back = self.phantom_runs
        kind = np.where((ahead | self.apart.phantoms) & back, 0, np.where(back, 2, 1))
        number = np.full(ahead.shape, NONE, dtype=np.int64)
        there = np.nonzero(kind == 0)
        number[there] = np.arange(len(there[0]))
        return number, kind

    @cached_property
    def reads(self) -> Touches:
        """Reads within each phase."""
        return Touches.of(self.may, self.at.read_node, self.at.read_data)

    @cached_property
    def fixed(self) -> Bool:
        """[t, d]: true if d is live in phase t, from its last maker on, for every choice; shape (T, data)."""
        at = self.at
        table = np.zeros((at.T, len(at.tensor)), dtype=np.bool_)
        sure = at.hard
        table[at.read_node[sure], at.read_data[sure]] = True
        table[-1, at.kept] = True
        return table

    @cached_property
    def read_terms(self) -> tuple[Int, Int]:
        """(index in `reads`, column of R) of the choices that read."""
        at = self.at
        t, read, *_ = self.reads
        place, rank = expand(at.read_count[read])
        choice = at.read_choice[at.read_first[read[place]] + rank]
        return place, self.run_column(t[place], choice)

    @cached_property
    def makes(self) -> Touches:
        """Makes within each phase."""
        return Touches.of(self.may, self.at.make_node, self.at.make_data)


@dataclass(frozen=True, eq=False)
class Levels:
    """Columns of the liveness of data at each point of a phase; NONE: never live, ONE: always live.

    Attributes
    ----------
    P : int64 array, shape (T + 1, data)
        Before each phase.
    first : int64 array, shape (T, data)
        After the position of its last maker, up to its first reader.
    live, following : int64 arrays, shape (reads of `Phases.reads`,)
        Up to that reader; after it.
    before, after, over : int64 arrays, shape (makes of `Phases.makes`,)
        Before that maker; after it; and the amount to add to the latter while the maker runs. While the maker runs for
        the first time, ONE replaces `after`.
    phantom : int64 array, shape (T, phantoms)
        After the position of the forward node, up to that of the backward node.
    Sp : int64 array, shape (T + 1, phantoms)
        Before each phase.
    """

    P: Int
    first: Int
    live: Int
    following: Int
    before: Int
    after: Int
    over: Int
    phantom: Int
    Sp: Int
