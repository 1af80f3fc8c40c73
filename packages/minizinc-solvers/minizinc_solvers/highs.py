"""``fzn-highs``: FlatZinc linearised by MiniZinc, solved by HiGHS."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import highspy
import numpy as np

from minizinc_solvers.bounds import tighten
from minizinc_solvers.deadline import Deadline
from minizinc_solvers.driver import Search, main
from minizinc_solvers.errors import FlatZincError
from minizinc_solvers.model import Constraint, FlatZinc, IntSet, Variable, VarKind
from minizinc_solvers.options import Options
from minizinc_solvers.output import Ending, Printer
from minizinc_solvers.refusals import constant_set, items, number, refuse, unfit

#: Bounds of integer variables without any.
UNBOUNDED = 2**31
#: Largest distance from an integer due to rounding.
INTEGRALITY = 1e-5

Terms = list[tuple[float, Any]]
#: Terms whose sum lies between two numbers.
Row = tuple[Terms, float, float]


def _weighted(low: float, high: float) -> Callable[..., Row]:
    def row(weights: Any, variables: Any, right: Any) -> Row:
        factors, terms = [number(weight) for weight in items(weights)], items(variables)
        if len(factors) != len(terms):
            raise FlatZincError(f"has {len(factors)} weights for {len(terms)} variables")
        return [*zip(factors, terms, strict=True), (-1, right)], low, high

    return row


def _pair(low: float, high: float) -> Callable[..., Row]:
    return lambda left, right: ([(1, left), (-1, right)], low, high)


def _plus(left: Any, right: Any, total: Any) -> Row:
    return [(1, left), (1, right), (-1, total)], 0, 0


def _clause(positive: Any, negative: Any) -> Row:
    lost = items(negative)
    return [*((1, item) for item in items(positive)), *((-1, item) for item in lost)], 1 - len(lost), math.inf


def _member(left: Any, right: Any) -> Row:
    ranges = constant_set(right).ranges
    if not ranges:
        return [], 1, 1
    if len(ranges) > 1:
        raise FlatZincError("has a set with gaps: MiniZinc's library 'linear' rewrites it")
    return [(1, left)], *ranges[0]


#: Constraints that are one linear row.
ROWS: dict[str, Callable[..., Row]] = {
    **{f"{kind}_eq": _pair(0, 0) for kind in ("int", "bool", "float")},
    **{f"{kind}_le": _pair(-math.inf, 0) for kind in ("int", "bool", "float")},
    **{f"{kind}_lt": _pair(-math.inf, -1) for kind in ("int", "bool")},
    **{f"{kind}_lin_eq": _weighted(0, 0) for kind in ("int", "bool", "float")},
    **{f"{kind}_lin_le": _weighted(-math.inf, 0) for kind in ("int", "bool", "float")},
    "bool2int": _pair(0, 0),
    "int2float": _pair(0, 0),
    "bool_not": lambda left, right: ([(1, left), (1, right)], 1, 1),
    "bool_clause": _clause,
    "int_plus": _plus,
    "float_plus": _plus,
    "set_in": _member,
}
ARITY = {name: 3 if name.endswith(("_plus", "lin_eq", "lin_le")) else 2 for name in ROWS}


class LinearModel:
    """FlatZinc model as linear rows; columns are its variables in order, then those of domains with gaps.

    Attributes
    ----------
    integral : list of bool
    lower, upper, cost : list of float
        By column; `cost` is minimised.
    clamped : str
        Name of an unbounded integer variable that received bounds; empty without any.

    Raises
    ------
    FlatZincError
        For a constraint that is not linear; names it and its line.
    """

    def __init__(self, source: FlatZinc) -> None:
        self.source = source
        self.clamped = ""
        self.integral: list[bool] = []
        self.lower: list[float] = []
        self.upper: list[float] = []
        self.row_lower: list[float] = []
        self.row_upper: list[float] = []
        self._first = [0]
        self._column: list[int] = []
        self._value: list[float] = []
        tighten(source)
        for variable in source.variables:
            low, high = self._bounds(variable)
            self._new_column(low, high, integral=variable.kind is not VarKind.FLOAT)
        for variable in source.variables:
            if isinstance(variable.domain, IntSet) and len(variable.domain.ranges) > 1:
                self._forbid_gaps(variable.index, variable.domain.ranges)
        for constraint in source.constraints:
            self._add_constraint(constraint)
        self.cost = [0.0] * len(self.lower)
        if isinstance(source.objective, Variable):
            self.cost[source.objective.index] = 1.0 if source.goal == "minimize" else -1.0

    def load(self, solver: Any) -> None:
        """Pass the model to HiGHS, which ignores the rows of a model without columns."""
        if not self.lower:
            self._new_column(0, 0, integral=False)
            self.cost = [0.0]
        status = solver.passModel(
            len(self.lower), len(self.row_lower), len(self._value), int(highspy.MatrixFormat.kRowwise),
            int(highspy.ObjSense.kMinimize), 0.0, np.array(self.cost), np.array(self.lower, dtype=np.float64),
            np.array(self.upper, dtype=np.float64), np.array(self.row_lower, dtype=np.float64),
            np.array(self.row_upper, dtype=np.float64), np.array(self._first, dtype=np.int32),
            np.array(self._column, dtype=np.int32), np.array(self._value, dtype=np.float64),
            np.array(self.integral, dtype=np.int32),
        )  # fmt: skip
        if status == highspy.HighsStatus.kError:
            raise FlatZincError("HiGHS does not take the model")

    def _new_column(self, low: float, high: float, *, integral: bool) -> int:
        self.lower.append(low)
        self.upper.append(high)
        self.integral.append(integral)
        return len(self.lower) - 1

    def _new_row(self, terms: Sequence[tuple[float, int]], low: float, high: float) -> None:
        weights: dict[int, float] = {}  # HiGHS accepts each column of a row once
        for factor, column in terms:
            weights[column] = weights.get(column, 0) + factor
        self._column += weights.keys()
        self._value += weights.values()
        self._first.append(len(self._column))
        self.row_lower.append(low)
        self.row_upper.append(high)

    def _bounds(self, variable: Variable) -> tuple[float, float]:
        domain = variable.domain
        if variable.kind is VarKind.BOOL:
            return 0, 1
        if isinstance(domain, IntSet):
            if not domain.ranges:
                self._new_row([], 1, math.inf)
                return 0, 0
            return domain.ranges[0][0], domain.ranges[-1][1]
        if domain is not None:
            if domain[0] > domain[1]:
                self._new_row([], 1, math.inf)
                return 0, 0
            return domain
        if variable.kind is VarKind.FLOAT:
            return -math.inf, math.inf
        self.clamped = self.clamped or variable.name
        return -UNBOUNDED, UNBOUNDED

    def _forbid_gaps(self, column: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Keep a column in one of `ranges`, chosen by a Boolean column for each."""
        chosen = [self._new_column(0, 1, integral=True) for _ in ranges]
        self._new_row([(1, one) for one in chosen], 1, 1)
        ends = list(zip(chosen, ranges, strict=True))
        self._new_row([(1, column), *((-low, one) for one, (low, _) in ends)], 0, math.inf)
        self._new_row([(1, column), *((-high, one) for one, (_, high) in ends)], -math.inf, 0)

    def _add_constraint(self, constraint: Constraint) -> None:
        relation = ROWS.get(constraint.name)
        if relation is None:
            raise refuse(constraint, "is not linear: flatten the model with MiniZinc's library 'linear'")
        if len(constraint.arguments) != ARITY[constraint.name]:
            raise refuse(constraint, f"has {len(constraint.arguments)} arguments, which is not what it takes")
        try:
            terms, low, high = relation(*constraint.arguments)
            columns: list[tuple[float, int]] = []
            for factor, term in terms:
                if isinstance(term, Variable):
                    columns.append((factor, term.index))
                elif isinstance(term, (int, float)):
                    low, high = low - factor * term, high - factor * term
                else:
                    raise unfit("a number", term)
            self._new_row(columns, low, high)
        except FlatZincError as error:
            raise refuse(constraint, str(error)) from None


