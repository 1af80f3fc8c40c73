"""Sanitizing of untrusted text for messages and terminals; tables as text, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Container, Iterable, Sequence
from difflib import get_close_matches
from typing import Any

from remat.errors import RematError

#: Most characters of a value in a message.
QUOTED = 60
#: Most faults in a message; the others are counted.
LISTED = 5


def printable(text: str, keep: str = "") -> str:
    r"""Escape everything in `text` that a terminal would interpret.

    Control characters, escape sequences, overrides of the writing direction, halves of surrogate pairs and the like
    become Python's escapes; other white space becomes a blank. Characters in `keep` stay.

    Examples
    --------
    >>> print(printable("a\x1b[31mb\u202ec\td"))
    a\x1b[31mb\u202ec d
    """
    plain = text
    for character in keep:  # megabytes of JSON are printable except line ends: no Python loop over them
        plain = plain.replace(character, "")
    if plain.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in keep else " " if c.isspace() and c.isascii() else ascii(c)[1:-1] for c in text
    )


def one_line(text: str) -> str:
    r"""Return `text` on one line and printable, for a quotation in a message.

    Examples
    --------
    >>> one_line("first\n  second\x07")
    'first second\\x07'
    """
    return printable(" ".join(text.split()))


def short(value: Any, length: int = QUOTED) -> str:
    r"""Format a value for a message: on one line, printable, cut to `length`.

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
    """Refuse an argument of a wrong type.

    Raises
    ------
    RematError
        Of class `error`, with the argument's name (`what`) and the given value.

    Examples
    --------
    >>> from remat.errors import GraphError
    >>> expect("resnet50", dict, "sizes", GraphError)
    Traceback (most recent call last):
    remat.errors.GraphError: sizes: a dict is needed, not 'resnet50'
    """
    if not isinstance(value, kind):
        raise error(f"{what}: {with_article(kind.__name__)} is needed, not {short(value)}")


def with_article(noun: str) -> str:
    """Return a noun with its indefinite article, by its first letter.

    Examples
    --------
    >>> with_article("Op"), with_article("dict")
    ('an Op', 'a dict')
    """
    return f"an {noun}" if noun[:1].lower() in "aeiou" else f"a {noun}"


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the end of a message that names the most similar known name; empty if none is similar.

    Examples
    --------
    >>> nearest("gredy", ["auto", "greedy"]), nearest("x", ["auto"])
    ("; did you mean 'greedy'?", '')
    """
    near = get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def counted(number: int, noun: str) -> str:
    """Return a number with a noun, in the plural except for one.

    Examples
    --------
    >>> counted(1, "run"), counted(2, "run"), counted(2, "fetch")
    ('1 run', '2 runs', '2 fetches')
    """
    ending = "es" if noun.endswith("ch") else "s"
    return f"{number:,} {noun}{ending * (number != 1)}"


def either(words: Sequence[str]) -> str:
    """Return words as alternatives.

    Examples
    --------
    >>> either(["a", "b", "c"])
    'a, b or c'
    """
    return " or ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)


def clipped(text: str, length: int) -> str:
    """Return `text`, cut with dots if it is longer than `length`."""
    return text if len(text) <= length else text[: length - 3] + "..."


def together(faults: Sequence[str], count: int | None = None) -> str:
    """Join faults on one line: the first :data:`LISTED`, and the number of others of `count` (default: of `faults`)."""
    more = (len(faults) if count is None else count) - LISTED
    return "; ".join([*faults[:LISTED], *([f"and {more:,} more"] if more > 0 else [])])


def aligned(rows: Iterable[Sequence[str]], right: Container[int] = (), gap: int = 2) -> list[str]:
    """Return a line for each row, its words in columns `gap` blanks apart; columns in `right` are right-aligned.

    Examples
    --------
    >>> aligned([("op", "bytes"), ("conv1", "64")], right={1})
    ['op     bytes', 'conv1     64']
    """
    lines = [tuple(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        (" " * gap)
        .join(
            word.rjust(width) if column in right else word.ljust(width)
            for column, (word, width) in enumerate(zip(line, widths, strict=True))
        )
        .rstrip()
        for line in lines
    ]


def csv_text(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    r"""Return the text of a CSV file; None becomes an empty field.

    Examples
    --------
    >>> csv_text(["op", "cost"], [("conv", 3), ("a,b", None)])
    'op,cost\nconv,3\n"a,b",\n'
    """
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue()


def json_text(value: Any) -> str:
    r"""Return the text of a readable JSON file, in ASCII; numbers must be finite.

    Examples
    --------
    >>> json_text({"cost": 3})
    '{\n  "cost": 3\n}\n'
    """
    return json.dumps(value, indent=2, allow_nan=False) + "\n"
