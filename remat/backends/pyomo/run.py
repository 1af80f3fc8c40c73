"""One solve by Pyomo, in its child process."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import logging
import math
import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from remat.backends.base import Run
from remat.backends.bookkeeping import Bookkeeping
from remat.backends.pyomo.solvers import SOLVERS, PyomoBackend, Solver, program, with_trusted_program
from remat.backends.results import Values, rounded
from remat.modeling import Lowered, Model, lower, violations
from remat.modeling.matrix import Matrix, to_matrix
from remat.runtime.deadline import Deadline
from remat.runtime.processes.process_trees import family
from remat.runtime.solve_options import SolveOptions, Status, StopReason

#: Rows above which a note warns that building the Pyomo model is slow.
MANY_ROWS = 100_000
#: Seconds before the deadline at which the solver must stop, to leave time for reading and sending its solution.
READING = 0.25
#: Relative error of bounds parsed from printed text (six digits).
CUT_OFF = 1e-5


@dataclass
class _Answer:
    """Answer of the solver, in the terms of all backends."""

    proved: Status | None = None
    """``OPTIMAL`` (possibly within the gap) or ``INFEASIBLE``."""
    stop: StopReason = StopReason.OTHER
    """Reason if nothing is proved."""
    values: Values | None = None
    bound: float | None = None
    message: str = ""


class PyomoRun(PyomoBackend):
    """Pyomo in the current process; :class:`~remat.backends.pyomo.Pyomo` runs it in a child."""

    # Pyomo imports scipy.stats at its first solve, which takes a second
    preload: ClassVar[tuple[str, ...]] = (
        __name__, "remat.backends.pyomo.translation", "pyomo.environ", "scipy.stats",
    )  # fmt: skip

    def prepare(self, model: Model, options: SolveOptions, books: Bookkeeping) -> Run:
        solver = self.chosen()
        books.solver = solver[0]
        books.versions["pyomo"] = importlib.metadata.version("pyomo")
        clock = _before_reading(options)
        lowered = lower(model, self.native, deadline=clock)
        return _Call(solver, lowered, to_matrix(lowered.model, clock), options, books)


def _before_reading(options: SolveOptions) -> Deadline:
    """Return the deadline for building the model."""
    return options.deadline.earlier(options.deadline.remaining - READING)


def _without_solver(matrix: Matrix) -> _Answer | None:
    """Return the answer if an empty row is infeasible, or if no row has coefficients; None otherwise."""
    if matrix.impossible_row:
        return _Answer(Status.INFEASIBLE)
    if len(matrix.values):
        return None
    # Bounds only: CBC's reader drops variables that are in no row.
    whole, cost = matrix.integral > 0, matrix.cost
    low = np.where(whole, np.ceil(matrix.lower), matrix.lower)
    high = np.where(whole, np.floor(matrix.upper), matrix.upper)
    if (low > high).any():
        return _Answer(Status.INFEASIBLE)
    values = np.where(cost > 0, low, np.where(cost < 0, high, np.where(np.isfinite(low), low, np.minimum(high, 0))))
    if not np.isfinite(values).all():  # unbounded, which the solver reports
        return None
    return _Answer(Status.OPTIMAL, values=values, bound=matrix.offset + float(cost @ values))


class _Call(Run):
    """A Pyomo model and one call of a solver, unless the answer needs no solver."""

    def __init__(
        self,
        solver: tuple[str, Path | None],
        lowered: Lowered,
        matrix: Matrix,
        options: SolveOptions,
        books: Bookkeeping,
    ) -> None:
        self.books, self.options, self.matrix = books, options, matrix
        self.name, self.own = solver
        self.solver = SOLVERS.get(self.name, Solver(legacy=self.name))
        self.slow, self.stop_requested = "", False
        known = _without_solver(matrix)
        self.answer, self.is_known = known or _Answer(stop=StopReason.DEADLINE), known is not None
        if not self.is_known:
            self._build(lowered)

    def _build(self, lowered: Lowered) -> None:
        from pyomo.common.fileutils import Executable, find_executable

        from remat.backends.pyomo.translation import Lines, to_pyomo

        options, books = self.options, self.books
        logging.getLogger("pyomo").setLevel(logging.CRITICAL)  # its results hold the same information
        Executable._find = functools.partial(find_executable, cwd=False)  # affects this process only
        rows = self.matrix.shape[0]
        if rows > MANY_ROWS:
            self.slow = f"{rows:,} rows are more than Pyomo builds quickly (about 10 s for each {MANY_ROWS:,})"
            if options.log:
                options.log(self.slow)
        self.model, self.x = to_pyomo(self.matrix, deadline=_before_reading(options))
        self.lines = Lines(options.log)
        if books.hint is not None:
            start = lowered.extend(books.hint)
            for variable, value in zip(self.x, start.tolist(), strict=True):
                if not math.isnan(value):
                    variable.set_value(value, skip_validation=True)

    def run(self) -> None:
        """Run the solver until it ends or is stopped."""
        if not self.is_known:
            (self._modern if self.solver.modern else self._legacy)()

    def final_status(self) -> tuple[Status, StopReason, str]:
        books, answer = self.books, self.answer
        message = answer.message or self.slow
        if answer.proved is None and books.stop_reason:
            answer.stop = books.stop_reason
        elif answer.stop is StopReason.OTHER and self.options.deadline.remaining <= READING:
            answer.stop = StopReason.DEADLINE  # its own time limit, however it reports that
        books.raise_bound(answer.bound, notify=False)
        if answer.values is not None:
            values, wrong = rounded(books.model, answer.values, books.solver)
            wrong = wrong or "; ".join(violations(books.model, values)[:1])
            stopped = answer.proved is None and answer.stop in {StopReason.DEADLINE, StopReason.INTERRUPTED}
            if wrong and not stopped:
                return Status.ERROR, StopReason.OTHER, f"{books.solver} gives a wrong solution: {wrong}"
            if not wrong:  # CBC stopped early may return the relaxation's solution
                books.found(values)
        if answer.proved is Status.INFEASIBLE:
            if books.best is not None:
                return Status.ERROR, StopReason.OTHER, "it reports an infeasible model, but there is a solution"
            return Status.INFEASIBLE, answer.stop, message
        if books.proved and books.best is not None:
            books.bound = books.best.objective
            return Status.OPTIMAL, answer.stop, message
        if answer.proved is Status.OPTIMAL:
            answer.stop = StopReason.GAP if self.options.relative_gap > 0 else StopReason.OTHER
        failed = answer.proved is None and answer.message and books.best is None
        return Status.ERROR if failed else Status.UNKNOWN, answer.stop, message

    def stop(self) -> None:
        """Interrupt the solver's processes once, on Ctrl-C or at the deadline; they then write their best solution."""
        if not self.stop_requested:
            self.stop_requested = True
            for pid in family(os.getpid())[1:]:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGINT)
            inside = getattr(getattr(self, "opt", None), "_solver_model", None)
            if inside is not None and hasattr(inside, "cancelSolve"):
                inside.cancelSolve()

    def _seconds(self) -> float | None:
        left = self.options.deadline.remaining
        if math.isinf(left):
            return None
        return max(1, int(left - READING)) if self.solver.whole_seconds else max(0.05, left - READING)

    # -- the newer interface ---------------------------------------------------------------------------------------

    def _modern(self) -> None:
        from pyomo.contrib.solver.common.factory import SolverFactory
        from pyomo.contrib.solver.common.results import SolutionStatus, TerminationCondition

        opt = self.opt = SolverFactory(self.solver.modern)
        chosen = dict(self.options.solver)
        if self.solver.seed:
            chosen = {self.solver.seed: self.options.seed} | chosen
        result = opt.solve(
            self.model, load_solutions=False, raise_exception_on_nonoptimal_result=False, tee=[self.lines],
            time_limit=self._seconds(), threads=self.options.threads, rel_gap=self.options.relative_gap,
            solver_options=chosen,
        )  # fmt: skip
        version = result.solver_version or ()
        self.books.versions[self.name] = ".".join(map(str, version))
        answer, condition = _Answer(), result.termination_condition
        if result.solution_status in {SolutionStatus.optimal, SolutionStatus.feasible}:
            result.solution_loader.load_vars()
            answer.values = self._values()
        answer.bound = self._bound(result.objective_bound)
        bounded = np.isfinite(self.matrix.lower).all() and np.isfinite(self.matrix.upper).all()
        if condition == TerminationCondition.convergenceCriteriaSatisfied and answer.values is not None:
            answer.proved = Status.OPTIMAL
        elif condition == TerminationCondition.provenInfeasible or (
            bounded and condition == TerminationCondition.infeasibleOrUnbounded
        ):
            answer.proved, answer.bound = Status.INFEASIBLE, None
        elif condition == TerminationCondition.maxTimeLimit:
            answer.stop = StopReason.DEADLINE
        elif condition == TerminationCondition.interrupted:
            answer.stop = StopReason.INTERRUPTED
        elif answer.values is None and not self.stop_requested:
            answer.message = f"{self.name} ended with {condition.name}"
        self.answer = answer

    # -- the older interface ---------------------------------------------------------------------------------------

    def _legacy(self) -> None:
        import pyomo.environ as pyo
        from pyomo.opt import SolverStatus, TerminationCondition

        chosen = {"executable": str(self.own or program(self.name))} if self.solver.programs else {}
        opt = self.opt = pyo.SolverFactory(self.solver.legacy, **chosen)
        if not chosen and (fault := with_trusted_program(opt)):
            self.answer = _Answer(message=fault)
            return
        version = ".".join(map(str, opt.version() or ("unknown",)))
        if self.name == "cbc" and (opt.version() or (0,))[0] < 2:  # a development build prints no number
            version, opt._version = f"{version} (unreleased)", (3, 0, 0, 0)
        self.books.versions[self.name] = version
        if self.name == "cbc":  # it writes no rows if all are redundant; its reader then misreads columns as rows
            self.model.either = pyo.Var([0, 1], domain=pyo.Binary)
            self.model.written = pyo.Constraint(expr=self.model.either[0] + self.model.either[1] >= 1)
        wanted = {
            self.solver.gap: self.options.relative_gap,
            self.solver.threads: self.options.threads,
            self.solver.seed: self.options.seed,
        }
        for option, value in {**{k: v for k, v in wanted.items() if k and v}, **self.options.solver}.items():
            opt.options[option] = value
        settings: dict[str, Any] = {}
        seconds = self._seconds()
        if seconds is not None:
            settings["timelimit"] = seconds
        if self.books.hint is not None and opt.warm_start_capable():
            settings["warmstart"] = True
        with contextlib.redirect_stdout(self.lines):
            results = opt.solve(self.model, load_solutions=False, tee=True, **settings)
        answer, condition = _Answer(), results.solver.termination_condition
        if len(results.solution) and len(results.solution(0).variable):
            self.model.solutions.load_from(results)
            answer.values = self._values()
        if condition == TerminationCondition.optimal and answer.values is not None:
            answer.proved = Status.OPTIMAL
            exact = self.options.relative_gap <= 0
            cost = float(self.matrix.cost @ answer.values)
            answer.bound = cost + self.matrix.offset if exact else self._printed(results)
        elif condition == TerminationCondition.infeasible:
            answer.proved = Status.INFEASIBLE
        else:
            answer.bound = self._printed(results)
            if condition == TerminationCondition.maxTimeLimit:
                answer.stop = StopReason.DEADLINE
            elif results.solver.status == SolverStatus.error or (answer.values is None and not self.stop_requested):
                answer.message = f"{self.name} ended with {condition}"
        self.answer = answer

    def _printed(self, results: Any) -> float | None:
        """Return a bound parsed from text, rounded outward."""
        bound = results.problem.lower_bound
        if not isinstance(bound, int | float) or not math.isfinite(bound):
            lines = [re.fullmatch(r"Lower bound:\s+(\S+)", line.strip()) for line in self.lines.seen]
            matches = [match for match in lines if match]
            try:
                bound = float(matches[-1][1]) if matches else None
            except ValueError:
                bound = None
        return None if bound is None else self._bound(bound - CUT_OFF * abs(bound))

    # -- both ------------------------------------------------------------------------------------------------------

    def _bound(self, bound: float | None) -> float | None:
        """Return the solver's bound as one on the model's objective."""
        if bound is None or not math.isfinite(bound) or abs(bound) >= 1e30:
            return None
        return float(bound) + self.matrix.offset

    def _values(self) -> Values:
        """Return the values of the variables; those in no row and no cost are unset and get any value."""
        values = np.array([math.nan if variable.value is None else variable.value for variable in self.x])
        some = np.where(np.isfinite(self.matrix.lower), self.matrix.lower, np.minimum(self.matrix.upper, 0))
        return np.where(np.isnan(values), some, values)
