"""Listed values as bounds or by the order encoding."""

from __future__ import annotations

import numpy as np

from remat.modeling.bridges.context import LoweringContext
from remat.modeling.bridges.literals import literal_rows
from remat.modeling.records import Domain, Linear, Record


def domain_to_linear(record: Domain, context: LoweringContext) -> list[Record]:
    """State consecutive values as bounds, others through the order encoding.

    Reformulation
    -------------
    Values without a gap become ``first <= x <= last``. Otherwise x gets the order encoding over its values
    (:class:`~remat.modeling.bridges.order_encoding.OrderEncoding`), which allows no others.

    Source
    ------
    :class:`Domain`

    Target
    ------
    :class:`Linear`, without literals.
    """
    context.domains.require_integral(record.variable)
    variables = np.unique(record.variables())
    indptr, values = context.domains.values(variables)
    first, last = values[indptr[:-1]], values[indptr[1:] - 1]
    solid = last - first + 1 == np.diff(indptr)
    model = context.model
    tighter = np.flatnonzero(solid & ((first > model.lower[variables]) | (last < model.upper[variables])))
    bounds = Linear.rows(
        record.name, np.arange(len(tighter)), variables[tighter], 1, lower=first[tighter], upper=last[tighter]
    )
    impossible = np.isin(variables, context.domains.impossible).sum()
    no_value = literal_rows("no value left", [], [], [], lower=np.ones(impossible))
    return [no_value, bounds, *context.order.encode(variables[~solid])]
