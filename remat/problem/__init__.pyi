"""Public names of ``remat.problem``; ``__init__.py`` imports them on first use."""

from remat.problem.budget import parse_budget as parse_budget
from remat.problem.objective import Objective as Objective
from remat.problem.problem import Problem as Problem
