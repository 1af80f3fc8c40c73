"""Scheduling neural computation graphs under a memory budget, with any solver and a certificate."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "ComputeGraph",
    "GraphBuilder",
    "Problem",
    "Result",
    "Schedule",
    "frontier",
    "layered",
    "max_batch",
    "minimize",
    "read_graph",
    "read_schedule",
    "simulate",
    "solve",
    "validate",
    "write_graph",
    "write_schedule",
]

if TYPE_CHECKING:
    from remat.batch import max_batch
    from remat.frontier import frontier
    from remat.graphs import ComputeGraph, GraphBuilder
    from remat.graphs.io import read_graph, write_graph
    from remat.graphs.layered import layered
    from remat.minimize import minimize
    from remat.problem import Problem
    from remat.result import Result
    from remat.schedule import Schedule
    from remat.schedule.io import read_schedule, write_schedule
    from remat.schedule.simulate import simulate
    from remat.schedule.validate import validate
    from remat.solve import solve

_HOME = {
    "ComputeGraph": "remat.graphs",
    "GraphBuilder": "remat.graphs",
    "Problem": "remat.problem",
    "Result": "remat.result",
    "Schedule": "remat.schedule",
    "frontier": "remat.frontier",
    "layered": "remat.graphs.layered",
    "max_batch": "remat.batch",
    "minimize": "remat.minimize",
    "read_graph": "remat.graphs.io",
    "read_schedule": "remat.schedule.io",
    "simulate": "remat.schedule.simulate",
    "solve": "remat.solve",
    "validate": "remat.schedule.validate",
    "write_graph": "remat.graphs.io",
    "write_schedule": "remat.schedule.io",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that ``import remat`` stays light."""
    if name not in _HOME:
        raise AttributeError(f"module 'remat' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


class _Package(ModuleType):
    """The package: ``remat.solve`` is the function, also once the module of that name has been imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        is_function = _HOME.get(name) == f"{self.__name__}.{name}" and isinstance(value, ModuleType)
        super().__setattr__(name, getattr(value, name) if is_function else value)


sys.modules[__name__].__class__ = _Package


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
