"""Python's pickle format, written and never read: whole numbers, texts, lists and dicts alone.

The viewer of PyTorch reads memory snapshots as pickles and knows few opcodes. What stands here names no class and no
function, so that whoever loads it runs nothing.
"""

from __future__ import annotations

from typing import Any

#: Items that one opcode appends: viewers pass them as arguments of one call.
_BATCH = 1000
_PROTOCOL = 4
_MARK, _STOP, _MEMOIZE, _EMPTY_LIST, _EMPTY_DICT = b"(", b".", b"\x94", b"]", b"}"
_APPENDS, _SETITEMS, _BINGET, _LONG_BINGET = b"e", b"u", b"h", b"j"


def pickled(value: Any) -> bytes:
    """A value of dicts, lists, texts and whole numbers as a pickle of protocol 4; same value, same bytes.

    Equal texts are written once; so is a list that stands in several places as one object.

    Raises
    ------
    TypeError
        For a value of any other type.

    Examples
    --------
    >>> import pickletools
    >>> content = pickled({"a": [1, 300, -5, 2**40], "b": ["a"]})
    >>> sorted({op.name for op, _, _ in pickletools.genops(content)})[:5]
    ['APPENDS', 'BINGET', 'BININT', 'BININT1', 'BININT2']
    """
    out = bytearray(b"\x80" + bytes([_PROTOCOL]))
    _Writer(out).write(value)
    return bytes(out + _STOP)


class _Writer:
    def __init__(self, out: bytearray) -> None:
        self._out = out
        #: Number in the reader's memory of each text, and of each list by its identity; lists are kept alive.
        self._texts: dict[str, int] = {}
        self._lists: dict[int, tuple[int, list[Any]]] = {}

    def write(self, value: Any) -> None:
        if type(value) is int:
            self._number(value)
        elif type(value) is str:
            self._text(value)
        elif type(value) is list:
            self._list(value)
        elif type(value) is dict:
            self._dict(value)
        else:
            raise TypeError(f"a {type(value).__name__} is not written")

    def _number(self, value: int) -> None:
        if 0 <= value < 2**8:
            self._out += b"K" + value.to_bytes(1)
        elif 0 <= value < 2**16:
            self._out += b"M" + value.to_bytes(2, "little")
        elif -(2**31) <= value < 2**31:
            self._out += b"J" + value.to_bytes(4, "little", signed=True)
        else:
            length = value.bit_length() // 8 + 1
            self._out += b"\x8a" + length.to_bytes(1) + value.to_bytes(length, "little", signed=True)

    def _text(self, value: str) -> None:
        if value in self._texts:
            self._get(self._texts[value])
            return
        data = value.encode("utf-8", "backslashreplace")
        short = len(data) < 2**8
        self._out += (b"\x8c" + len(data).to_bytes(1) if short else b"X" + len(data).to_bytes(4, "little")) + data
        self._out += _MEMOIZE
        self._texts[value] = self._memorised

    def _list(self, value: list[Any]) -> None:
        if id(value) in self._lists:
            self._get(self._lists[id(value)][0])
            return
        self._out += _EMPTY_LIST + _MEMOIZE
        self._lists[id(value)] = (self._memorised, value)
        for start in range(0, len(value), _BATCH):
            self._out += _MARK
            for item in value[start : start + _BATCH]:
                self.write(item)
            self._out += _APPENDS

    def _dict(self, value: dict[str, Any]) -> None:
        self._out += _EMPTY_DICT
        if value:
            self._out += _MARK
            for key, item in value.items():
                self.write(key)
                self.write(item)
            self._out += _SETITEMS

    @property
    def _memorised(self) -> int:
        """How much the reader has in memory before what is being memorised."""
        return len(self._texts) + len(self._lists)

    def _get(self, number: int) -> None:
        small = number < 2**8
        self._out += _BINGET + number.to_bytes(1) if small else _LONG_BINGET + number.to_bytes(4, "little")
