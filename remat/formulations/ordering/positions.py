"""Formulation of orders as an assignment of ops to positions, by prefixes."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from remat.formulations.base import Values
from remat.formulations.ordering import liveness
from remat.formulations.ordering.base import CLOSURE_OPS, OrderFormulation
from remat.formulations.ordering.liveness import Liveness, MemoryLimit, add_memory
from remat.modeling import ALWAYS, Clauses, Linear, Model, Vars
from remat.modeling.bridges.literals import NEVER, ranges
from remat.modeling.naming import Labels
from remat.modeling.rows import pieces
from remat.modeling.size import ModelSize
from remat.runtime.arrays import Bool, Int


class OrderPositions(OrderFormulation):
    r"""Order as an assignment of ops to positions, stated by prefixes: linear rows, and memory as a sum.

    **Sets.** Ops v ∈ V, |V| = n, each computed once; positions p = 1..n. anc(v), desc(v): ops that must come before and
    after v. (u, v) ∈ A: u must precede v, and no third op must be between them. Tensors t of size m_t, written by F_t
    (several ops, if it is an accumulation buffer) and read by R_t; w_v: workspace of v, and its results that are
    neither read nor kept.

    **Variables.** z[v,p] ∈ {0,1}: v is at position p or an earlier one, so that x[v,p] = z[v,p] − z[v,p−1] is 1 if it
    is at position p. z[v,p] is 0 for p ≤ |anc(v)|, 1 for p ≥ n − |desc(v)|, and a variable between. b[t,p], r[t,p] ∈
    [0,1]: tensor t has begun by position p; it is still wanted there. τ: the peak.

    **Constraints**::

        (1) sum_v z[v,p] = p                                             one op at each position
        (2) z[v,p] ≥ z[v,p−1]                                            at a position for good
        (3) z[v,p] ≤ z[u,p−1]                                            (u, v) ∈ A
        (4) b[t,p] ≥ z[v,p] for v ∈ F_t;   r[t,p] ≥ 1 − z[v,p−1] for v ∈ R_t;   r[t,p] = 1 if t is kept
        (5) sum_t m_t (b[t,p] + r[t,p] − 1) + sum_v w_v (z[v,p] − z[v,p−1]) ≤ τ      for every position p
        (6) minimise τ

    (5) counts the tensors held at position p, which have begun and are still wanted. This is a sum, since a tensor that
    has not begun is always wanted. (4) leaves out an op of F_t if another one of F_t precedes it in every order, and an
    op of R_t if another one of R_t follows it. If a single op is left, b or r is a literal of its z, and no variable.
    Tensors with the same ops in (4) are merged.

    For the **least cost within a budget**, τ is the budget and there is no objective: all orders cost the same.

    Graph inputs are always held, and constant memory if the problem counts it. All sizes are divided by their greatest
    common divisor, with the budget rounded down.

    Examples
    --------
    >>> from remat import Problem
    >>> from remat.graphs.families import in_tree
    >>> print(OrderPositions(Problem(in_tree(2), order="free", objective="least-peak")).build())
    model order-positions: 23 variables, 40 constraints
      z               boolean  22   (22,)
      tau             integer   1   (1,)
      begun           implied   0   (0,)
      wanted          implied   0   (0,)
      (1) one each    linear    5   22 non-zeros
      (2) for good    clauses  16   32 literals
      (3) precedence  clauses  12   24 literals
      (5) memory      linear    7   41 non-zeros
      minimise        1 terms
    """

    name = "order-positions"

    def build(self) -> Model:
        return self.statement[0]

    @cached_property
    def done(self) -> Int:
        """Literals, or constants, that are true if op v is at position p or an earlier one; shape (ops, n + 1)."""
        soonest, latest = self.layout.soonest, self.layout.latest
        position = np.arange(self.num_ops + 1, dtype=np.int64)
        literal = np.where(position >= latest[:, None], ALWAYS, NEVER)
        between = (position >= soonest[:, None]) & (position < latest[:, None])
        literal[between] = np.arange(int(between.sum()))
        return literal

    @cached_property
    def statement(self) -> tuple[Model, Vars, Liveness]:
        """Model, its z, and the variables that follow from z."""
        model, done, is_open = Model(self.name), self.done, self._open
        z = model.booleans("z", int(is_open.sum()))
        tau = self.aim(model)
        self.deadline.check()
        op, position = np.nonzero(is_open)
        sure = (done == ALWAYS).sum(axis=0)
        target = np.arange(self.num_ops + 1, dtype=np.float64) - sure
        rows = np.unique(position)
        model.add(
            Linear.rows("(1) one each", np.searchsorted(rows, position), done[op, position], 1,
                        lower=target[rows], upper=target[rows], num_rows=len(rows))
        )  # fmt: skip
        also = is_open[op, position - 1]
        model.add(Clauses.pairs("(2) for good", ~done[op, position - 1][also], done[op, position][also]))
        self.deadline.check()
        (u, v), soonest, latest = self.layout.arcs, self.layout.soonest, self.layout.latest
        first, last = np.maximum(soonest[v] - 1, soonest[u]), np.minimum(latest[v] - 1, latest[u])
        for part in self.deadline.each(pieces(np.maximum(0, last - first), liveness.ENTRIES), 1):
            arc, before = ranges(first[part], last[part])
            model.add(Clauses.pairs("(3) precedence", done[u[part][arc], before], ~done[v[part][arc], before + 1]))
        held = add_memory(
            model, self.layout, done[:, 1:], done[:, :-1], MemoryLimit(self.capacity, self.unit, tau),
            number="(5)", deadline=self.deadline,
        )  # fmt: skip
        return model, z, held

    def estimate(self) -> ModelSize:
        n = self.num_ops
        arrays = self.problem.graph.arrays
        if n > CLOSURE_OPS:
            edges = len(arrays.edge_producer)
            return ModelSize(n * (2 * edges + 4 * n), 2 * n * n)
        at = self.layout
        soonest, latest = at.soonest, at.latest
        width = latest - soonest
        u, v = at.arcs
        arcs = int(np.maximum(0, np.minimum(latest[v], latest[u] + 1) - np.maximum(soonest[v], soonest[u] + 1)).sum())
        held, literals = 0, 0  # upper bounds, for groups of two or more first or last ops
        for groups in (at.first, at.last):
            several = groups.counts[groups.rows] > 1
            wide = np.where(several, width[groups.indices], 0)
            literals += int(wide.sum())
            held += int(np.maximum.reduceat(wide, groups.indptr[:-1]).sum()) if len(groups) else 0
        single = int(width[at.first.indices[at.first.indptr[:-1]]].sum()) + int(
            width[at.last.indices][~at.kept[at.last.rows]].sum()
        )
        ones = int(width.sum())
        return ModelSize(3 * ones + 2 * arcs + 2 * literals + held + single)

    @property
    def _open(self) -> Bool:
        """Entries of `done` that are variables; shape (ops, n + 1)."""
        return (self.done != ALWAYS) & (self.done != NEVER)

    def fill(self, values: Values, position: Int) -> None:
        _, z, held = self.statement
        op, at_most = np.nonzero(self._open)
        values[z.index] = position[op] <= at_most
        held.fill(values)

    def labels(self) -> Labels:
        op, position = np.nonzero(self._open)
        return {"z": {"op": self.ops_named(op), "position": position}}

    def ranks(self, values: Values) -> Int:
        absent = (self.done == NEVER).astype(np.int64)  # 1 at positions before the op's own
        absent[self._open] = values[self.statement[1].index] < 0.5
        return absent.sum(axis=1)
