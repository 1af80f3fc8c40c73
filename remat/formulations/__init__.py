"""How it is asked: one file per formulation; knows nothing of solvers."""

from remat.formulations.base import Formulation, Leeway, Part, Preliminary
from remat.scope import Scope

__all__ = ["Formulation", "Leeway", "Part", "Preliminary", "Scope"]
