"""CP-SAT, the constraint solver of OR-Tools: every record kind is native."""

from __future__ import annotations

import importlib.metadata
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from remat.backends.base import Availability, Backend, Run, SolveOptions, Status, StopReason, wheel_availability
from remat.backends.bookkeeping import Bookkeeping
from remat.errors import BackendError
from remat.modeling import AllDifferent, Clauses, Cumulative, Domain, Linear, Model, NoOverlap2D, Reservoir
from remat.runtime.resources import available_cpus

if TYPE_CHECKING:
    from remat.backends.cp_sat.translation import CpSatModel

#: Versions of ortools that this is written for.
VERSIONS = ">=9.15,<9.16"


class CpSat(Backend):
    """CP-SAT through OR-Tools 9.15; takes every record as it is.

    Needs integer coefficients throughout; variables that are `IMPLIED` integral become integers, continuous ones are
    refused. `SolveOptions.solver` are fields of its ``SatParameters``, for example ``{"linearization_level": 2}``.

    One thread and a fixed seed give the same answer every time (unless the deadline cuts it short); several threads
    share clauses as they come and do not.
    """

    name = "cp-sat"
    native = frozenset({Linear, Clauses, Domain, Cumulative, Reservoir, AllDifferent, NoOverlap2D})
    nonzero_bytes = 600
    preload = (__name__, "remat.backends.cp_sat.translation", "remat.backends.cp_sat_engine")

    @classmethod
    def availability(cls) -> Availability:
        return wheel_availability("ortools", VERSIONS)

    def prepare(self, model: Model, options: SolveOptions, books: Bookkeeping) -> Run:
        from remat.backends.cp_sat.translation import CpSatModel

        books.solver = "CP-SAT"
        books.versions["ortools"] = importlib.metadata.version("ortools")
        return _Run(CpSatModel(model, options.deadline), options, books)


class _Run(Run):
    """One run of the solver: parameters, callbacks, and what came of it."""

    def __init__(self, compiled: CpSatModel, options: SolveOptions, books: Bookkeeping) -> None:
        from remat.backends.cp_sat_engine import Solver

        self.compiled, self.options, self.books = compiled, options, books
        self.solver = Solver()
        self.status: Any = None
        _common(self.solver.parameters, options)
        if options.log is not None:
            self.solver.parameters.log_to_stdout = False
            self.solver.on_log = options.log
        self.solver.on_bound = self.new_bound
        if books.hint is not None:
            compiled.hint(books.hint)

    def run(self) -> None:
        if math.isfinite(self.options.deadline.seconds):
            self.solver.parameters.max_time_in_seconds = self.options.deadline.remaining
        self.status = self.solver.solve(self.compiled.proto, self.new_solution)

    def stop(self) -> None:
        self.solver.stop()

    def new_solution(self, response: Any) -> None:
        self.books.raise_bound(self.compiled.bound(response.best_objective_bound), tell=False)
        self.books.found(self.compiled.values(response.solution))

    def new_bound(self, bound: float) -> None:
        self.books.raise_bound(self.compiled.bound(bound))

    def last_words(self) -> tuple[Status, StopReason, str]:
        from remat.backends.cp_sat_engine import Status as Said
        from remat.backends.cp_sat_engine import fault

        if self.status == Said.MODEL_INVALID:
            raise BackendError(f"CP-SAT refuses the model: {fault(self.compiled.proto)[:300]}")
        said = {
            Said.OPTIMAL: Status.OPTIMAL,
            Said.FEASIBLE: Status.FEASIBLE,
            Said.INFEASIBLE: Status.INFEASIBLE,
        }.get(self.status, Status.UNKNOWN)
        if said in (Status.OPTIMAL, Status.FEASIBLE):
            self.new_solution(self.solver.response)
        late = StopReason.DEADLINE if self.options.deadline.remaining < 0.5 else StopReason.OTHER
        return said, self.books.stop_reason or late, ""


def _common(parameters: Any, options: SolveOptions) -> None:
    """Set what the options say, but for the deadline."""
    parameters.num_workers = options.threads or available_cpus()
    parameters.random_seed = options.seed
    parameters.relative_gap_limit = options.relative_gap
    parameters.catch_sigint_signal = False  # Ctrl-C is handled by run_interruptible
    parameters.log_search_progress = options.log is not None
    _apply(parameters, options.solver)


def _apply(parameters: Any, chosen: Mapping[str, Any]) -> None:
    """Set solver parameters by name, lists included."""
    for name, value in chosen.items():
        if name.startswith("_") or not hasattr(parameters, name):
            raise BackendError(f"CP-SAT has no parameter {name!r}", "no-option")
        try:
            if isinstance(value, (list, tuple)):
                getattr(parameters, name).extend(value)
            else:
                setattr(parameters, name, value)
        except (TypeError, ValueError, AttributeError) as error:
            raise BackendError(f"CP-SAT parameter {name!r} does not take {value!r}: {str(error)[:120]}") from None
