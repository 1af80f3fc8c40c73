"""Hierarchical formulations: groups of ops as composites with options."""

from remat.formulations.hierarchical.composite import Composite, CompositeProblem, Node, Option
from remat.formulations.hierarchical.expand import Step, expand
from remat.formulations.hierarchical.formulation import HIlp
from remat.formulations.hierarchical.layout import HIlpOptions
from remat.formulations.hierarchical.runs import Row, Run

__all__ = ["Composite", "CompositeProblem", "HIlp", "HIlpOptions", "Node", "Option", "Row", "Run", "Step", "expand"]
