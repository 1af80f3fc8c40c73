"""Participant of an experiment: a method with its backend and options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from remat.backends.choice import BackendLike, as_backend
from remat.errors import ProblemError
from remat.solving.auto import AUTO
from remat.solving.method import HeuristicMethod, MethodLike, make_method, method_class


@dataclass(frozen=True)
class Contestant:
    """A method with its backend, options and label in tables and pictures.

    Examples
    --------
    >>> from remat.heuristics.greedy import Greedy
    >>> Contestant("checkmate", "highs").label, Contestant(Greedy).label
    ('checkmate/highs', 'greedy')
    """

    method: MethodLike
    """As for :func:`remat.solve`: ``auto``, the name of a formulation, heuristic or method, a class of one (registered
    or not), or a heuristic or method object. If runs are sent to other processes, these must be able to import a class
    or object."""
    backend: BackendLike = ""
    """Name or name:variant, class or object; empty for a method that needs none."""
    options: Any = None
    """Options of the method."""
    solver_options: Mapping[str, Any] = field(default_factory=dict)
    """Passed to the solver untouched."""
    label: str = ""
    """Name in tables and pictures; default ``name/backend``."""

    def __post_init__(self) -> None:
        if not self.label:
            solver = self.backend_name
            object.__setattr__(self, "label", f"{self.name}/{solver}" if solver else self.name)

    @property
    def name(self) -> str:
        """Name of the method."""
        return self.method if isinstance(self.method, str) else str(getattr(self.method, "name", self.method))

    @property
    def backend_name(self) -> str:
        """Full name of the backend; empty if there is none."""
        return self.backend if isinstance(self.backend, str) else as_backend(self.backend).full_name

    @property
    def is_heuristic(self) -> bool:
        """True for a heuristic, whose answers prove nothing."""
        return isinstance(make_method(self.method), HeuristicMethod)

    @property
    def source(self) -> str:
        """Source of a schedule that the method itself finds."""
        solver = "" if self.is_heuristic else self.backend_name
        return f"{self.name} by {solver}" if solver else self.name

    def described(self) -> dict[str, Any]:
        """Return everything that determines its results, as JSON values."""
        name, options = self.name, self.options
        if not isinstance(self.method, str):
            kind = self.method if isinstance(self.method, type) else type(self.method)
            name = f"{name} ({kind.__module__}:{kind.__qualname__})"
            options = getattr(self.method, "options", None) if kind is not self.method else options
        solver = {str(key): value if isinstance(value, str | int | float | bool) else repr(value)
                  for key, value in self.solver_options.items()}  # fmt: skip
        told = None if options is None else repr(options)
        return {"name": name, "backend": self.backend_name, "options": told, "solver_options": solver}

    @classmethod
    def parse(
        cls, text: str, backend: BackendLike = "cp-sat", named: Callable[[str, str], Any] = lambda word, _group: word
    ) -> Contestant:
        """Read ``METHOD`` or ``METHOD/BACKEND``; a method that solves models defaults to `backend`.

        `named` maps a word of a registry group to its class, or to itself.

        Raises
        ------
        RematError
            If a method or backend is unknown, or a method without models has a backend.

        Examples
        --------
        >>> Contestant.parse("checkmate/highs")
        Contestant(method='checkmate', backend='highs', options=None, solver_options={}, label='checkmate/highs')
        >>> Contestant.parse("checkmate").label, Contestant.parse("greedy").label
        ('checkmate/cp-sat', 'greedy')
        """
        name, slash, solver = text.strip().partition("/")
        method = named(name, "methods")
        if method is name:
            method_class(name)  # report an unknown name first
        if slash and not solver:
            raise ProblemError(f"method {text!r} names no backend after the slash")
        return cls.of(method, named(solver, "backends") if slash else None, backend, text.strip())

    @classmethod
    def of(
        cls, method: MethodLike, backend: BackendLike | None = None, default: BackendLike = "cp-sat", text: str = ""
    ) -> Contestant:
        """Return a method with `backend`, or with `default` if it needs one and none is given.

        Parameters
        ----------
        text : str
            The method as written, for errors.

        Raises
        ------
        RematError
            If the backend is unknown, or the method needs none and one is given.
        """
        made = make_method(method)
        if not made.needs_backend:
            if backend is not None:
                kind = "heuristic" if isinstance(made, HeuristicMethod) else "method"
                raise ProblemError(
                    f"method {text or made.name!r}: {kind} {made.name!r} works without a backend", "needs-no-backend"
                )
            return cls(method)
        if backend is None and isinstance(made, HeuristicMethod):
            return cls(method)  # solve() chooses the backend of its models
        solver = default if backend is None else backend
        if isinstance(solver, str):
            solver = as_backend(solver).full_name
        return cls(method, solver, label=made.name if method == AUTO and backend is None else "")
