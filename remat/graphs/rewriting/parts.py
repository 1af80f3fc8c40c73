"""Attributes of ops that compute a part of another: of which op, and which part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from remat.errors import GraphError
from remat.graphs.rewriting.annotations import Attributes, is_whole

#: The attribute of a part, that of the op that makes the output of a full accumulation buffer, and that of the op that
#: concatenates parts.
PART_OF, FINISH_OF, JOIN_OF = "part_of", "finish_of", "join_of"


@dataclass(frozen=True, slots=True)
class PartOf:
    """A part of an op.

    Attributes
    ----------
    of : str
        The op as it was.
    operand, axis : int
        What is cut: an axis of one of the operands of that op.
    start, stop, extent : int
        The first element of this part, the one after the last, and how many the whole has.
    sum : bool
        Whether parts are summed; otherwise they lie side by side.
    bias : bool
        Whether this part adds the bias of the op.
    finish : bool
        Whether an activation follows in the buffer, when it is complete.
    """

    of: str
    operand: int
    axis: int
    start: int
    stop: int
    extent: int
    sum: bool = False
    bias: bool = True
    finish: bool = True

    def as_dict(self) -> dict[str, Any]:
        """For the ``meta`` of a graph."""
        return asdict(self)


def part_of(op: str, attributes: Attributes) -> PartOf | None:
    """What an op is a part of, as its attribute ``part_of`` says; None where it is none.

    Raises
    ------
    GraphError
        Naming the op, where the attribute is not as :class:`PartOf` has it.
    """
    given = attributes.get(PART_OF)
    if given is None:
        return None
    try:
        found = PartOf(**given) if isinstance(given, Mapping) else None
    except TypeError:
        found = None
    if found is not None and isinstance(found.of, str):
        counts = (found.operand, found.axis, found.start, found.stop, found.extent)
        flags = (found.sum, found.bias, found.finish)
        sound = all(is_whole(n) and 0 <= n < 2**62 for n in counts) and all(isinstance(flag, bool) for flag in flags)
        if sound and found.start < found.stop <= found.extent:
            return found
    raise GraphError(f"attribute {PART_OF!r} of op {op!r} does not say of what it is a part")
