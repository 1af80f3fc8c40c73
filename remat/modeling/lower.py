"""Lowering of a model to the records that a backend accepts."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from remat.errors import ModelError
from remat.modeling.bridges import BRIDGES, InapplicableError, LoweringContext, kind_of
from remat.modeling.model import Model
from remat.modeling.records import Record
from remat.runtime.arrays import Float
from remat.runtime.deadline import Deadline

Values = Float
Kinds = Collection[type[Record]]


@dataclass(frozen=True)
class Lowered:
    """An equivalent model in simpler records.

    Its first variables are those of the source, with the same indices: ``values[:source.num_vars]`` are values of the
    source.
    """

    source: Model
    model: Model
    """The source itself if nothing had to be rewritten."""
    _extend: Callable[[Values], Values]

    def extend(self, values: Values) -> Values:
        """Return values of :attr:`model`, given values of the source; NaN where they depend on a NaN."""
        return self._extend(np.asarray(values, dtype=np.float64))


def lower(model: Model, native: Kinds, deadline: Deadline | None = None) -> Lowered:
    """Rewrite `model` into records of the kinds `native` only.

    Native records stay; others go through the bridge of their kind, recursively.

    Parameters
    ----------
    model : Model
        Not modified.
    native : collection of types of Record
        :class:`~remat.modeling.Linear` means rows with and without literals, :class:`~remat.modeling.PlainLinear`
        those without.
    deadline : Deadline, optional
        Checked between the steps of each bridge.

    Raises
    ------
    ModelError
        If a record is neither native nor rewritable; the message has the reason.
    OverdueError
        If the deadline passes.

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
    context = LoweringContext(model, deadline)
    todo = model.records[::-1]
    while todo:
        context.deadline.check()
        record = todo.pop()
        if _is_one_of(kind_of(record), native):
            context.model.records.append(record)
        else:
            todo += [new for new in reversed(_rewritten(record, context, native)) if len(new)]
    return Lowered(model, context.model, context.extend)


def _is_one_of(kind: type[Record], kinds: Kinds) -> bool:
    return any(issubclass(kind, other) for other in kinds)


def _rewritten(record: Record, context: LoweringContext, native: Kinds) -> list[Record]:
    """Apply the bridge of the record's kind.

    Raise ModelError if there is no bridge, or it does not apply.
    """
    bridge, why = BRIDGES.get(kind_of(record)), "no bridge for it"
    if bridge is not None:
        try:
            return bridge(record, context)
        except InapplicableError as condition:
            why = f"its bridge applies only to {condition}"
    raise ModelError(
        f"record {record.name!r} ({type(record).__name__}) of model {context.model.name!r} cannot be expressed in "
        f"{', '.join(sorted(kind.__name__ for kind in native)) or 'nothing'}: {why}",
        "no-bridge",
    )
