"""Order encoding of integer variables, shared by all bridges of one lowering."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from remat.errors import ModelError
from remat.modeling.bridges.base import InapplicableError
from remat.modeling.bridges.literals import NEVER, literal_differences, ranges
from remat.modeling.model import Kind, Model
from remat.modeling.records import ALWAYS, Domain, Linear, Record
from remat.runtime.arrays import Bool, Float, Int

#: Maximum number of values over all variables of one record.
MAX_VALUES = 20_000_000


class Domains:
    """Values of integer variables, by their bounds and the source's :class:`Domain` records.

    `model` has the variables of `source` and may grow.
    """

    def __init__(self, source: Model, model: Model) -> None:
        self._model = model
        records = [record for record in source.records if isinstance(record, Domain)]
        empty = np.zeros(0, dtype=np.int64)
        listed = np.concatenate([empty, *(record.variable for record in records)])
        sizes = np.concatenate([empty, *(np.diff(record.indptr) for record in records)])
        values = np.concatenate([empty, *(record.values for record in records)])
        owner = np.repeat(listed, sizes)
        inside = (values >= source.lower[owner]) & (values <= source.upper[owner])
        self.impossible = np.setdiff1d(listed, owner[inside])
        """Variables with no listed value within their bounds."""
        # These get one value too, which simplifies the following; the model is infeasible in any case.
        owner = np.concatenate([owner[inside], self.impossible])
        values = np.concatenate([values[inside], np.floor(source.lower[self.impossible]).astype(np.int64)])
        self._values = values[np.lexsort((values, owner))]
        # The extra entry is for all variables that are not the source's.
        self._listed = np.zeros(source.num_vars + 1, dtype=np.bool_)
        self._listed[listed] = True
        self._indptr = np.zeros(source.num_vars + 2, dtype=np.int64)
        np.cumsum(np.bincount(owner, minlength=source.num_vars + 1), out=self._indptr[1:])

    def _table(self, variables: Int) -> tuple[Bool, Int, Int]:
        """Return, for each variable, True if it has listed values, and their first and last position in the table."""
        known = np.minimum(variables, len(self._listed) - 1)
        listed = self._listed[known]
        return listed, np.where(listed, self._indptr[known], 0), np.where(listed, self._indptr[known + 1], 0)

    def require_integral(self, variables: Int) -> None:
        """Refuse continuous variables."""
        if (self._model.kind[variables] == Kind.CONTINUOUS.value).any():
            raise InapplicableError("integer variables")

    def sizes(self, variables: Int) -> Int:
        """Return the number of values of each variable."""
        span = np.floor(self._model.upper[variables]) - np.ceil(self._model.lower[variables]) + 1
        listed, begin, end = self._table(variables)
        return np.where(listed, end - begin, np.maximum(span, 1)).astype(np.int64)

    def values(self, variables: Int) -> tuple[Int, Int]:
        """Return (indptr, values) of the variables; values ascend."""
        sizes = self.sizes(variables)
        indptr = np.zeros(len(variables) + 1, dtype=np.int64)
        np.cumsum(sizes, out=indptr[1:])
        # Listed values by their position in the table, others counted from the lower bound.
        has_table, begin, _ = self._table(variables)
        begin = np.where(has_table, begin, np.ceil(self._model.lower[variables]).astype(np.int64))
        owner, number = ranges(begin, begin + sizes)
        listed = has_table[owner]
        number[listed] = self._values[number[listed]]
        return indptr, number

    def require_encodable(self, variables: Int) -> None:
        """Refuse variables whose order encoding does not exist or is too large."""
        distinct = np.unique(variables)
        self.require_integral(distinct)
        span = np.where(self._table(distinct)[0], 0, self._model.upper[distinct] - self._model.lower[distinct] + 1)
        if span.sum() > MAX_VALUES:
            raise InapplicableError(f"integer variables with at most {MAX_VALUES:,} values in all")


class OrderEncoding:
    """Booleans ``y[x, d] = [x <= d]`` for the values d of integer variables x, created once per variable.

    With the values ``d[0] < ... < d[k]`` of x: ``y[x, d[j]] <= y[x, d[j + 1]]``, and
    ``x = d[k] - sum((d[j + 1] - d[j]) * y[x, d[j]] for j < k)``. The last Boolean is the constant true; that of a
    0/1 variable is the variable's negation.

    `add_vars` is :meth:`remat.modeling.bridges.context.LoweringContext.add_vars`.
    """

    def __init__(self, model: Model, domains: Domains, add_vars: Callable[..., Int]) -> None:
        self._model, self._domains, self._add_vars = model, domains, add_vars
        empty = np.zeros(0, dtype=np.int64)
        self._slot = np.full(model.num_vars, -1, dtype=np.int64)
        self._indptr = np.zeros(1, dtype=np.int64)
        self._values, self._literals, self._owner = empty, empty, empty

    def encode(self, variables: Int) -> list[Record]:
        """Encode those of `variables` that have no encoding yet; return the rows."""
        model = self._model
        self._slot = np.append(self._slot, np.full(model.num_vars - len(self._slot), -1))
        new = np.unique(variables)
        new = new[self._slot[new] < 0]
        if not len(new):
            return []
        indptr, values = self._domains.values(new)
        records: list[Record] = []
        sizes = np.diff(indptr)
        owner = np.repeat(np.arange(len(new)), sizes)
        last = np.zeros(len(values), dtype=bool)
        last[indptr[1:] - 1] = True
        literals = np.full(len(values), ALWAYS)
        own = (model.kind[new] == Kind.BOOLEAN.value) & (sizes == 2)
        literals[~last & own[owner]] = ~new[own]
        fresh = np.flatnonzero(~last & ~own[owner])
        if len(fresh):
            variable, threshold = new[owner[fresh]], values[fresh]

            def complete(full: Float) -> Float:
                x = full[variable]
                return np.where(np.isnan(x), np.nan, (x <= threshold + 0.5).astype(np.float64))

            literals[fresh] = self._add_vars("order", len(fresh), Kind.BOOLEAN, (0, 1), complete)
            successor = fresh[~last[fresh + 1]]
            records.append(literal_differences("order monotone", literals[successor + 1], literals[successor]))
        open_ = ~own & (model.lower[new] < model.upper[new])
        linked, row_of = np.flatnonzero(open_), np.cumsum(open_) - 1
        step = (values[fresh + 1] - values[fresh]).astype(np.float64)
        top = values[indptr[1:] - 1][linked].astype(np.float64)
        link = Linear(
            "order link",
            np.concatenate([np.arange(len(linked)), row_of[owner[fresh]]]),
            np.concatenate([new[linked], literals[fresh]]),
            np.concatenate([np.ones(len(linked)), step]),
            top,
            top,
        )
        records.append(link)
        self._store(new, indptr, values, literals, owner)
        return [record for record in records if len(record)]

    def _store(self, new: Int, indptr: Int, values: Int, literals: Int, owner: Int) -> None:
        before = len(self._indptr) - 1
        self._slot[new] = before + np.arange(len(new))
        self._indptr = np.concatenate([self._indptr, self._indptr[-1] + indptr[1:]])
        self._values = np.concatenate([self._values, values])
        self._literals = np.concatenate([self._literals, literals])
        self._owner = np.concatenate([self._owner, before + owner])

    def values(self, variables: Int) -> tuple[Int, Int]:
        """Return the values of encoded variables: (position in `variables`, value), concatenated."""
        slot = self._slot[variables]
        owner, place = ranges(self._indptr[slot], self._indptr[slot + 1])
        return owner, self._values[place]

    def least(self, variables: Int) -> Int:
        """Return the smallest value of each encoded variable."""
        return self._values[self._indptr[self._slot[variables]]]

    def greatest(self, variables: Int) -> Int:
        """Return the largest value of each encoded variable."""
        return self._values[self._indptr[self._slot[variables] + 1] - 1]

    def at_most(self, variables: Int, bounds: ArrayLike) -> Int:
        """Return literals for ``[variable <= bound]``, possibly ``ALWAYS`` or ``NEVER``, of encoded variables."""
        slot = self._slot[variables]
        low, high = int(self._values.min()), int(self._values.max())
        span = high - low + 2
        if span * len(self._indptr) >= 2**62:
            raise ModelError(f"model {self._model.name!r} has too wide values for the order encoding")
        keys = self._owner * span + (self._values - low)
        wanted = np.clip(np.asarray(bounds, dtype=np.int64), low - 1, high)
        place = np.searchsorted(keys, slot * span + (wanted - low), side="right") - 1
        found = place >= self._indptr[slot]
        return np.where(found, self._literals[np.maximum(place, 0)], NEVER)
