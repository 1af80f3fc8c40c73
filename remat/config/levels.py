"""Options of methods from names and values, also for partitioners and solvers in the levels of ``hierarchical``."""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from remat import registry
from remat.backends.programs import check_solver_options, check_trusted
from remat.config.faults import first_fault, unknown
from remat.errors import FormatError, ProblemError

if TYPE_CHECKING:
    from remat.hierarchy.method import HierarchicalOptions


def make_options(
    method: str, given: Mapping[str, Any], where: str = "", kind: type[Any] | None = None, group: str = "methods"
) -> Any:
    """Return the options of a formulation, heuristic, other method or partitioner from names and values.

    Parameters
    ----------
    method : str
        A registered name, looked up in methods, heuristics, formulations and partitioners in this order; or the name of
        `kind` in messages.
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
        return _adapter(options_type).validate_json(json.dumps(given, default=str), strict=True)
    except ValidationError as error:
        place, fault = first_fault(error, given)
        key = ".".join([group, method, *place])
        if fault == "is not known":
            inner = [field.name for field in dataclasses.fields(_nested(options_type, place))]
            raise FormatError(where + unknown(key, place[-1], inner), "wrong-key", key) from None
        raise FormatError(f"{where}{key!r} {fault}", "wrong-key", key) from None
    except ProblemError as error:
        raise ProblemError(f"{where}{group}.{method}: {error}", "bad-options", method) from None


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    """Return the reader of options of a class, which takes tens of milliseconds to make."""
    return TypeAdapter(kind)


def check_levels(options: Any, where: str, *, allow_solver_files: bool) -> None:
    """Refuse solvers of levels or stages that name a file, as for ``[solve]`` and ``[backends]``.

    Raise BackendError with the prefix `where`, and RematError for options of a stage that its method refuses.
    """
    from remat.heuristics.lns import LnsOptions
    from remat.hierarchy.method import HierarchicalOptions
    from remat.solving.auto import AutoOptions

    if isinstance(options, AutoOptions):
        for stage in options.stages or ():
            method, _, backend = stage.method.partition("/")
            if backend:
                check_trusted(backend, where)
            if stage.options and method != "turns":
                inner = make_options(method, stage.options, where)
                check_levels(inner, where, allow_solver_files=allow_solver_files)
    if isinstance(options, LnsOptions):
        check_trusted(options.backend, where)
        if not allow_solver_files:
            check_solver_options(options.backend, options.solver_options, where)
    if isinstance(options, HierarchicalOptions):
        for backend in (*_backends(options), *options.solver_options):
            check_trusted(backend, where)
        for backend, given in options.solver_options.items() if not allow_solver_files else ():
            check_solver_options(backend, given, where)


def with_tables(
    options: Any, tables: Mapping[str, Mapping[str, Any]], solver_options_of: Callable[[str], Mapping[str, Any]],
    backend: str,
) -> Any:  # fmt: skip
    """Return options with names replaced by objects where the name has a table; options of other methods are unchanged.

    Parameters
    ----------
    tables : mapping of str to mapping
        Options of partitioners and methods, by name.
    solver_options_of : callable
        Returns the solver options of a backend by name.
    backend : str
        Backend of the call.
    """
    from remat.hierarchy.method import HierarchicalOptions
    from remat.solving.method import HeuristicMethod, make_method

    if not isinstance(options, HierarchicalOptions):
        return options

    def partitioner(name: Any) -> Any:
        given = tables.get(name)
        return registry.make("partitioners", name, make_options(name, given)) if given else name

    def method(name: Any) -> Any:
        made = make_method(name, make_options(name, tables[name])) if tables.get(name) else name
        return made.heuristic if isinstance(made, HeuristicMethod) else made

    groups, top = options.methods(backend)
    solvers = {word: solver_options_of(word) for word in _backends(options)}
    return replace(
        options,
        partitioners=tuple(map(partitioner, options.partitioners)),
        leaf_methods=tuple(map(method, options.leaf_methods)),
        group_methods=tuple(map(method, groups)),
        top_methods=tuple(map(method, top)),
        solver_options={**solvers, **options.solver_options},
    )


def _backends(options: HierarchicalOptions) -> list[str]:
    return [word for word in (options.leaf_backend, options.group_backend) if isinstance(word, str)]


def _nested(kind: Any, place: list[str]) -> Any:
    """Return the dataclass of options inside `kind` to which all keys but the last lead."""
    for word in place[:-1]:
        parts = [] if word.isdigit() else [typing.get_type_hints(kind)[word]]
        while parts:
            part = parts.pop()
            kind = part if dataclasses.is_dataclass(part) else kind
            parts += typing.get_args(part)
    return kind
