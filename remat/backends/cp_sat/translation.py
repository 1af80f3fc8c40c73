"""Translation of a model into CP-SAT's protocol buffer, record by record."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from ortools.sat.python.cp_model_helper import CpModelProto

from remat.backends.results import Values
from remat.errors import ModelError
from remat.modeling import (
    ALWAYS,
    AllDifferent,
    Clauses,
    Cumulative,
    Domain,
    Kind,
    Linear,
    Model,
    NoOverlap,
    NoOverlap2D,
    Record,
    Reservoir,
)
from remat.runtime.arrays import Float, Int
from remat.runtime.deadline import Deadline

#: Rows and variables between two checks of the deadline.
PIECES = 2_000
#: CP-SAT's limits: infinity of a linear row, and the largest magnitude of any number.
INFINITE = 2**63 - 1
LARGEST = 2**62


class CpSatModel:
    """A model in CP-SAT's terms; its first variables are those of the source, with the same indices.

    Additional variables: one that is always true, and the length of each interval whose start is not fixed.

    `deadline` is that of the translation, which takes some microseconds per row.

    Raise ModelError, naming the block or record, for continuous variables and fractional coefficients, and OverdueError
    if the deadline passes.
    """

    def __init__(self, model: Model, deadline: Deadline | None = None) -> None:
        self.model, self._clock = model, deadline or Deadline()
        self.proto: Any = CpModelProto()
        self.lengths: list[tuple[int, int, int]] = []  # (length, start, end) variables, for the hint
        self.negations: dict[int, int] = {}  # variable -> its negation
        self.always: int | None = None
        self._add_variables()
        for record in self._clock.each(model.records, 1):
            self._translate(record)
        self._add_objective()

    # -- variables and objective -----------------------------------------------------------------------------------

    def _add_variables(self) -> None:
        for block in self.model.blocks:
            if block.kind is Kind.CONTINUOUS:
                raise ModelError(
                    f"CP-SAT has no continuous variables, but block {block.name!r} is continuous", "continuous"
                )
        self.lower = whole(np.ceil(self.model.lower - 1e-9), "a lower bound")
        self.upper = whole(np.floor(self.model.upper + 1e-9), "an upper bound")
        domains: dict[int, list[int]] = {}
        for record in self.model.records:
            if isinstance(record, Domain):
                self._collect_domains(record, domains)
        variables = self.proto.variables
        bounds = zip(self.lower.tolist(), self.upper.tolist(), strict=True)
        for number, (low, high) in enumerate(self._clock.each(bounds, PIECES)):
            variables.add().domain.extend(domains.get(number) or (low, high))

    def _collect_domains(self, record: Domain, domains: dict[int, list[int]]) -> None:
        for k, variable in enumerate(self._clock.each(record.variable.tolist())):
            listed = record.values[record.indptr[k] : record.indptr[k + 1]]
            inside = listed[(listed >= self.lower[variable]) & (listed <= self.upper[variable])]
            if not len(inside):  # CP-SAT rejects an empty domain as invalid, so the contradiction becomes a row
                self._row((variable,), (0,), (1, 1))
                continue
            breaks = np.flatnonzero(np.diff(inside) > 1)
            firsts, lasts = inside[np.append(0, breaks + 1)], inside[np.append(breaks, len(inside) - 1)]
            domains[variable] = np.stack([firsts, lasts], axis=1).ravel().tolist()

    def _new_variable(self, low: int, high: int) -> int:
        self.proto.variables.add().domain.extend((low, high))
        return len(self.proto.variables) - 1

    def _add_objective(self) -> None:
        objective = self.model.objective
        coefficients = whole(objective.coefficient, "an objective coefficient")
        if len(coefficients):
            target = self.proto.objective
            target.vars.extend(objective.index.tolist())
            target.coeffs.extend(coefficients.tolist())

    # -- records ---------------------------------------------------------------------------------------------------

    def _translate(self, record: Record) -> None:
        if isinstance(record, Linear):
            self._linear(record)
        elif isinstance(record, Clauses):
            for literals in self._clock.each(_rows(record.indptr, self._literals(record.literals)), PIECES):
                self.proto.constraints.add().bool_or.literals.extend(literals)
        elif isinstance(record, Cumulative):
            self._cumulative(record)
        elif isinstance(record, Reservoir):
            self._reservoir(record)
        elif isinstance(record, NoOverlap):
            self._no_overlap(record)
        elif isinstance(record, NoOverlap2D):
            self._no_overlap_of_rectangles(record)
        elif isinstance(record, AllDifferent):
            expressions = self.proto.constraints.add().all_diff.exprs
            for variable in record.variable.tolist():
                _affine(expressions.add(), variable)
        elif not isinstance(record, Domain):  # domains are part of the variables
            raise ModelError(f"CP-SAT does not take record {record.name!r} of kind {type(record).__name__}")

    def _linear(self, record: Linear) -> None:
        by_row = np.argsort(record.row, kind="stable")
        indptr = np.concatenate([[0], np.cumsum(np.bincount(record.row, minlength=len(record)))])
        columns = record.column[by_row].tolist()
        values = whole(record.value[by_row], f"a coefficient of {record.name!r}").tolist()
        low = np.where(np.isneginf(record.lower), -INFINITE - 1, 0).tolist()
        high = np.where(np.isposinf(record.upper), INFINITE, 0).tolist()
        finite_low = whole(np.ceil(np.where(np.isfinite(record.lower), record.lower, 0) - 1e-9), record.name).tolist()
        finite_high = whole(np.floor(np.where(np.isfinite(record.upper), record.upper, 0) + 1e-9), record.name).tolist()
        enforce = None if record.enforce is None else self._literals(record.enforce, keep_always=True).tolist()
        constraints, ends = self.proto.constraints, indptr.tolist()
        for k in self._clock.each(range(len(record)), PIECES):
            constraint = constraints.add()
            if enforce is not None and enforce[k] != ALWAYS:
                constraint.enforcement_literal.append(enforce[k])
            linear = constraint.linear
            linear.vars.extend(columns[ends[k] : ends[k + 1]])
            linear.coeffs.extend(values[ends[k] : ends[k + 1]])
            linear.domain.extend((low[k] or finite_low[k], high[k] or finite_high[k]))

    def _cumulative(self, record: Cumulative) -> None:
        intervals, demands = [], []
        columns = (record.start, record.end, record.demand, record.presence)
        each = zip(*(column.tolist() for column in columns), strict=True)
        for start, end, demand, presence in self._clock.each(each, PIECES):
            if demand:
                intervals.append(self._interval(start, end, presence))
                demands.append(demand)
            else:  # uses nothing, but must not end before it starts
                self._row((end, start), (1, -1), (0, INFINITE), presence)
        cumulative = self.proto.constraints.add().cumulative
        cumulative.intervals.extend(intervals)
        for demand in demands:
            cumulative.demands.add().offset = demand
        if record.capacity_variable is None:
            cumulative.capacity.offset = record.capacity
        else:
            _affine(cumulative.capacity, record.capacity_variable)

    def _no_overlap(self, record: NoOverlap) -> None:
        each = zip(record.start.tolist(), record.end.tolist(), record.presence.tolist(), strict=True)
        intervals = [self._interval(*interval) for interval in self._clock.each(each, PIECES)]
        for first, last in itertools.pairwise(record.indptr.tolist()):
            self.proto.constraints.add().no_overlap.intervals.extend(intervals[first:last])

    def _no_overlap_of_rectangles(self, record: NoOverlap2D) -> None:
        sides: tuple[list[int], list[int]] = ([], [])
        columns = (record.first, record.width, record.second, record.height, record.presence)
        each = zip(*(column.tolist() for column in columns), strict=True)
        for first, width, second, height, presence in self._clock.each(each, PIECES):
            if width and height:
                for side, start, length in ((sides[0], first, width), (sides[1], second, height)):
                    side.append(self._fixed_length(start, length, presence))
        rectangles = self.proto.constraints.add().no_overlap_2d
        rectangles.x_intervals.extend(sides[0])
        rectangles.y_intervals.extend(sides[1])

    def _new_interval(self, start: int, presence: int) -> tuple[Any, int | None]:
        """Add an interval from variable `start`; return it, and the value of `start` if that is fixed."""
        constraint = self.proto.constraints.add()
        if presence != ALWAYS:
            constraint.enforcement_literal.append(presence)
        first, last = int(self.lower[start]), int(self.upper[start])
        if first == last:
            constraint.interval.start.offset = first
            return constraint.interval, first
        _affine(constraint.interval.start, start)
        return constraint.interval, None

    def _fixed_length(self, start: int, length: int, presence: int) -> int:
        """Add the interval [start, start + length); return its constraint's index."""
        interval, fixed = self._new_interval(start, presence)
        if fixed is None:
            _affine(interval.end, start, length)
        else:
            interval.end.offset = fixed + length
        interval.size.offset = length
        return len(self.proto.constraints) - 1

    def _interval(self, start: int, end: int, presence: int) -> int:
        """Add the interval [start, end); return its constraint's index."""
        interval, fixed = self._new_interval(start, presence)
        number = len(self.proto.constraints) - 1
        _affine(interval.end, end)
        if fixed is not None:  # the length is the end minus a constant, so it needs no variable
            _affine(interval.size, end, -fixed)
            return number
        length = self._new_variable(0, max(0, int(self.upper[end]) - int(self.lower[start])))
        self.lengths.append((length, start, end))
        _affine(interval.size, length)
        self._row((start, length, end), (1, 1, -1), (0, 0), presence)
        return number

    def _row(
        self, variables: Sequence[int], coefficients: Sequence[int], domain: tuple[int, int], enforce: int = ALWAYS
    ) -> None:
        """Add one linear row."""
        row = self.proto.constraints.add()
        if enforce != ALWAYS:
            row.enforcement_literal.append(enforce)
        row.linear.vars.extend(variables)
        row.linear.coeffs.extend(coefficients)
        row.linear.domain.extend(domain)

    def _reservoir(self, record: Reservoir) -> None:
        times, offsets = record.time.tolist(), record.offset.tolist()
        changes = record.change.tolist()
        actives = [
            literal if literal >= 0 else self._negation(~literal) for literal in self._literals(record.active).tolist()
        ]
        ends = record.indptr.tolist()
        for first, last in self._clock.each(itertools.pairwise(ends)):
            reservoir = self.proto.constraints.add().reservoir
            reservoir.min_level = 0
            reservoir.max_level = sum(max(change, 0) for change in changes[first:last])
            for event in range(first, last):
                _affine(reservoir.time_exprs.add(), times[event], offsets[event])
                reservoir.level_changes.add().offset = changes[event]
            reservoir.active_literals.extend(actives[first:last])

    def _negation(self, variable: int) -> int:
        """Return a variable equal to 1 − `variable`.

        The solution checker of CP-SAT 9.15 misreads negated active literals of a reservoir as false and aborts the
        process over a correct solution, so reservoirs use positive literals only.
        """
        if variable not in self.negations:
            self.negations[variable] = self._new_variable(0, 1)
            self._row((variable, self.negations[variable]), (1, 1), (1, 1))
        return self.negations[variable]

    def _literals(self, literals: Int, keep_always: bool = False) -> Int:
        """Return literals in CP-SAT's encoding, the same as this package's except for the one that is always true."""
        if keep_always or not (literals == ALWAYS).any():
            return literals
        if self.always is None:
            self.always = self._new_variable(1, 1)
        return np.where(literals == ALWAYS, self.always, literals)

    def hint(self, values: Values) -> None:
        """Suggest values; NaN is omitted."""
        target = self.proto.solution_hint
        known = np.flatnonzero(~np.isnan(values))
        target.vars.extend(known.tolist())
        target.values.extend(np.rint(values[known]).astype(np.int64).tolist())
        if self.always is not None:
            target.vars.append(self.always)
            target.values.append(1)
        for variable, negation in self.negations.items():
            if not np.isnan(values[variable]):
                target.vars.append(negation)
                target.values.append(1 - round(values[variable]))
        for length, start, end in self.lengths:
            if not np.isnan(values[start]) and not np.isnan(values[end]):
                target.vars.append(length)
                target.values.append(max(0, round(values[end] - values[start])))

    def values(self, solution: Sequence[int]) -> Values:
        """Return the values of the source's variables in a solution of CP-SAT."""
        return np.array(solution, dtype=np.float64)[: self.model.num_vars]

    def bound(self, solver_bound: float) -> float | None:
        """Return a bound on the source's objective; None if CP-SAT reports none.

        Coefficients are integers, so the bound is too, up to the last bits of its conversion to a float.
        """
        if not math.isfinite(solver_bound) or abs(solver_bound) >= LARGEST:
            return None
        return math.ceil(solver_bound - max(1e-6, 1e-15 * abs(solver_bound))) + self.model.objective.constant


def whole(values: Float, what: str) -> Int:
    """Return `values` as int64.

    Raise ModelError if one is not an integer of magnitude below 2^62; the message begins with `what`.
    """
    rounded = np.rint(values)
    if not np.array_equal(rounded, values):
        raise ModelError(f"CP-SAT needs whole numbers, but {what} is {values[rounded != values][0]}", "not-whole")
    if len(rounded) and np.abs(rounded).max() >= LARGEST:
        raise ModelError(f"CP-SAT needs numbers below 2^62, but {what} is {rounded[np.abs(rounded).argmax()]:g}")
    return rounded.astype(np.int64)


def _affine(target: Any, variable: int, offset: int = 0) -> None:
    target.vars.append(variable)
    target.coeffs.append(1)
    target.offset = offset


def _rows(indptr: Int, flat: Int) -> list[list[int]]:
    values, ends = flat.tolist(), indptr.tolist()
    return [values[a:b] for a, b in itertools.pairwise(ends)]
