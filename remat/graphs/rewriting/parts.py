"""Attributes of ops that compute a part of another op."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from remat.errors import GraphError
from remat.graphs.rewriting.annotations import Attributes, is_whole

#: Attributes of a part, of the op that computes the output from a full accumulation buffer, and of the op that
#: concatenates parts.
PART_OF, FINISH_OF, JOIN_OF = "part_of", "finish_of", "join_of"


@dataclass(frozen=True, slots=True)
class PartOf:
    """Part of an op."""

    of: str
    """The original op."""
    operand: int
    axis: int
    """Axis of that operand of the original op along which it is cut."""
    start: int
    stop: int
    extent: int
    """Extent of the axis; this part is the elements from `start` to `stop` (exclusive)."""
    sum: bool = False
    """True if parts are summed; otherwise they are concatenated."""
    bias: bool = True
    """True if this part adds the bias of the op."""
    finish: bool = True
    """True if an activation follows in the buffer after the last part."""

    def as_dict(self) -> dict[str, Any]:
        """Return the part as an entry of a graph's ``meta``."""
        return asdict(self)


def part_of(op: str, attributes: Attributes) -> PartOf | None:
    """Return the attribute ``part_of`` of an op; None if it is no part.

    Raise GraphError, naming the op, if the attribute is no valid :class:`PartOf`.
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
