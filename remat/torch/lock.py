"""Lock for functions that trace or change torch's settings and random generators, which belong to the process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

_Given = ParamSpec("_Given")
_Returned = TypeVar("_Returned")
_LOCK = threading.RLock()


def in_turn(function: Callable[_Given, _Returned]) -> Callable[_Given, _Returned]:
    """Run calls of all functions with this decorator one at a time: a call waits for those in other threads."""

    @wraps(function)
    def locked(*args: _Given.args, **kwargs: _Given.kwargs) -> _Returned:
        with _LOCK:
            return function(*args, **kwargs)

    return locked
