"""Compiled functions run by Python itself: slower by a factor of hundreds, and there at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np

#: What compiled functions find under the name of numpy: numbers of Python, which are quicker than numpy's one by one.
NUMPY = SimpleNamespace(int64=int, float64=float, inf=float("inf"))


def interpreted(function: Callable[..., Any], instead: Mapping[str, Callable[..., Any]] | None = None) -> Any:
    """The Python function that a compiled one is made from, which calls such functions in turn.

    They are quickest with lists in place of arrays of one dimension, and a dictionary by pairs in place of two.

    Parameters
    ----------
    function : callable
        Of a module of compiled functions that ask numpy for :data:`NUMPY` only.
    instead : mapping, optional
        By name what is called in place of compiled functions.

    Examples
    --------
    >>> from remat.compiled import inner, kernel
    >>> @inner
    ... def double(value):
    ...     return 2 * value
    >>> @kernel
    ... def four_times(value):
    ...     return double(double(value))
    >>> interpreted(four_times)("ab")
    'abababab'
    >>> interpreted(four_times, {"double": sorted})("ba")
    ['a', 'b']
    """
    return _made(function, instead or {}, {})


def _made(function: Any, instead: Mapping[str, Any], known: dict[Any, Any]) -> Any:
    plain = getattr(function, "py_func", function)
    if plain not in known:
        names = {**plain.__globals__}
        known[plain] = FunctionType(plain.__code__, names, plain.__name__, plain.__defaults__, plain.__closure__)
        for name in plain.__code__.co_names:
            if name in instead:
                names[name] = instead[name]
            elif names.get(name) is np:
                names[name] = NUMPY
            elif hasattr(names.get(name), "py_func"):
                names[name] = _made(names[name], instead, known)
    return known[plain]
