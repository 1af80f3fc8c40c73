"""Who takes part in an experiment: a method, with the backend and the options that it has there."""

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
    """A method with its backend and options, under the name that it has in tables and pictures.

    Attributes
    ----------
    method : str, class or object
        As for :func:`remat.solve`: ``auto``, the name of a formulation, heuristic or method, a class of one,
        registered or not, or a heuristic or method that is made already. Where runs are sent to other processes, a
        class or object must be one that they can import.
    backend : str, class or Backend
        As name or name:variant, a class, or itself; empty for a method that needs none.
    options : optional
        Options of the method.
    solver_options : mapping
        Passed to the solver untouched.
    label : str
        How it is called in tables and pictures; ``name/backend`` where nothing is given.

    Examples
    --------
    >>> from remat.heuristics.greedy import Greedy
    >>> Contestant("checkmate", "highs").label, Contestant(Greedy).label
    ('checkmate/highs', 'greedy')
    """

    method: MethodLike
    backend: BackendLike = ""
    options: Any = None
    solver_options: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""

    def __post_init__(self) -> None:
        if not self.label:
            solver = self.backend_name
            object.__setattr__(self, "label", f"{self.name}/{solver}" if solver else self.name)

    @property
    def name(self) -> str:
        """Of the method."""
        return self.method if isinstance(self.method, str) else str(getattr(self.method, "name", self.method))

    @property
    def backend_name(self) -> str:
        """Full name of the backend; empty where there is none."""
        return self.backend if isinstance(self.backend, str) else as_backend(self.backend).full_name

    @property
    def is_heuristic(self) -> bool:
        """Whether it is a heuristic, whose answers prove nothing."""
        return isinstance(make_method(self.method), HeuristicMethod)

    @property
    def source(self) -> str:
        """By whom a schedule is found that is the method's own."""
        solver = "" if self.is_heuristic else self.backend_name
        return f"{self.name} by {solver}" if solver else self.name

    def described(self) -> dict[str, Any]:
        """What its results depend on, in JSON values."""
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
        """From ``METHOD`` or ``METHOD/BACKEND``; a method that solves models has `backend` where none is named.

        `named` gives the class that a word stands for in a group of the registry, or the word.

        Raises
        ------
        RematError
            If there is no method or backend of that name, or a method that needs no backend is given one.

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
            method_class(name)  # an unknown name is an error before anything else
        if slash and not solver:
            raise ProblemError(f"method {text!r} names no backend after the slash")
        return cls.of(method, named(solver, "backends") if slash else None, backend, text.strip())

    @classmethod
    def of(
        cls, method: MethodLike, backend: BackendLike | None = None, default: BackendLike = "cp-sat", text: str = ""
    ) -> Contestant:
        """A method with `backend`, or, where it needs one and none is given, with the `default`.

        Parameters
        ----------
        text : str
            How the method was written, for errors.

        Raises
        ------
        RematError
            If there is no such backend, or the method needs none and is given one.
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
            return cls(method)  # its models are solved by whatever solve() takes
        solver = default if backend is None else backend
        if isinstance(solver, str):
            solver = as_backend(solver).full_name
        return cls(method, solver, label=made.name if method == AUTO and backend is None else "")
