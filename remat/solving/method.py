"""Methods: the common interface of everything that answers a problem.

``auto``, formulations with a backend, heuristics, order searches and entry points of the group ``remat.methods`` are
all a :class:`Method` to :func:`remat.solve`.
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from remat import registry
from remat.errors import ProblemError, RematError
from remat.formulations.base import Formulation
from remat.heuristics.base import Heuristic
from remat.ordering.base import OrderSearch
from remat.ordering.rules import RULES
from remat.problem import Objective
from remat.registry import attempt, heuristics, load
from remat.runtime.compiled import COMPILING
from remat.schedule import OrderRule

if TYPE_CHECKING:
    from remat.solving.session import Session

#: Heuristics that provide a solver's start, if registered.
START_HEURISTICS = {OrderRule.FIXED: "greedy", OrderRule.FREE: "annealing"}
#: Shares of the time left for loading and running the start heuristic.
PREPARE_SHARE, START_SHARE = 0.4, 0.1
#: Maximum seconds of the start heuristic per op.
START_SECONDS = 0.02
#: Groups in which a name is looked up, in this order.
GROUPS = ("methods", "heuristics", "formulations")


class Method(ABC):
    """Answers a problem by any means; it may solve many models and run other methods on the same session.

    Parameters
    ----------
    options : optional
        An object of the class's `options_type`; None: its defaults.

    Examples
    --------
    A method that tries two heuristics; it needs no registration to be used.

    >>> from remat import Problem, solve
    >>> from remat.graphs.families import unit_chain
    >>> from remat.heuristics.greedy import Greedy
    >>> from remat.heuristics.eviction import Eviction
    >>> class Both(Method):
    ...     name = "both"
    ...     def run(self, session):
    ...         for heuristic in (Eviction(), Greedy()):
    ...             if not session.enough:
    ...                 with session.step(heuristic.name):
    ...                     session.improve(heuristic, session.call.deadline)
    >>> result = solve(Problem(unit_chain(8), 7), Both)
    >>> result.objective, result.method, len(result.steps)
    (20, 'both', 2)
    """

    name: ClassVar[str]
    objectives: frozenset[Objective] = frozenset({Objective.LEAST_COST})
    """Supported objectives."""
    options_type: ClassVar[type | None] = None
    """Dataclass of the options; None: no options."""
    uses_backend: ClassVar[bool] = False
    """True if it solves models by the session's backend; otherwise only the default backend is accepted."""
    counts_in_place: ClassVar[bool] = False
    """True if its proofs hold for graphs whose ops write outputs in place of inputs. Otherwise it receives problems
    without that, and its proofs are discarded."""
    moves: bool = False
    """True if it moves tensors to the host where a problem has one. Otherwise it receives problems with one memory; its
    schedules are valid, and its proofs are discarded."""

    def __init__(self, options: Any = None) -> None:
        kind = self.options_type
        if options is not None and kind is None:
            raise ProblemError(f"method {self.name!r} takes no options", "no-options")
        if options is not None and kind is not None and not isinstance(options, kind):
            found = f"options of {self.name} are a {type(options).__name__}"
            raise ProblemError(f"{found}, it takes {kind.__name__}", "no-options", self.name)
        self.options: Any = kind() if options is None and kind is not None else options

    def __repr__(self) -> str:  # the same in every process: resumed experiments compare it
        return f"{type(self).__qualname__}({self.name!r}, {getattr(self, 'options', None)!r})"

    @property
    def needs_backend(self) -> bool:
        """Return True if this object solves models by the session's backend."""
        return self.uses_backend

    @abstractmethod
    def run(self, session: Session) -> None:
        """Improve `session` until it is enough, the deadline passes, or nothing is left to try.

        `session` has the problem, the options (`call`), the backend (`solver`), the warm start and all results so far.
        :meth:`~remat.solving.session.Session.improve` runs a heuristic and
        :meth:`~remat.solving.session.Session.raise_bound` records a bound.
        """


