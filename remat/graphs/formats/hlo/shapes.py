"""Shapes in HLO text and their bytes: element types, bounds, layouts with tiles and memory spaces, tuples."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from remat.errors import FormatError
from remat.io.limits import draw
from remat.runtime.text import short

#: Bytes of one element in memory; types of less than a byte occupy one unless the layout packs them (``E(4)``).
ELEMENT_BYTES = {
    "pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "s32": 4, "u32": 4, "s64": 8, "u64": 8,
    "f16": 2, "bf16": 2, "f32": 4, "f64": 8, "c64": 8, "c128": 16, "token": 0, "opaque": 0,
    "s1": 1, "u1": 1, "s2": 1, "u2": 1, "s4": 1, "u4": 1, "f4e2m1fn": 1,
    "f8e3m4": 1, "f8e4m3": 1, "f8e4m3b11fnuz": 1, "f8e4m3fn": 1, "f8e4m3fnuz": 1, "f8e5m2": 1, "f8e5m2fnuz": 1,
    "f8e8m0fnu": 1,
}  # fmt: skip
#: The memory space of the host in layouts.
HOST = 5
#: Limits on the digits of a number, the axes of an array, and the nesting of tuples.
MAX_DIGITS = 18
MAX_RANK = 64
MAX_DEPTH = 32
#: Bytes for each part of a tuple.
_PART_MEMORY = 20

_ARRAY = re.compile(r"([a-z][a-z0-9]*)\[([^\[\]()\n]*)\](\{[^{}\n]*\})?")
_BLANK = re.compile(r"(?:\s|/\*[^*]*\*/)*")
_DIM = re.compile(rf"\s*(?:<=)?([0-9]{{1,{MAX_DIGITS}}})\s*")
_TILE = re.compile(r"T((?:\([0-9,]*\))+)")
_ELEMENT_BITS = re.compile(r"E\(([0-9]{1,3})\)")
_SPACE = re.compile(r"S\(([0-9]{1,3})\)")


@dataclass(frozen=True, slots=True)
class ArrayShape:
    """Shape of an array."""

    element: str
    """Element type, such as ``f32``."""
    dims: tuple[int, ...]
    """Extents of the axes; the upper bound for a dynamic axis."""
    size: int
    """Bytes, including the padding of tiles."""
    space: int = 0
    """Memory space of the layout: 0 is the device's own memory, 5 the host's."""

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.dims)

    @property
    def leaves(self) -> int:
        """Number of arrays."""
        return 1

    def __str__(self) -> str:
        return f"{self.element}[{','.join(map(str, self.dims))}]"


@dataclass(frozen=True, slots=True)
class TupleShape:
    """Tuple of shapes."""

    parts: tuple[Shape, ...]
    leaves: int
    """Number of arrays, at all levels."""

    @property
    def elements(self) -> int:
        """Number of elements of all its arrays."""
        return sum(array.elements for array in arrays(self))

    def __str__(self) -> str:
        return f"a tuple of {len(self.parts)}"


Shape = ArrayShape | TupleShape


def arrays(shape: Shape) -> Iterator[ArrayShape]:
    """Yield the arrays of a shape from left to right."""
    if isinstance(shape, ArrayShape):
        yield shape
    else:
        for part in shape.parts:
            yield from arrays(part)


class ShapeReader:
    """Parser of shapes in a text; equal texts of arrays are parsed once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._known: dict[str, ArrayShape] = {}

    def read(self, position: int, depth: int = 0) -> tuple[Shape, int]:
        """Return the shape at `position`, nested in `depth` tuples, and its end.

        Raise FormatError without a place; the caller adds it.
        """
        position = self._blank(position)
        if not self._text.startswith("(", position):
            return self._array(position)
        if depth == MAX_DEPTH:
            raise FormatError(f"tuples within tuples, more than {MAX_DEPTH} deep", "hlo-shape")
        parts: list[Shape] = []
        position = self._blank(position + 1)
        while parts or not self._text.startswith(")", position):
            shape, position = self.read(position, depth + 1)
            draw(_PART_MEMORY)
            parts.append(shape)
            position = self._blank(position)
            if not self._text.startswith(",", position):
                break
            position += 1
        if not self._text.startswith(")", position):
            raise FormatError(f"the tuple of shapes ends with {self._quoted(position)}", "hlo-shape")
        return TupleShape(tuple(parts), sum(part.leaves for part in parts)), position + 1

    def _blank(self, position: int) -> int:
        found = _BLANK.match(self._text, position)
        assert found is not None
        return found.end()

    def _quoted(self, position: int) -> str:
        return short(self._text[position : position + 24].split("\n")[0])

    def _array(self, position: int) -> tuple[ArrayShape, int]:
        found = _ARRAY.match(self._text, position)
        if found is None:
            raise FormatError(f"no shape: {self._quoted(position)}", "hlo-shape")
        known = self._known.get(found[0])
        if known is None:
            known = self._known[found[0]] = array_shape(found[1], found[2], found[3] or "")
        return known, found.end()


