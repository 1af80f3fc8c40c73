"""Rows of memory of the hierarchical program: (u) and (10)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from remat.formulations.hierarchical.choices import Levels
from remat.formulations.hierarchical.dependencies import computes
from remat.formulations.hierarchical.layout import NodeRow
from remat.modeling import Model, Vars
from remat.modeling.rows import NONE, ONE, Term, rows_from

if TYPE_CHECKING:
    from remat.formulations.hierarchical.formulation import HIlp

Int = NDArray[np.int64]


def add_memory(model: Model, R: Vars, h: HIlp, levels: Levels) -> None:
    """(u) and (10); the variables U are units, one for each slot."""
    phases = h.phases
    # where interfaces come and go inside a node, what it holds is less than U
    loose = np.array([not _is_plain(rows) for rows in h.tables.rows], dtype=np.bool_)[phases.run_node]
    U = model.implied("U", len(phases.run_phase), 0, np.where(loose, h.tables.most, h.tables.capacity))
    keys = phases.run_phase * h.tables.T + phases.run_node
    terms: list[Term] = [(np.arange(len(keys)), U.index, 1)]
    for t, slot, column_, bytes_ in h.deadline.each(changes(h, levels), 1):
        good = (slot <= t) & (column_ != NONE) & (bytes_ != 0)
        row = np.searchsorted(keys, (t * h.tables.T + slot)[good])
        terms.append((row, column_[good], -(bytes_[good] // h.tables.unit)))
    on = np.flatnonzero(phases.run_phase[1:] == phases.run_phase[:-1]) + 1
    terms.append((on, U.index[on - 1], -1))
    model.add(rows_from("(u) memory", *terms, num_rows=len(keys), lower=0, upper=0))
    _add_rows(model, (R, U), h, levels)


def _is_plain(rows: list[NodeRow]) -> bool:
    """Whether the only row of a node has no corrections."""
    return len(rows) == 1 and not len(rows[0].freed) and not len(rows[0].hidden)


def stated(rows: list[NodeRow]) -> list[NodeRow]:
    """The rows of a node that say more than the bound of U."""
    return [] if _is_plain(rows) and (rows[0].memory <= 0).all() else rows


def changes(h: HIlp, levels: Levels) -> list[tuple[Int, Int, Int, Int]]:
    """(phase, node from which on it holds, column, bytes) of all that comes and goes within phases."""
    at, phases, found = h.tables, h.phases, []

    def put(t: Int, slot: Int, there: Int, size: Int) -> None:
        found.append((t, np.broadcast_to(slot, t.shape), there, np.broadcast_to(size, t.shape)))

    zero = np.zeros(1, dtype=np.int64)
    t, d = np.nonzero(np.arange(at.T)[:, None] > at.maker)
    put(t, zero, levels.P[t, d], at.size[d])
    # where no maker may run, it is what is read later that is there after the last one's place
    runs = np.zeros((at.T, len(at.tensor)), dtype=np.bool_)
    phase, make, *_ = phases.makes
    runs[phase, at.make_data[make]] = True
    idle = ~runs[t, d] & (t > at.last_maker[d])
    put(t[idle], at.last_maker[d[idle]], levels.P[t, d][idle], -at.size[d[idle]])
    put(t[idle], at.last_maker[d[idle]], levels.first[t, d][idle], at.size[d[idle]])
    node, size = at.make_node[make], at.size[at.make_data[make]]
    put(phase, node, levels.before, -size)
    put(phase, node, np.where(phase == node, ONE, levels.after), size)
    put(phase, node, levels.over, size)
    put(phase, node + 1, levels.over, -size)
    phase, read, *_ = phases.reads
    node, size = at.read_node[read], at.size[at.read_data[read]]
    put(phase, node + 1, levels.live, -size)
    put(phase, node + 1, levels.following, size)
    ahead, back = at.node[at.phantom_forward], at.node[at.phantom_backward]
    size = at.saved[at.phantom_forward]
    t, j = np.nonzero(np.arange(at.T)[:, None] >= ahead)
    put(t, zero, levels.Sp[t, j], size[j])
    put(t, ahead[j], levels.Sp[t, j], -size[j])
    put(t, ahead[j], levels.phantom[t, j], size[j])
    put(t, back[j], levels.phantom[t, j], -size[j])
    put(t, back[j], levels.Sp[t + 1, j], size[j])
    return found


def _add_rows(model: Model, blocks: tuple[Vars, Vars], h: HIlp, levels: Levels) -> None:
    """(10) where it is more than the bound of U."""
    (R, U), at, phases = blocks, h.tables, h.phases
    terms: list[tuple[Int, Int, Int]] = []
    count = 0
    for k in range(at.T):
        t = np.flatnonzero(phases.may[:, k])
        slots, (place, runs) = phases.slot[t, k], computes(phases, R, t, np.full(len(t), k))
        for each in h.deadline.each(stated(at.rows[k]), 1):
            numbers = count + np.arange(len(slots), dtype=np.int64)
            terms.append((numbers, U.index[slots], np.ones(len(slots), dtype=np.int64)))
            terms.append((numbers[place], runs, np.tile(each.memory // at.unit, len(slots))))
            for there, size in corrections(h, levels, k, slots, each):
                terms.append((numbers, there, np.full(len(slots), size // at.unit)))
            count += len(slots)
    if count:
        row, there, units = (np.concatenate(part) for part in zip(*terms, strict=True))
        model.add(rows_from("(10) budget", (row, there, units), num_rows=count, upper=at.capacity))


def corrections(h: HIlp, levels: Levels, k: int, slots: Int, row: NodeRow) -> list[tuple[Int, int]]:
    """(columns by slot, bytes) that a row of node k has besides U: less D of what is freed, and C of what is hidden."""
    at, phases = h.tables, h.phases
    t, size = phases.run_phase[slots], at.size
    found: list[tuple[Int, int]] = []
    for d in row.freed.tolist():
        if (k, d) in at.read_of:
            place = phases.reads.place(t, at.read_of[k, d])
            found += [(levels.live[place], -int(size[d])), (levels.following[place], int(size[d]))]
    for d in {*row.freed.tolist(), *row.hidden.tolist()}:
        if (k, d) not in at.make_of:
            continue
        place = phases.makes.place(t, at.make_of[k, d])
        first, over, after = t == k, levels.over[place], levels.after[place]
        if d in row.freed:
            found += [(np.where(first, ONE, over), -int(size[d])), (np.where(first, after, NONE), int(size[d]))]
        else:
            found += [
                (np.where(first, ONE, over), -int(size[d])), (np.where(first, NONE, after), -int(size[d])),
                (levels.before[place], int(size[d])),
            ]  # fmt: skip
    return found
