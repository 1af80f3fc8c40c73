"""Scheduling neural computation graphs under a memory budget, with any solver and a certificate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "ComputeGraph",
    "GraphBuilder",
    "Problem",
    "Result",
    "Schedule",
    "SolveOptions",
    "frontier",
    "layered",
    "max_batch",
    "minimize",
    "order",
    "read_graph",
    "read_schedule",
    "show_versions",
    "simulate",
    "solve",
    "validate",
    "write_graph",
    "write_schedule",
]

if TYPE_CHECKING:
    from remat.backends.base import SolveOptions
    from remat.experiments.frontier import frontier
    from remat.experiments.max_batch import max_batch
    from remat.graphs import ComputeGraph, GraphBuilder
    from remat.graphs.io import read_graph, write_graph
    from remat.graphs.layered import layered
    from remat.problem import Problem
    from remat.schedule import Schedule
    from remat.schedule.io import read_schedule, write_schedule
    from remat.schedule.simulate import simulate
    from remat.schedule.validate import validate
    from remat.solving.min_peak import minimize
    from remat.solving.order import order
    from remat.solving.result import Result
    from remat.solving.solve import solve
    from remat.solving.versions import show_versions

_HOME = {
    "ComputeGraph": "remat.graphs",
    "GraphBuilder": "remat.graphs",
    "Problem": "remat.problem",
    "Result": "remat.solving.result",
    "Schedule": "remat.schedule",
    "SolveOptions": "remat.backends.base",
    "frontier": "remat.experiments.frontier",
    "layered": "remat.graphs.layered",
    "max_batch": "remat.experiments.max_batch",
    "minimize": "remat.solving.min_peak",
    "order": "remat.solving.order",
    "read_graph": "remat.graphs.io",
    "read_schedule": "remat.schedule.io",
    "show_versions": "remat.solving.versions",
    "simulate": "remat.schedule.simulate",
    "solve": "remat.solving.solve",
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


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