def array_shape(element: str, axes: str, layout: str) -> ArrayShape:
    """Return the shape of an array from the parts of its text.

    Raise FormatError, naming the element type or the axis, if it is invalid.

    Examples
    --------
    >>> array_shape("f32", "100,200", "{1,0}").size, array_shape("f32", "100,200", "{1,0:T(8,128)}").size
    (80000, 106496)
    >>> array_shape("s4", "3,3", "{1,0}").size, array_shape("s4", "3,3", "{1,0:E(4)}").size
    (9, 5)
    """
    if element not in ELEMENT_BYTES:
        raise FormatError(f"unknown element type {short(element)}", "hlo-shape")
    dims: list[int] = []
    for axis in axes.split(",") if axes.strip() else []:
        found = _DIM.fullmatch(axis)
        if found is None:
            why = "has no bound" if "?" in axis else "is no extent"
            raise FormatError(f"axis {len(dims)} of {element}[{axes[:40]}] {why}: {short(axis.strip())}", "hlo-shape")
        dims.append(int(found[1]))
        if len(dims) > MAX_RANK:
            raise FormatError(f"an array of more than {MAX_RANK} axes", "hlo-shape")
    bits = _ELEMENT_BITS.search(layout)
    space = _SPACE.search(layout)
    elements = math.prod(_padded(dims, layout))
    size = -(-elements * int(bits[1]) // 8) if bits and int(bits[1]) else elements * ELEMENT_BYTES[element]
    return ArrayShape(element, tuple(dims), size, int(space[1]) if space else 0)


def _padded(dims: list[int], layout: str) -> list[int]:
    """Return the extents in memory, from the major to the minor axis; tiles split the last axes and round up."""
    tiles = _TILE.search(layout)
    order = re.match(r"\{([0-9,]*)", layout)
    if tiles is None or order is None:
        return dims
    minor_to_major = _numbers(order[1], layout)
    if sorted(minor_to_major) != list(range(len(dims))):
        raise FormatError(
            f"the layout {short(layout)} does not name the axes of an array of {len(dims)} axes", "hlo-shape"
        )
    extents = [dims[axis] for axis in reversed(minor_to_major)]
    for text in re.findall(r"\(([0-9,]*)\)", tiles[1]):
        tile = _numbers(text, layout)
        if not all(tile):
            raise FormatError(f"a tile of extent 0 in the layout {short(layout)}", "hlo-shape")
        if len(extents) + len(tile) > 2 * MAX_RANK:
            raise FormatError(f"too many tiles in the layout {short(layout)}")
        extents = [1] * (len(tile) - len(extents)) + extents
        split = len(extents) - len(tile)
        over = [-(-extent // step) for extent, step in zip(extents[split:], tile, strict=True)]
        extents = extents[:split] + over + tile
    return extents


def _numbers(text: str, layout: str) -> list[int]:
    numbers = [number for number in text.split(",") if number]
    if len(numbers) > MAX_RANK or any(len(number) > MAX_DIGITS for number in numbers):
        raise FormatError(f"numbers beyond reason in the layout {short(layout)}")
    return [int(number) for number in numbers]
