"""Faults that pydantic finds in a configuration, described by the keys of the file."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

#: TOML types by pydantic's messages.
_WORDS = {
    "Input should be a valid string": "a string",
    "Input should be a valid integer": "a whole number",
    "Input should be a valid number": "a number",
    "Input should be a valid boolean": "true or false",
    "Input should be a valid dictionary": "a table",
    "Input should be a valid tuple": "a list",
    "Input should be a valid array": "a list",
}
#: Types of pydantic's errors for unknown keys, of models and dataclasses.
UNKNOWN = "extra_forbidden", "unexpected_keyword_argument"


def first_fault(error: ValidationError, given: Any) -> tuple[list[str], str]:
    """Return keys and description of the first fault in `given`; unknown keys come before others."""
    faults = [(_place(fault, given), fault) for fault in error.errors(include_url=False)]
    strange = [(place, fault) for place, fault in faults if fault["type"] in UNKNOWN]
    if strange:
        return strange[0][0], "is not known"
    # A union reports a fault for each member; the deepest is the intended one.
    place = max((place for place, _ in faults if place[:2] == faults[0][0][:2]), key=len)
    here = [fault for where, fault in faults if where == place]
    if here[0]["type"] == "missing":
        return place, "is missing"
    if here[0]["type"] in ("model_type", "dict_type", "model_attributes_type"):
        return place, "must be a table"
    words = (_WORDS.get(fault["msg"], fault["msg"].removeprefix("Input should be ")) for fault in here)
    wanted = " or ".join(dict.fromkeys(word.removeprefix("Value error, ") for word in words))
    given_text = f", not {repr(here[0]['input'])[:60]}"
    return place, f"should be {wanted.removesuffix(given_text)}{given_text}"


def shown(kind: Any, place: list[str], fault: str) -> str:
    """Describe a fault of model `kind` by its key; for an unknown key add the nearest known one."""
    if fault != "is not known":
        return f"{'.'.join(place)!r} {fault}"
    for word in place[:-1]:
        kind = kind.model_fields[word].annotation
    return unknown(".".join(place), place[-1], [field.alias or name for name, field in kind.model_fields.items()])


def _place(fault: Any, given: Any) -> list[str]:
    """Return the keys of a fault, without the members of unions that pydantic includes."""
    place = []
    for word in fault["loc"]:
        inside = isinstance(given, Mapping) and word in given
        inside |= isinstance(given, list | tuple) and isinstance(word, int) and word < len(given)
        if inside:
            given = given[word]
            place.append(str(word))
    return [*place, str(fault["loc"][-1])] if fault["type"] == "missing" else place


def unknown(key: str, word: str, known: list[str], elsewhere: list[str] | None = None) -> str:
    """Describe an unknown `key`, whose last word is `word`, with the nearest known key, or all of them.

    `elsewhere`: keys to list instead of `known` if none of these is near, the nearest to `word` first.
    """
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    if near:
        return f"unknown key {key!r}; did you mean {near[0]!r}?"
    names = elsewhere or known
    names = sorted(names, key=lambda name: -difflib.SequenceMatcher(None, name.rpartition(".")[2], word).ratio())
    return f"unknown key {key!r}; known are {', '.join(names if elsewhere else known)}"
