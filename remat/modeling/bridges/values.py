"""Listed values and pairwise different values by the order encoding."""

from __future__ import annotations

import numpy as np

from remat.modeling.bridges.context import LoweringContext
from remat.modeling.bridges.literals import literal_rows
from remat.modeling.records import AllDifferent, Domain, Linear, Record


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


def all_different_to_linear(record: AllDifferent, context: LoweringContext) -> list[Record]:
    """State that each value is taken at most once.

    Reformulation
    -------------
    With ``y[x, v] = [x <= v]`` (:class:`~remat.modeling.bridges.order_encoding.OrderEncoding`), for each value v that
    two or more variables can take: ``sum(y[x, v] - y[x, value of x before v]) <= 1`` over those variables.

    Source
    ------
    :class:`AllDifferent`

    Target
    ------
    :class:`Linear`, without literals.
    """
    context.domains.require_encodable(record.variable)
    encoding = context.order.encode(record.variable)
    owner, value = context.order.values(record.variable)
    distinct, row = np.unique(value, return_inverse=True)
    shared = (np.bincount(row) > 1)[row]
    variable, value, row = record.variable[owner[shared]], value[shared], row[shared]
    rows = literal_rows(
        record.name,
        np.concatenate([row, row]),
        np.concatenate([context.order.at_most(variable, value), context.order.at_most(variable, value - 1)]),
        np.repeat([1.0, -1.0], len(row)),
        upper=np.ones(len(distinct)),
    )
    return [*encoding, rows]
