"""Variables of retention intervals, with their literals and times."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from remat.formulations.base import Values
from remat.formulations.retention_intervals.layout import IntervalsLayout
from remat.formulations.retention_intervals.tables import EVERY
from remat.modeling import ALWAYS, Model
from remat.modeling.model import Named
from remat.modeling.rows import expand
from remat.runtime.arrays import Bool, Int


class IntervalVariables:
    """Variables of one model.

    With `covers`, reads with a choice of instances have cover literals.
    """

    def __init__(self, layout: IntervalsLayout, model: Model, *, covers: bool) -> None:
        self.layout, self.model = layout, model
        self.contributions = layout.contributions
        self.has_covers = covers
        self.blocks = self._make(model, len(self.covered) if covers else 0)

    def _make(self, model: Model, covers: int) -> Named:
        at, horizon = self.layout, self.layout.horizon
        copies, buffers = len(at.copy_node), len(at.tables.buffers)
        copy, units = np.nonzero(self.after_table >= 0)
        model.integers("start", copies, at.first, at.last)
        model.booleans("active", copies, lower=(at.copy_rank == 0).astype(np.int64))  # (7)
        model.booleans("option", int(self.choice_counts.sum()))
        model.booleans("some", int(self.set_counts.sum()))
        model.integers("end", len(at.made), at.first[at.made.copy] + at.made.last + 1, horizon + 1)
        model.integers("after", len(copy), at.first[copy] + units, at.last[copy] + units)
        model.integers("buffer_start", buffers, 1, horizon)
        model.integers("buffer_end", buffers, 2, horizon + 1)
        model.booleans("transient", len(self.contributions))
        model.booleans("masked", len(self.contributions))
        model.booleans("keep", len(self.kept))
        model.booleans("cover", covers)
        return model.named

    @cached_property
    def choice_first(self) -> Int:
        """Index of the first option variable of each copy; copies of nodes with one run have none."""
        counts = self.choice_counts
        return np.cumsum(counts) - counts

    @cached_property
    def choice_counts(self) -> Int:
        """Number of option variables of each copy."""
        runs = np.diff(self.layout.tables.run_first)[self.layout.copy_node]
        return np.where(runs > 1, runs, 0)

    @cached_property
    def set_counts(self) -> Int:
        """Number of sets of options of each copy that have a variable."""
        nodes = len(self.layout.copy_first)
        return np.bincount(self.layout.tables.set_node, minlength=nodes)[self.layout.copy_node].astype(np.int64)

    @cached_property
    def after_table(self) -> Int:
        """Index in `after` of each (copy, units after its start); -1: none. Shape (copies, width + 1)."""
        at, tables, again = self.layout, self.layout.tables, self.contributions
        needed = np.zeros((len(at.copy_node), at.width + 1), dtype=np.bool_)
        copy, piece = self.pieces
        needed[copy, tables.piece_begin[piece]] = needed[copy, tables.piece_end[piece]] = True
        needed[at.made.copy, at.made.begin] = True
        needed[again.copy, again.begin] = needed[again.copy, again.last + 1] = True
        needed[:, 0] = False  # `start` itself
        table = np.full(needed.shape, -1, dtype=np.int64)
        table[needed] = np.arange(int(needed.sum()))
        return table

    @cached_property
    def pieces(self) -> tuple[Int, Int]:
        """(copy, piece) of every piece of every copy's runs."""
        at, tables = self.layout, self.layout.tables
        node = tables.run_node[tables.piece_run]
        piece, rank = expand(at.copies[node])
        return at.copy_first[node[piece]] + rank, piece

    @cached_property
    def kept(self) -> Int:
        """Instances that may be kept to the end and that only some runs of their node make."""
        at = self.layout
        return np.flatnonzero(at.tables.kept[at.made.tensor] & (at.made.runs != EVERY))

    @cached_property
    def covered(self) -> Int:
        """Pairs of a read and an instance that need a literal: all but those of reads without a choice."""
        at = self.layout
        choices = np.bincount(at.pair_read, minlength=len(at.read))[at.pair_read]
        sure = (at.copy_rank[at.made.copy[at.pair_made]] == 0) & (at.made.runs[at.pair_made] == EVERY)
        return np.flatnonzero((choices > 1) | ~sure)

    @cached_property
    def active(self) -> Int:
        """Literal that is true if the copy runs; shape (copies,)."""
        return np.where(self.layout.copy_rank == 0, ALWAYS, self.blocks.active.index)

    def literal(self, copy: Int, runs: Int) -> Int:
        """Return the literals that are true if copies run with one of a set of their options."""
        x = self.blocks
        own = self.choice_counts[copy]
        option = self.choice_first[copy] + runs
        some = (np.cumsum(self.set_counts) - self.set_counts)[copy] + runs - own
        one = (runs >= 0) & (runs < own)
        several = (runs >= own) & (runs >= 0)
        result = self.active[copy]
        result[one] = x.option.index[option[one]]
        result[several] = x.some.index[some[several]]
        return result

    def time(self, copy: Int, units: Int) -> Int:
        """Return the variable of the time `units` after the start of a copy."""
        x, place = self.blocks, self.after_table[copy, units]
        return np.where(units == 0, x.start.index[copy], x.after.index[place] if len(x.after) else x.start.index[copy])

    def chosen(self, values: Values) -> Int:
        """Return the run of each copy (its index among all runs), -1 for idle copies; shape (copies,)."""
        at, x = self.layout, self.blocks
        run = np.where(values[x.active.index] > 0.5, at.tables.run_first[at.copy_node], -1)
        copy, place = expand(self.choice_counts)
        taken = values[x.option.index] > 0.5
        run[copy[taken]] = at.tables.run_first[at.copy_node[copy[taken]]] + place[taken]
        return run

    def holds(self, values: Values, copy: Int, runs: Int) -> Bool:
        """Return a mask of copies that run with one of a set of their options, according to the values."""
        literal = self.literal(copy, runs)
        sure = literal == ALWAYS
        return sure | (values[np.where(sure, 0, literal)] > 0.5)
