"""``fzn-cpsat``: FlatZinc solved by CP-SAT, the constraint solver of OR-Tools."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from minizinc_solvers.deadline import Deadline
from minizinc_solvers.driver import Search, main
from minizinc_solvers.errors import FlatZincError
from minizinc_solvers.model import FlatZinc, Variable
from minizinc_solvers.options import Options
from minizinc_solvers.output import Ending, Printer

#: CP-SAT reports larger bounds if it has none.
NO_BOUND = 2**62


class CpSatSearch:
    """One run of CP-SAT on a FlatZinc model."""

    def __init__(self, model: FlatZinc, options: Options, printer: Printer, deadline: Deadline) -> None:
        from minizinc_solvers.cpsat_engine import Solver
        from minizinc_solvers.cpsat_model import CpSatBuilder
        from minizinc_solvers.cpsat_translate import translate

        self.model, self.options, self.printer, self.deadline = model, options, printer, deadline
        self.builder = CpSatBuilder(model)
        translate(self.builder, deadline)
        self.number = np.array(self.builder.number, dtype=np.int64)
        self.enumerating = model.goal == "satisfy" and (options.all_solutions or (options.number or 1) > 1)
        self.seen: set[bytes] = set()
        self.printed = [item.index for output in model.outputs for item in output.values if isinstance(item, Variable)]
        self.stopped = False
        self.failure: Exception | None = None
        self.solver = Solver()
        self.solver.on_bound = self._bound
        parameters = self.solver.parameters
        parameters.num_workers = 1 if self.enumerating else options.threads or 1
        parameters.random_seed = options.seed % 2**31
        parameters.catch_sigint_signal = False
        parameters.enumerate_all_solutions = self.enumerating
        if options.verbose:
            parameters.log_search_progress = True
            parameters.log_to_stdout = False
            self.solver.on_log = lambda line: print(line, file=sys.stderr, flush=True)

    def stop(self) -> None:
        self.stopped = True
        self.solver.stop()

    def run(self) -> Ending:
        from minizinc_solvers.cpsat_engine import Status, fault

        if math.isfinite(self.deadline.seconds):
            self.solver.parameters.max_time_in_seconds = self.deadline.remaining
        status = Ending.UNKNOWN if self.stopped else self.solver.solve(self.builder.proto, self.found)
        if self.failure is not None:
            raise self.failure
        if status == Status.MODEL_INVALID:
            raise FlatZincError(f"CP-SAT refuses the model: {' '.join(fault(self.builder.proto).split())[:300]}")
        if status == Status.INFEASIBLE:
            return self._claim(Ending.UNSATISFIABLE)
        if status == Status.OPTIMAL and self.model.goal != "satisfy":
            self._bound(self.solver.response.best_objective_bound)
            return self._claim(Ending.COMPLETE)
        if status == Status.OPTIMAL and self.enumerating and not self.stopped:
            return self._claim(Ending.COMPLETE)
        return Ending.UNKNOWN

    def _claim(self, verdict: Ending) -> Ending:
        """Return the verdict, unless variables were clamped."""
        if not self.builder.clamped:
            return verdict
        print(
            f"% variable {self.builder.clamped!r} has no bounds and was searched in part, so nothing is proved",
            file=sys.stderr,
        )
        return Ending.UNKNOWN

    def found(self, response: Any) -> None:
        """Receive a solution from a thread of CP-SAT."""
        if self.failure is not None:
            return
        try:
            values = np.array(response.solution, dtype=np.int64)[self.number].tolist()
            if self.enumerating and not self._new(values):
                return
            goal = self.model.objective
            objective = None if goal is None else goal if isinstance(goal, int) else values[goal.index]
            self._bound(response.best_objective_bound)
            self.printer.solution(values, objective)
            if self.model.goal == "satisfy" and self.printer.count == self.options.number:
                self.stop()
        except Exception as error:  # must not propagate into CP-SAT's code
            self.failure = error
            self.stop()

    def _new(self, values: list[int]) -> bool:
        """True if a solution differs from all earlier ones in its printed values."""
        printed = np.array([values[index] for index in self.printed], dtype=np.int64)
        digest = hashlib.blake2b(printed.tobytes(), digest_size=16).digest()
        known = digest in self.seen
        self.seen.add(digest)
        return not known

    def _bound(self, bound: float) -> None:
        if self.model.goal == "satisfy" or not math.isfinite(bound) or abs(bound) >= NO_BOUND or self.builder.clamped:
            return
        self.printer.bound(round(bound) if self.model.goal == "minimize" else -round(bound))


def _search(model: FlatZinc, options: Options, printer: Printer, deadline: Deadline) -> Search:
    return CpSatSearch(model, options, printer, deadline)


def run(arguments: Sequence[str] | None = None) -> NoReturn:
    """Entry point of ``fzn-cpsat``."""
    main("fzn-cpsat", _search, arguments)


if __name__ == "__main__":
    run()
