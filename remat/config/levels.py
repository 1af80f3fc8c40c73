"""Partitioners, methods and solvers in the levels of ``hierarchical``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from remat import registry
from remat.backends.programs import check_solver_options, check_trusted
from remat.config.method_options import make_options
from remat.hierarchy.method import HierarchicalOptions
from remat.solving.method import HeuristicMethod, make_method


def check_levels(options: Any, where: str, *, allow_solver_files: bool) -> None:
    """Refuse solvers of levels that name a file, as for ``[solve]`` and ``[backends]``.

    Raises
    ------
    BackendError
        With the prefix `where`.
    """
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
