"""Formulations: ways to state a problem as a model, independent of solvers."""

from remat.formulations.base import Formulation, Leeway, Part, Preliminary
from remat.problem.scope import Scope

__all__ = ["Formulation", "Leeway", "Part", "Preliminary", "Scope"]
