"""Selection of a backend by name, class or object, and of the process in which it runs."""

from __future__ import annotations

from typing import Any

from remat.backends.base import Backend
from remat.errors import ProblemError
from remat.registry import attempt, make_backend
from remat.runtime.solve_options import SolveOptions

#: Specification of a backend.
BackendLike = str | type[Backend] | Backend


def as_backend(backend: BackendLike) -> Backend:
    """Return the backend for a name (``name`` or ``name:variant``), a class or an object.

    Raise BackendError if a name is not registered, or a class cannot be instantiated. Raise ProblemError for anything
    else.

    Examples
    --------
    >>> from remat.backends.highs import Highs
    >>> as_backend("highs").full_name, as_backend(Highs).full_name
    ('highs', 'highs')
    """
    made: Any = make_backend(backend) if isinstance(backend, str) else backend
    if isinstance(made, type) and issubclass(made, Backend):
        made = attempt(made, f"backend {made.name!r} cannot be made", "remat.backends")
    if not isinstance(made, Backend):
        raise ProblemError(f"the backend is a name or a Backend, not {f'{backend!r}'[:60]}", "no-backend")
    return made


def placed(backend: Backend, options: SolveOptions) -> Backend:
    """Return `backend`, in a child process if the options require it.

    Examples
    --------
    >>> from remat.backends.highs import Highs
    >>> type(placed(Highs(), SolveOptions(isolate=True))).__name__, type(placed(Highs(), SolveOptions())).__name__
    ('Isolated', 'Highs')
    """
    if backend.own_process or not options.isolate:
        return backend
    from remat.backends.isolated import Isolated

    return Isolated(backend)
