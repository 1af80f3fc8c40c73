"""Formulation of orders with one variable per pair of ops."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from remat.formulations.base import Values
from remat.formulations.ordering.base import CLOSURE_OPS, OrderFormulation
from remat.formulations.ordering.liveness import Liveness, MemoryLimit, add_memory
from remat.modeling import ALWAYS, Clauses, Model, Vars
from remat.modeling.bridges.literals import NEVER
from remat.modeling.naming import Labels
from remat.modeling.size import ModelSize
from remat.runtime.arrays import Int


class LinearOrder(OrderFormulation):
    r"""Linear order by pairs of ops (Grötschel, Jünger & Reinelt 1984).

    **Sets.** Ops v ∈ V, each computed once. u < v: u is an ancestor of v. Tensors t of size m_t, written by F_t
    (several ops, if it is an accumulation buffer) and read by R_t; w_v: workspace of v, and its results that are
    neither read nor kept.

    **Variables.** y[u,v] ∈ {0,1}: u comes before v, for pairs of which neither is an ancestor of the other; y[v,u]
    stands for 1 − y[u,v], and y[u,v] = 1 where u < v. b[t,v], r[t,v] ∈ [0,1]: tensor t has begun when v ends; it is
    wanted when v begins. τ: the peak.

    **Constraints**::

        (1) y[u,v] + y[v,w] + y[w,u] ≤ 2                     for every cycle of three ops that no pair u < v excludes
        (2) b[t,v] ≥ y[u,v] for u ∈ F_t, and 1 if v ∈ F_t;
            r[t,v] ≥ 1 − y[u,v] for u ∈ R_t, and 1 if v ∈ R_t or t is kept
        (3) sum_t m_t (b[t,v] + r[t,v] − 1) + w_v ≤ τ        for every op v
        (4) minimise τ

    (1) is stated in full, about n³/3 rows for n ops without ancestors, which suits graphs of up to some hundred ops.
    (3) counts the memory held while v runs, as (5) of :class:`~remat.formulations.ordering.positions.OrderPositions`,
    with the same reductions. Its rows belong to ops, so every relaxation holds all inputs and outputs of v. It may
    therefore be tighter.

    For the **least cost within a budget**, τ is the budget and there is no objective: all orders cost the same.

    Examples
    --------
    >>> from remat import Problem
    >>> from remat.graphs.families import in_tree
    >>> print(LinearOrder(Problem(in_tree(2), order="free", objective="least-peak")).build())
    model linear-order: 12 variables, 31 constraints
      y             boolean  11   (11,)
      tau           integer   1   (1,)
      begun         implied   0   (0,)
      wanted        implied   0   (0,)
      (1) no cycle  clauses  24   60 literals
      (3) memory    linear    7   41 non-zeros
      minimise      1 terms
    """

    name = "linear-order"

    def build(self) -> Model:
        return self.statement[0]

    @cached_property
    def before(self) -> Int:
        """Literals, or constants, that are true if one op comes before another; shape (ops, ops)."""
        earlier = self.layout.earlier
        literal = np.where(earlier.T, ALWAYS, NEVER)
        u, v = self._pairs
        literal[u, v] = np.arange(len(u))
        literal[v, u] = ~literal[u, v]
        return literal

    @cached_property
    def _pairs(self) -> tuple[Int, Int]:
        """Pairs of ops of which neither is an ancestor of the other."""
        earlier = self.layout.earlier
        u, v = np.nonzero(np.triu(~earlier & ~earlier.T, 1))
        return u, v

    @cached_property
    def statement(self) -> tuple[Model, Vars, Liveness]:
        """Model, its y, and the variables that follow from y."""
        model, before = Model(self.name), self.before
        y = model.booleans("y", len(self._pairs[0]))
        tau = self.aim(model)
        model.add(self._transitive())
        self.deadline.check()
        done = before.copy()
        np.fill_diagonal(done, ALWAYS)
        held = add_memory(
            model, self.layout, done, before, MemoryLimit(self.capacity, self.unit, tau),
            number="(3)", deadline=self.deadline,
        )  # fmt: skip
        return model, y, held

    def _transitive(self) -> Clauses:
        """Return the clauses (1): of every three pairs that form a cycle, at least one is reversed."""
        possible = self.before != NEVER
        cycles = [np.zeros((3, 0), dtype=np.int64)]
        for first in self.deadline.each(range(self.num_ops), 10):  # lowest op number of the cycle
            rest = slice(first + 1, None)
            closed = possible[first, rest, None] & possible[rest, rest] & possible[None, rest, first]
            second, third = np.nonzero(closed)
            cycles.append(np.stack([np.full(len(second), first), second + first + 1, third + first + 1]))
        u, v, w = np.concatenate(cycles, axis=1)
        literals = ~np.stack([self.before[u, v], self.before[v, w], self.before[w, u]], axis=1)
        cycle, number = np.nonzero(literals != NEVER)
        return Clauses.grouped("(1) no cycle", cycle, literals[cycle, number], len(literals))

    def estimate(self) -> ModelSize:
        n = self.num_ops
        if n > CLOSURE_OPS:
            return ModelSize(n**3, n * n)
        at = self.layout
        earlier = at.earlier
        possible = (~earlier).astype(np.float32)
        np.fill_diagonal(possible, 0)
        cycles = int(np.einsum("ij,ji->", possible @ possible, possible)) // 3
        pairs = int((~earlier & ~earlier.T).sum()) - n
        share = pairs / max(1, n * n)  # share of pairs whose order is open
        several = sum(int(groups.counts[groups.counts > 1].sum()) for groups in (at.first, at.last))
        literals = int(share * n * several)
        entries = int(share * n * (2 * len(at.size) - int(at.kept.sum())))
        return ModelSize(3 * cycles + 2 * literals + entries)

    def fill(self, values: Values, position: Int) -> None:
        _, y, held = self.statement
        u, v = self._pairs
        values[y.index] = position[u] < position[v]
        held.fill(values)

    def labels(self) -> Labels:
        first, second = self._pairs
        return {"y": {"before": self.ops_named(first), "after": self.ops_named(second)}}

    def ranks(self, values: Values) -> Int:
        u, v = self._pairs
        first = values[self.statement[1].index] > 0.5
        ahead = self.layout.earlier.sum(axis=1)  # number of ops before each
        np.add.at(ahead, np.where(first, v, u), 1)
        return ahead
