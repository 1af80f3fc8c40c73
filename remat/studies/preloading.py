"""Imported by the fork server of cells: fills caches that every cell would otherwise fill again."""

from __future__ import annotations

from remat import registry
from remat.config import Config
from remat.graphs.families import unit_chain
from remat.problem import Problem
from remat.schedule import Schedule
from remat.solving.method import known_methods, make_method


def _fill() -> None:
    """Read the entry points, import all methods, and validate a schedule."""
    for name in known_methods():
        try:
            make_method(name)
        except Exception:  # a faulty plug-in affects only the cells that name it
            continue
    for group in ("backends", "partitioners"):
        list(registry.Registered(group))
    Config.from_mapping({"problem": {"graph": "-"}})
    problem = Problem(unit_chain(3), "90%")
    problem.validate(Schedule.reference(problem.graph))


_fill()
