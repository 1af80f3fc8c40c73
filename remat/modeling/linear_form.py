"""Alternative form of a model: linear rows stated by its formulation, in place of those that bridges make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from remat.modeling.model import Model
from remat.runtime.arrays import Float


@dataclass(frozen=True)
class LinearForm:
    """Equivalent model for backends that accept linear rows only.

    A formulation offers one in :attr:`remat.modeling.Model.overrides` under :attr:`name`. Its optimum is that of the
    :class:`~remat.modeling.Model` it belongs to, in the same unit and with the same constant.

    Attributes
    ----------
    model : Model
        All records are of the kind :class:`~remat.modeling.PlainLinear`.
    values : callable
        Maps a solution of :attr:`model` to one of the source with the same objective or a better one.
    hint : callable
        Maps values of the source to values of :attr:`model`; NaN where unknown.
    """

    name: ClassVar[str] = "linear"
    model: Model
    values: Callable[[Float], Float]
    hint: Callable[[Float], Float]
