"""Bound propagation over records in bulk; records lose the parts that the bounds decide."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from remat.errors import ModelError
from remat.modeling.check import violations
from remat.modeling.model import Kind, Model
from remat.modeling.records import (
    ALWAYS,
    AllDifferent,
    Clauses,
    Cumulative,
    Domain,
    Linear,
    NoOverlap,
    NoOverlap2D,
    Record,
    Reservoir,
    decoded,
    truth,
)
from remat.runtime.arrays import Bool, Float, Int
from remat.runtime.deadline import Deadline

#: Maximum passes over all records; bounds that tighten by 1 in each pass are left to the solver.
ROUNDS = 6


def _slack(bound: Float) -> Float:
    """Return the tolerance of float sums at a bound, smaller than any difference of integers."""
    return np.maximum(1e-9, 1e-12 * np.where(np.isfinite(bound), np.abs(bound), 0.0))


class InfeasibleError(Exception):
    """Raised when no values within the bounds satisfy the records."""


@dataclass
class Bounds:
    """Bounds of all variables; they only tighten."""

    lower: Float
    upper: Float
    whole: Bool
    """True for integer variables."""
    changed: bool = False
    """True if a bound was tightened since this was last reset."""

    @classmethod
    def of(cls, model: Model, lower: Float, upper: Float) -> Bounds:
        """Return the bounds of `model` intersected with the given ones.

        Raise ModelError if a variable has no value left.
        """
        if np.shape(lower) != (model.num_vars,) or np.shape(upper) != (model.num_vars,):
            raise ModelError(
                f"bounds do not fit the {model.num_vars} variables of model {model.name!r}", "bounds-mismatch"
            )
        low, high = np.maximum(model.lower, lower), np.minimum(model.upper, upper)
        wrong = np.flatnonzero(~(low <= high))
        if len(wrong):
            block = next(b for b in model.blocks if wrong[0] in b.index)
            raise ModelError(
                f"nothing is left for variable {wrong[0]} (block {block.name!r}) within the given bounds",
                "no-value-left",
            )
        return cls(low, high, np.isin(model.kind, (Kind.INTEGER.value, Kind.BOOLEAN.value)))

    def raise_lower(self, variable: Int, value: Float) -> None:
        """Raise lower bounds to the values, ignoring NaN and −∞; raise InfeasibleError if no value is left."""
        self._narrow(variable, value, up=True)

    def lower_upper(self, variable: Int, value: Float) -> None:
        """Lower upper bounds to the values, ignoring NaN and ∞; raise InfeasibleError if no value is left."""
        self._narrow(variable, value, up=False)

    def _narrow(self, variable: Int, value: Float, *, up: bool) -> None:
        # Continuous values are not rounded. Changes below a solver's tolerance are ignored.
        slack = np.where(self.whole[variable], 1e-6, 0.0)
        value = np.where(self.whole[variable], np.ceil(value - slack) if up else np.floor(value + slack), value)
        news = value > self.lower[variable] + 1e-6 if up else value < self.upper[variable] - 1e-6
        variable, value = variable[news], value[news]
        if not len(variable):
            return
        self.changed = True
        if up:
            np.maximum.at(self.lower, variable, value)
        else:
            np.minimum.at(self.upper, variable, value)
        wrong = variable[self.lower[variable] > self.upper[variable]]
        nothing_left = (self.lower[wrong] > self.upper[wrong] + 1e-6).any()
        if up:
            self.lower[wrong] = self.upper[wrong]
        else:
            self.upper[wrong] = self.lower[wrong]
        if nothing_left:
            raise InfeasibleError

    def fixed(self, variable: Int) -> Bool:
        """Return a mask of the variables that are fixed."""
        return self.lower[variable] == self.upper[variable]

    def truth(self, literals: Int) -> Int:
        """Return 1 for true literals, −1 for false ones, 0 for undecided ones."""
        return truth(literals, self.lower, self.upper)

    def assign(self, literals: Int, *, true: bool) -> None:
        """Make literals, of which none is constant, true or false."""
        variable, negative, _ = decoded(literals)
        positive = negative != true
        self.raise_lower(variable[positive], np.ones(int(positive.sum())))
        self.lower_upper(variable[~positive], np.zeros(int((~positive).sum())))


@dataclass(frozen=True)
class Staircase:
    """Capacity that fixed intervals of a `Cumulative` use, where it matters: `height` in ``[begin, end)``."""

    begin: Int
    end: Int
    height: Int


@dataclass
class Narrowing:
    """Repeated passes over the records of a model until bounds and records no longer change."""

    model: Model
    bounds: Bounds
    deadline: Deadline = field(default_factory=Deadline)
    """Checked between records."""
    staircases: dict[int, Staircase] = field(default_factory=dict)

    def run(self) -> list[Record]:
        """Return the reduced records, without those that always hold.

        Raise InfeasibleError if a contradiction is found.
        """
        records = list(self.model.records)
        for _ in range(ROUNDS):
            self.bounds.changed = False
            each = self.deadline.each(records, 1)
            records = [new for record in each if (new := self._reduced(record)) is not None]
            if not self.bounds.changed:
                break
        done: list[Record] = []
        for record in self.deadline.each(records, 1):
            if isinstance(record, Cumulative):
                new, stairs = self._folded(record)
                self.staircases[id(new)] = stairs
                if len(new.start) or (len(stairs.height) and new.capacity_variable is not None):
                    done.append(new)
            else:
                done.append(record)
        return done

    def _reduced(self, record: Record) -> Record | None:
        match record:
            case Linear():
                new: Record | None = self._linear(record)
            case Clauses():
                new = self._clauses(record)
            case Domain():
                new = self._domain(record)
            case AllDifferent():
                new = self._all_different(record)
            case Reservoir():
                new = self._reservoir(record)
            case Cumulative() | NoOverlap() | NoOverlap2D():
                new = record
            case _:
                raise ModelError(f"record {record.name!r} is of unknown kind {type(record).__name__}")
        return new if new is None or len(new) else None

    def _linear(self, record: Linear) -> Linear:
        bounds, count = self.bounds, len(record)
        fixed = bounds.fixed(record.column)
        constant = np.bincount(
            record.row[fixed], record.value[fixed] * bounds.lower[record.column[fixed]], minlength=count
        )
        live = ~fixed & (record.value != 0)
        row, column, value = record.row[live], record.column[live], record.value[live]
        low, high = record.lower - constant, record.upper - constant
        at_low, at_high = value * bounds.lower[column], value * bounds.upper[column]
        smallest, largest = np.minimum(at_low, at_high), np.maximum(at_low, at_high)
        least = np.bincount(row, smallest, minlength=count)
        most = np.bincount(row, largest, minlength=count)
        holds = (least >= low - _slack(record.lower)) & (most <= high + _slack(record.upper))
        fails = (most < low - _slack(record.lower)) | (least > high + _slack(record.upper))
        truth = np.ones(count, dtype=np.int64) if record.enforce is None else bounds.truth(record.enforce)
        if (fails & (truth == 1)).any():
            raise InfeasibleError
        if record.enforce is not None:
            bounds.assign(record.enforce[fails & (truth == 0)], true=False)
        keep = ~holds & ~fails & (truth >= 0)
        here = (keep & (truth == 1))[row]
        with np.errstate(invalid="ignore"):  # ∞ − ∞: nothing follows
            above = (high[row] - (least[row] - smallest))[here] / value[here]
            below = (low[row] - (most[row] - largest))[here] / value[here]
        positive = value[here] > 0
        which = column[here]
        bounds.lower_upper(which, np.where(positive, above, below))
        bounds.raise_lower(which, np.where(positive, below, above))
        number = np.cumsum(keep) - 1
        inside = keep[row]
        enforce = None
        if record.enforce is not None and (truth[keep] == 0).any():
            enforce = np.where(truth == 1, ALWAYS, record.enforce)[keep]
        return Linear(record.name, number[row[inside]], column[inside], value[inside], low[keep], high[keep], enforce)

    def _clauses(self, record: Clauses) -> Clauses:
        clause, truth = record.owner, self.bounds.truth(record.literals)
        open_ones = np.bincount(clause[truth == 0], minlength=len(record))
        holds = np.bincount(clause[truth == 1], minlength=len(record)) > 0
        if (~holds & (open_ones == 0)).any():
            raise InfeasibleError
        last = (truth == 0) & (~holds & (open_ones == 1))[clause]
        self.bounds.assign(record.literals[last], true=True)
        keep = ~holds & (open_ones > 1)
        inside = keep[clause] & (truth == 0)
        number = np.cumsum(keep) - 1
        return Clauses.grouped(record.name, number[clause[inside]], record.literals[inside], int(keep.sum()))

    def _domain(self, record: Domain) -> Domain:
        bounds, count = self.bounds, len(record)
        owner = record.owner
        variable = record.variable[owner]
        inside = (record.values >= bounds.lower[variable]) & (record.values <= bounds.upper[variable])
        owner, values = owner[inside], record.values[inside]
        left = np.bincount(owner, minlength=count)
        if (left == 0).any():
            raise InfeasibleError
        last = np.cumsum(left) - 1
        first = values[last - left + 1].astype(np.float64)
        bounds.raise_lower(record.variable, first)
        bounds.lower_upper(record.variable, values[last].astype(np.float64))
        keep = left < values[last] - first + 1  # otherwise the bounds are equivalent
        indptr = np.concatenate([[0], np.cumsum(left[keep])]).astype(np.int64)
        return Domain(record.name, record.variable[keep], indptr, values[keep[owner]])

    def _all_different(self, record: AllDifferent) -> AllDifferent | None:
        """Remove fixed variables whose value no free one can take."""
        bounds = self.bounds
        fixed = bounds.fixed(record.variable)
        taken = bounds.lower[record.variable[fixed]]
        if len(np.unique(taken)) < len(taken):
            raise InfeasibleError
        free = record.variable[~fixed]
        if not len(free):
            return None
        near = (taken >= bounds.lower[free].min()) & (taken <= bounds.upper[free].max())
        return AllDifferent(record.name, np.concatenate([free, record.variable[fixed][near]]))

    def _reservoir(self, record: Reservoir) -> Reservoir:
        """Remove inactive events, and reservoirs without undecided ones."""
        bounds, count = self.bounds, len(record)
        owner = record.owner
        truth = bounds.truth(record.active)
        loose = (truth >= 0) & ((truth == 0) | ~bounds.fixed(record.time))
        open_ones = np.bincount(owner[loose], minlength=count) > 0
        fixed = self._part(record, owner, truth, ~open_ones)
        if len(fixed):
            probe = self.model.copy(record.name)
            probe.records = [fixed]
            if violations(probe, bounds.lower):
                raise InfeasibleError
        return self._part(record, owner, truth, open_ones)

    def _part(self, record: Reservoir, owner: Int, truth: Int, wanted: Bool) -> Reservoir:
        """Return the wanted reservoirs, with the events that can be active."""
        keep = wanted[owner] & (truth >= 0)
        counts = np.bincount(owner[keep], minlength=len(wanted))[wanted]
        active = np.where(truth == 1, ALWAYS, record.active)
        return Reservoir(
            record.name, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), record.time[keep],
            record.offset[keep], record.change[keep], active[keep],
        )  # fmt: skip

    def _folded(self, record: Cumulative) -> tuple[Cumulative, Staircase]:
        """Return the record with its free intervals only, and the staircase of the fixed ones."""
        bounds = self.bounds
        truth = bounds.truth(record.presence)
        fixed = (truth == 1) & bounds.fixed(record.start) & bounds.fixed(record.end)
        start, end = bounds.lower[record.start[fixed]], bounds.lower[record.end[fixed]]
        if (start > end).any():
            raise InfeasibleError
        free = ~fixed & (truth >= 0)
        lowest, highest = bounds.lower[record.start[free]], bounds.upper[record.end[free]]
        moments = np.unique(np.concatenate([start, end, lowest, highest]))
        use = _use(moments, start, end, record.demand[fixed])
        possible = _use(moments, lowest, highest, record.demand[free])
        capacity = float(record.capacity)
        if record.capacity_variable is not None:
            variable = np.array([record.capacity_variable])
            bounds.raise_lower(variable, np.array([float(use.max(initial=0))]))
            capacity = float(bounds.lower[record.capacity_variable])
        if use.max(initial=0) > capacity or capacity < 0:
            raise InfeasibleError
        new = replace(
            record, start=record.start[free], end=record.end[free], demand=record.demand[free],
            presence=np.where(truth == 1, ALWAYS, record.presence)[free],
        )  # fmt: skip
        height = np.where((use + possible > capacity) & (possible > 0), use, 0)
        change = np.flatnonzero(np.diff(height, prepend=0) != 0)
        begin, until = moments[change], moments[np.append(change[1:], len(moments) - 1)] if len(change) else moments[:0]
        heights = height[change]
        some = heights > 0
        return new, Staircase(
            begin[some].astype(np.int64), until[some].astype(np.int64), heights[some].astype(np.int64)
        )  # fmt: skip


def _use(moments: Float, start: Float, end: Float, demand: Int) -> Int:
    """Return the summed demands between each moment and the next, 0 after the last; skip intervals ``start >= end``."""
    change = np.zeros(len(moments) + 1, dtype=np.int64)
    some = start < end
    np.add.at(change, np.searchsorted(moments, start[some]), demand[some])
    np.subtract.at(change, np.searchsorted(moments, end[some]), demand[some])
    return np.cumsum(change)[: len(moments)]
