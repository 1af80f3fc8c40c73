"""Restriction of a model: removes fixed variables, and the constraints that then always hold."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from remat.modeling.bound_propagation import Bounds, InfeasibleError, Narrowing
from remat.modeling.model import Model
from remat.modeling.records import ALWAYS, Cumulative, Linear
from remat.runtime.arrays import Float, Int
from remat.runtime.deadline import Deadline


@dataclass(frozen=True)
class Restricted:
    """A model within tighter bounds, over the remaining variables."""

    model: Model
    """Its optimum is that of the source within the bounds, constant included."""
    kept: Int
    """Remaining variables of the source, ascending: the first variables of `model`, in this order."""
    fixed: Float
    """Values of the others: fixed, or arbitrary and irrelevant. Shape (variables of the source,)."""
    moments: Float
    """Values of the further variables of `model`: times between which the fixed use of all `Cumulative` is constant."""

    def expand(self, values: Float) -> Float:
        """Return values of the source, given values of :attr:`model`."""
        whole = self.fixed.copy()
        whole[self.kept] = values[: len(self.kept)]
        return whole

    def reduce(self, values: Float) -> Float:
        """Return values of :attr:`model`, given values of the source, clipped to the bounds."""
        inside = np.concatenate([np.asarray(values, dtype=np.float64)[self.kept], self.moments])
        return np.clip(inside, self.model.lower, self.model.upper)


def restrict(model: Model, lower: Float, upper: Float, deadline: Deadline | None = None) -> Restricted:
    """Return `model` within the given bounds as a smaller model; ``lower == upper`` fixes a variable.

    Fixed variables become numbers in rows and clauses. Rows that hold within the bounds are removed. Others tighten the
    bounds, as do clauses and domains, in a few rounds. The fixed intervals of a :class:`Cumulative` become a
    staircase, reduced to the steps at which free intervals could exceed the capacity. A fixed variable stays, with
    equal bounds, if a record needs it.

    Parameters
    ----------
    model : Model
        Not modified.
    lower, upper : float64 arrays, shape (num_vars,)
        Intersected with the model's own.
    deadline : Deadline, optional
        Checked between records.

    Raises
    ------
    ModelError
        If a lower bound is above its upper bound, or a record is of an unknown kind.
    OverdueError
        At the deadline.

    Examples
    --------
    >>> from remat.modeling import Linear, Model
    >>> m = Model("knapsack")
    >>> take = m.booleans("take", 4)
    >>> m.add(Linear.rows("weight", [0] * 4, take.index, [4, 3, 2, 2], upper=6))
    >>> m.minimize(take.index, [-5, -4, -3, -1])
    >>> small = restrict(m, np.array([0, 1, 0, 0]), np.array([1, 1, 1, 1]))
    >>> print(small.model)
    model knapsack: 2 variables, 1 constraint
      take      boolean  2   (2,)
      weight    linear   1   2 non-zeros
      minimise  2 terms
    >>> small.kept, small.expand(np.array([1, 0])), small.model.objective.constant
    (array([2, 3]), array([0., 1., 1., 0.]), -4.0)
    """
    bounds = Bounds.of(model, lower, upper)
    deadline = deadline or Deadline()
    narrowing = Narrowing(model, bounds, deadline)
    try:
        records = narrowing.run()
    except InfeasibleError:
        records, narrowing.staircases = [Linear.rows("contradiction", [], [], 1, lower=[1.0])], {}
    objective = model.objective
    live = bounds.lower[objective.index] < bounds.upper[objective.index]
    used = [record.variables() for record in records] + [objective.index[live]]
    kept = np.unique(np.concatenate(used))
    deadline.check()
    small = Model(model.name)
    for block in model.blocks:
        ends = (
            [block.index.flat[0], block.index.flat[-1] + 1] if block.index.size else [0, 0]
        )  # indices are consecutive
        mine = kept[slice(*np.searchsorted(kept, ends))]
        if len(mine):
            small.add_vars(block.name, len(mine), block.kind, bounds.lower[mine], bounds.upper[mine])
    number = np.full(model.num_vars, -1, dtype=np.int64)
    number[kept] = np.arange(len(kept))
    steps = [step for stairs in narrowing.staircases.values() for step in (stairs.begin, stairs.end)]
    moments = np.unique(np.concatenate([np.zeros(0, np.int64), *steps]))
    clock = small.integers("moment", len(moments), moments, moments).index if len(moments) else moments
    for record in deadline.each(records, 1):
        new = record.renumbered(number)
        if isinstance(record, Cumulative) and isinstance(new, Cumulative):
            stairs = narrowing.staircases[id(record)]
            first, last = np.searchsorted(moments, stairs.begin), np.searchsorted(moments, stairs.end)
            new = replace(
                new,
                start=np.concatenate([new.start, clock[first]]),
                end=np.concatenate([new.end, clock[last]]),
                demand=np.concatenate([new.demand, stairs.height]),
                presence=np.concatenate([new.presence, np.full(len(first), ALWAYS, dtype=np.int64)]),
            )
        small.add(new)
    fixed_cost = float(objective.coefficient[~live] @ bounds.lower[objective.index[~live]])
    small.minimize(number[objective.index[live]], objective.coefficient[live], objective.constant + fixed_cost)
    idle = np.where(np.isfinite(bounds.lower), bounds.lower, np.where(np.isfinite(bounds.upper), bounds.upper, 0.0))
    return Restricted(small, kept, idle, moments.astype(np.float64))
