"""Lowering: a model in the records that a backend takes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from remat.deadline import Deadline
from remat.errors import ModelError
from remat.modeling.bridges import BRIDGES, InapplicableError, Workshop, kind_of
from remat.modeling.model import Model
from remat.modeling.records import Record
from remat.runtime.arrays import Float

Values = Float
Kinds = Collection[type[Record]]


@dataclass(frozen=True)
class Lowered:
    """A model that says the same as its source in simpler records.

    Its first variables are those of the source, in the same numbering: ``values[:source.num_vars]`` are values of the
    source.

    Attributes
    ----------
    source, model : Model
        The same object where nothing had to be rewritten.
    """

    source: Model
    model: Model
    _extend: Callable[[Values], Values]

    def extend(self, values: Values) -> Values:
        """Values of :attr:`model` from values of the source; what depends on a NaN is NaN."""
        return self._extend(np.asarray(values, dtype=np.float64))


def lower(model: Model, native: Kinds, deadline: Deadline | None = None) -> Lowered:
    """`model` in records of the kinds `native` only.

    For each record: the record itself, if native; else what the bridge of its kind makes of it, lowered in turn.

    Parameters
    ----------
    model : Model
        Is left alone.
    native : collection of types of Record
        :class:`~remat.modeling.Linear` stands for rows with and without literals, :class:`~remat.modeling.PlainLinear`
        for those without.
    deadline : Deadline, optional
        Is looked at between the steps of each bridge.

    Raises
    ------
    ModelError
        If a record can be neither taken nor rewritten; the message says why.
    OverdueError
        If the deadline is over.

    Examples
    --------
    >>> from remat.modeling import AllDifferent, Model, PlainLinear
    >>> m = Model("two")
    >>> x = m.integers("x", 2, 0, [1, 2])
    >>> m.add(AllDifferent("different", x.index))
    >>> lowered = lower(m, {PlainLinear})
    >>> print(lowered.model)
    model two: 5 variables, 5 constraints
      x               integer  2   (2,)
      order           boolean  3   (3,)
      order monotone  linear   1   2 non-zeros
      order link      linear   2   5 non-zeros
      different       linear   2   5 non-zeros
      minimise        0 terms
    >>> lowered.extend([1, 0])
    array([1., 0., 0., 1., 1.])
    """
    if all(_is_one_of(kind_of(record), native) for record in model.records):
        return Lowered(model, model, np.copy)
    workshop = Workshop(model, deadline)
    todo = model.records[::-1]
    while todo:
        workshop.deadline.check()
        record = todo.pop()
        if _is_one_of(kind_of(record), native):
            workshop.model.records.append(record)
        else:
            todo += [new for new in reversed(_rewritten(record, workshop, native)) if len(new)]
    return Lowered(model, workshop.model, workshop.extend)


def _is_one_of(kind: type[Record], kinds: Kinds) -> bool:
    return any(issubclass(kind, other) for other in kinds)


def _rewritten(record: Record, workshop: Workshop, native: Kinds) -> list[Record]:
    """Return what the bridge of the record's kind makes of it.

    Raises
    ------
    ModelError
        If there is none, or it does not apply.
    """
    bridge, why = BRIDGES.get(kind_of(record)), "no bridge for it"
    if bridge is not None:
        try:
            return bridge(record, workshop)
        except InapplicableError as condition:
            why = f"its bridge applies only to {condition}"
    raise ModelError(
        f"record {record.name!r} ({type(record).__name__}) of model {workshop.model.name!r} cannot be expressed in "
        f"{', '.join(sorted(kind.__name__ for kind in native)) or 'nothing'}: {why}",
        "no-bridge",
    )
