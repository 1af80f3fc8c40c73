"""Formulation of orders with distinct positions of ops, and intervals in which tensors are held."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from remat.formulations.base import Values
from remat.formulations.ordering.base import CLOSURE_OPS, OrderFormulation
from remat.formulations.ordering.layout import rows_where
from remat.graphs.arrays import Csr
from remat.modeling import ALWAYS, AllDifferent, Cumulative, Model
from remat.modeling.alternatives import WrittenModel
from remat.modeling.model import Named
from remat.modeling.naming import Labels
from remat.modeling.rows import difference_rows
from remat.modeling.size import ModelSize
from remat.runtime.arrays import Int

TEXT = Path(__file__).with_name("order_intervals.mzn")


class OrderIntervals(OrderFormulation):
    r"""Order as distinct positions of ops, and intervals in which tensors are held: for constraint solvers.

    **Sets.** Ops v ∈ V, |V| = n, each computed once. anc(v), desc(v): ops that must come before and after v. (u, v) ∈
    A: u must precede v, and no third op must be between them. Tensors t of size m_t, written by F_t (several ops, if it
    is an accumulation buffer) and read by R_t; w_v: workspace of v, and its results that are neither read nor kept.

    **Variables.** s_v: position of v, from |anc(v)| + 1 to n − |desc(v)|. Tensor t is held from position b_t to
    position e_t − 1. τ: the peak.

    **Constraints**::

        (1) all s_v are different
        (2) s_u + 1 ≤ s_v                                                (u, v) ∈ A
        (3) b_t ≤ s_v for v ∈ F_t;   e_t ≥ s_v + 1 for v ∈ R_t;   e_t = n + 1 if t is kept
        (4) sum of m_t over t with b_t ≤ k < e_t, plus w_v of the op with s_v = k, ≤ τ     for every position k
        (5) minimise τ

    (4) is one cumulative resource. (3) leaves out an op of F_t if another one of F_t precedes it in every order, and
    an op of R_t if another one of R_t follows it. If a single op v is left, b_t is s_v, or e_t is s_v + 1, a variable
    that tensors share. Tensors with the same ops in (3) are merged. The bounds of s_v follow from (1), (2) and the
    numbers of ancestors and descendants.

    For the **least cost within a budget**, τ is the budget and there is no objective: all orders cost the same.

    Examples
    --------
    >>> from remat import Problem
    >>> from remat.graphs.families import in_tree
    >>> print(OrderIntervals(Problem(in_tree(2), order="free", objective="least-peak")).build())
    model order-intervals: 12 variables, 11 constraints
      start                    integer       7   (7,)
      after                    integer       3   (3,)
      begin                    integer       0   (0,)
      end                      integer       0   (0,)
      finish                   integer       1   (1,)
      tau                      integer       1   (1,)
      (1) different positions  alldifferent  1   7 variables
      (2) precedence           linear        6   12 non-zeros
      (3) after                linear        3   6 non-zeros
      (4) memory               cumulative    1   7 intervals
      minimise                 1 terms
    """

    name = "order-intervals"

    def build(self) -> Model:
        return self.statement[0]

    @cached_property
    def _several(self) -> tuple[Csr, Csr]:
        """Groups of two or more first ops, and of two or more last ops."""
        at = self.layout
        return rows_where(at.first, at.first.counts > 1), rows_where(at.last, at.last.counts > 1)

    @cached_property
    def _ends(self) -> Int:
        """Ops after which memory is freed: their workspace, or tensors whose only last reader they are."""
        at = self.layout
        ends = at.workspace > 0
        ends[at.last.indices[((at.last.counts == 1) & ~at.kept)[at.last.rows]]] = True
        return np.flatnonzero(ends)

    @cached_property
    def statement(self) -> tuple[Model, Named]:
        """Model and its variables."""
        model, at, n = Model(self.name), self.layout, self.num_ops
        soonest, latest, ends = at.soonest, at.latest, self._ends
        firsts, lasts = self._several
        model.integers("start", n, soonest, latest)
        model.integers("after", len(ends), soonest[ends] + 1, latest[ends] + 1)
        model.integers("begin", len(firsts), firsts.lowest(soonest, n), firsts.lowest(latest, n))
        model.integers("end", len(lasts), lasts.highest(soonest, 0) + 1, lasts.highest(latest, 0) + 1)
        model.integers("finish", 1, n + 1, n + 1)
        tau, x = self.aim(model), model.named
        model.add(AllDifferent("(1) different positions", x.start.index))
        u, v = at.arcs
        model.add(
            difference_rows("(2) precedence", x.start[v], x.start[u], 1),
            difference_rows("(3) begins", x.start[firsts.indices], x.begin[firsts.rows], 0),
            difference_rows("(3) ends", x.end[lasts.rows], x.start[lasts.indices], 1),
            difference_rows("(3) after", x.after.index, x.start[ends], 1, exact=True),
        )
        self.deadline.check()
        after = np.zeros(n, dtype=np.int64)
        after[ends] = x.after.index
        begin = x.start[at.first.indices[at.first.indptr[:-1]]].copy()
        begin[at.first.counts > 1] = x.begin.index
        end = after[at.last.indices[at.last.indptr[:-1]]]
        end[at.last.counts > 1] = x.end.index
        end[at.kept] = x.finish.index[0]
        working = np.flatnonzero(at.workspace > 0)
        demand = np.concatenate([at.size, at.workspace[working]]) // self.unit
        model.add(
            Cumulative(
                "(4) memory",
                start=np.concatenate([begin, x.start[working]]),
                end=np.concatenate([end, after[working]]),
                demand=demand,
                presence=np.full(len(demand), ALWAYS, dtype=np.int64),
                capacity=self.capacity,
                capacity_variable=None if tau is None else int(tau.index[0]),
            )
        )
        model.overrides["minizinc"] = self._text
        return model, x

    def _text(self) -> WrittenModel:
        """Return the model in MiniZinc; ops are numbered from 1."""
        at, peak = self.layout, self.objective.is_memory
        data = {
            "workspace": at.workspace // self.unit,
            "soonest": at.soonest,
            "latest": at.latest,
            "before": at.arcs[0] + 1,
            "after": at.arcs[1] + 1,
            "size": at.size // self.unit,
            "writers": [{op + 1 for op in row} for row in at.first.lists()],
            "readers": [{op + 1 for op in row} for row in at.last.lists()],
            "kept": at.kept,
            "least_peak": min(self.least, self.capacity) if peak else self.capacity,
            "capacity": self.capacity,
            "lower_peak": peak,
        }
        unit, offset = (self.unit, self.held) if peak else (1, self.problem.graph.base_cost)
        return WrittenModel(TEXT, data, self._values, self._hint, unit, offset)

    def _hint(self, values: Values | None) -> Mapping[str, Any]:
        if values is None or not np.isfinite(values).all():
            return {"hint_start": []}
        return {"hint_start": np.rint(values[self.statement[1].start.index]).astype(np.int64)}

    def _values(self, output: Mapping[str, Any]) -> Values:
        """Return values of the model's variables from the output of the text."""
        model, _ = self.statement
        values = np.zeros(model.num_vars)
        values[model.objective.index] = output["peak"]
        self.fill(values, np.array(output["start"], dtype=np.int64))
        return values

    def estimate(self) -> ModelSize:
        n = self.num_ops
        arrays = self.problem.graph.arrays
        if n > CLOSURE_OPS:
            edges = len(arrays.edge_producer)
            return ModelSize(6 * edges, 2 * n * n)
        at, (firsts, lasts), ends = self.layout, self._several, len(self._ends)
        literals = len(firsts.indices) + len(lasts.indices)
        rows = at.arcs.shape[1] + literals + ends
        held = len(at.size) + int((at.workspace > 0).sum())
        return ModelSize(2 * rows + n + 3 * held + 1)

    def fill(self, values: Values, position: Int) -> None:
        _, x = self.statement
        firsts, lasts = self._several
        values[x.start.index] = position
        values[x.after.index] = position[self._ends] + 1
        values[x.begin.index] = firsts.lowest(position, self.num_ops)
        values[x.end.index] = lasts.highest(position, 0) + 1
        values[x.finish.index] = self.num_ops + 1

    def labels(self) -> Labels:
        ops = np.arange(self.num_ops, dtype=np.int64)
        return {"start": {"op": self.ops_named(ops)}, "after": {"op": self.ops_named(self._ends)}}

    def ranks(self, values: Values) -> Values:
        return np.rint(values[self.statement[1].start.index])
