"""The workshop in which bridges build: new variables, what their values are, and encodings shared by all."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from remat.deadline import Deadline
from remat.modeling.bridges.literals import NEVER, literal_differences, literal_rows, literal_values
from remat.modeling.bridges.order import Domains, OrderEncoding
from remat.modeling.model import Kind, Model
from remat.modeling.records import ALWAYS, Record, truth
from remat.runtime.arrays import Float, Int

#: From values of all variables made so far to the values of one new block.
Complete = Callable[[Float], Float]


class Workshop:
    """The model that a lowering builds, with what its bridges share.

    Attributes
    ----------
    model : Model
        Begins with the variables of the source model, in the same numbering.
    domains : Domains
        Of the source model's variables.
    order : OrderEncoding
    deadline : Deadline
        Looked at whenever something is made here.
    """

    def __init__(self, source: Model, deadline: Deadline | None = None) -> None:
        self.deadline = deadline or Deadline()
        self.model = source.copy(source.name)
        self.model.records = []
        self.domains = Domains(source, self.model)
        self.order = OrderEncoding(self)
        self._blocks: list[tuple[Int, Complete]] = []

    def add_vars(
        self, name: str, size: int, kind: Kind, bounds: tuple[ArrayLike, ArrayLike], complete: Complete
    ) -> Int:
        """Numbers of `size` new variables, whose values follow from those of earlier ones by `complete`."""
        self.deadline.check()
        index = self.model.add_vars(name, size, kind, *bounds).index
        self._blocks.append((index, complete))
        return index

    def extend(self, values: Float) -> Float:
        """Values of all variables from those of the source model's; what depends on a NaN is NaN."""
        full = np.full(self.model.num_vars, np.nan)
        full[: len(values)] = values
        for index, complete in self._blocks:
            full[index] = complete(full)
        return full

    def fold(self, literals: Int) -> Int:
        """The same literals with those of fixed variables replaced by ``ALWAYS`` and ``NEVER``."""
        self.deadline.check()
        folded = literals.copy()
        some = np.flatnonzero(literals != NEVER)
        known = truth(literals[some], self.model.lower, self.model.upper)
        folded[some[known > 0]] = ALWAYS
        folded[some[known < 0]] = NEVER
        return folded

    def conjunction(self, name: str, literals: Int, *, at_least: bool) -> tuple[Int, list[Record]]:
        """One literal for each row of `literals`, true when all of them are, with the rows that make it so.

        Only one direction is enforced: with `at_least` the new variable is at least the conjunction (for where it
        consumes), otherwise at most (for where it supplies); minimal, respectively maximal, values complete hints.

        Parameters
        ----------
        literals : int64 array, shape (conjunctions, literals of each)
        """
        folded = np.sort(self.fold(literals.ravel()).reshape(literals.shape), axis=1)  # NEVER first, ALWAYS last
        folded[:, 1:][folded[:, 1:] == folded[:, :-1]] = ALWAYS
        folded.sort(axis=1)
        result = folded[:, 0].copy()  # right where at most one literal is open, or one is NEVER
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
