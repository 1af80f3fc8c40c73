"""A check of the types of options, so that a wrong one is refused by name, and not somewhere in the middle of a run."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any

from remat.errors import ProblemError


def check_types(options: Any) -> None:
    """Compare the fields of an options dataclass with their annotations; for the beginning of ``__post_init__``.

    It knows ``bool``, ``int``, ``float``, ``str``, ``None``, ``Literal``, ``tuple[X, ...]``, ``Mapping`` and unions of
    these. A whole number will do for a float, a list for a tuple; ``True`` is no number.

    Raises
    ------
    ProblemError
        Naming the first field that is something else.

    Examples
    --------
    >>> @dataclasses.dataclass(frozen=True)
    ... class Options:
    ...     moves: int | None = None
    ...
    ...     def __post_init__(self) -> None:
    ...         check_types(self)
    >>> Options("many")
    Traceback (most recent call last):
    remat.errors.ProblemError: moves must be int or None, not 'many'
    """
    kinds = typing.get_type_hints(type(options))
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if not _fits(value, kinds[field.name]):
            shown = repr(value)
            shown = shown if len(shown) <= 60 else shown[:57] + "..."
            raise ProblemError(f"{field.name} must be {_words(kinds[field.name])}, not {shown}")


def _fits(value: object, kind: Any) -> bool:
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is typing.Literal:
        return any(type(value) is type(part) and value == part for part in parts)
    if origin is tuple:
        return isinstance(value, tuple | list) and all(_fits(each, parts[0]) for each in value)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if origin is Mapping or kind is Mapping:
        return isinstance(value, Mapping)
    return value is None if kind in (None, types.NoneType) else isinstance(value, kind)


def _words(kind: Any) -> str:
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(_words, parts))
    if origin is typing.Literal:
        return " or ".join(map(repr, parts))
    if origin is tuple:
        return f"several {_words(parts[0])}"
    if kind is types.NoneType:
        return "None"
    return {bool: "true or false"}.get(kind, getattr(origin or kind, "__name__", str(kind)))
