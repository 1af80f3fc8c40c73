"""Rows of the hierarchical program on what computes need: (d1) to (d3), (a2), and limits of computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from remat.formulations.hierarchical.choices import Levels, Phases
from remat.modeling import Model, Vars
from remat.modeling.rows import NONE, column, expand, rows_from, sum_rows

if TYPE_CHECKING:
    from remat.formulations.hierarchical.formulation import HIlp

Int = NDArray[np.int64]


def computes(phases: Phases, R: Vars, t: Int, node: Int) -> tuple[Int, Int]:
    """(place, column of R) for all choices of nodes in phases; nothing where they cannot run."""
    at = phases.at
    place, rank = expand(np.where(phases.may[t, node], at.num[node], 0))
    return place, column(R, phases.run_column(t[place], at.first[node[place]] + rank))


def add_data(model: Model, R: Vars, shared: tuple[Vars, Vars], h: HIlp, levels: Levels) -> None:
    """(d1) to (d3) and (a2); `shared` are the variables S and K."""
    at, phases = h.tables, h.phases
    # one contributor: what is there first, or is carried on, was there before or is made
    t, d = np.nonzero(np.arange(at.T)[:, None] >= at.maker)
    alone = (at.makers[d] == 1) & (t > at.maker[d]) & (levels.first[t, d] != NONE)
    alone &= levels.first[t, d] != levels.P[t, d]
    t, d = t[alone], d[alone]
    row = np.arange(len(t), dtype=np.int64)
    place, term = computes(phases, R, t, at.maker[d])
    model.add(
        rows_from(
            "(d2)-(d3) kept or made",
            (row, levels.first[t, d], 1),
            (row, levels.P[t, d], -1),
            (place, term, -1),
            num_rows=len(t),
            upper=0,
        )
    )
    # several
    parts = phases.parts
    node, data = at.make_node[parts], at.make_data[parts]
    s, k = column(shared[0], phases.contribution_kept), column(shared[1], phases.contribution)
    t, m = np.nonzero(phases.contribution_kept[:-1] != NONE)
    model.add(sum_rows("(d1) contributions to what is there", s[t, m], levels.P[t, data[m]]))
    t, m = np.nonzero(k != NONE)
    row = np.arange(len(t), dtype=np.int64)
    place, term = computes(phases, R, t, node[m])
    model.add(rows_from("(d2) contribute", (row, k[t, m], 1), (place, term, -1), num_rows=len(t), upper=0))
    t, m = np.nonzero((phases.contribution_kept[1:] != NONE) & (s[1:] != s[:-1]))
    model.add(sum_rows("(d2) contributions kept", s[t + 1, m], s[t, m], k[t, m]))
    _complete(model, R, h, (s, k))
    _contributions(model, k, h, levels)


def _complete(model: Model, R: Vars, h: HIlp, columns: tuple[Int, Int]) -> None:
    """(d3) for accumulation buffers."""
    (s, k), at, phases = columns, h.tables, h.phases
    t, read, *_ = phases.reads
    shared = np.flatnonzero(at.makers[at.read_data[read]] > 1)
    use, rank = expand(at.makers[at.read_data[read[shared]]])
    place = shared[use]
    m = phases.part_of[at.first_make[at.read_data[read[place]]] + rank]
    row = np.arange(len(place), dtype=np.int64)
    entry, term = phases.read_terms
    first = np.searchsorted(entry, place)
    again, rank = expand(at.read_count[read[place]])
    model.add(
        rows_from(
            "(d3) complete",
            (again, column(R, term)[first[again] + rank], 1),
            (row, k[t[place], m], -1),
            (row, s[t[place], m], -1),
            num_rows=len(place),
            upper=0,
        )
    )


def _contributions(model: Model, k: Int, h: HIlp, levels: Levels) -> None:
    """(a2)."""
    at, phases = h.tables, h.phases
    t, make, *_ = phases.makes
    shared = np.flatnonzero(at.makers[at.make_data[make]] > 1)
    t, make = t[shared], make[shared]
    given = k[t, phases.part_of[make]]
    for name, low in (("(a2) there from before", levels.before[shared]), ("(a2) there once begun", given)):
        use = np.flatnonzero((low != NONE) & (low != levels.after[shared]))
        model.add(sum_rows(name, low[use], levels.after[shared][use]))


def add_limits(model: Model, R: Vars, h: HIlp) -> None:
    """Limits of computes of ops."""
    at, phases = h.tables, h.phases
    limits = h.problem.compute_limits
    limited = np.array([limit is not None for limit in limits], dtype=np.bool_)
    rows: dict[bytes, tuple[Int, Int, int]] = {}
    counts: dict[int, list[tuple[int, int]]] = {}
    for choice, run in enumerate(at.runs):
        ops, times = np.unique(run.ops[limited[run.ops]], return_counts=True)
        for op, count in zip(ops.tolist(), times.tolist(), strict=True):
            counts.setdefault(op, []).append((choice, count))
    for op, found in counts.items():
        choices, times = np.array(found, dtype=np.int64).T
        key = np.concatenate([choices, times]).tobytes()
        most = limits[op] or 0
        if key not in rows or rows[key][2] > most:
            rows[key] = choices, times, most
    which, term, value = [], [], []
    for number, (choices, times, _) in enumerate(rows.values()):
        t, place = np.nonzero(phases.may[:, at.node[choices]])
        which.append(np.full(len(t), number))
        term.append(column(R, phases.run_column(t, choices[place])))
        value.append(times[place])
    if rows:
        model.add(
            rows_from("limit of computes", (np.concatenate(which), np.concatenate(term), np.concatenate(value)),
                      num_rows=len(rows), upper=[float(most) for _, _, most in rows.values()])
        )  # fmt: skip
