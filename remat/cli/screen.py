"""Output for a screen: wrapped to its width, with sizes in units instead of exact bytes."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TextIO

from remat.runtime.sizes import size_text
from remat.runtime.text import printable

#: Width of output that is not for a screen.
UNLIMITED = 10**9
#: Least size shown in a unit: smaller ones matter to the byte, as on microcontrollers.
LEAST = 2**20
#: Digits of a digest where all do not fit, as in certificates.
SHORT = 12
_BYTES = re.compile(r"(?<![\d.,])(\d{1,3}(?:,\d{3})+|\d{7,})(?: bytes|(?= more than the budget))")
_UNIT = re.compile(r"(?<=[0-9]) (?=%|s\b|bytes\b|[KMGTP]iB\b)")
_exact: ContextVar[bool] = ContextVar("exact", default=False)


@contextmanager
def exact_bytes(wanted: bool) -> Iterator[None]:
    """Show exact bytes on the screen, too, within the ``with`` block."""
    token = _exact.set(wanted or _exact.get())
    try:
        yield
    finally:
        _exact.reset(token)


def on_screen(stream: TextIO | None = None) -> bool:
    """Return True if a stream (default: standard output) is a terminal, or ``COLUMNS`` gives its width."""
    return (sys.stdout if stream is None else stream).isatty() or "COLUMNS" in os.environ


def width_of(stream: TextIO | None = None) -> int:
    """Return the columns of a stream, at least 40; unlimited in a file."""
    return max(shutil.get_terminal_size().columns, 40) if on_screen(stream) else UNLIMITED


def memory(size: int, stream: TextIO | None = None) -> str:
    """Return the text of a size in a table: in a unit on the screen, otherwise in bytes."""
    return f"{size:,}" if size < LEAST or _exact.get() or not on_screen(stream) else size_text(size)


def with_units(text: str, stream: TextIO | None = None) -> str:
    """Return the text for a stream: on the screen, sizes of 1 MiB or more have a unit instead of exact bytes.

    Sizes that differ but would read the same keep their bytes.
    """
    return text if _exact.get() or not on_screen(stream) else in_units(text)


def in_units(text: str) -> str:
    """Return a text with sizes of 1 MiB or more in a unit; those that differ but would read the same keep their bytes.

    Examples
    --------
    >>> in_units("14,671,622,963 bytes, 12 bytes")
    '13.66 GiB, 12 bytes'
    >>> in_units("8,589,934,592 bytes is below 8,592,316,736 bytes")
    '8,589,934,592 bytes is below 8,592,316,736 bytes'
    """
    sizes = {int(found.replace(",", "")) for found in _BYTES.findall(text)}
    shown = [size_text(size) for size in sizes]

    def shorter(match: re.Match[str]) -> str:
        size = int(match[1].replace(",", ""))
        unit = size_text(size)
        return match[0] if size < LEAST or shown.count(unit) > 1 else unit

    return _BYTES.sub(shorter, text)


def digest_text(digest: str, label: int = 9) -> str:
    """Return a digest, or its first digits on a screen that is too narrow for all after a label of `label` columns."""
    whole = len(digest) + label < width_of()
    return digest if whole else f"{digest[:SHORT]} (the first {SHORT} of {len(digest)} digits; --json has all)"


def say_sentence(text: str, stream: TextIO | None = None) -> None:
    """Print a sentence, wrapped on the screen between words."""
    for line in wrapped(printable(with_units(text, stream)), width_of(stream)):
        print(line, file=stream, flush=True)


def joined(text: str) -> str:
    """Return a text whose numbers are joined to their units by a blank that is never broken."""
    return _UNIT.sub("\xa0", text)


def wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """Return the lines of a text of at most `width` columns; only words that are longer exceed it.

    A number stays with its unit. Each line begins with `indent`.

    Examples
    --------
    >>> wrapped("peak 1.06 GiB (59.89 %)", 12)
    ['peak', '1.06 GiB', '(59.89 %)']
    """
    lines = textwrap.wrap(
        joined(text), width, initial_indent=indent, subsequent_indent=indent,
        break_on_hyphens=False, break_long_words=False,
    )  # fmt: skip
    return [line.replace("\xa0", " ") for line in lines] or [""]
