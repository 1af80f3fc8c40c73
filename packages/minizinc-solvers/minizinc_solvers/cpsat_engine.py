"""CP-SAT without OR-Tools' modelling layer, whose import of pandas takes half a second of CPU.

MiniZinc and isolated runs start a process per solve, so each would pay for the import.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ortools.sat.python import cp_model_helper

Proto = cp_model_helper.CpModelProto
Status = cp_model_helper.CpSolverStatus


def fault(proto: Any) -> str:
    """Return CP-SAT's message about an ill-formed model; empty if the model is well formed."""
    return str(cp_model_helper.CpSatHelper.validate_model(proto))


class _Found(cp_model_helper.SolutionCallback):
    def __init__(self, on_solution: Callable[[Any], None]) -> None:
        cp_model_helper.SolutionCallback.__init__(self)
        self._on_solution = on_solution

    def OnSolutionCallback(self) -> None:  # noqa: N802
        """Protocol of CP-SAT's callback."""
        self._on_solution(self.Response())  # type: ignore[no-untyped-call]


class Solver:
    """One run of CP-SAT on a model.

    Attributes
    ----------
    parameters
        CP-SAT's ``SatParameters``.
    on_log, on_bound : callable or None
        Called with each line of the log, with each better bound.
    response
        CP-SAT's ``CpSolverResponse`` after :meth:`solve`.
    """

    def __init__(self) -> None:
        self.parameters: Any = cp_model_helper.SatParameters()
        self.on_log: Callable[[str], None] | None = None
        self.on_bound: Callable[[float], None] | None = None
        self.response: Any = None
        self._running: Any = None
        self._lock = threading.Lock()

    def solve(self, proto: Any, on_solution: Callable[[Any], None]) -> Any:
        """Solve, telling `on_solution` of the response with each better solution; the status."""
        with self._lock:
            self._running = cp_model_helper.SolveWrapper()
        self._running.set_parameters(self.parameters)
        callback = _Found(on_solution)
        self._running.add_solution_callback(callback)
        if self.on_log is not None:
            self._running.add_log_callback(self.on_log)
        if self.on_bound is not None:
            self._running.add_best_bound_callback(self.on_bound)
        self.response = self._running.solve(proto)
        self._running.clear_solution_callback(callback)
        with self._lock:
            self._running = None
        return self.response.status

    def stop(self) -> None:
        """Request the end of a run, from any thread; no effect without a run."""
        with self._lock:
            if self._running is not None:
                self._running.stop_search()
