"""Comparable keys of equations, equal for a computation and its recomputation."""

from __future__ import annotations

from typing import Any


def parameters_key(params: dict[str, Any]) -> tuple[tuple[str, object], ...]:
    """Return the parameters of an equation as a key; jaxprs by content, functions by identity."""
    return tuple((name, _key(value)) for name, value in sorted(params.items()) if name not in _INCIDENTAL)


#: Parameters that do not affect the result.
_INCIDENTAL = frozenset({"name", "prevent_cse", "inline", "keep_unused", "compiler_options_kvs"})


def _key(value: Any) -> object:
    if isinstance(value, tuple | list):
        return tuple(_key(item) for item in value)
    if isinstance(value, dict):
        return tuple((str(name), _key(item)) for name, item in sorted(value.items(), key=lambda pair: str(pair[0])))
    if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
        return _jaxpr_key(getattr(value, "jaxpr", value), tuple(id(c) for c in getattr(value, "consts", ())))
    if isinstance(value, bool | int | float | complex | str | bytes | type(None)):
        return type(value).__name__, value
    try:
        hash(value)
    except TypeError:
        return id(value)
    return value


def _jaxpr_key(jaxpr: Any, constants: tuple[int, ...]) -> object:
    """Return the equations with their values numbered in turn."""
    numbers: dict[Any, int] = {}

    def number(value: Any) -> object:
        if hasattr(value, "val"):
            return repr(value.val), str(value.aval)
        return numbers.setdefault(value, len(numbers))

    head = tuple(number(v) for v in (*jaxpr.constvars, *jaxpr.invars))
    body = tuple(
        (
            equation.primitive.name,
            parameters_key(equation.params),
            tuple(map(number, equation.invars)),
            tuple((number(v), str(v.aval)) for v in equation.outvars),
        )
        for equation in jaxpr.eqns
    )
    return head, body, tuple(map(number, jaxpr.outvars)), constants
