"""A model's second form: linear rows that its formulation states in place of what bridges would make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from remat.modeling.model import Model
from remat.runtime.arrays import Float


@dataclass(frozen=True)
class LinearForm:
    """Another model of the same solutions, for backends that take linear rows only.

    A formulation offers one in :attr:`remat.modeling.Model.overrides` under :attr:`name`. Its optimum is that of the
    :class:`~remat.modeling.Model` it belongs to, in the same unit and with the same constant.

    Attributes
    ----------
    model : Model
        Has records of the kind :class:`~remat.modeling.PlainLinear` only.
    values : callable
        From a solution of :attr:`model` to one of the source that has the same objective, or a better one.
    hint : callable
        From values of the source to values of :attr:`model`; NaN where unknown.
    """

    name: ClassVar[str] = "linear"
    model: Model
    values: Callable[[Float], Float]
    hint: Callable[[Float], Float]