class HighsSearch:
    """One run of HiGHS on a FlatZinc model; objectives and bounds are those that HiGHS minimises."""

    def __init__(self, model: FlatZinc, options: Options, printer: Printer, deadline: Deadline) -> None:
        self.model, self.options, self.printer, self.deadline = model, options, printer, deadline
        self.linear = LinearModel(model)
        self.stopped = False
        self.failure: Exception | None = None
        self.best = math.inf
        self.bound = -math.inf
        goal = model.objective
        self.whole = not isinstance(goal, Variable) or goal.kind is not VarKind.FLOAT
        self.sign = -1 if model.goal == "maximize" else 1
        self.solver = highspy.Highs()

    def stop(self) -> None:
        self.stopped = True

    def run(self) -> Ending:
        several = self.options.all_solutions or (self.options.number or 1) > 1
        if self.model.goal == "satisfy" and several:
            print("% HiGHS finds one solution, not several", file=sys.stderr)
        self._set_options()
        self.linear.load(self.solver)
        if math.isfinite(self.deadline.seconds):
            self.solver.setOptionValue("time_limit", self.deadline.remaining)
        if self.stopped or self.deadline.expired:
            return Ending.UNKNOWN
        self.solver.run()
        status = self.solver.getModelStatus()
        if status in self._unclear() and not self.stopped:
            verdict = self._infeasible_or_unbounded()
        else:
            verdict = self._read_result(status)
        self.solver.setCallback(None, None)  # breaks the reference cycle with the solver
        if self.failure is not None:
            raise self.failure
        return self._claim(verdict)

    def _set_options(self) -> None:
        kinds = highspy.cb.HighsCallbackType
        self.solver.setCallback(self._called, None)
        if self.options.verbose:  # before output_flag, as HiGHS prints its first lines otherwise
            self.solver.startCallback(kinds.kCallbackLogging)
        for name, value in {
            "output_flag": self.options.verbose,
            "log_to_console": self.options.verbose,  # required for the log in the callback
            "random_seed": self.options.seed % 2**31,
            "threads": self.options.threads or 1,
            "mip_rel_gap": 0.0,
            **({"mip_abs_gap": 0.99} if self.whole else {}),  # no solution lies in the gap
        }.items():
            self.solver.setOptionValue(name, value)
        for kind in (
            kinds.kCallbackMipImprovingSolution, kinds.kCallbackMipInterrupt, kinds.kCallbackSimplexInterrupt,
            kinds.kCallbackIpmInterrupt,
        ):  # fmt: skip
            self.solver.startCallback(kind)

    def _unclear(self) -> set[Any]:
        """Statuses that may be infeasible or unbounded: HiGHS reports `kUnbounded` for the relaxation."""
        statuses = highspy.HighsModelStatus
        integral = {statuses.kUnbounded} if any(self.linear.integral) else set()
        return {statuses.kUnboundedOrInfeasible} | integral

    def _infeasible_or_unbounded(self) -> Ending:
        """Solve again without the objective: a model with a solution is unbounded."""
        columns = self.solver.getNumCol()
        self.solver.setCallback(None, None)
        self.solver.changeColsCost(columns, np.arange(columns, dtype=np.int32), np.zeros(columns))
        self.solver.run()
        status, statuses = self.solver.getModelStatus(), highspy.HighsModelStatus
        if status == statuses.kInfeasible:
            return Ending.UNSATISFIABLE
        return Ending.UNBOUNDED if status == statuses.kOptimal else Ending.UNKNOWN

    def _read_result(self, status: Any) -> Ending:
        info, statuses = self.solver.getInfo(), highspy.HighsModelStatus
        if info.primal_solution_status == highspy.kSolutionStatusFeasible:
            self._found(np.array(self.solver.getSolution().col_value))
        if status == statuses.kInfeasible:
            if self.printer.count:
                raise FlatZincError("HiGHS says that the model is infeasible, but there is a solution")
            return Ending.UNSATISFIABLE
        if status == statuses.kUnbounded:
            return Ending.UNBOUNDED
        if any(self.linear.integral):
            self._raise_bound(info.mip_dual_bound)
        elif status == statuses.kOptimal:
            self._raise_bound(self.best)
        if self.model.goal != "satisfy" and self.best - self.bound <= 1e-6 + 1e-9 * abs(self.best):
            return Ending.COMPLETE
        stopped = {statuses.kTimeLimit, statuses.kInterrupt, statuses.kOptimal, statuses.kUnknown}
        if not self.printer.count and not self.stopped and status not in stopped:
            raise FlatZincError(f"HiGHS ended with status {self.solver.modelStatusToString(status)!r}")
        return Ending.UNKNOWN

    def _claim(self, verdict: Ending) -> Ending:
        """Return `verdict`, unless variables were clamped."""
        if not self.linear.clamped or verdict not in {Ending.COMPLETE, Ending.UNSATISFIABLE}:
            return verdict
        print(
            f"% variable {self.linear.clamped!r} has no bounds and was searched in part, so nothing is proved",
            file=sys.stderr,
        )
        return Ending.UNKNOWN

    def _called(self, kind: int, message: str, out: Any, data_in: Any, _: Any) -> None:
        """Handle HiGHS's callbacks, in its thread."""
        kinds = highspy.cb.HighsCallbackType
        try:
            if kind == int(kinds.kCallbackLogging):
                print(message, end="", file=sys.stderr, flush=True)
            elif kind in {int(kinds.kCallbackMipImprovingSolution), int(kinds.kCallbackMipInterrupt)}:
                self._raise_bound(out.mip_dual_bound)
                if kind == int(kinds.kCallbackMipImprovingSolution):
                    self._found(np.array(out.mip_solution))
        except Exception as error:  # must not propagate into HiGHS's code
            self.failure = self.failure or error
            self.stopped = True
        if data_in is not None and (self.stopped or self.deadline.expired):
            data_in.user_interrupt = True

    def _found(self, values: Any) -> None:
        """Print a solution that is better than the last."""
        values = values[: len(self.model.variables)]
        whole = np.array(self.linear.integral, dtype=bool)[: len(values)]
        nearest = np.rint(values[whole])
        if len(nearest) and not (np.abs(values[whole] - nearest) <= INTEGRALITY).all():
            return
        values[whole] = nearest
        goal = self.model.objective
        objective = goal
        if isinstance(goal, Variable):
            objective = float(values[goal.index]) if goal.kind is VarKind.FLOAT else round(values[goal.index])
        cost = 0.0 if objective is None else self.sign * objective
        if cost >= self.best:
            return
        self.best = cost
        self.printer.solution(values.tolist(), objective)
        self.stopped = self.stopped or self.model.goal == "satisfy"

    def _raise_bound(self, bound: float) -> None:
        """Record a bound of HiGHS, rounded to a possible objective."""
        goal = self.model.objective
        if goal is None or not math.isfinite(bound):
            return
        if not isinstance(goal, Variable):
            bound = self.sign * goal
        elif self.whole:
            bound = math.ceil(bound - 1e-6)
        bound = min(bound, self.best)
        if bound > self.bound:
            self.bound = bound
            if not self.linear.clamped:
                self.printer.bound(self.sign * bound)


def _search(model: FlatZinc, options: Options, printer: Printer, deadline: Deadline) -> Search:
    return HighsSearch(model, options, printer, deadline)


def run(arguments: Sequence[str] | None = None) -> NoReturn:
    """Entry point of ``fzn-highs``."""
    main("fzn-highs", _search, arguments)


if __name__ == "__main__":
    run()
