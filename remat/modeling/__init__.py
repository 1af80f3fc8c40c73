"""The modelling language: models, records and bridges. Knows nothing of graphs or solvers."""

from remat.modeling.model import Kind, Model, Objective, Vars
from remat.modeling.records import (
    ALWAYS,
    AllDifferent,
    Clauses,
    Cumulative,
    Domain,
    Linear,
    Record,
    Reservoir,
)

__all__ = [
    "ALWAYS",
    "AllDifferent",
    "Clauses",
    "Cumulative",
    "Domain",
    "Kind",
    "Linear",
    "Model",
    "Objective",
    "Record",
    "Reservoir",
    "Vars",
]
