"""Editing of flat buffers without a schema compiler: new tables come before the old buffer, which stays unchanged.

References in a flat buffer point forward, so new objects in front can refer to anything in the old buffer. It moves as
a whole; content unknown to this module stays intact.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from remat.errors import FormatError

#: Kind of a field that refers to a vector, string or table; other kinds are sizes in bytes.
LINK = 0
#: The old buffer moves by multiples of this, so that weights stay aligned.
SHIFT = 64
#: Largest buffer in bytes: references have 32 bits, and those of tables to their layout are signed.
MAX_SIZE = 2**31 - 1

Fields = Mapping[int, int]


@dataclass(frozen=True)
class FlatBuffer:
    """Tables of a flat buffer by position; fields by number."""

    data: bytes

    def number(self, code: str, position: int) -> int:
        """Return the number at a position, given its ``struct`` code. Raise FormatError beyond the end."""
        try:
            return int(struct.unpack_from(f"<{code}", self.data, position)[0])
        except struct.error:
            raise _outside(position, "an offset") from None

    def target(self, position: int) -> int:
        """Return the target of the reference at a position."""
        return position + self.number("I", position)

    @property
    def root(self) -> int:
        """Position of the main table."""
        return self.target(0)

    def place(self, table: int, number: int) -> int | None:
        """Return the position of a field of a table; None if absent."""
        layout = table - self.number("i", table)
        slot = 4 + 2 * number
        offset = self.number("H", layout + slot) if slot < self.number("H", layout) else 0
        return table + offset if offset else None

    def scalar(self, table: int, number: int, code: str, default: int = 0) -> int:
        """Return the number in a field."""
        place = self.place(table, number)
        return default if place is None else self.number(code, place)

    def link(self, table: int, number: int) -> int | None:
        """Return the target of the reference in a field; None if absent."""
        place = self.place(table, number)
        return None if place is None else self.target(place)

    def numbers(self, table: int, number: int, code: str = "i") -> tuple[int, ...]:
        """Return a vector of numbers."""
        start = self.link(table, number)
        if start is None:
            return ()
        count = self.number("I", start)
        if start + 4 + struct.calcsize(code) * count > len(self.data):
            raise _outside(start, "a vector")
        return struct.unpack_from(f"<{count}{code}", self.data, start + 4)

    def tables(self, table: int, number: int) -> tuple[int, ...]:
        """Return the positions of the tables in a vector."""
        start = self.link(table, number)
        count = len(self.numbers(table, number, "I"))
        return tuple(self.target((start or 0) + 4 + 4 * k) for k in range(count))

    def fields(self, table: int, known: Fields, what: str) -> dict[int, bytes | int]:
        """Return the fields of a table: numbers as bytes, references as target positions.

        Raise FormatError for a field that is not `known`: a copy without it would change the model.
        """
        layout = table - self.number("i", table)
        found: dict[int, bytes | int] = {}
        for number in range((self.number("H", layout) - 4) // 2):
            place = self.place(table, number)
            if place is None:
                continue
            if number not in known:
                raise FormatError(
                    f"{what} has field {number}, which is newer than the schema that remat knows: nothing is written; "
                    "convert the model with an older converter, or update remat",
                    "newer-schema",
                )
            size = known[number]
            if place + size > len(self.data):
                raise _outside(place, "a field")
            found[number] = self.target(place) if size == LINK else self.data[place : place + size]
        return found


def _outside(position: int, what: str) -> FormatError:
    """Return the error for a file that is cut off or damaged."""
    return FormatError(
        f"byte {position:,}: {what} leads outside the file, which is cut off or damaged; "
        "copy or convert the model again",
        "flat-buffer",
    )


@dataclass(eq=False)
class Piece:
    """A new object: its bytes, and references in them to new objects or into the old buffer, by position.

    `anchor` is the target of references to it: a position in its bytes, a multiple of `align` in the file.
    """

    data: bytearray
    links: dict[int, Piece | int] = field(default_factory=dict)
    anchor: int = 0
    align: int = 8


def table(fields: Mapping[int, bytes | int | Piece]) -> Piece:
    """Return a table with these fields: bytes of numbers, or references."""
    sizes = {number: len(value) if isinstance(value, bytes) else 4 for number, value in fields.items()}
    layout_size = 4 + 2 * (max(fields, default=-1) + 1)
    anchor = -(-layout_size // 8) * 8
    at = 4
    offsets: dict[int, int] = {}
    for number in sorted(fields, key=lambda number: -sizes[number]):
        at = -(-at // sizes[number]) * sizes[number]
        offsets[number] = at
        at += sizes[number]
    piece = Piece(bytearray(anchor + at), anchor=anchor)
    slots = [offsets.get(number, 0) for number in range((layout_size - 4) // 2)]
    start = anchor - layout_size
    struct.pack_into(f"<HH{len(slots)}H", piece.data, start, layout_size, at, *slots)
    struct.pack_into("<i", piece.data, anchor, layout_size)
    for number, value in fields.items():
        position = anchor + offsets[number]
        if isinstance(value, bytes):
            piece.data[position : position + len(value)] = value
        else:
            piece.links[position] = value
    return piece


def numbers(values: Sequence[int], code: str = "i") -> Piece:
    """Return a vector of numbers."""
    return Piece(bytearray(struct.pack(f"<I{len(values)}{code}", len(values), *values)), align=4)


def links(targets: Sequence[int | Piece]) -> Piece:
    """Return a vector of references."""
    piece = numbers([0] * len(targets))
    piece.links = {4 + 4 * k: target for k, target in enumerate(targets)}
    return piece


def text(value: bytes) -> Piece:
    """Return a string."""
    return Piece(bytearray(struct.pack("<I", len(value)) + value + b"\0"), align=4)


def content(value: bytes) -> Piece:
    """Return a vector of bytes for the content of a buffer, aligned to 16."""
    return Piece(bytearray(12) + struct.pack("<I", len(value)) + value, anchor=12, align=16)


def in_front(root: Piece, old: bytes) -> bytes:
    """Return a buffer with `root` as its main table and the bytes of `old` at its end.

    Raise FormatError if it would exceed :data:`MAX_SIZE`.
    """
    starts: dict[Piece, int] = {}
    end = 8
    for piece in _parents_first(root):
        phase = piece.anchor if piece.align < 16 else piece.anchor + 4
        starts[piece] = end + (-(end + phase) % piece.align)
        end = starts[piece] + len(piece.data)
    shift = -(-end // SHIFT) * SHIFT
    if shift + len(old) > MAX_SIZE:
        raise FormatError(
            f"the model would have {shift + len(old):,} bytes, more than the 2 GiB of a flat buffer: "
            "quantise its weights, or split the model",
            "too-large",
        )
    front = bytearray(shift)
    struct.pack_into("<I4s", front, 0, starts[root] + root.anchor, old[4:8])
    for piece, start in starts.items():
        front[start : start + len(piece.data)] = piece.data
        for at, target in piece.links.items():
            goal = target + shift if isinstance(target, int) else starts[target] + target.anchor
            struct.pack_into("<I", front, start + at, goal - start - at)
    return bytes(front) + old


def _parents_first(root: Piece) -> list[Piece]:
    """Return all new objects, each before those that it refers to."""
    done: dict[Piece, None] = {}
    waiting: list[tuple[Piece, bool]] = [(root, False)]
    while waiting:
        piece, seen = waiting.pop()
        if seen:
            done[piece] = None
        elif piece not in done:
            waiting.append((piece, True))
            waiting.extend((each, False) for each in piece.links.values() if isinstance(each, Piece))
    return list(done)[::-1]
