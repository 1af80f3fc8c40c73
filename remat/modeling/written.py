"""Alternative form of a model: a text in the modelling language of a solver, with the same variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remat.runtime.arrays import Float


@dataclass(frozen=True)
class WrittenModel:
    """A handwritten model for a backend that reads texts.

    A formulation offers one in :attr:`remat.modeling.Model.overrides`, under the name of the family of backends that
    reads its language. Its objective, up to `cost_unit` and `cost_offset`, and its optimum are those of the
    :class:`~remat.modeling.Model` it belongs to. Names in data and output come from the text, never from a user.
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
    """The model's objective is ``cost_unit * objective of the text + cost_offset``."""
