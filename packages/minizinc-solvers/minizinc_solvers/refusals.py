"""Checks of constraint arguments, with errors that name the fault."""

from __future__ import annotations

from typing import Any

from minizinc_solvers.errors import FlatZincError
from minizinc_solvers.model import Constraint, IntSet, Variable


def items(argument: Any) -> list[Any]:
    """Return an array argument."""
    if not isinstance(argument, list):
        raise unfit("an array", argument)
    return argument


def number(argument: Any) -> int | float:
    """Return a constant number or truth value."""
    if not isinstance(argument, (int, float)):
        raise unfit("a constant number", argument)
    return argument


def whole(argument: Any) -> int:
    """Return a constant integer or truth value."""
    if not isinstance(argument, int):
        raise unfit("a constant whole number", argument)
    return int(argument)


def wholes(argument: Any) -> list[int]:
    """Return an array of integer constants."""
    return [whole(item) for item in items(argument)]


def constant_set(argument: Any) -> IntSet:
    """Return a constant set argument."""
    if not isinstance(argument, IntSet):
        raise unfit("a constant set", argument)
    return argument


def unfit(wanted: str, argument: Any) -> FlatZincError:
    """Return the error for an argument of the wrong kind."""
    if isinstance(argument, Variable):
        shown = f"variable {argument.name[:40]!r}"
    elif isinstance(argument, list):
        shown = f"an array of {len(argument)}"
    elif isinstance(argument, IntSet):
        shown = "a set"
    else:
        shown = str(argument).lower()[:40]
    return FlatZincError(f"has {shown} where {wanted} belongs")


def refuse(constraint: Constraint, problem: str) -> FlatZincError:
    """Return the error that names a constraint and its line."""
    name = constraint.name if len(constraint.name) <= 60 else constraint.name[:57] + "..."
    return FlatZincError(f"line {constraint.line}: constraint {name!r} {problem}")
