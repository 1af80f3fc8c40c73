"""Protocol between MiniZinc and a solver: solutions, statistics and verdicts on standard output."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, TextIO

from minizinc_solvers.deadline import Deadline
from minizinc_solvers.model import FlatZinc, Output, Variable, VarKind
from minizinc_solvers.options import Options

SEPARATOR = "----------"
#: Least seconds between two reports of bounds.
BOUND_PAUSE = 0.5


class Ending(Enum):
    """Outcome of a search."""

    COMPLETE = "=========="
    """Everything that was asked for is known: the optimum is proved, or there are no more solutions."""
    UNSATISFIABLE = "=====UNSATISFIABLE====="
    UNBOUNDED = "=====UNBOUNDED====="
    UNKNOWN = "=====UNKNOWN====="
    """Nothing was found and nothing proved."""
    STOPPED = ""
    """There are solutions, but the search went no further."""


class Printer:
    """Printer of results, one block of lines at a time; callable from any thread.

    Attributes
    ----------
    count : int
        Solutions found.
    """

    def __init__(self, model: FlatZinc, options: Options, deadline: Deadline, stream: TextIO | None = None) -> None:
        self.model, self.options, self.deadline = model, options, deadline
        self.stream = stream or sys.stdout
        self.count = 0
        self._objective: float | int | None = None
        self._bound: float | int | None = None
        self._pending: str | None = None
        self._bound_at = -BOUND_PAUSE
        self._closed = False
        self._lock = threading.RLock()

    def solution(self, values: Sequence[Any], objective: float | int | None = None) -> None:
        """Record a solution, with an objective only if it is better; `values` by variable number."""
        with self._lock:
            if self._closed:
                return
            self.count += 1
            self._objective = objective
            text = "".join(f"{_output(output, values)}\n" for output in self.model.outputs) + SEPARATOR + "\n"
            if self.model.goal == "satisfy" or self.options.streams:
                self._write(self._statistics() + text)
            else:
                self._pending = text
                self._write(self._statistics())

    def bound(self, bound: float | int) -> None:
        """Record a bound on the objective, in the model's own direction."""
        with self._lock:
            if self._closed or bound == self._bound:
                return
            self._bound = bound
            if self.deadline.elapsed >= self._bound_at + BOUND_PAUSE:
                self._bound_at = self.deadline.elapsed
                self._write(self._statistics())

    def finish(self, verdict: Ending, extra: Mapping[str, Any] | None = None) -> None:
        """Print the best solution unless printed, the verdict and the statistics; ignore all later calls."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            text = "" if verdict is Ending.UNBOUNDED else self._pending or ""
            if verdict is Ending.UNKNOWN and self.count:
                verdict = Ending.STOPPED
            if verdict.value:
                text += verdict.value + "\n"
            self._write(text + self._statistics(extra))

    def _statistics(self, extra: Mapping[str, Any] | None = None) -> str:
        if not self.options.statistics:
            return ""
        known: dict[str, Any] = {
            "objective": self._objective,
            "objectiveBound": self._bound,
            "solveTime": round(self.deadline.elapsed, 3),
            "nSolutions": self.count,
            **(extra or {}),
        }
        lines = [f"%%%mzn-stat: {name}={value}\n" for name, value in known.items() if value is not None]
        return "".join(lines) + "%%%mzn-stat-end\n"

    def _write(self, text: str) -> None:
        if text:
            self.stream.write(text)
            self.stream.flush()


def _output(output: Output, values: Sequence[Any]) -> str:
    printed = [_value(item, values) for item in output.values]
    if output.shape is None:
        return f"{output.name} = {printed[0]};"
    ranges = "".join(f"{low}..{high}, " for low, high in output.shape)
    return f"{output.name} = array{len(output.shape)}d({ranges}[{', '.join(printed)}]);"


def _value(item: Any, values: Sequence[Any]) -> str:
    if isinstance(item, Variable):
        value = values[item.index]
        if item.kind is VarKind.BOOL:
            return "true" if value else "false"
        return repr(float(value)) if item.kind is VarKind.FLOAT else str(int(value))
    if isinstance(item, bool):
        return "true" if item else "false"
    return str(item)
