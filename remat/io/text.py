"""Text from outside, made fit for messages and terminals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from remat.errors import RematError

#: Characters of a value that a message quotes.
QUOTED = 60
#: How many faults a message lists; the others are counted.
LISTED = 5


def printable(text: str, keep: str = "") -> str:
    r"""`text` without anything that a terminal would obey.

    Control characters, escape sequences, overrides of the writing direction, halves of surrogate pairs and the like
    become Python's escapes, other white space a blank; what `keep` has stays.

    Examples
    --------
    >>> print(printable("a\x1b[31mb\u202ec\td"))
    a\x1b[31mb\u202ec d
    """
    plain = text
    for character in keep:  # megabytes of JSON are printable but for line ends: no loop over them in Python
        plain = plain.replace(character, "")
    if plain.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in keep else " " if c.isspace() and c.isascii() else ascii(c)[1:-1] for c in text
    )


def one_line(text: str) -> str:
    r"""`text` on one line and printable: what a message may quote of somebody else's.

    Examples
    --------
    >>> one_line("first\n  second\x07")
    'first second\\x07'
    """
    return printable(" ".join(text.split()))


def short(value: Any, length: int = QUOTED) -> str:
    r"""A value as a message shows it: on one line, printable, and cut where it is longer than `length`.

    Examples
    --------
    >>> short("x" * 100, 10), short([1, 2]), short({}), short(1.5), short("\x1b[2J")
    ("'xxxxxx...", 'a list', 'an object', '1.5', "'\\x1b[2J'")
    """
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    try:
        text = printable(repr(value[: length + 1] if isinstance(value, str | bytes) else value))
    except ValueError:  # a number with thousands of digits
        text = "a number with thousands of digits"
    return text if len(text) <= length else clipped(text, length)


def expect(value: Any, kind: type, what: str, error: type[RematError]) -> None:
    """Refuse an argument that is something else altogether.

    Raises
    ------
    RematError
        Of the class `error`, naming the argument (`what`) and what was given for it.

    Examples
    --------
    >>> from remat.errors import GraphError
    >>> expect("resnet50", dict, "sizes", GraphError)
    Traceback (most recent call last):
    remat.errors.GraphError: sizes: a dict is needed, not 'resnet50'
    """
    if not isinstance(value, kind):
        raise error(f"{what}: a {kind.__name__} is needed, not {short(value)}")


def clipped(text: str, length: int) -> str:
    """`text`, cut with dots where it is longer than `length`."""
    return text if len(text) <= length else text[: length - 3] + "..."


def together(faults: Sequence[str], count: int | None = None) -> str:
    """Faults on one line: the first :data:`LISTED`, and how many more there are of `count` (default: of `faults`)."""
    more = (len(faults) if count is None else count) - LISTED
    return "; ".join([*faults[:LISTED], *([f"and {more:,} more"] if more > 0 else [])])
