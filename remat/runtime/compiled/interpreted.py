"""Kernels run by the interpreter: hundreds of times slower, and available at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np

#: Replacement of numpy in interpreted kernels: Python's numbers are faster than numpy's scalars.
NUMPY = SimpleNamespace(int64=int, float64=float, inf=float("inf"))


def interpreted(function: Callable[..., Any], instead: Mapping[str, Callable[..., Any]] | None = None) -> Any:
    """Return the Python source function of a kernel; the kernels it calls are interpreted too.

    Lists in place of one-dimensional arrays, and dictionaries keyed by pairs in place of matrices, are faster.

    Parameters
    ----------
    function : callable
        Kernel from a module whose kernels use only the names of :data:`NUMPY` from numpy.
    instead : mapping, optional
        Replacements of kernels by name.

    Examples
    --------
    >>> from remat.runtime.compiled import inner, kernel
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
