"""How much a file may expand to: what is refused before it fills the memory or takes minutes.

The limits are far above what graphs and schedules need: a graph file of 300,000 ops, a schedule of a million steps.
"""

from __future__ import annotations

import re

from remat.errors import FormatError

#: Largest file that is read, in bytes, unless a caller says otherwise.
MAX_BYTES = 128 * 1024 * 1024
#: Most bytes that the values of a JSON text may take up, estimated from its punctuation before it is read.
MAX_JSON_MEMORY = 800 * 1024 * 1024
#: What each mark of a JSON text stands for, in bytes of Python objects; above what was measured for any mixture.
_JSON_WEIGHTS = {"{": 160, "[": 80, ":": 130, ",": 80}
#: Most steps, statements or lines of a schedule, and most cells of a table.
MAX_STEPS = 4_000_000
#: Most parts of a dotted key of TOML; reading takes memory by the square of their number.
MAX_KEY_PARTS = 32
_KEY = r"(?:[A-Za-z0-9_-]++|\"[^\"\n]*+\"|'[^'\n]*+')"
_LONG_KEY = re.compile(rf"(?<![A-Za-z0-9_-]){_KEY}(?:[ \t]*+\.[ \t]*+{_KEY}){{{MAX_KEY_PARTS}}}")


def check_json_size(text: str, name: str) -> None:
    """Refuse a JSON text whose values would take up too much memory; marks inside strings count, too.

    Raises
    ------
    FormatError
        Naming `name` and both sizes.
    """
    estimate = sum(weight * text.count(mark) for mark, weight in _JSON_WEIGHTS.items())
    if estimate > MAX_JSON_MEMORY:
        raise FormatError(
            f"{name}: its values would take up about {estimate >> 20:,} MiB, more than the {MAX_JSON_MEMORY >> 20} MiB "
            f"that are allowed for a JSON file",
            "json-size",
        )


def check_count(count: int, what: str) -> None:
    """Refuse more than :data:`MAX_STEPS` of something, such as ``"steps"``.

    Raises
    ------
    FormatError
    """
    if count > MAX_STEPS:
        raise FormatError(f"{count:,} {what}, more than the {MAX_STEPS:,} that are read")


def check_toml_keys(text: str, name: str) -> None:
    """Refuse a TOML text with a key of very many parts (``a.b.c = 1`` has three).

    Raises
    ------
    FormatError
        Naming `name` and the line.
    """
    found = _LONG_KEY.search(text)
    if found:
        line = text.count("\n", 0, found.start()) + 1
        raise FormatError(f"{name}: line {line}: a key of more than {MAX_KEY_PARTS} parts", "toml-keys")
