"""Calls of the reference executor: an op with all data needed to compute it."""

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
    """Op with all data needed to compute it."""

    kind: Kind
    attributes: Attributes
    part: PartOf | None
    inputs: list[Array]
    """Values of its operands."""
    shapes: list[Shape]
    """Shapes of its outputs."""
    roles: list[Roles]
    """Roles of the axes of each operand; for a part of an op, the roles in the whole op."""
    random: Callable[[str, Shape], Array]
    """Maps a slot and a shape to weights, which are always the same for the original op."""
    constant: Callable[[Mapping[str, Any]], Array] | None = None
    """For a completely described op (:mod:`remat.graphs.rewriting.reference_kernels`), maps an entry of its attribute
    ``constants`` to the array. None: the op is a random function.
    """

    def whole(self, operand: int, axis: int) -> tuple[int, slice]:
        """Return the extent of an operand's axis before the op was cut, and the slice of it that this op reads."""
        part = self.part
        if part is None or (part.operand, part.axis) != (operand, axis):
            return self.inputs[operand].shape[axis], slice(None)
        return part.extent, slice(part.start, part.stop)
