"""Base of option dataclasses: each field is checked against its annotation."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar

from remat.errors import ProblemError
from remat.runtime.text import clipped


@dataclass(frozen=True)
class Range:
    """Range of a number, in the annotation of an option: ``Annotated[int, Range(1)]``."""

    least: float | None = None
    """Smallest value allowed."""
    most: float | None = None
    """Largest value allowed."""
    above: float | None = None
    """The value must be greater than this."""
    below: float | None = None
    """The value must be smaller than this."""

    def allows(self, value: float) -> bool:
        """Return True if `value` lies within the range; NaN lies in none."""
        return (
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        most = "to" if self.least is not None else "at most"
        words = [("from", self.least), ("above", self.above), (most, self.most), ("below", self.below)]
        parts = [f"{word} {bound:,}" for word, bound in words if bound is not None]
        return (" " if self.least is not None and self.most is not None else " and ").join(parts)


#: A whole number from 1.
Positive = Annotated[int, Range(1)]


@dataclass(frozen=True)
class Options:
    """Base of the options of methods, which are frozen dataclasses with defaults.

    Values are compared with the annotations of their fields: ``bool``, ``int``, ``float``, ``str``, ``None``,
    ``Literal``, ``tuple[X, ...]``, ``Mapping``, other classes, unions of these, and numbers with a :class:`Range`. An
    int is accepted as a float and a list as a tuple; ``True`` is not a number. Rules across fields are checked in
    ``__post_init__``, after ``super().__post_init__()``.

    Raises
    ------
    ProblemError
        Naming the first field with an invalid value.

    Examples
    --------
    >>> @dataclass(frozen=True)
    ... class MovesOptions(Options):
    ...     moves: Annotated[int, Range(1)] | None = None
    >>> MovesOptions("many")
    Traceback (most recent call last):
    remat.errors.ProblemError: moves must be a whole number from 1 or None, not 'many'
    """

    #: Configurations refuse unknown options; their JSON Schema describes each one by the docstring below its field.
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "use_attribute_docstrings": True}

    def __post_init__(self) -> None:
        kinds = _kinds(type(self))  # type: ignore[arg-type]  # mypy takes a dataclass for not hashable
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not _fits(value, kinds[field.name]):
                words = f"{field.name} must be {_words(kinds[field.name])}, not {clipped(repr(value), 60)}"
                raise ProblemError(words, "option", field.name)


@cache
def _kinds(options: type[Any]) -> Mapping[str, Any]:
    """Return the types of all fields; their texts are evaluated once for each class."""
    return typing.get_type_hints(options, include_extras=True)


def _fits(value: Any, kind: Any) -> bool:
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        ranges = [each for each in parts[1:] if isinstance(each, Range)]
        return _fits(value, parts[0]) and all(each.allows(value) for each in ranges)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is typing.Literal:
        return any(type(value) is type(part) and value == part for part in parts)
    if origin is tuple:
        return isinstance(value, tuple | list) and all(_fits(each, parts[0]) for each in value)
    if origin is type:
        return isinstance(value, type) and issubclass(value, parts[0])
    if kind in (int, float):
        return isinstance(value, int | kind) and not isinstance(value, bool)
    return value is None if kind is None else isinstance(value, origin or kind)


def _words(kind: Any) -> str:
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return " ".join([_words(parts[0]), *(str(each) for each in parts[1:] if isinstance(each, Range))])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(_words, parts)))
    if origin is typing.Literal:
        return " or ".join(map(repr, parts))
    if origin is tuple:
        return f"a list, each item {_words(parts[0])}"
    if origin is type:
        return _words(parts[0])
    plain = {bool: "true or false", int: "a whole number", float: "a number", str: "a string", types.NoneType: "None"}
    return plain.get(kind, "a table" if (origin or kind) is Mapping else getattr(kind, "__name__", str(kind)))
