"""Problems: a graph, a budget, rules and an objective."""

from remat.problem.budget import parse_budget
from remat.problem.objective import Objective
from remat.problem.problem import Problem

__all__ = ["Objective", "Problem", "parse_budget"]
