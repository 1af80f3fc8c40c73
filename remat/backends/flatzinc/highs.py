"""``fzn-highs``: FlatZinc that MiniZinc has made linear, solved by HiGHS."""

from __future__ import annotations

import itertools
import math
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from remat.backends.base import Incumbent, SolveOptions, Status
from remat.backends.flatzinc.bounds import tighten
from remat.backends.flatzinc.driver import Search, main
from remat.backends.flatzinc.model import Constraint, FlatZinc, IntSet, Variable, VarKind
from remat.backends.flatzinc.options import Options
from remat.backends.flatzinc.output import Ending, Printer
from remat.backends.flatzinc.refusals import constant_set, items, number, refuse, unfit
from remat.deadline import Deadline
from remat.errors import ModelError
from remat.modeling import Domain, Kind, Linear, Model

#: Bounds given to an integer variable that has none.
UNBOUNDED = 2**31
#: Most values of a domain with gaps.
MAX_VALUES = 100_000
KINDS = {VarKind.BOOL: Kind.BOOLEAN, VarKind.INT: Kind.INTEGER, VarKind.FLOAT: Kind.CONTINUOUS}

Terms = list[tuple[float, Any]]
#: Terms that add up to something between two numbers.
Row = tuple[Terms, float, float]


def _weighted(low: float, high: float) -> Callable[..., Row]:
    def row(weights: Any, variables: Any, right: Any) -> Row:
        factors, terms = [number(weight) for weight in items(weights)], items(variables)
        if len(factors) != len(terms):
            raise ModelError(f"has {len(factors)} weights for {len(terms)} variables")
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
        raise ModelError("has a set with gaps: MiniZinc's library 'linear' rewrites it")
    return [(1, left)], *ranges[0]


#: The constraints that are one linear row.
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


@dataclass
class LinearModel:
    """A FlatZinc model as linear rows.

    Attributes
    ----------
    model : Model
        Its variables are FlatZinc's, in the same order.
    clamped : str
        Name of an integer variable that was given bounds although it has none; empty where there is none.

    Raises
    ------
    ModelError
        Naming the line and the constraint that is not linear.
    """

    source: FlatZinc
    model: Model = field(default_factory=lambda: Model("flatzinc"))
    clamped: str = ""
    _row: list[int] = field(default_factory=list)
    _column: list[int] = field(default_factory=list)
    _value: list[float] = field(default_factory=list)
    _lower: list[float] = field(default_factory=list)
    _upper: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        tighten(self.source)
        self._add_variables()
        for constraint in self.source.constraints:
            self._add_row(constraint)
        self.model.add(
            Linear.rows(
                "rows", self._row, self._column, self._value, lower=self._lower, upper=self._upper,
                num_rows=len(self._lower),
            )
        )  # fmt: skip
        if self.source.goal != "satisfy":
            sign = 1 if self.source.goal == "minimize" else -1
            if isinstance(self.source.objective, Variable):
                self.model.minimize([self.source.objective.index], [sign])
            else:
                self.model.minimize([], [], sign * number(self.source.objective))

    def _add_variables(self) -> None:
        kinds, lower, upper = [], [], []
        gaps: dict[int, list[int]] = {}
        for variable in self.source.variables:
            low, high = self._bounds(variable, gaps)
            kinds.append(KINDS[variable.kind])
            lower.append(low)
            upper.append(high)
        # A block for each run of one kind: in the model, too, variables are numbered in FlatZinc's order.
        place = 0
        for kind, run in itertools.groupby(kinds):
            size = len(list(run))
            self.model.add_vars(kind.name.lower(), size, kind, lower[place : place + size], upper[place : place + size])
            place += size
        if gaps:
            indptr = np.cumsum([0, *map(len, gaps.values())])
            values = np.array(list(itertools.chain.from_iterable(gaps.values())), dtype=np.int64)
            self.model.add(Domain("domains", np.array(list(gaps), dtype=np.int64), indptr.astype(np.int64), values))

    def _bounds(self, variable: Variable, gaps: dict[int, list[int]]) -> tuple[float, float]:
        domain = variable.domain
        if variable.kind is VarKind.BOOL:
            return 0, 1
        if isinstance(domain, IntSet):
            if not domain.ranges:
                self._impossible()
                return 0, 0
            if len(domain.ranges) > 1:
                size = sum(high - low + 1 for low, high in domain.ranges)
                if size > MAX_VALUES:
                    raise ModelError(f"variable {variable.name!r} has a domain of {size} values with gaps")
                gaps[variable.index] = [value for low, high in domain.ranges for value in range(low, high + 1)]
            return domain.ranges[0][0], domain.ranges[-1][1]
        if domain is not None:
            if domain[0] > domain[1]:
                self._impossible()
                return 0, 0
            return domain
        if variable.kind is VarKind.FLOAT:
            return -math.inf, math.inf
        self.clamped = self.clamped or variable.name
        return -UNBOUNDED, UNBOUNDED

    def _impossible(self) -> None:
        self._lower.append(1)
        self._upper.append(math.inf)

    def _add_row(self, constraint: Constraint) -> None:
        relation = ROWS.get(constraint.name)
        if relation is None:
            raise refuse(constraint, "is not linear: flatten the model with MiniZinc's library 'linear'")
        if len(constraint.arguments) != ARITY[constraint.name]:
            raise refuse(constraint, f"has {len(constraint.arguments)} arguments, which is not what it takes")
        try:
            terms, low, high = relation(*constraint.arguments)
            row = len(self._lower)
            for factor, term in terms:
                if isinstance(term, Variable):
                    self._row.append(row)
                    self._column.append(term.index)
                    self._value.append(factor)
                elif isinstance(term, (int, float)):
                    low, high = low - factor * term, high - factor * term
                else:
                    raise unfit("a number", term)
            self._lower.append(low)
            self._upper.append(high)
        except ModelError as error:
            raise refuse(constraint, str(error)) from None


