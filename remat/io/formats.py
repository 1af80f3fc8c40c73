"""What all file formats share: the content of a file, and the formats that are installed in an entry-point group."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from remat.errors import FormatError
from remat.io.files import decode_text, parse_json, read_bytes

F = TypeVar("F")


@dataclass(frozen=True)
class Source:
    """The content of a file, decoded as far as somebody asks.

    Attributes
    ----------
    name : str
        For messages: the path.
    data : bytes
    """

    name: str
    data: bytes

    @classmethod
    def of_file(cls, path: str | os.PathLike[str]) -> Source:
        """The content of a file; raises FormatError where it cannot be read."""
        return cls(os.fspath(path), read_bytes(path))

    @cached_property
    def text(self) -> str:
        """The content as UTF-8 text; raises FormatError where it is not."""
        return decode_text(self.data, self.name)

    @property
    def looks_like_json(self) -> bool:
        """Whether the content starts like a JSON object."""
        return self.data[:4096].lstrip(b" \t\r\n").startswith(b"{")

    @cached_property
    def json(self) -> Any:
        """The content as a JSON value; raises FormatError where it is not JSON."""
        return parse_json(self.text, self.name)


def installed_formats(group: str, built_in: Mapping[str, str], kind: type[F], last: int = 0) -> Iterator[F]:
    """The formats registered in an entry-point group, one by one.

    Parameters
    ----------
    group : str
    built_in : mapping of name to ``module:attribute``
        Those of this package; they work without installed metadata.
    kind : type
        What an entry must be.
    last : int
        How many of `built_in`, from its end, come after those of others.

    Raises
    ------
    FormatError
        Naming an entry that cannot be loaded or is something else.
    """
    own = [EntryPoint(name, value, group) for name, value in built_in.items()]
    for entry in _in_turn(own[: len(own) - last], group, built_in, own[len(own) - last :]):
        label = f"{group.removeprefix('remat.').replace('_', ' ').removesuffix('s')} {entry.name!r} ({entry.value})"
        try:
            found = entry.load()
        except Exception as error:
            raise FormatError(f"{label} cannot be loaded: {error}") from None
        if not isinstance(found, kind):
            raise FormatError(f"{label} is not a {kind.__name__}")
        yield found


def _in_turn(
    first: list[EntryPoint], group: str, built_in: Mapping[str, str], last: list[EntryPoint]
) -> Iterator[EntryPoint]:
    yield from first
    # Reading the metadata of all that is installed takes milliseconds: only when no format of this package will do.
    yield from sorted((e for e in entry_points(group=group) if e.name not in built_in), key=lambda e: e.name)
    yield from last
