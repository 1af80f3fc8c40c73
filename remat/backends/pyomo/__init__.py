"""Pyomo: any MILP solver that it knows."""

from remat.backends.pyomo.backend import Pyomo

__all__ = ["Pyomo"]
