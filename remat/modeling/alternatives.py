"""Alternative forms of a model: linear rows stated by its formulation, or a text in a solver's modelling language."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from remat.modeling.model import Model
from remat.modeling.naming import Labels
from remat.runtime.arrays import Float


@dataclass(frozen=True)
class LinearForm:
    """Equivalent model for backends that accept linear rows only.

    A formulation offers one in :attr:`remat.modeling.Model.overrides` under :attr:`name`. Its optimum is that of the
    :class:`~remat.modeling.Model` it belongs to, in the same unit and with the same constant.
    """

    name: ClassVar[str] = "linear"
    model: Model
    """All records are of the kind :class:`~remat.modeling.PlainLinear`."""
    values: Callable[[Float], Float]
    """Maps a solution of :attr:`model` to one of the source with the same objective or a better one."""
    hint: Callable[[Float], Float]
    """Maps values of the source to values of :attr:`model`; NaN where unknown."""
    labels: Callable[[], Labels]
    """What the variables of :attr:`model` stand for, for files."""


@dataclass(frozen=True)
class WrittenModel:
    """A handwritten model for a backend that reads texts.

    A formulation offers one in :attr:`remat.modeling.Model.overrides`, under the name of the family of backends that
    reads its language. The objective of the :class:`~remat.modeling.Model` it belongs to is ``cost_unit * objective of
    the text + cost_offset``, with the same optimum. Names in data and output come from the text, never from a user.
    """

    text: Path
    """File of the package."""
    data: Mapping[str, Any]
    """Parameters: numbers, Booleans, (nested) lists of them, or sets of ints."""
    values: Callable[[Mapping[str, Any]], Float]
    """Maps the arrays that the text outputs, by name, to values of the model's variables."""
    hint: Callable[[Float | None], Mapping[str, Any]]
    """Maps values of the model's variables, or None, to further parameters: a starting solution."""
    cost_unit: int = 1
    cost_offset: int = 0
