"""Pyomo: any MILP solver that it supports, behind one interface."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from remat.backends.base import Availability, AvailabilityState, Backend, Run, SolveOptions, wheel_availability
from remat.backends.bookkeeping import Bookkeeping
from remat.backends.processes.isolated import Isolated
from remat.backends.programs import find_program
from remat.errors import BackendError
from remat.modeling import Model, PlainLinear

#: First version with this form of the interface `pyomo.contrib.solver`.
VERSIONS = ">=6.9.4"


@dataclass(frozen=True)
class Solver:
    """Access to one solver through Pyomo, and its names of the common options.

    Attributes
    ----------
    modern : str
        Name in Pyomo's newer interface, ``pyomo.contrib.solver``; empty if it has none.
    module : str
        Python package that the newer interface needs.
    legacy : str
        Name in the older interface, ``pyomo.environ.SolverFactory``; empty to use the newer one only.
    programs : tuple of str
        Programs, one of which the older interface needs.
    gap, threads, seed : str
        Names of these options; empty if the interface has a field for them, or the solver no such option.
    install : str
        How to install it.
    whole_seconds : bool
        True if its time limit must be a whole number.
    """

    modern: str = ""
    module: str = ""
    legacy: str = ""
    programs: tuple[str, ...] = ()
    gap: str = ""
    threads: str = ""
    seed: str = ""
    install: str = ""
    whole_seconds: bool = False


SOLVERS = {
    "highs": Solver(modern="highs", module="highspy", seed="random_seed", install="pip install 'highspy<1.13'"),
    "cbc": Solver(
        legacy="cbc", programs=("cbc",), gap="ratio", threads="threads", seed="randomCbcSeed",
        install="pip install cbcbox, or put a cbc program on the path",
    ),
    "glpk": Solver(
        legacy="glpk", programs=("glpsol",), gap="mipgap", seed="seed", whole_seconds=True,
        install="apt install glpk-utils",
    ),
    "gurobi": Solver(
        modern="gurobi_direct", module="gurobipy", seed="Seed", install="pip install gurobipy, and a licence"
    ),
    "scip": Solver(
        modern="scip_direct", module="pyscipopt", seed="randomization/randomseedshift", install="pip install pyscipopt"
    ),
    "cplex": Solver(
        legacy="cplex", programs=("cplex",), gap="mip_tolerances_mipgap", threads="threads", seed="randomseed",
        install="CPLEX, with its cplex program on the path",
    ),
    "xpress": Solver(
        legacy="xpress", programs=("optimizer",), gap="miprelstop", threads="threads", seed="randomseed",
        install="Xpress, with its optimizer program on the path",
    ),
}  # fmt: skip
#: Solver of plain ``pyomo``.
DEFAULT = "highs"


class Pyomo(Backend):
    """Any MILP solver that Pyomo supports: ``pyomo:cbc``, ``pyomo:highs``, ``pyomo:glpk``, ``pyomo:gurobi``, ...

    The lowered matrix becomes a Pyomo model in a child process (see
    :class:`~remat.backends.processes.isolated.Isolated`): Pyomo redirects standard output while a solver runs, and
    the child is killed with its solver if it misses the deadline. The deadline covers building, which takes about
    100 µs per row (10 s for 10⁵ rows, including writing a file).

    Only the solver's final solution is known, so there is one incumbent (and the hint, if it is a solution). A
    starting solution is passed if Pyomo supports that for the solver (CBC, Gurobi, CPLEX). Bounds parsed from printed
    text are rounded outward by the precision that the text may lack.

    ``SolveOptions.solver`` is passed to the solver unchanged; threads, seed and gap if the solver has such options
    (see :data:`SOLVERS`). Names not listed there are looked up in Pyomo's older interface.
    """

    name: ClassVar[str] = "pyomo"
    native: ClassVar = frozenset({PlainLinear})
    own_process: ClassVar[bool] = True

    @classmethod
    def availability(cls) -> Availability:
        return wheel_availability("pyomo", VERSIONS, "remat[pyomo]")

    @classmethod
    def variants(cls) -> tuple[str, ...]:
        return tuple(SOLVERS)

    def chosen(self) -> tuple[str, Path | None]:
        """Return the solver's name, and the path of its program if the variant is one (``pyomo:/opt/bin/cbc``)."""
        if os.sep not in self.variant:
            return self.variant or DEFAULT, None
        path = Path(self.variant).absolute()
        return next((name for name, solver in SOLVERS.items() if path.name in solver.programs), path.name), path

    def ready(self) -> Availability:
        general = self.availability()
        if not general.ready:
            return general
        name, own = self.chosen()
        solver = SOLVERS.get(name)
        if own is not None:
            there = own.is_file() and os.access(own, os.X_OK) and solver is not None and bool(solver.programs)
            state = AvailabilityState.READY if there else AvailabilityState.NOT_INSTALLED
            fault = f"{own} is no program of a solver that is run as one (cbc, glpsol, cplex, optimizer)"
            return Availability(state, f"{own} through {general.reason}" if there else fault)
        if solver is None:
            from remat.backends.pyomo.run import known_to_pyomo

            reason = known_to_pyomo(name)
            state = AvailabilityState.NOT_INSTALLED if reason else AvailabilityState.READY
            return Availability(state, reason or f"{name} through {general.reason}")
        if solver.module and importlib.util.find_spec(solver.module) is not None:
            return Availability(AvailabilityState.READY, f"{name} through {general.reason}")
        if solver.programs and program(name):
            return Availability(AvailabilityState.READY, f"{name} ({program(name)}) through {general.reason}")
        return Availability(AvailabilityState.NOT_INSTALLED, f"{name} is not installed: {solver.install}")

    def prepare(self, model: Model, options: SolveOptions, books: Bookkeeping) -> Run:
        from remat.backends.pyomo.run import PyomoRun

        return Isolated(PyomoRun(self.variant)).prepare(model, options, books)


def program(name: str) -> str | None:
    """Return the path of a solver's program, or None; CBC may come from the package `cbcbox`."""
    found = next(filter(None, map(find_program, SOLVERS[name].programs)), None)
    if found is None and name == "cbc" and importlib.util.find_spec("cbcbox") is not None:
        import cbcbox

        path = str(cbcbox.cbc_bin_path())
        found = path if Path(path).exists() else None
    return found


def export(model: Model, path: str | Path) -> None:
    """Write `model` for other programs: ``.lp``, ``.mps`` or ``.nl``, by the suffix of `path`.

    Bridges rewrite records that are not linear. Variables are called ``x0``, ``x1``, ... in the order of the lowered
    model and rows ``r0``, ``r1``, ...; names given by users do not enter the file.

    Raises
    ------
    BackendError
        If Pyomo is missing, or the suffix is unknown.
    FormatError
        If the file cannot be written.
    ModelError
        If the model cannot be expressed in linear rows, or has a row without coefficients that cannot hold.
    """
    state = Pyomo.availability()
    if not state.ready:
        raise BackendError(f"a model is exported by pyomo: {state.reason}")
    from remat.backends.pyomo.translation import write

    write(model, Path(path))
