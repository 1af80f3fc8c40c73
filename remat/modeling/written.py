"""A model's second form: text in some solver's own modelling language, with the same variables behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remat.runtime.arrays import Float


@dataclass(frozen=True)
class WrittenModel:
    """A model as a person would write it for a backend that reads texts.

    A formulation offers one in :attr:`remat.modeling.Model.overrides`, under the name of the family of backends that
    reads it; what the language is, is between the two. Its objective, up to `cost_unit` and `cost_offset`, is that of
    the :class:`~remat.modeling.Model` it belongs to, and so are the best values. Data and output are named by the
    text, never by a user.

    Attributes
    ----------
    text : Path
        A file of the package.
    data : mapping of str to numbers, Booleans, (nested) lists of them, or sets of ints
        Its parameters.
    values : callable
        From the arrays that the text outputs, by name, to values of the model's variables.
    hint : callable
        From values of the model's variables, or None, to further parameters: a solution to start from.
    cost_unit, cost_offset : int
        The model's objective is ``cost_unit * objective of the text + cost_offset``.
    """

    text: Path
    data: Mapping[str, Any]
    values: Callable[[Mapping[str, Any]], Float]
    hint: Callable[[Float | None], Mapping[str, Any]]
    cost_unit: int = 1
    cost_offset: int = 0
