"""ONNX models without their weights, read from a stream: files of gigabytes take little memory.

A model is a message of protocol buffers. The reader parses only messages that can hold large tensors. It drops the
content of tensors, never their types and shapes.
"""

from __future__ import annotations

from typing import BinaryIO

from remat.errors import FormatError
from remat.io.formats import reading
from remat.io.limits import MAX_BYTES, draw

#: Largest content of a tensor to keep, in bytes: computed shapes are small.
KEPT = 64 * 1024
#: Largest nesting of messages; the readers of protocol buffers have the same limit.
MAX_DEPTH = 100
#: Library memory per byte of a model outside its tensors: an empty message has two bytes and takes 150.
MEMORY = 75
#: Nested messages, by message and field number.
_PARTS = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse tensor"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse tensor", 23: "sparse tensor"},
    "sparse tensor": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
#: Content fields of a tensor: float, int32, string, int64, raw, double and uint64 data.
_CONTENT = frozenset({4, 5, 6, 7, 9, 10, 11})
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def looks_like_model(data: bytes) -> bool:
    r"""Return True if bytes start like a model: the format's version, then a field that a model has.

    Examples
    --------
    >>> looks_like_model(b"\x08\x0a:\x00"), looks_like_model(b'{"format": 1}'), looks_like_model(b"\x08")
    (True, False, False)
    """
    return len(data) > 3 and data[0] == 0x08 and 0 < data[1] < 0x40 and data[2] in b"\x12\x1a\x22\x28\x32\x3a\x42\x72"


@reading()
def without_weights(stream: BinaryIO) -> bytes:
    """Read a model from the stream, without the content of tensors of more than :data:`KEPT` bytes.

    Raise FormatError if the stream ends too early or holds no message, naming the byte, or if the result is too large.
    """
    stream.seek(0, 2)
    end = stream.tell()
    stream.seek(0)
    return _Abridger(stream).message(end, "model", 0)


class _Abridger:
    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._position = 0
        self._taken = 0

    def message(self, end: int, kind: str, depth: int) -> bytes:
        """Return the message from the current position to `end`."""
        if depth > MAX_DEPTH:
            raise FormatError(f"byte {self._position:,}: messages are nested more than {MAX_DEPTH} deep")
        parts = _PARTS[kind]
        result: list[bytes] = []
        while self._position < end:
            before = self._position
            tag = self._varint(end)
            field, wire = tag >> 3, tag & 7
            if wire == _VARINT:
                result.append(encoded(tag) + encoded(self._varint(end)))
            elif wire in (_FIXED32, _FIXED64):
                result.append(encoded(tag) + self._take(4 if wire == _FIXED32 else 8, end))
            elif wire == _BYTES:
                length = self._varint(end)
                if length > end - self._position:
                    raise FormatError(
                        f"byte {self._position:,}: the file ends before the field of {length:,} bytes does"
                    )
                if kind == "tensor" and field in _CONTENT and length > KEPT:
                    self._stream.seek(length, 1)
                    self._position += length
                    continue
                if length > KEPT and field in parts:
                    content = self.message(self._position + length, parts[field], depth + 1)
                else:
                    content = self._take(length, end)
                    draw((1 if kind == "tensor" or parts.get(field) == "tensor" else MEMORY) * length)
                result.append(encoded(tag) + encoded(len(content)) + content)
            else:
                raise FormatError(f"byte {self._position:,}: no ONNX model (wire type {wire})")
            draw(MEMORY * min(self._position - before, 10))
        return b"".join(result)

    def _take(self, length: int, end: int) -> bytes:
        self._taken += length
        if self._taken > MAX_BYTES:
            raise FormatError(f"more than {MAX_BYTES:,} bytes besides its weights")
        data = self._stream.read(min(length, end - self._position))
        self._position += len(data)
        if len(data) < length:
            raise FormatError(f"byte {self._position:,}: the file ends in the middle of a field")
        return data

    def _varint(self, end: int) -> int:
        value = shift = 0
        while True:
            byte = self._take(1, end)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise FormatError(f"byte {self._position:,}: a number of more than ten bytes")


def encoded(value: int) -> bytes:
    """Return a number as protocol buffers encode it, seven bits per byte."""
    result = bytearray()
    while value > 0x7F:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)