@dataclass(frozen=True)
class _StoppableDeadline(Deadline):
    """A deadline that is over, too, as soon as `stopped` is set."""

    stopped: threading.Event = field(default_factory=threading.Event)

    @property
    def remaining(self) -> float:
        return 0.0 if self.stopped.is_set() else super().remaining


class HighsSearch:
    """One run of HiGHS on a FlatZinc model."""

    def __init__(self, model: FlatZinc, options: Options, printer: Printer, deadline: Deadline) -> None:
        self.model, self.options, self.printer = model, options, printer
        self.linear = LinearModel(model)
        self.deadline = _StoppableDeadline(deadline.seconds, deadline.started)

    def stop(self) -> None:
        self.deadline.stopped.set()

    def run(self) -> Ending:
        from remat.backends.highs import Highs

        options = SolveOptions(
            self.deadline,
            threads=self.options.threads or 1,
            seed=self.options.seed % 2**31,
            log=(lambda line: print(line, file=sys.stderr, flush=True)) if self.options.verbose else None,
        )
        several = self.options.all_solutions or (self.options.number or 1) > 1
        if self.model.goal == "satisfy" and several:
            print("% HiGHS finds one solution, not several", file=sys.stderr)
        result = Highs().solve(self.linear.model, options, None, self._found, self._bound)
        if result.status is Status.ERROR:
            if "unbounded" in result.message:
                return Ending.UNBOUNDED
            raise ModelError(result.message)
        if result.values is not None and not self.printer.count:
            self._take(result.values)
        if result.bound is not None:
            self._bound(0.0, result.bound)
        proved = {Status.INFEASIBLE: Ending.UNSATISFIABLE, Status.OPTIMAL: Ending.COMPLETE}.get(result.status)
        if proved is None or (proved is Ending.COMPLETE and self.model.goal == "satisfy"):
            return Ending.UNKNOWN
        if self.linear.clamped:
            print(
                f"% variable {self.linear.clamped!r} has no bounds and was searched in part, so nothing is proved",
                file=sys.stderr,
            )
            return Ending.UNKNOWN
        return proved

    def _found(self, incumbent: Incumbent) -> bool:
        self._take(incumbent.values)
        return self.model.goal == "satisfy"

    def _take(self, values: Any) -> None:
        goal = self.model.objective
        objective = goal if not isinstance(goal, Variable) else _printed(goal, values[goal.index])
        self.printer.solution(values.tolist(), objective)

    def _bound(self, _: float, bound: float) -> None:
        if self.model.goal == "satisfy" or self.linear.clamped:
            return
        goal = self.model.objective
        whole = not isinstance(goal, Variable) or goal.kind is VarKind.INT
        bound = math.ceil(bound - 1e-6) if whole else bound
        self.printer.bound(bound if self.model.goal == "minimize" else -bound)


def _printed(variable: Variable, value: float) -> float | int:
    return float(value) if variable.kind is VarKind.FLOAT else round(value)


def _search(model: FlatZinc, options: Options, printer: Printer, deadline: Deadline) -> Search:
    return HighsSearch(model, options, printer, deadline)


def run(arguments: Sequence[str] | None = None) -> NoReturn:
    """Entry point of ``fzn-highs``."""
    main("fzn-highs", _search, arguments)


if __name__ == "__main__":
    run()
