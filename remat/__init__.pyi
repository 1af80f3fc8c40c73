"""Public names of ``remat``; ``__init__.py`` imports them on first use."""

from remat._version import __version__ as __version__
from remat.experiments.compare import compare as compare
from remat.experiments.frontier import frontier as frontier
from remat.experiments.max_batch import max_batch as max_batch
from remat.graphs import ComputeGraph as ComputeGraph
from remat.graphs import GraphBuilder as GraphBuilder
from remat.graphs.io import read_graph as read_graph
from remat.graphs.io import write_graph as write_graph
from remat.graphs.layered import layered as layered
from remat.problem import Problem as Problem
from remat.runtime.solve_options import SolveOptions as SolveOptions
from remat.schedule import Schedule as Schedule
from remat.schedule.io import read_schedule as read_schedule
from remat.schedule.io import write_schedule as write_schedule
from remat.schedule.simulate import simulate as simulate
from remat.schedule.validate import validate as validate
from remat.solving.min_peak import minimize as minimize
from remat.solving.order import order as order
from remat.solving.result import Result as Result
from remat.solving.solve import solve as solve
from remat.solving.versions import show_versions as show_versions
from remat.studies.study import Study as Study
