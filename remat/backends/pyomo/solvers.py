"""MILP solvers that Pyomo supports: their names, options and programs, and whether they are installed."""

from __future__ import annotations

import importlib.util
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from remat.backends.base import Availability, AvailabilityState, Backend, wheel_availability
from remat.backends.programs import find_program
from remat.modeling import PlainLinear

#: First version with this form of the interface `pyomo.contrib.solver`.
VERSIONS = ">=6.9.4"
#: Names in Pyomo that stand for other solvers, or for any program that they are given.
NO_SOLVERS = frozenset({"asl", "py", "neos", "path", "gams", "multistart", "scipampl"})


@dataclass(frozen=True)
class Solver:
    """Access to one solver through Pyomo, and its names of the common options."""

    modern: str = ""
    """Name in Pyomo's newer interface, ``pyomo.contrib.solver``; empty if it has none."""
    module: str = ""
    """Python package that the newer interface needs."""
    legacy: str = ""
    """Name in the older interface, ``pyomo.environ.SolverFactory``; empty to use the newer one only."""
    programs: tuple[str, ...] = ()
    """Programs, one of which the older interface needs."""
    gap: str = ""
    """Name of this option; empty if the interface has a field for it, or the solver has no such option."""
    threads: str = ""
    """As for `gap`."""
    seed: str = ""
    """As for `gap`."""
    install: str = ""
    """How to install it."""
    whole_seconds: bool = False
    """True if its time limit must be a whole number."""


SOLVERS = {
    "highs": Solver(modern="highs", module="highspy", seed="random_seed", install="pip install 'highspy<1.14'"),
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


class PyomoBackend(Backend):
    """Choice of a solver, shared by the backend and its child process."""

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
            reason = known_to_pyomo(name)
            state = AvailabilityState.NOT_INSTALLED if reason else AvailabilityState.READY
            return Availability(state, reason or f"{name} through {general.reason}")
        if solver.module and importlib.util.find_spec(solver.module) is not None:
            return Availability(AvailabilityState.READY, f"{name} through {general.reason}")
        if solver.programs and program(name):
            return Availability(AvailabilityState.READY, f"{name} ({program(name)}) through {general.reason}")
        return Availability(AvailabilityState.NOT_INSTALLED, f"{name} is not installed: {solver.install}")


def program(name: str) -> str | None:
    """Return the path of a solver's program, or None; CBC may come from the package `cbcbox`."""
    found = next(filter(None, map(find_program, SOLVERS[name].programs)), None)
    if found is None and name == "cbc" and importlib.util.find_spec("cbcbox") is not None:
        import cbcbox

        path = str(cbcbox.cbc_bin_path())
        found = path if Path(path).exists() else None
    return found


def known_to_pyomo(name: str) -> str:
    """Return why a solver cannot be used through Pyomo's older interface; empty if it can.

    Only names registered with Pyomo are accepted: it runs any other as a program, even from the current folder.
    """
    import pyomo.environ as pyo

    logging.getLogger("pyomo").setLevel(logging.CRITICAL)
    unknown = f"Pyomo has no usable solver {name!r}; known are {', '.join(SOLVERS)} and others of its own"
    if name.startswith("_") or name in NO_SOLVERS or name not in pyo.SolverFactory:
        return unknown
    try:
        solver = pyo.SolverFactory(name)
        fault = with_trusted_program(solver)
        return fault or ("" if solver.available(exception_flag=False) else unknown)
    except Exception as error:
        return " ".join(str(error).split())[:200]


def with_trusted_program(solver: Any) -> str:
    """Make a Pyomo object run its program by an absolute path outside the current folder; return an error or ""."""
    default = getattr(solver, "_default_executable", None)
    if default is None:
        return ""  # it needs no program
    path = default()
    if path is None:
        return "its program is not installed"
    found = find_program(Path(str(path)).name)
    if found is None:
        return f"its program {Path(str(path)).name!r} is in no folder of PATH but the current one"
    solver.set_executable(found, validate=False)
    return ""