class HeuristicMethod(Method):
    """A single heuristic; for the least peak it runs with ever smaller budgets."""

    objectives = frozenset(Objective)
    counts_in_place = True

    def __init__(self, kind: type[Heuristic] | Heuristic, options: Any = None) -> None:
        self.heuristic: Heuristic = _made(kind, options, "heuristic")
        self.name, self.moves = kind.name, kind.moves  # type: ignore[misc]

    @property
    def needs_backend(self) -> bool:
        return self.heuristic.needs_backend

    def run(self, session: Session) -> None:
        if session.asks_peak:
            from remat.solving.min_peak_search import MinPeakSearch

            MinPeakSearch(session).run_heuristic(self.heuristic)
            return
        with session.timed(self.name):
            session.improve(self.heuristic, session.call.deadline, session.warm_start)
        session.conclude()


class FormulationMethod(Method):
    """A formulation. The backend solves its model, by default from the schedule of a quick heuristic."""

    uses_backend = True
    counts_in_place = True

    def __init__(self, kind: type[Formulation], options: Any = None) -> None:
        self.kind, self.options, self.objectives = kind, options, kind.objectives
        self.name, self.moves = kind.name, kind.moves  # type: ignore[misc]

    def has_option(self, name: str) -> bool:
        """Return True if the formulation has an option of this name."""
        return name in getattr(self.kind.options_type, "__dataclass_fields__", {})

    def with_options(self, **values: Any) -> FormulationMethod:
        """Return a copy with these options replaced."""
        assert self.kind.options_type is not None
        return FormulationMethod(self.kind, replace(self.options or self.kind.options_type(), **values))

    def run(self, session: Session) -> None:
        from remat.solving.model_solve import ModelSolve

        assert session.solver is not None
        session.solver.check_ready()
        if not session.call.from_nothing:
            (self._begin_with_orders if session.asks_peak else self._begin)(session)
        if not session.enough:
            ModelSolve(session, self.kind, session.solver, self.options).run(session.warm_start)

    @staticmethod
    def _begin(session: Session) -> None:
        """Run the start heuristic."""
        name, deadline = START_HEURISTICS.get(session.problem.order, ""), session.call.deadline
        if name not in heuristics():
            return
        heuristic: Heuristic = load("heuristics", name)()
        with session.timed("start"):
            if heuristic.prepared(deadline.earlier(PREPARE_SHARE * deadline.remaining)):
                seconds = min(START_SECONDS * len(session.problem.graph.ops), START_SHARE * deadline.remaining)
                session.improve(heuristic, deadline.earlier(seconds), session.warm_start)

    @staticmethod
    def _begin_with_orders(session: Session) -> None:
        """Run the ordering rules, as starts for the least peak."""
        problem = session.problem
        if problem.order is OrderRule.FIXED:
            return
        deadline = session.call.deadline.share(START_SHARE)
        with session.timed("start"):
            for rule in RULES:
                session.search_order(rule(), deadline)


class OrderMethod(Method):
    """A search for the order of least peak without recomputation (:mod:`remat.ordering`)."""

    objectives = frozenset({Objective.LEAST_PEAK})
    counts_in_place = True

    def __init__(self, kind: type[OrderSearch] | OrderSearch, options: Any = None) -> None:
        self.search: OrderSearch = _made(kind, options, "method")
        self.name = kind.name  # type: ignore[misc]

    def run(self, session: Session) -> None:
        problem = session.problem
        if problem.order is OrderRule.FIXED:
            raise ProblemError(f"method {self.name!r} searches for an order, but the problem fixes it")
        session.raise_peak_bound(problem.structural_peak, "the structural bound")
        if not session.enough:
            self._search(session)
        session.conclude()

    def _search(self, session: Session) -> None:
        """Search for a lower peak than that of the best known schedule.

        The search's bound counts if the problem allows one compute per op; otherwise it is a remark.
        """
        problem, search, deadline = session.problem, self.search, session.call.deadline
        known = session.incumbents.least_peak
        assert known is not None  # the reference order is always known
        with session.timed("load"):  # compiles the kernels on first use
            if not search.prepared(deadline, lambda: session.enter(f"{self.name}: {COMPILING}")):
                session.not_compiled(self.name)
                return
        with session.timed(self.name):
            found = session.search_order(search, deadline, known.certificate.peak)
        best = session.incumbents.least_peak
        assert best is not None
        if problem.once.all():
            session.raise_peak_bound(found.bound, self.name)
        elif found.bound >= best.certificate.peak:
            session.note(f"{self.name} proved that no order has a lower peak without recomputation")
        for note in found.notes:
            session.note(note)


