"""Interval relaxation: a bound on cost for a fixed order of first computes and any recomputation."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from dataclasses import dataclass, field

import numpy as np

from remat.backends.base import SolveOptions, Status
from remat.backends.highs import Highs
from remat.bounds.base import Bound, cost_unit, lacks_memory, whole_units
from remat.bounds.retention_gaps import Gaps
from remat.deadline import Deadline, OverdueError
from remat.graphs.arrays import staircase
from remat.modeling import Linear, Model
from remat.modeling.rows import expand, rows_from
from remat.problem import Problem
from remat.runtime.arrays import Bool, Float, Int
from remat.schedule import OrderRule
from remat.scope import scope_within_limits

#: Entries of the memory rows above which they are stated by what changes from one to the next.
MOST_ENTRIES = 1_000_000


def interval_bound(
    problem: Problem,
    *,
    integer: bool = True,
    deadline: float | Deadline | None = None,
    threads: int | None = None,
    memory_limit: int | None = None,
) -> Bound:
    """A bound on cost for the reference order of first computes; see :class:`IntervalRelaxation`.

    Parameters
    ----------
    integer : bool
        Solve the mixed-integer programme; without: its linear relaxation only, with a bound from the duals that does
        not depend on the solver being right.
    deadline : float, Deadline or None
        Seconds for building and solving, or a deadline whose clock runs already. The solver's dual bound of that
        moment counts.
    threads : int, optional
    memory_limit : int, optional
        Bytes that a linear programme may take. One that would take more, or more than there is, is not solved, and the
        bound says so in its note.

    Returns
    -------
    Bound
        Rounded up to the next cost that recomputations can add up to.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> interval_bound(Problem(unit_chain(8), 5)).value  # the optimum, too
    22
    """
    began = time.monotonic()
    clock = Deadline.of(deadline)
    base = problem.graph.base_cost
    scope = scope_within_limits(problem, OrderRule.FIXED)
    name = "the interval relaxation" + " (linear)" * (not integer)

    def found(
        extra: int | None, relaxed: float | None = None, versions: dict[str, str] | None = None, note: str = ""
    ) -> Bound:
        value = None if extra is None else base + extra
        seconds = time.monotonic() - began
        return Bound(value, name, scope, base, extra is None, relaxed, seconds, versions=versions or {}, note=note)

    relaxation = IntervalRelaxation(problem)
    if relaxation.infeasible:
        return found(None)
    if relaxation.trivial or clock.expired:
        return found(0)
    unit, call = relaxation.unit, SolveOptions(clock, threads)
    try:
        model = relaxation.build(clock)
        if why := lacks_memory(model, memory_limit):
            return found(0, note=why)
        linear = Highs().relax(model, call)
    except OverdueError:
        return found(0)
    versions = dict(linear.versions)
    if linear.infeasible:
        return found(None, None, versions)
    relaxed = None if linear.bound is None else base + unit * max(0.0, linear.bound)
    extra = 0 if linear.bound is None else max(0, math.ceil(linear.bound))
    if integer and not clock.expired:
        result = Highs().solve(model, call)
        if result.status is Status.INFEASIBLE:
            return found(None, relaxed, versions)
        if result.bound is not None:
            # Whole numbers below 2^53 times the unit, so that only the solver's tolerance is to be taken off.
            extra = max(extra, whole_units(result.bound))
    return found(unit * extra, relaxed, versions)


@dataclass
class _Segments:
    """What one op may do again: the stretches ``[points[i], points[i + 1])`` with a variable each, −1 for none."""

    points: list[int]
    variable: list[int]

    def within(self, start: int, end: int) -> list[int]:
        """Variables of the stretches from position `start` to position `end`."""
        low, high = bisect_left(self.points, start), bisect_left(self.points, end)
        return self.variable[low:high]


@dataclass(eq=False)
class IntervalRelaxation:
    """The interval relaxation of a problem with a fixed order.

    Sets: gaps ``g = (t, a, b)`` of the tensors (see :class:`remat.bounds.retention_gaps.Gaps`). For each op the ends of
    all stretches of time in which it might have to run again cut time into segments ``i = [s, e)``.

    Variables: ``r[o, i]``, op ``o`` runs again at least once in segment ``i``; ``d[g]``, the tensor is not retained
    all through gap ``g``.

    Minimise ``sum cost(o) r[o, i]`` subject to

    (1) memory at the first compute of each op ``k``: what it needs by itself, plus ``size(t) (1 − d[g])`` for each gap
        with ``a < k < b``, is at most the budget;
    (2) ``d[g] <= sum of r[o, i]`` over the segments between ``a`` and the next event at which the whole tensor is
        needed, for each writer ``o`` that ran by ``a``;
    (3) ``sum of r[o, i]`` is less than the limit of computes.

    Sources: the relaxation and its proof are in the documentation, page Bounds.

    Attributes
    ----------
    problem : Problem
    infeasible : bool
        Whether (1) fails even if everything is dropped that may be.
    trivial : bool
        Whether nothing need be recomputed for (1).
    unit : int
        Every cost of recomputation is a multiple of it; the model counts in it.
    """

    problem: Problem
    infeasible: bool = field(init=False, default=False)
    trivial: bool = field(init=False, default=False)
    unit: int = field(init=False, default=1)

    def __post_init__(self) -> None:
        problem, arrays = self.problem, self.problem.graph.arrays
        n = len(arrays.cost)
        self.unit = cost_unit(problem)
        self._gaps = Gaps.of(problem)
        budget = problem.budget_bytes
        if budget is None:
            self.trivial = True
            return
        limits = problem.compute_limits
        self._once = np.array([limit == 1 for limit in limits], dtype=np.bool_)
        gaps = self._gaps
        stays = np.zeros(len(gaps.tensor), dtype=np.bool_)
        stays[gaps.cause_gap[self._once[gaps.cause_op]]] = True
        self._stays = stays
        held = _held(gaps, np.ones_like(stays), arrays.size, n)
        self._room = budget - problem.constant_bytes - arrays.op_bytes[arrays.order]
        kept = arrays.input_bytes + int(arrays.size[problem.kept & ~arrays.is_input].sum()) + problem.constant_bytes
        self.infeasible = bool((_held(gaps, stays, arrays.size, n) > self._room).any()) or kept > budget
        # What is past its last event is retained for nobody if nothing is recomputed.
        self.trivial = not self.infeasible and bool((held <= self._room).all())
        self._held = held

    def build(self, deadline: Deadline | None = None) -> Model:
        """The model, in units of cost; memory rows are scaled to coefficients of at most 1.

        Raises
        ------
        OverdueError
            At the deadline.
        """
        clock = deadline or Deadline()
        arrays, gaps = self.problem.graph.arrays, self._gaps
        segments, owner = self._plan(clock)
        model = Model("interval relaxation")
        run = model.booleans("run_again", len(owner))
        # (2): a gap that hangs on one segment of one op has that segment's variable itself.
        drop = np.full(len(gaps.tensor), -1, dtype=np.int64)
        causes: list[list[list[int]]] = [[] for _ in range(len(gaps.tensor))]
        every = zip(gaps.cause_gap.tolist(), gaps.cause_op.tolist(), gaps.cause_end.tolist(), strict=True)
        for gap, op, end in clock.each(every):
            if not self._stays[gap]:
                causes[gap].append(segments[op].within(int(gaps.start[gap]), end))
        single = [gap for gap, rows in enumerate(causes) if len(rows) == 1 and len(rows[0]) == 1]
        drop[single] = [causes[gap][0][0] for gap in single]
        several = [gap for gap, rows in enumerate(causes) if rows and drop[gap] < 0]
        dropped = model.implied("dropped", len(several), 0, 1)
        drop[several] = dropped.index
        rows = [(int(drop[gap]), variables) for gap in several for variables in causes[gap]]
        model.add(_at_most("dropping makes run again", rows))
        clock.check()
        self._memory(model, drop)
        model.add(self._limits(segments))
        model.minimize(run.index, arrays.cost[np.array(owner, dtype=np.int64)] // self.unit)
        return model

    def _plan(self, clock: Deadline) -> tuple[dict[int, _Segments], list[int]]:
        """Return the segments of each op, and the op of each variable."""
        arrays, gaps = self.problem.graph.arrays, self._gaps
        windows: list[list[tuple[int, int]]] = [[] for _ in range(len(arrays.cost))]
        droppable = ~self._stays[gaps.cause_gap]
        for op, start, end in zip(
            gaps.cause_op[droppable].tolist(),
            gaps.start[gaps.cause_gap[droppable]].tolist(),
            gaps.cause_end[droppable].tolist(),
            strict=True,
        ):
            windows[op].append((start, end))
        segments: dict[int, _Segments] = {}
        owner: list[int] = []
        for op in clock.each(arrays.order[::-1].tolist(), 16):
            if self._once[op] or not windows[op]:
                continue
            points = sorted({position for window in windows[op] for position in window})
            edges = np.zeros(len(points) + 1, dtype=np.int64)
            for start, end in windows[op]:
                edges[bisect_left(points, start)] += 1
                edges[bisect_left(points, end)] -= 1
            covered = np.cumsum(edges[: len(points)]) > 0
            segments[op] = _Segments(points, np.where(covered, len(owner) + np.cumsum(covered) - 1, -1).tolist())
            owner += [op] * int(covered.sum())
        return segments, owner

    def _memory(self, model: Model, drop: Int) -> None:
        """(1), but for rows that always hold."""
        gaps, size = self._gaps, self.problem.graph.arrays.size
        over = self._held > self._room
        may = np.flatnonzero(drop >= 0)
        column, scale = drop[may], float(size.max())
        weight = -size[gaps.tensor[may]] / scale
        upper = (self._room - self._held)[over] / scale
        before = np.append(0, np.cumsum(over))  # rows before each position
        begin = before[gaps.start[may] + 1]
        end = np.maximum(begin, before[gaps.end[may]])
        if int((end - begin).sum()) > MOST_ENTRIES:
            self._running(model, (begin, end), column, weight, upper)
            return
        entry, offset = expand(end - begin)
        row = begin[entry] + offset
        model.add(Linear.rows("memory", row, column[entry], weight[entry], upper=upper, num_rows=len(upper)))

    @staticmethod
    def _running(model: Model, span: tuple[Int, Int], column: Int, weight: Float, upper: Float) -> None:
        """(1) by what changes from row to row: each term is in two rows instead of in all of its span."""
        (begin, end), count = span, len(upper)
        some = begin < end
        begin, end, column, weight = begin[some], end[some], column[some], weight[some]
        least = np.zeros(count + 1)
        np.add.at(least, begin, np.minimum(weight, 0))
        np.add.at(least, end, -np.minimum(weight, 0))
        held = model.continuous("held", count, np.minimum(np.cumsum(least)[:count] - 1, upper), upper).index
        each, leaves = np.arange(count), end < count
        model.add(
            rows_from(
                "memory",
                (each, held, 1),
                (each[1:], held[:-1], -1),
                (begin, column, -weight),
                (end[leaves], column[leaves], weight[leaves]),
                num_rows=count,
                lower=0,
                upper=0,
            )
        )

    def _limits(self, segments: dict[int, _Segments]) -> Linear:
        """(3): limits of computes."""
        rows: list[int] = []
        columns: list[int] = []
        upper: list[int] = []
        for op, limit in enumerate(self.problem.compute_limits):
            mine = [v for v in segments[op].variable if v >= 0] if op in segments else []
            if limit is not None and len(mine) > limit - 1:
                rows += [len(upper)] * len(mine)
                columns += mine
                upper.append(limit - 1)
        return Linear.rows("limits of computes", rows, columns, 1, upper=upper, num_rows=len(upper))


def _held(gaps: Gaps, which: Bool, size: Int, num_ops: int) -> Int:
    """Bytes of the tensors retained through the gaps `which`, at each position strictly inside them."""
    return staircase(gaps.start[which] + 1, gaps.end[which] - 1, size[gaps.tensor[which]], num_ops)


def _at_most(name: str, rows: list[tuple[int, list[int]]]) -> Linear:
    """Rows ``x[left] <= sum of x[right]``, from pairs (left, right)."""
    left = [variable for variable, _ in rows]
    row, right = expand([len(variables) for _, variables in rows])[0], [v for _, variables in rows for v in variables]
    return rows_from(name, (np.arange(len(rows)), left, 1), (row, right, -1), num_rows=len(rows), upper=0)
