"""MiniZinc backend: translates a model into a command line, and a stream of messages into a result."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from remat.backends.base import Availability, AvailabilityState, Backend, Run, wheel_availability
from remat.backends.bookkeeping import Bookkeeping
from remat.backends.minizinc import driver
from remat.backends.minizinc.process import GroupProcess
from remat.backends.minizinc.translation import HERE, Program, RecordProgram, to_json
from remat.backends.results import Values
from remat.errors import BackendError
from remat.io.files import write_atomic
from remat.modeling import AllDifferent, Clauses, Cumulative, Domain, Linear, Model, PlainLinear, Reservoir, lower
from remat.modeling.alternatives import WrittenModel
from remat.modeling.naming import Labels
from remat.runtime.deadline import Deadline
from remat.runtime.processes.guard import temporary_folder
from remat.runtime.processes.process_trees import too_large
from remat.runtime.solve_options import SolveOptions, Status, StopReason

OLDEST = (2, 6)
#: Supported versions of the Python package `minizinc`.
VERSIONS = ">=0.10"
#: Seconds before the deadline at which the solver should stop by its own limit, so that its final output is read.
REPLY_SECONDS = 0.3
#: Solvers whose `cumulative` leaves intervals of length 0 unconstrained; see ``interval_use.mzn``.
EXACT_INTERVALS = frozenset({"cp-sat", "com.google.ortools.sat", "org.remat.cp-sat"})
#: Parameter of ``interval_use.mzn``.
SWITCH = "empty_intervals_are_free"
#: Solvers with 32-bit integers.
SMALL_NUMBERS = frozenset({"org.gecode.gecode"})


class MiniZinc(Backend):
    """Any solver that the ``minizinc`` program lists: ``minizinc:gecode``, ``minizinc:cp-sat``, ``minizinc:highs``...

    A model is passed in one of two ways. If its formulation has a MiniZinc text of its own (its override ``minizinc``,
    a :class:`~remat.modeling.alternatives.WrittenModel`), that text is used. Otherwise ``records.mzn`` is used, a fixed
    text that states each kind of record once over arrays of a data file. Names of the model enter neither. Solvers of
    linear rows (tag ``mip``) get the model lowered by this package's bridges, which exploit more structure than
    MiniZinc's own linearisation.

    ``SolveOptions.solver`` holds options of the MiniZinc solver by the names that its configuration lists, without
    dashes, for example ``{"decay": 0.9}`` for Gecode. ``generic`` is this backend's own: true uses the records, false
    the formulation's text.

    The package `minizinc` of PyPI describes the solvers. `remat` runs them, for the reasons in
    ``docs/backends/minizinc.md``.
    """

    name = "minizinc"
    own_process = True
    native = frozenset({Linear, Clauses, Domain, Cumulative, Reservoir, AllDifferent})

    @classmethod
    def availability(cls) -> Availability:
        package = wheel_availability("minizinc", VERSIONS, "remat[minizinc]")
        if not package.ready:
            return package
        program = driver.executable()
        if program is None:
            reason = "no program 'minizinc' on the path; apt-get install minizinc, or the bundle from www.minizinc.org"
            return Availability(AvailabilityState.NOT_INSTALLED, reason)
        try:
            version = driver.version(program)
        except BackendError as error:
            return Availability(AvailabilityState.CONFLICT, str(error))
        if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < OLDEST:
            return Availability(AvailabilityState.WRONG_VERSION, f"minizinc {version} is older than 2.6")
        return Availability(AvailabilityState.READY, f"minizinc {version}")

    @classmethod
    def variants(cls) -> tuple[str, ...]:
        program = driver.executable()
        try:
            return tuple(driver.solvers(program) if program else driver.SHORT_NAMES)
        except BackendError:  # reported by ready()
            return tuple(driver.SHORT_NAMES)

    def ready(self) -> Availability:
        state = self.availability()
        if not state.ready:
            return state
        try:
            solver = self.solver()
        except BackendError as error:
            return Availability(AvailabilityState.NOT_INSTALLED, str(error))
        return Availability(AvailabilityState.READY, f"{state.reason}, {solver.id} {solver.version}".strip())

    def solver(self) -> driver.Solver:
        """Return the solver of this variant; without a variant the most preferred one.

        Raise BackendError if the program does not list it.
        """
        listed = driver.solvers(driver.executable() or "minizinc")
        if self.variant:
            found = listed.get(self.variant) or next((s for s in listed.values() if s.id == self.variant), None)
        else:
            found = next((listed[name] for name in driver.PREFERENCE if name in listed), None)
        if found is None:
            wanted = f"no solver {self.variant!r}" if self.variant else "no solver that it can use"
            raise BackendError(f"minizinc lists {wanted}; it has {', '.join(listed) or 'none'}")
        return found

    def reads_rows(self, options: SolveOptions) -> bool:
        return self.solver().mip and options.solver.get("generic") is not False

    suffixes = (".mzn",)

    def write(self, model: Model, path: str | os.PathLike[str], labels: Labels) -> None:
        """Write the text into a file with all that it includes, and its data into one with the suffix ``.dzn``.

        Two parameters, unit and offset, turn the objective into the cost of a schedule, or its peak in bytes.
        `labels` are not used: the text has its own names, and its data numbers ops and tensors from 1.
        """
        text, data = self.program(model).exported({SWITCH: False})
        write_atomic(path, text)
        write_atomic(Path(path).with_suffix(".dzn"), data)

    def program(self, model: Model) -> Program:
        """Return the text and data of `model` for a solver of whole numbers."""
        return _program(model, generic=None, mip=False, hint=None, deadline=Deadline())

    def prepare(self, model: Model, options: SolveOptions, books: Bookkeeping) -> Run:
        solver = self.solver()
        books.solver = f"MiniZinc's solver {solver.name!r}"
        program = driver.executable() or "minizinc"
        books.versions.update({"minizinc": driver.version(program), solver.id: solver.version})
        own = dict(options.solver)
        generic = own.pop("generic", None)
        with contextlib.ExitStack() as resources:
            folder = resources.enter_context(temporary_folder())
            text = _program(model, generic=generic, mip=solver.mip, hint=books.hint, deadline=options.deadline)
            data = _write(text, solver, folder, options.deadline)
            return _Run(text, solver, replace(options, solver=own), books, data, resources.pop_all())


def _write(program: Program, solver: driver.Solver, folder: Path, deadline: Deadline) -> Path:
    """Write the data to a file in the private folder; return its path."""
    data = {**program.data, SWITCH: solver.mip or solver.id in EXACT_INTERVALS}
    path = folder / "data.json"
    with path.open("w", encoding="utf-8") as file:
        file.writelines(deadline.each(to_json(data), 1))
    return path


def _program(model: Model, *, generic: bool | None, mip: bool, hint: Values | None, deadline: Deadline) -> Program:
    """Return `model` for a solver of linear rows (`mip`) or another one.

    That is the formulation's own text if it has one and that applies, else its records.
    """
    if generic is not None and not isinstance(generic, bool):
        raise BackendError(f"option 'generic' of backend 'minizinc' is true or false, not {generic!r}", "option-value")
    written = model.overrides.get(MiniZinc.name)
    if generic is False and written is None:
        raise BackendError(f"model {model.name!r} has no MiniZinc text of its own", "no-text")
    if written is not None and not (mip if generic is None else generic):
        statement: WrittenModel = written()
        data = {**statement.data, **statement.hint(hint)}
        return Program(statement.text, data, statement.values, statement.cost_unit, statement.cost_offset)
    lowered = lower(model, {PlainLinear} if mip else MiniZinc.native, deadline=deadline)
    records = RecordProgram(lowered.model, reals=mip, deadline=deadline)
    program = records.program(None if hint is None else lowered.extend(hint))
    return replace(program, values=lambda output: program.values(output)[: lowered.source.num_vars])


@dataclass
class _Run(Run):
    """One run of the program: its messages and outcome."""

    program: Program
    solver: driver.Solver
    options: SolveOptions
    books: Bookkeeping
    data: Path
    resources: contextlib.ExitStack
    status: str = ""
    errors: list[str] = field(default_factory=list)
    code: int = 0
    large: bool = False
    process: GroupProcess | None = None

    keeps_deadline: ClassVar[bool] = True

    def run(self) -> None:
        """Start the program and read its output to the end."""
        deadline, folder = self.options.deadline, self.data.parent
        limit = None
        if math.isfinite(deadline.seconds):
            limit = max(1, int(1000 * (deadline.remaining - REPLY_SECONDS)))
        line = driver.command(
            driver.executable() or "minizinc", self.solver, [self.program.text, self.data], self.options,
            include=[HERE], milliseconds=limit,
        )  # fmt: skip
        self.process = process = GroupProcess(
            line,
            folder,
            {**driver.environment(), "TMPDIR": str(folder)},
            self._message,
            memory_limit=self.options.memory_bytes,
        )
        if self.books.stop_reason:
            process.stop()
        self.code = process.run(deadline)
        for error in process.errors():
            self._error_line(error)
        if process.too_large:
            self.books.stop_reason, self.large = StopReason.OTHER, True
        if deadline.expired or (limit is not None and deadline.remaining <= REPLY_SECONDS):
            self.books.request_stop(StopReason.DEADLINE)

    def stop(self) -> None:
        if self.process:
            self.process.stop()

    def close(self) -> None:
        if self.process:
            self.process.end()
        self.resources.close()

    def _message(self, line: str) -> None:
        """Handle one line of the program's JSON stream."""
        try:
            message = json.loads(line) if line.startswith("{") else {}
        except ValueError:  # truncated when the program terminated
            message = {}
        kind = message.get("type")
        if kind == "solution":
            # a solution that arrives after the stop is kept without a callback
            self.books.found(self._values(message), notify=not self.books.stop_reason)
            self._check_gap()
        elif kind == "statistics":
            self._new_bound(message.get("statistics", {}).get("objectiveBound"))
        elif kind == "status":
            self.status = str(message.get("status"))
        elif kind == "error":
            self.errors.append(f"{message.get('what', 'error')}: {message.get('message', '')}")
        if self.options.log and kind not in {"solution", "status"} and line:
            self.options.log(line)

    def _error_line(self, line: str) -> None:
        if line and not line.lower().startswith("warning"):
            self.errors.append(line)
        if self.options.log:
            self.options.log(line)

    def _values(self, message: Mapping[str, Any]) -> Values:
        try:
            return self.program.values(message["output"]["json"])
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise BackendError(
                f"{self.books.solver} gives a solution that cannot be read: {error!r}", "unreadable-solution"
            ) from error

    def _new_bound(self, bound: Any) -> None:
        if isinstance(bound, bool) or not isinstance(bound, int | float) or not abs(bound) < 2**62:
            return
        self.books.raise_bound(self.program.cost_unit * bound + self.program.cost_offset)
        self._check_gap()

    def _check_gap(self) -> None:
        best, bound, gap = self.books.best, self.books.bound, self.options.relative_gap
        if best is None or bound is None or not gap:
            return
        if best.objective - bound <= gap * abs(best.objective):
            self.books.request_stop(StopReason.GAP)

    def final_status(self) -> tuple[Status, StopReason, str]:
        """Translate MiniZinc's status; return it with the stop reason and an error message."""
        best, who = self.books.best, self.books.solver
        if self.status == "OPTIMAL_SOLUTION" and best:
            self.books.bound = best.objective
            return Status.OPTIMAL, StopReason.FINISHED, ""
        if self.status == "UNSATISFIABLE":
            if best is None:
                return Status.INFEASIBLE, StopReason.FINISHED, ""
            return Status.ERROR, StopReason.OTHER, f"{who} finds no solution, but there is one"
        limit = self.options.memory_bytes
        if limit is not None and (self.large or "bad_alloc" in " ".join(self.errors)):
            return Status.UNKNOWN, StopReason.OTHER, f"{who} was ended: {too_large(limit)}"
        if self.books.stop_reason:
            return Status.UNKNOWN, self.books.stop_reason, ""
        if self.status in {"UNBOUNDED", "UNSAT_OR_UNBOUNDED"}:
            return Status.ERROR, StopReason.OTHER, f"{who} says that the objective is unbounded"
        if self.code or self.errors or self.status in {"ERROR", ""}:
            return Status.ERROR, StopReason.OTHER, f"{who} {self._failure()}"
        return Status.UNKNOWN, StopReason.OTHER, ""

    def _failure(self) -> str:
        """Return the reason of the failure, in one line."""
        said = [" ".join(line.split()) for line in self.errors]
        telling = [line for line in said if "error" in line.lower()] or said
        if telling:
            small = " (it counts in 32 bits)" if self.solver.id in SMALL_NUMBERS and "literal" in telling[0] else ""
            return f"failed: {telling[0][:300]}{small}"
        if self.code < 0:
            return f"failed: minizinc was ended by signal {-self.code}"
        return f"ended before it was done (exit code {self.code}): it may have been killed, or out of memory"
