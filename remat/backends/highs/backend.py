"""HiGHS: linear and mixed-integer programmes, passed as arrays."""

from __future__ import annotations

import importlib.metadata
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from remat.backends.base import Availability, Backend, Run, wheel_availability
from remat.backends.bookkeeping import Bookkeeping
from remat.backends.highs.relaxation import pass_model, with_small_costs
from remat.backends.results import Values, rounded
from remat.errors import BackendError, ModelError
from remat.io.files import write_atomic
from remat.modeling import Kind, Lowered, Model, PlainLinear, lower
from remat.modeling.matrix import Matrix, to_matrix
from remat.modeling.naming import Labels, row_names, variable_names
from remat.runtime.processes.guard import temporary_folder
from remat.runtime.resources import available_cpus
from remat.runtime.solve_options import SolveOptions, Status, StopReason

if TYPE_CHECKING:
    from remat.backends.highs.relaxation import Relaxation


class Scheduler:
    """Owner of HiGHS's thread pool, one per process, which must be recreated to change its size.

    The pool must stay while a solve is running, so a concurrent solve uses the current number of threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: int | None = None
        self._running = 0

    def enter(self, highspy: Any, threads: int) -> int:
        """Register a solve; return the number of threads to use."""
        with self._lock:
            if not self._running and self._threads != threads:
                highspy.Highs.resetGlobalScheduler(True)
                self._threads = threads
            self._running += 1
            return self._threads or threads

    def leave(self) -> None:
        """Unregister a solve, from any thread."""
        with self._lock:
            self._running -= 1


SCHEDULER = Scheduler()


#: Options that are values of the objective.
OBJECTIVES = {"objective_bound", "objective_target"}

#: Versions of highspy that are correct and can share a process with ortools (see pyproject.toml).
VERSIONS = ">=1.12,<1.14"


class Highs(Backend):
    """HiGHS through its array interface.

    Values of integer variables are rounded to the nearest integer, and the objective is computed from them. The
    objective's constant stays outside the solver, so its gaps refer to the model's terms only. If all objective
    values are multiples of a number, bounds are rounded up to the next multiple.
    """

    name: ClassVar[str] = "highs"
    native: ClassVar = frozenset({PlainLinear})
    nonzero_bytes: ClassVar[int] = 400
    preload: ClassVar[tuple[str, ...]] = (__name__, "highspy")

    @classmethod
    def availability(cls) -> Availability:
        return wheel_availability("highspy", VERSIONS)

    def prepare(self, model: Model, options: SolveOptions, books: Bookkeeping) -> Run:
        books.solver = "HiGHS"
        books.versions["highspy"] = importlib.metadata.version("highspy")
        lowered = lower(model, self.native, deadline=options.deadline)
        return _Run(lowered, to_matrix(lowered.model, options.deadline), options, books)

    suffixes = (".lp", ".mps")

    def write(self, model: Model, path: str | os.PathLike[str], labels: Labels) -> None:
        self.check_ready()
        import highspy

        lowered = lower(model, self.native).model
        matrix = to_matrix(lowered)
        if matrix.impossible_row:
            raise ModelError(f"model {model.name!r} has a row without coefficients that cannot hold", "impossible-row")
        solver = highspy.Highs()
        solver.setOptionValue("output_flag", False)
        pass_model(highspy, solver, matrix, matrix.integral, model.name)
        solver.changeObjectiveOffset(matrix.offset)
        for column, name in enumerate(variable_names(lowered, labels)):
            solver.passColName(column, name)
        for row, name in enumerate(row_names(lowered)):
            solver.passRowName(row, name)
        empty = np.flatnonzero(np.diff(matrix.indptr) == 0).astype(np.int32)
        solver.deleteRows(len(empty), empty)
        with temporary_folder() as folder:
            file = folder / f"model{Path(path).suffix.lower()}"
            solver.writeModel(str(file))
            write_atomic(path, file.read_bytes())

    def relax(
        self, model: Model, options: SolveOptions, algorithm: str = "simplex", start: Relaxation | None = None
    ) -> Relaxation:
        """Solve the linear relaxation of `model`, in which integer variables may take fractional values.

        Parameters
        ----------
        options : SolveOptions
            At the deadline the current duals still give a bound.
        algorithm : {"simplex", "ipm", "pdlp"}
            The last two run without crossover unless ``options.solver`` enables it.
        start : Relaxation, optional
            That of the same model without its last rows; the simplex method starts from its basis.

        Returns
        -------
        Relaxation
            Its bound is computed here from the duals, so it holds even if they are unconverged or wrong.

        Raises
        ------
        ModelError
            If the model cannot be expressed in linear rows.
        BackendError
            If HiGHS is not available, or the algorithm or an option does not exist.
        OverdueError
            If the deadline passes before HiGHS has the model.
        """
        from remat.backends.highs.relaxation import ALGORITHMS, relax

        self.check_ready()
        if algorithm not in ALGORITHMS:
            raise BackendError(
                f"HiGHS has no algorithm {algorithm!r} for relaxations; known are {', '.join(ALGORITHMS)}"
            )
        import highspy

        began = time.monotonic()
        lowered = lower(model, self.native, deadline=options.deadline)
        versions = {"highspy": importlib.metadata.version("highspy")}
        return relax(highspy, lowered, options, algorithm, began=began, versions=versions, start=start)


def _common_step(model: Model) -> float:
    """Return the largest number of which every objective value is a multiple; 0 if unknown."""
    used = model.objective.coefficient != 0
    index, coefficient = model.objective.index[used], model.objective.coefficient[used]
    integral = (model.kind[index] != Kind.CONTINUOUS.value).all() and (coefficient == np.rint(coefficient)).all()
    if not integral or not len(index) or np.abs(coefficient).max() > 2**53:
        return 0.0
    return float(np.gcd.reduce(np.abs(coefficient).astype(np.int64)))


@dataclass
class _Run(Run):
    """One solve: solver object, callbacks and outcome."""

    lowered: Lowered
    matrix: Matrix
    options: SolveOptions
    books: Bookkeeping

    def __post_init__(self) -> None:
        import highspy

        self._highspy = highspy
        self._solver = highspy.Highs()
        self._step = _common_step(self.lowered.source)
        self._passed, self._scale = with_small_costs(self.matrix)
        kinds = self._kinds = highspy.cb.HighsCallbackType
        self._logging, self._improving = int(kinds.kCallbackLogging), int(kinds.kCallbackMipImprovingSolution)
        self._mip_kinds = {self._improving, int(kinds.kCallbackMipInterrupt)}
        self._objective_gone = False
        self._log_rest = ""
        self._set_options()

    def _set_options(self) -> None:
        log = self.options.log is not None
        self._solver.setCallback(self._called, None)
        if log:  # before output_flag, or the first lines go to the console
            self._solver.startCallback(self._kinds.kCallbackLogging)
        settings: dict[str, Any] = {
            "output_flag": log,
            "log_to_console": False,  # 1.12 sends it to the callback instead, 1.13 to both
            "log_file": os.devnull if log else "",  # without a file or the console the callback gets no log
            "random_seed": self.options.seed,
            "mip_rel_gap": float(self.options.relative_gap),
        }
        if self._step:
            settings["mip_abs_gap"] = 0.99 * self._step / self._scale  # no objective value lies between
        for name, value in {**settings, **self.options.solver}.items():
            self._set(name, value / self._scale if name in OBJECTIVES else value)

    def _load(self) -> None:
        """Pass the matrix, which takes seconds for a large one, and the hint."""
        matrix = self.matrix
        pass_model(self._highspy, self._solver, self._passed, matrix.integral, self.lowered.source.name)
        if self.books.hint is None or self.options.deadline.expired:
            return
        values = self.lowered.extend(self.books.hint)
        known = ~np.isnan(values)
        known[known] = (values[known] >= matrix.lower[known]) & (values[known] <= matrix.upper[known])
        index = np.flatnonzero(known).astype(np.int32)
        if len(index):
            self._solver.setSolution(len(index), index, values[known])

    def _set(self, name: str, value: Any) -> None:
        if self._solver.getOptionType(name)[0] == self._highspy.HighsStatus.kError:
            raise BackendError(f"HiGHS has no option {name!r}", "no-option")
        if self._solver.setOptionValue(name, value) == self._highspy.HighsStatus.kError:
            raise BackendError(f"HiGHS does not take {value!r} for its option {name!r}", "option-value")

    def run(self) -> None:
        solver, kinds, deadline = self._solver, self._kinds, self.options.deadline
        for kind in (
            kinds.kCallbackMipImprovingSolution, kinds.kCallbackMipInterrupt, kinds.kCallbackSimplexInterrupt,
            kinds.kCallbackIpmInterrupt,
        ):  # fmt: skip
            solver.startCallback(kind)
        own = int(self.options.solver.get("threads", 0))
        threads = SCHEDULER.enter(self._highspy, own or self.options.threads or available_cpus())
        try:
            self._set("threads", threads)
            self._load()
            if deadline.expired:
                self.books.request_stop()
            if not self.books.stop_reason:
                self._run()
        finally:
            SCHEDULER.leave()
            solver.setCallback(None, None)  # breaks the reference cycle between the solver and this object
        if self._log_rest and self.options.log:
            self.options.log(self._log_rest)

    def stop(self) -> None:
        """Do nothing: the callbacks check the stop reason of the books."""

    def _run(self) -> None:
        limit = min(self.options.deadline.wall_seconds, float(self.options.solver.get("time_limit", np.inf)))
        self._set("time_limit", limit)
        self._solver.run()
        statuses = self._highspy.HighsModelStatus
        unclear = {statuses.kUnboundedOrInfeasible}
        if self.matrix.integral.any():
            unclear.add(statuses.kUnbounded)  # reported of the relaxation
        if self._solver.getModelStatus() in unclear and not self.books.stop_reason:
            # Distinguish them: without an objective only infeasibility remains.
            columns = self._solver.getNumCol()
            self._solver.changeColsCost(columns, np.arange(columns, dtype=np.int32), np.zeros(columns))
            self._objective_gone = True
            self._solver.run()

    def _called(self, kind: int, message: str, out: Any, data_in: Any, _: Any) -> None:
        """Handle every callback of the solver; runs in its thread."""
        try:
            if self.books.closed or self.options.deadline.expired:
                self.books.request_stop()
            if self.books.closed:
                pass
            elif kind == self._logging:
                self._log(message)
            elif not self._objective_gone:
                self._note_progress(kind, out)
        except BaseException as error:  # must not propagate through the solver; raised when it has stopped
            self.books.fail(error)
        if self.books.stop_reason and data_in is not None:
            data_in.user_interrupt = True

    def _note_progress(self, kind: int, out: Any) -> None:
        """Record a better bound or a better solution."""
        if kind not in self._mip_kinds:
            return
        self.books.raise_bound(self._outer_bound(out.mip_dual_bound))
        if kind == self._improving:
            self._found(np.array(out.mip_solution))

    def _found(self, values: Values) -> str:
        """Record a solution if it is better than the last; return an error message, empty if it is valid."""
        values, wrong = rounded(self.lowered.source, values, "HiGHS")
        if not wrong:
            self.books.found(values)
        return wrong

    def _outer_bound(self, bound: float) -> float | None:
        """Return the solver's bound as one on the model's objective, rounded up where that is sound."""
        if not np.isfinite(bound) or abs(bound) >= self._highspy.kHighsInf:
            return None
        bound *= self._scale
        if self._step:
            tolerance = 1e-6 * max(self._step, self._scale) + 1e-12 * abs(bound)
            bound = max(bound, float(np.ceil((bound - tolerance) / self._step)) * self._step)
        return bound + self.matrix.offset

    def _log(self, message: str) -> None:
        *lines, self._log_rest = (self._log_rest + message).split("\n")
        for line in lines:
            if self.options.log:
                self.options.log(line)

    def final_status(self) -> tuple[Status, StopReason, str]:
        solver, statuses, books = self._solver, self._highspy.HighsModelStatus, self.books
        model_status, info = solver.getModelStatus(), solver.getInfo()
        wrong = ""
        if info.primal_solution_status == self._highspy.kSolutionStatusFeasible and not self._objective_gone:
            wrong = self._found(np.array(solver.getSolution().col_value))
        if self._objective_gone or model_status in {statuses.kInfeasible, statuses.kNotset}:
            books.bound = None
        elif self.matrix.integral.any():
            books.raise_bound(self._outer_bound(info.mip_dual_bound), notify=False)
        elif model_status == statuses.kOptimal and books.best:
            books.raise_bound(books.best.objective, notify=False)
        if books.proved and books.best:
            books.bound = books.best.objective
            return Status.OPTIMAL, StopReason.FINISHED, wrong
        said, stop = self._said(model_status)
        if said is Status.ERROR and not wrong:
            wrong = f"HiGHS ended with status {solver.modelStatusToString(model_status)!r}"
            if model_status == statuses.kInfeasible:
                wrong += ", but there is a solution"
            elif model_status == statuses.kUnbounded or self._objective_gone:
                wrong = "the objective is unbounded"
        return said, stop, wrong

    def _said(self, model_status: Any) -> tuple[Status, StopReason]:
        """Translate HiGHS's status while the gap is open."""
        statuses, best = self._highspy.HighsModelStatus, self.books.best
        if model_status == statuses.kInfeasible:
            return (Status.ERROR if best else Status.INFEASIBLE), StopReason.OTHER
        if model_status == statuses.kUnbounded:
            return Status.ERROR, StopReason.OTHER
        if self.books.stop_reason:
            return Status.UNKNOWN, self.books.stop_reason
        ended = {
            statuses.kTimeLimit: StopReason.DEADLINE,
            statuses.kInterrupt: StopReason.INTERRUPTED,
            **({statuses.kOptimal: StopReason.GAP} if best and not self._objective_gone else {}),
        }
        limits = {
            statuses.kObjectiveBound, statuses.kObjectiveTarget, statuses.kIterationLimit,
            statuses.kSolutionLimit, statuses.kMemoryLimit, statuses.kUnknown,
        }  # fmt: skip
        known = best or model_status in limits or model_status in ended
        return (Status.UNKNOWN if known else Status.ERROR), ended.get(model_status, StopReason.OTHER)
