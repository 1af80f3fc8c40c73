"""What a configuration says of the levels of ``hierarchical``: their solvers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from remat.backends.programs import check_solver_options, check_trusted
from remat.hierarchy.method import HierarchicalOptions


def check_levels(options: Any, where: str, *, allow_solver_files: bool) -> None:
    """Require that the solvers of levels name no file, as those of ``[solve]`` and ``[backends]``.

    Raises
    ------
    BackendError
        Beginning with `where`.
    """
    if isinstance(options, HierarchicalOptions):
        for backend in (*_backends(options), *options.solver_options):
            check_trusted(backend, where)
        for backend, given in options.solver_options.items() if not allow_solver_files else ():
            check_solver_options(backend, given, where)


def with_tables(options: Any, solver_options_of: Callable[[str], Mapping[str, Any]]) -> Any:
    """Return options with what the tables of solvers say; options of other methods as they are."""
    if not isinstance(options, HierarchicalOptions):
        return options
    tables = {backend: solver_options_of(backend) for backend in _backends(options)}
    return replace(options, solver_options={**tables, **options.solver_options})


def _backends(options: HierarchicalOptions) -> list[str]:
    return [word for word in (options.leaf_backend, options.group_backend) if isinstance(word, str)]
