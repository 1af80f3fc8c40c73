"""One op of the reference executor, with all that it takes to compute it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from remat.graphs.rewriting.annotations import Attributes, Shape
from remat.graphs.rewriting.axes import Roles
from remat.graphs.rewriting.kinds import Kind
from remat.graphs.rewriting.parts import PartOf

Array = np.ndarray


@dataclass(frozen=True)
class Call:
    """An op with all that it takes to compute it.

    Attributes
    ----------
    kind : Kind
    attributes : mapping
    part : PartOf or None
    inputs : list of array
        Its operands.
    shapes : list of tuple
        Of the tensors that it writes.
    roles : list of Roles
        Of each operand; for a part of an op those of the whole op.
    random : callable
        Weights: a slot and a shape to an array, always the same for the op before it was rewritten.
    constant : callable or None
        Of an op that is described completely (:mod:`remat.graphs.rewriting.kernels`): an entry of its attribute
        ``constants`` to the array. None: the op is a random function.
    """

    kind: Kind
    attributes: Attributes
    part: PartOf | None
    inputs: list[Array]
    shapes: list[Shape]
    roles: list[Roles]
    random: Callable[[str, Shape], Array]
    constant: Callable[[Mapping[str, Any]], Array] | None = None

    def whole(self, operand: int, axis: int) -> tuple[int, slice]:
        """Extent of an axis of an operand before the op was cut, and the slice of it that this op reads."""
        part = self.part
        if part is None or (part.operand, part.axis) != (operand, axis):
            return self.inputs[operand].shape[axis], slice(None)
        return part.extent, slice(part.start, part.stop)