#: Specification of a method: a name, a class or an object.
MethodLike = (
    str | type[Method] | type[Formulation] | type[Heuristic] | type[OrderSearch] | Method | Heuristic | OrderSearch
)


def known_methods() -> list[str]:
    """Return the names of everything that answers a problem, sorted."""
    return sorted({name for group in GROUPS for name in registry.Registered(group)})


def is_method(name: str) -> bool:
    """Return True if something that answers a problem is registered under this name."""
    return any(name in registry.Registered(group) for group in GROUPS)


def method_class(name: str) -> type[Any]:
    """Return the class with a name: a method, an order search, a heuristic or a formulation.

    Raises
    ------
    RematError
        If the name is unknown (the message lists similar names), or the class cannot be imported.

    Examples
    --------
    >>> method_class("checkmate").__name__
    'Checkmate'
    >>> method_class("checkmat")
    Traceback (most recent call last):
    remat.errors.RematError: there is no method 'checkmat'; did you mean 'checkmate'? `remat backends` lists all
    """
    for group in GROUPS:
        if name in registry.Registered(group):
            return load(group, name)
    raise RematError(unknown_method(name))


def split_backend(method: MethodLike) -> tuple[MethodLike, str | None]:
    """Return method and backend of ``METHOD/BACKEND``; no backend for anything else.

    Examples
    --------
    >>> split_backend("checkmate/highs"), split_backend("greedy")
    (('checkmate', 'highs'), ('greedy', None))
    """
    name, slash, backend = method.partition("/") if isinstance(method, str) else ("", "", "")
    if slash and not backend:
        raise ProblemError(f"method {method!r} names no backend after the slash")
    return (name, backend) if slash and ":" not in name else (method, None)


def require_backend(method: Method, written: object) -> None:
    """Raise ProblemError if a method, `written` with a backend, works without one."""
    if not method.needs_backend:
        raise ProblemError(f"method {written!r}: {method.name!r} works without a backend", "needs-no-backend")


def unknown_method(name: str) -> str:
    """Return the message for an unknown method, with a suggestion."""
    known = known_methods()
    backend = registry.SOLVERS.get(name.lower(), name.lower())
    if backend.partition(":")[0] in registry.Registered("backends"):
        return (
            f"there is no method {name!r}; that is a backend, which solves a formulation "
            f"(retention-intervals/{backend}, stages/{backend})"
        )
    if "," in name:
        return f"there is no method {name!r}; one method is needed here, and `remat compare` takes several"
    near = difflib.get_close_matches(name.lower(), known, n=1)
    return f"there is no method {name!r}; {f'did you mean {near[0]!r}? ' if near else ''}`remat backends` lists all"


def make_method(method: MethodLike, options: Any = None) -> Method:
    """Return the method for a name, a class or an object.

    Parameters
    ----------
    method : str, class or object
        A registered name; a subclass of Method, OrderSearch, Formulation or Heuristic; or an object of one (except
        Formulation), which has its options already.
    options : optional
        An object of the class's `options_type`.

    Raises
    ------
    RematError
        If a name is not registered; a ProblemError for any other non-method, or for options of a method without any.
    """
    kind: Any = method_class(method) if isinstance(method, str) else method
    if _is_a(kind, Heuristic):
        return HeuristicMethod(kind, options)
    if _is_a(kind, OrderSearch):
        return OrderMethod(kind, options)
    if isinstance(kind, type) and issubclass(kind, Formulation):
        return FormulationMethod(kind, options)
    if _is_a(kind, Method):
        made: Method = _made(kind, options, "method")
        return made
    raise ProblemError(
        f"a method is a name or a class of Method, OrderSearch, Formulation or Heuristic, not {f'{method!r}'[:60]}",
        "no-method",
    )


def _is_a(one: Any, kind: type) -> bool:
    """Return True if `one` is an object or a class of a kind."""
    return issubclass(one if isinstance(one, type) else type(one), kind)


def _made(kind: Any, options: Any, word: str) -> Any:
    """Return an object of the class `kind` with its options, or `kind` if it is an object already."""
    what = f"{word} {kind.name!r}"
    if isinstance(kind, type):
        return attempt(lambda: kind(options), f"{what} cannot be made")
    if options is not None:
        raise ProblemError(f"{what} has its options already", "no-options")
    return kind
