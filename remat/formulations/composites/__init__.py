"""Composites: groups of ops that are scheduled as a whole, in one of several ways."""

from remat.formulations.composites.composite import Composite, CompositeProblem, Node, Option
from remat.formulations.composites.expansion import Step, expand
from remat.formulations.composites.runs import Row, Run

__all__ = ["Composite", "CompositeProblem", "Node", "Option", "Row", "Run", "Step", "expand"]
