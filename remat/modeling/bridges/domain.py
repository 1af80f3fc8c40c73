"""Listed values as bounds or by the order encoding."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from remat.modeling.bridges.base import Bridge
from remat.modeling.bridges.context import Workshop
from remat.modeling.records import Domain, Linear, Record


class DomainToLinear(Bridge[Domain]):
    """Consecutive values as bounds, others by the order encoding.

    Reformulation
    -------------
    Values without a gap become ``first <= x <= last``. Otherwise x gets the order encoding over its values
    (:class:`~remat.modeling.bridges.order.OrderEncoding`), which allows no others.

    Source
    ------
    :class:`Domain`

    Target
    ------
    :class:`Linear`, without literals.
    """

    source: ClassVar = Domain
    condition: ClassVar[str] = "integer variables"

    def applies(self, record: Domain, workshop: Workshop) -> bool:
        return workshop.domains.integral(record.variables())

    def rewrite(self, record: Domain, workshop: Workshop) -> list[Record]:
        variables = np.unique(record.variables())
        indptr, values = workshop.domains.values(variables)
        some = np.diff(indptr) > 0
        first = np.zeros(len(variables), dtype=np.int64)
        last = first.copy()
        first[some], last[some] = values[indptr[:-1][some]], values[indptr[1:][some] - 1]
        solid = some & (last - first + 1 == np.diff(indptr))
        model = workshop.model
        tighter = np.flatnonzero(solid & ((first > model.lower[variables]) | (last < model.upper[variables])))
        bounds = Linear.rows(
            record.name, np.arange(len(tighter)), variables[tighter], 1, lower=first[tighter], upper=last[tighter]
        )
        return [bounds, *workshop.order.encode(variables[~solid])]
