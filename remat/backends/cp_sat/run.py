"""One run of CP-SAT, without OR-Tools' modelling layer, which imports pandas: half a second of CPU in each process."""

from __future__ import annotations

import math
import weakref
from typing import Any

from ortools.sat.python import cp_model_helper

from remat.backends.base import Run
from remat.backends.bookkeeping import Bookkeeping
from remat.backends.cp_sat.translation import CpSatModel
from remat.errors import BackendError
from remat.runtime.resources import available_cpus
from remat.runtime.solve_options import SolveOptions, Status, StopReason

#: CP-SAT's statuses; all others are unknown.
STATUSES = {
    cp_model_helper.CpSolverStatus.OPTIMAL: Status.OPTIMAL,
    cp_model_helper.CpSolverStatus.FEASIBLE: Status.FEASIBLE,
    cp_model_helper.CpSolverStatus.INFEASIBLE: Status.INFEASIBLE,
}


class CpSatRun(Run):
    """One run of the solver: parameters, callbacks and response."""

    def __init__(self, compiled: CpSatModel, options: SolveOptions, books: Bookkeeping) -> None:
        self.compiled, self.options, self.books = compiled, options, books
        self.parameters: Any = cp_model_helper.SatParameters()
        self.engine: Any = cp_model_helper.SolveWrapper()
        self.response: Any = None
        self._set_parameters()
        if books.hint is not None:
            compiled.hint(books.hint)

    def _set_parameters(self) -> None:
        """Set the options except the deadline; solver parameters by name, including lists."""
        parameters, options = self.parameters, self.options
        parameters.num_workers = options.threads or available_cpus()
        parameters.random_seed = options.seed
        parameters.relative_gap_limit = options.relative_gap
        parameters.catch_sigint_signal = False  # Ctrl-C is handled by run_interruptible
        parameters.log_search_progress = options.log is not None
        for name, value in options.solver.items():
            if name.startswith("_") or not hasattr(parameters, name):
                raise BackendError(f"CP-SAT has no parameter {name!r}", "no-option")
            try:
                if isinstance(value, (list, tuple)):
                    getattr(parameters, name).extend(value)
                else:
                    setattr(parameters, name, value)
            except (TypeError, ValueError, AttributeError) as error:
                raise BackendError(f"CP-SAT parameter {name!r} does not take {value!r}: {str(error)[:120]}") from None
        if options.log is not None:
            parameters.log_to_stdout = False

    def run(self) -> None:
        if math.isfinite(limit := self.options.deadline.wall_seconds):
            self.parameters.max_time_in_seconds = limit
        engine, callback = self.engine, _Found(self)
        run = weakref.proxy(self)

        def on_bound(bound: float) -> None:
            """Record a bound; the engine keeps this function, and is not seen by Python's garbage collector."""
            run.new_bound(bound)

        engine.set_parameters(self.parameters)
        engine.add_solution_callback(callback)
        engine.add_best_bound_callback(on_bound)
        if self.options.log is not None:
            engine.add_log_callback(self.options.log)
        self.response = engine.solve(self.compiled.proto)
        engine.clear_solution_callback(callback)

    def stop(self) -> None:
        self.engine.stop_search()

    def new_solution(self, response: Any) -> None:
        """Record a better solution and the bound at that time."""
        self.books.raise_bound(self.compiled.bound(response.best_objective_bound), notify=False)
        self.books.found(self.compiled.values(response.solution))

    def new_bound(self, bound: float) -> None:
        """Record a better bound."""
        self.books.raise_bound(self.compiled.bound(bound))

    def final_status(self) -> tuple[Status, StopReason, str]:
        if self.response.status == cp_model_helper.CpSolverStatus.MODEL_INVALID:
            fault = str(cp_model_helper.CpSatHelper.validate_model(self.compiled.proto))
            raise BackendError(f"CP-SAT refuses the model: {fault[:300]}")
        said = STATUSES.get(self.response.status, Status.UNKNOWN)
        if said in (Status.OPTIMAL, Status.FEASIBLE):
            self.new_solution(self.response)
        late = StopReason.DEADLINE if self.options.deadline.remaining < 0.5 else StopReason.OTHER
        return said, self.books.stop_reason or late, ""


class _Found(cp_model_helper.SolutionCallback):
    """Callback that passes each better solution to a run."""

    def __init__(self, run: CpSatRun) -> None:
        cp_model_helper.SolutionCallback.__init__(self)
        self._run = run

    def OnSolutionCallback(self) -> None:  # noqa: N802
        """Implement CP-SAT's callback."""
        self._run.new_solution(self.Response())  # type: ignore[no-untyped-call]
