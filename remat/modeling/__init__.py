"""Modelling language: models, records and bridges; independent of graphs and solvers."""

from remat.modeling.bridges import Bridge, PlainLinear
from remat.modeling.check import violations
from remat.modeling.lower import Lowered, lower
from remat.modeling.model import Kind, Model, Objective, Vars
from remat.modeling.records import (
    ALWAYS,
    AllDifferent,
    Clauses,
    Cumulative,
    Domain,
    Linear,
    NoOverlap,
    NoOverlap2D,
    Record,
    Reservoir,
)

__all__ = [
    "ALWAYS",
    "AllDifferent",
    "Bridge",
    "Clauses",
    "Cumulative",
    "Domain",
    "Kind",
    "Linear",
    "Lowered",
    "Model",
    "NoOverlap",
    "NoOverlap2D",
    "Objective",
    "PlainLinear",
    "Record",
    "Reservoir",
    "Vars",
    "lower",
    "violations",
]
