"""CP-SAT, the constraint solver of OR-Tools: every record kind is native."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

from remat.backends.base import Availability, Backend, Run, wheel_availability
from remat.backends.bookkeeping import Bookkeeping
from remat.io.files import write_atomic
from remat.modeling import AllDifferent, Clauses, Cumulative, Domain, Linear, Model, NoOverlap, NoOverlap2D, Reservoir
from remat.modeling.naming import Labels, variable_names
from remat.runtime.processes.guard import temporary_folder
from remat.runtime.solve_options import SolveOptions

#: Supported versions of ortools.
VERSIONS = ">=9.15,<9.16"


class CpSat(Backend):
    """CP-SAT through OR-Tools 9.15; accepts every record directly.

    Coefficients must be integers. `IMPLIED` integral variables become integers; continuous ones are refused.
    `SolveOptions.solver` sets fields of its ``SatParameters``, for example ``{"linearization_level": 2}``.

    One thread and a fixed seed are deterministic unless the deadline stops the search. Several threads are not: they
    exchange clauses as they find them.
    """

    name = "cp-sat"
    native = frozenset({Linear, Clauses, Domain, Cumulative, Reservoir, AllDifferent, NoOverlap, NoOverlap2D})
    nonzero_bytes = 600
    preload = (__name__, "remat.backends.cp_sat.run")

    @classmethod
    def availability(cls) -> Availability:
        return wheel_availability("ortools", VERSIONS)

    suffixes = (".pb", ".proto", ".pbtxt")

    def write(self, model: Model, path: str | os.PathLike[str], labels: Labels) -> None:
        self.check_ready()
        from ortools.sat.python.cp_model_helper import CpSatHelper

        from remat.backends.cp_sat.translation import CpSatModel

        proto = CpSatModel(model).proto
        proto.name = model.name
        proto.objective.offset = model.objective.constant
        for variable, name in zip(proto.variables, variable_names(model, labels), strict=False):
            variable.name = name
        with temporary_folder() as folder:
            file = folder / ("model.pbtxt" if Path(path).suffix.lower() == ".pbtxt" else "model.pb")
            CpSatHelper.write_model_to_file(proto, str(file))
            write_atomic(path, file.read_bytes())

    def prepare(self, model: Model, options: SolveOptions, books: Bookkeeping) -> Run:
        from remat.backends.cp_sat.run import CpSatRun
        from remat.backends.cp_sat.translation import CpSatModel

        books.solver = "CP-SAT"
        books.versions["ortools"] = importlib.metadata.version("ortools")
        return CpSatRun(CpSatModel(model, options.deadline), options, books)
