"""Shared state of the bridges of one lowering: new variables, their values, and encodings."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from remat.modeling.bridges.literals import NEVER, literal_differences, literal_rows, literal_values
from remat.modeling.bridges.order_encoding import Domains, OrderEncoding
from remat.modeling.model import Kind, Model
from remat.modeling.records import ALWAYS, Record, truth
from remat.runtime.arrays import Float, Int
from remat.runtime.deadline import Deadline

#: Computes the values of one new block from those of all earlier variables.
Complete = Callable[[Float], Float]


class LoweringContext:
    """Model under construction, with the state that its bridges share."""

    def __init__(self, source: Model, deadline: Deadline | None = None) -> None:
        self.deadline = deadline or Deadline()
        """Checked by every method that builds something."""
        self.model = source.copy(source.name)
        """Starts with the variables of the source model, with the same indices."""
        self.model.records = []
        self.domains = Domains(source, self.model)
        self.order = OrderEncoding(self.model, self.domains, self.add_vars)
        self._blocks: list[tuple[Int, Complete]] = []

    def add_vars(
        self, name: str, size: int, kind: Kind, bounds: tuple[ArrayLike, ArrayLike], complete: Complete
    ) -> Int:
        """Add `size` variables, whose values `complete` computes from earlier ones; return their indices."""
        self.deadline.check()
        index = self.model.add_vars(name, size, kind, *bounds).index
        self._blocks.append((index, complete))
        return index

    def extend(self, values: Float) -> Float:
        """Return the values of all variables, given those of the source model's; NaN where they depend on a NaN."""
        full = np.full(self.model.num_vars, np.nan)
        full[: len(values)] = values
        for index, complete in self._blocks:
            full[index] = complete(full)
        return full

    def fold(self, literals: Int) -> Int:
        """Replace literals of fixed variables with ``ALWAYS`` or ``NEVER``."""
        self.deadline.check()
        folded = literals.copy()
        some = np.flatnonzero(literals != NEVER)
        known = truth(literals[some], self.model.lower, self.model.upper)
        folded[some[known > 0]] = ALWAYS
        folded[some[known < 0]] = NEVER
        return folded

    def conjunction(self, name: str, literals: Int, *, at_least: bool) -> tuple[Int, list[Record]]:
        """Return one literal for each row of `literals`, true if all of them are, and the rows that define it.

        Only one direction is enforced. With `at_least` the new variable is at least the conjunction (for uses),
        otherwise at most (for supplies). Hints get the minimal or the maximal value, respectively.
        """
        folded = np.sort(self.fold(literals.ravel()).reshape(literals.shape), axis=1)  # NEVER first, ALWAYS last
        folded[:, 1:][folded[:, 1:] == folded[:, :-1]] = ALWAYS
        folded.sort(axis=1)
        result = folded[:, 0].copy()  # correct if at most one literal is open, or one is NEVER
        open_rows = np.flatnonzero((result != NEVER) & ((folded != ALWAYS).sum(axis=1) > 1))
        if not len(open_rows):
            return result, []
        factors, inverse = np.unique(folded[open_rows], axis=0, return_inverse=True)
        size = len(factors)
        kept = factors != ALWAYS
        flat, row = factors[kept], np.broadcast_to(np.arange(size)[:, None], factors.shape)[kept]

        def complete(values: Float) -> Float:
            truth = np.where(kept, literal_values(np.where(kept, factors, 0), values), 1.0)
            return np.where((truth == 0).any(axis=1), 0.0, truth.prod(axis=1))

        new = self.add_vars(name, size, Kind.IMPLIED, (0, 1), complete)
        result[open_rows] = new[inverse.ravel()]
        if at_least:
            rows = literal_rows(
                name,
                np.concatenate([np.arange(size), row]),
                np.concatenate([new, flat]),
                np.concatenate([np.ones(size), -np.ones(len(flat))]),
                lower=1.0 - kept.sum(axis=1),
            )
        else:
            rows = literal_differences(name, flat, new[row])
        return result, [rows]
