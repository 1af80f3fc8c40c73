"""Pyomo: any MILP solver that it supports, behind one interface."""

from __future__ import annotations

from remat.backends.base import Run
from remat.backends.bookkeeping import Bookkeeping
from remat.backends.isolated import Isolated
from remat.backends.pyomo.run import PyomoRun
from remat.backends.pyomo.solvers import PyomoBackend
from remat.modeling import Model
from remat.runtime.solve_options import SolveOptions


class Pyomo(PyomoBackend):
    """Any MILP solver that Pyomo supports: ``pyomo:cbc``, ``pyomo:highs``, ``pyomo:glpk``, ``pyomo:gurobi``, ...

    The lowered matrix becomes a Pyomo model in a child process (see :class:`~remat.backends.isolated.Isolated`): Pyomo
    redirects standard output while a solver runs, and the child is killed with its solver if it misses the deadline.
    The deadline covers building, which takes about 100 µs per row (10 s for 10⁵ rows, including writing a file).

    Only the solver's final solution is known, so there is one incumbent (and the hint, if it is a solution). A
    starting solution is passed if Pyomo supports that for the solver (CBC, Gurobi, CPLEX). Bounds parsed from printed
    text are rounded outward by the precision that the text may lack.

    ``SolveOptions.solver`` is passed to the solver unchanged; threads, seed and gap if the solver has such options
    (see :data:`remat.backends.pyomo.solvers.SOLVERS`). Names not listed there are looked up in Pyomo's older interface.
    """

    def prepare(self, model: Model, options: SolveOptions, books: Bookkeeping) -> Run:
        return Isolated(PyomoRun(self.variant)).prepare(model, options, books)
