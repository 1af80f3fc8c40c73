"""What all file formats share: the content of a file, and the formats that are installed in an entry-point group."""

from __future__ import annotations

import codecs
import gc
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import EntryPoint
from typing import Any, Protocol, TypeVar

from remat.errors import FormatError, RematError
from remat.io.files import decode_text, parse_json, read_bytes
from remat.io.text import short
from remat.registry import load_entry, others, own


class _Collector:
    """The garbage collector of the process, off while at least one reader, of whichever thread, wants it to be."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers = 0
        self._was_on = False

    def pause(self) -> None:
        """Switch it off, if nobody has."""
        with self._lock:
            if not self._readers:
                self._was_on = gc.isenabled()
                gc.disable()
            self._readers += 1

    def resume(self) -> None:
        """Put it back as it was before the first, if nobody else is reading."""
        with self._lock:
            self._readers -= 1
            if not self._readers and self._was_on:
                gc.enable()


_COLLECTOR = _Collector()


@contextmanager
def reading() -> Iterator[None]:
    """No search for garbage in cycles meanwhile: there is none, and it would take most of the time of a large file."""
    _COLLECTOR.pause()
    try:
        yield
    finally:
        _COLLECTOR.resume()


@dataclass(frozen=True)
class Source:
    """The content of a file, decoded as far as somebody asks.

    Attributes
    ----------
    name : str
        For messages: the path.
    data : bytes
    remarks : list of str
        Takes what a reader found that is not wrong, and yet to be known.
    options : mapping
        What the caller said of how it is to be read; only names that the format has.
    """

    name: str
    data: bytes
    remarks: list[str] = field(default_factory=list, compare=False, repr=False)
    options: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of_file(cls, path: str | os.PathLike[str]) -> Source:
        """The content of a file, without a byte order mark; raises FormatError where it cannot be read."""
        if not isinstance(path, str | os.PathLike):
            raise FormatError(f"a file is named by its path, not by {short(path)}")
        return cls(str(path), read_bytes(path).removeprefix(codecs.BOM_UTF8))

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


class Format(Protocol):
    """What a format of graphs or schedules has in common with the other."""

    @property
    def name(self) -> str:
        """Its name in the registry."""

    @property
    def recognizes(self) -> Callable[[Source], bool] | None:
        """Whether a source is in this format."""


F = TypeVar("F", bound=Format)


def installed_formats(
    group: str, built_in: Mapping[str, str], kind: type[F], last: int = 0, faults: list[str] | None = None
) -> Iterator[F]:
    """The formats registered in an entry-point group, one by one; one that cannot be loaded is passed over.

    Parameters
    ----------
    group : str
    built_in : mapping of name to ``module:attribute``
        Those of this package; they work without installed metadata.
    kind : type
        What an entry must be.
    last : int
        How many of `built_in`, from its end, come after those of others.
    faults : list of str, optional
        Takes what is wrong with those that are passed over.
    """
    ours = own(group, built_in)
    for entry in _in_turn(ours[: len(ours) - last], group, built_in, ours[len(ours) - last :]):
        try:
            found = load_entry(entry, group, kind)
        except FormatError as error:
            if faults is not None:
                faults.append(str(error))
            continue
        yield found


def recognized(formats: Iterator[F], source: Source, faults: list[str]) -> tuple[F | None, list[str]]:
    """The first format that recognises `source`, None if none does; and the names of those that were asked.

    A format of somebody else that fails where it should say yes or no has not recognised anything; `faults` takes what
    is wrong with it.

    Raises
    ------
    FormatError
        If the source cannot be read or decoded at all.
    """
    asked: list[str] = []
    for each in formats:
        test = each.recognizes
        if test is None:
            continue
        asked.append(each.name)
        try:
            if test(source):
                return each, asked
        except RematError:
            raise
        except Exception as error:
            faults.append(f"format {each.name!r} fails: {type(error).__name__}: {' '.join(str(error).split())}")
    return None, asked


def _in_turn(
    first: list[EntryPoint], group: str, built_in: Mapping[str, str], last: list[EntryPoint]
) -> Iterator[EntryPoint]:
    yield from first
    # Reading the metadata of all that is installed takes milliseconds: only when no format of this package will do.
    yield from others(group, built_in)
    yield from last
