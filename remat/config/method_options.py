"""Options of methods from names and values."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from remat import registry
from remat.config.faults import first_fault, unknown
from remat.errors import FormatError, ProblemError


def make_options(
    method: str, given: Mapping[str, Any], where: str = "", kind: type[Any] | None = None, group: str = "methods"
) -> Any:
    """Return the options of a formulation, heuristic, other method or partitioner from names and values.

    Parameters
    ----------
    method : str
        A registered name, looked up in methods, heuristics, formulations and partitioners in this order; or the name of
        `kind` in messages.
    given : mapping
    where : str
        Prefix of messages.
    kind : type, optional
        Class of the method, if it is not registered.
    group : str
        Group of `kind`, for messages.

    Raises
    ------
    FormatError
        With the prefix `where`, for an unknown option or a value of the wrong type.
    ProblemError
        For a value that the options refuse.
    RematError
        If the method is unknown.

    Examples
    --------
    >>> make_options("retention-intervals", {"copies": 3})
    RetentionIntervalsOptions(copies=3, precedence='cover')
    """
    if kind is None:
        groups = (group for group in ("methods", "heuristics", "formulations", "partitioners"))
        known_to = (group for group in groups if method in registry.Registered(group))
        kind = registry.load(group := next(known_to, "formulations"), method)
    options_type: Any = getattr(kind, "options_type", None)
    if options_type is None:
        raise FormatError(f"{where}{registry.GROUPS[group]} {method!r} has no options", "no-options", method)
    known = [field.name for field in dataclasses.fields(options_type)]
    for key in given:
        if key not in known:
            raise FormatError(where + unknown(f"{group}.{method}.{key}", key, known), "wrong-key", key)
    try:  # by JSON, whose strict mode accepts lists for tuples and words for enums, but not "3" for 3
        return TypeAdapter(options_type).validate_json(json.dumps(given, default=str), strict=True)
    except ValidationError as error:
        place, fault = first_fault(error, given)
        key = ".".join([group, method, *place])
        raise FormatError(f"{where}{key!r} {fault}", "wrong-key", key) from None
    except ProblemError as error:
        raise ProblemError(f"{where}{group}.{method}: {error}", "bad-options", method) from None
