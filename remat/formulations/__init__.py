"""Formulations: ways to state a problem as a model, independent of solvers."""

from remat.formulations.base import Formulation, Part, Preliminary, VariableBounds
from remat.problem.scope import Scope

__all__ = ["Formulation", "Part", "Preliminary", "Scope", "VariableBounds"]
