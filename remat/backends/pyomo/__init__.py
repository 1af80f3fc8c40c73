"""Pyomo: any MILP solver that it supports."""

from remat.backends.pyomo.backend import Pyomo

__all__ = ["Pyomo"]
