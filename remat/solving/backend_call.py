"""Safe calls of a backend: callbacks from any thread, failing callbacks, crashing and contradictory solvers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from remat.backends.base import Backend
from remat.backends.choice import placed
from remat.backends.results import Incumbent, RawResult, Values
from remat.errors import BackendError, ModelError
from remat.modeling import Model
from remat.runtime.interruption import interrupted
from remat.runtime.solve_options import SolveOptions, Status, StopReason
from remat.solving.incumbents import one_line


class SolverFailedError(BackendError):
    """The solver gave up or crashed; its earlier solutions remain valid."""


def call_backend(
    backend: Backend,
    model: Model,
    options: SolveOptions,
    hint: Values | None,
    *,
    on_values: Callable[[Values, float], bool],
    on_bound: Callable[[float], object],
) -> RawResult:
    """Solve `model` by the backend.

    `on_values`: receives values and claimed objective of every solution, including the last; a true return stops the
    solver. `on_bound`: receives every better lower bound; a true return value stops the solver at its next solution.

    The `stop` of the result is `FINISHED` if `on_values` requested the stop, so that `INTERRUPTED` always means Ctrl-C.

    Raises
    ------
    ModelError
        If the backend cannot express the model.
    SolverFailedError
        If the solver crashes or reports a failure.
    BackendError
        If its answer contradicts the model or its own status.
    Exception
        The first exception of a callback. It stops the solver and is raised afterwards, since solvers swallow
        exceptions of callbacks.
    """
    failures: list[BaseException] = []
    asked = False
    lock = threading.RLock()  # solvers call back from several threads

    def guarded(work: Callable[[], bool]) -> bool:
        nonlocal asked
        with lock:
            try:
                asked |= work()
            except BaseException as error:
                failures.append(error)
                asked = True
            return asked

    def take(values: Values, objective: float) -> bool:
        if values.shape != (model.num_vars,):
            raise BackendError(f"backend {backend.name!r} gives values of another shape than its model", "wrong-shape")
        return on_values(values, objective)

    def on_incumbent(incumbent: Incumbent) -> bool:
        return guarded(lambda: take(incumbent.values, incumbent.objective))

    def better_bound(_seconds: float, bound: float) -> None:
        guarded(lambda: bool(on_bound(bound)))

    crash: Exception | None = None
    raw = RawResult(Status.ERROR, StopReason.OTHER)
    try:
        raw = placed(backend, options).solve(model, options, hint, on_incumbent, better_bound)
    except ModelError:
        raise
    except Exception as error:
        crash = error
    stopped_here = asked
    if raw.values is not None and raw.objective is not None:
        values, objective = raw.values, raw.objective
        guarded(lambda: take(values, objective))
    if failures:
        raise failures[0]
    _check_answer(backend, raw, crash)
    if stopped_here:
        return replace(raw, stop=StopReason.FINISHED)
    late = interrupted() and raw.stop in (StopReason.DEADLINE, StopReason.OTHER)
    return replace(raw, stop=StopReason.INTERRUPTED) if late else raw


def _check_answer(backend: Backend, raw: RawResult, crash: Exception | None) -> None:
    """Raise an error if the solver crashed or failed, or if its answer contradicts its status."""
    if isinstance(crash, BackendError):
        raise SolverFailedError(str(crash)) from crash
    if crash is not None:
        raise SolverFailedError(f"backend {backend.name!r} crashed: {one_line(crash)}", "crashed") from crash
    if raw.status is Status.ERROR:
        raise SolverFailedError(f"backend {backend.name!r} failed: {raw.message}", "failed")
    if raw.values is None and raw.status in (Status.OPTIMAL, Status.FEASIBLE):
        raise BackendError(f"backend {backend.name!r} claims a solution ({raw.status}) and gives none", "no-values")
