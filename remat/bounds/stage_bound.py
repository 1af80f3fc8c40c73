"""Stage bound: lower bound on cost or time for a fixed order of first computes, tightened in steps."""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from remat.backends.highs import Highs
from remat.bounds.base import Bound, Measure, lacks_memory, whole_units
from remat.bounds.implied_memory import implied_memory
from remat.bounds.peak_bounds import step_memory
from remat.bounds.reduced_costs import cheaper_than
from remat.bounds.stage_programmes import StageProgrammes
from remat.bounds.stage_relaxation import StageRelaxation, prominent_peaks
from remat.bounds.stage_search import ProgrammeSearch
from remat.bounds.transfer_relaxation import TransferRelaxation
from remat.modeling import Model
from remat.problem import Problem
from remat.problem.scope import scope_within_limits
from remat.runtime.arrays import Float
from remat.runtime.deadline import Deadline, OverdueError
from remat.runtime.solve_options import SolveOptions, Status
from remat.schedule import OrderRule

#: Consecutive linear relaxations without improvement before the search stops, and the share of time for all of them.
LINEAR_TRIALS, LINEAR_SHARE = 40, 0.2
#: Share of time for relaxations on a machine with a host, and number of ops times squared events of all of them.
LAZY_SHARE, LAZY_WORK = 0.6, 100_000
#: Consecutive ones without improvement before the search stops.
LAZY_TRIALS = 3
#: Events added at once, and the least excess of memory for one, as a share of the largest.
MOST_NEW, LEAST_EXCESS = 2, 0.3
#: Seconds for each integer programme without a deadline.
PATIENCE = 20.0
#: Largest number of ops times events for an integer programme, and for one without linear relaxations before it.
MOST_WORK, SMALL_WORK = 15_000, 400


def stage_bound(
    problem: Problem,
    *,
    integer: bool = True,
    enough: int | None = None,
    deadline: float | Deadline | None = None,
    threads: int | None = None,
    memory_limit: int | None = None,
) -> Bound:
    """Return the last, and best, of :func:`stage_bounds`.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> stage_bound(Problem(unit_chain(8), 4)).value  # the optimum
    26
    """
    *_, last = stage_bounds(
        problem, integer=integer, enough=enough, deadline=deadline, threads=threads, memory_limit=memory_limit
    )
    return last


def stage_bounds(
    problem: Problem,
    *,
    integer: bool = True,
    enough: int | None = None,
    deadline: float | Deadline | None = None,
    threads: int | None = None,
    memory_limit: int | None = None,
    programmes: StageProgrammes | None = None,
) -> Iterator[Bound]:
    """Yield increasing bounds on the objective for the reference order of first computes.

    They are optima of :class:`remat.bounds.stage_relaxation.StageRelaxation` with path cuts
    (:mod:`remat.bounds.path_cuts`), first of its linear relaxation, which are safe even if the solver errs, then of the
    integer programme. Steps at which a schedule that follows from the solution exceeds the budget become events of the
    next one (:class:`remat.bounds.stage_programmes.StageProgrammes`).

    On a machine with a host they bound the time of any schedule with this order of first computes, by
    :class:`remat.bounds.transfer_relaxation.TransferRelaxation`. A local search, which starts at the peaks of memory,
    finds the few events with the best linear relaxation. Integer programmes follow: for these events, then also for the
    steps after them, then for those before them, and finally for every step at which the reference order without
    recomputation exceeds the budget.

    Parameters
    ----------
    integer : bool
        Solve integer programmes after the linear relaxations.
    enough : int, optional
        Cost (time) of a known schedule. The search stops when no schedule can be cheaper. Solutions of at least this
        cost are excluded from the programmes, which makes them far easier.
    deadline : float, Deadline or None
        Seconds for all bounds, or a deadline whose clock is running; without one, each integer programme has
        :data:`PATIENCE` seconds.
    memory_limit : int, optional
        Bytes that a linear programme may take. One that needs more than this, or more than is available, is skipped,
        and the bound's note gives the reason.
    programmes : StageProgrammes, optional
        Programmes of this problem to resume.

    Yields
    ------
    Bound
        Each better than the one before, except a last one that adds a note. The first is the base cost.
    """
    clock = Deadline.of(deadline)
    problem, _ = problem.relaxed
    if not problem.can_move and problem.budget_bytes is not None:
        in_one = ProgrammeSearch(problem, enough, clock, threads, memory_limit)
        yield in_one.best
        same = programmes is not None and programmes.problem is problem
        with contextlib.suppress(OverdueError):
            yield from in_one.go(programmes if programmes is not None and same else StageProgrammes(problem), integer)
        if in_one.best.note:
            yield in_one.best
        return
    search = _Search(problem, enough, clock, threads, memory_limit)
    yield search.best
    if problem.budget_bytes is None or not search.peaks:
        return
    with contextlib.suppress(OverdueError):
        if problem.can_move:
            yield from search.lazy()
        elif not (integer and search.small):
            yield from search.linear()
        if integer:
            yield from search.integer()
    if search.best.note:
        yield search.best


def relaxed_solution(
    problem: Problem, deadline: float | Deadline | None = None, threads: int | None = None
) -> tuple[StageRelaxation, Float] | None:
    """Return the linear relaxation with the most events that :func:`stage_bounds` solves with a host, and its solution.

    None if none is solved before the deadline, or if no step exceeds the budget.
    """
    search = _Search(problem.relaxed[0], None, Deadline.of(deadline), threads, None)
    with contextlib.suppress(OverdueError):
        for _ in search.lazy():
            pass
    return search.solution


@dataclass(eq=False)
class _Search:
    """Search for the stage bound, with the best bound so far."""

    problem: Problem
    enough: int | None
    clock: Deadline
    threads: int | None
    memory_limit: int | None
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        problem, base = self.problem, self.problem.graph.base_cost
        kind, measure = ("the transfer bound", Measure.TIME) if problem.can_move else ("the stage bound", Measure.COST)
        self.best = Bound(base, kind, scope_within_limits(problem, OrderRule.FIXED), base, measure=measure)
        self.memory = step_memory(problem)
        self.above = problem.reference_peak if problem.budget_bytes is None else problem.budget_bytes
        self.peaks = prominent_peaks(self.memory, self.above)
        self.events: list[int] = []
        self.solution: tuple[StageRelaxation, Float] | None = None
        """Last linear relaxation with a host, and its solution."""

    @property
    def small(self) -> bool:
        """True when the programme with all steps over the budget is as easy as one with a few."""
        return len(self.memory) * int((self.memory > self.above).sum()) <= SMALL_WORK

    @property
    def done(self) -> bool:
        """True when no time is left, or the bound cannot or need not be improved."""
        value = self.best.value
        return self.clock.expired or value is None or (self.enough is not None and value >= self.enough)

    def lazy(self) -> Iterator[Bound]:
        """Yield bounds of linear relaxations, with events added where the last solution implies too much memory."""
        share = self.clock.earlier(LAZY_SHARE * self.clock.remaining)
        n, work, failed = len(self.memory), 0, 0
        added = self.peaks[:1]
        events: list[int] = []
        while added and failed < LAZY_TRIALS and work <= LAZY_WORK and not self.done:
            events = sorted([*events, *added])
            relaxation = self._relaxation(events)
            limit = share if self.events else self.clock
            try:
                found = Highs().relax(self._built(relaxation, limit), SolveOptions(limit, self.threads))
            except OverdueError:
                return
            if found.infeasible:
                yield self._infeasible(found.versions)
                return
            raised: list[Bound] = []
            if found.bound is not None:
                raised = list(self._better(relaxation.unit, math.ceil(found.bound), found.versions))
            if raised or not self.events:
                self.events = events
            failed = 0 if raised else failed + 1
            yield from raised
            if found.values is None:
                return
            self.solution = relaxation, found.values
            work += n * len(events) ** 2
            over = implied_memory(relaxation, found.values) - self.above + self.problem.constant_bytes
            added = _worst(over, events)

    def linear(self) -> Iterator[Bound]:
        """Yield bounds of linear relaxations, in a local search for the events of the best one."""
        share = self.clock.earlier(LINEAR_SHARE * self.clock.remaining)
        rng = random.Random(0)
        over = np.flatnonzero(self.memory > self.above).tolist()
        excess = [int(self.memory[k]) - self.above for k in over]
        top, failed = -1.0, 0
        events, waiting = self.peaks[:1], self.peaks[1:6]
        while failed < LINEAR_TRIALS and not self.done and not (share.expired and self.events):
            relaxation = self._relaxation(events)
            limit = share if self.events else self.clock
            try:
                found = Highs().relax(self._built(relaxation, limit), SolveOptions(limit, self.threads))
            except OverdueError:
                break
            if found.infeasible:
                yield self._infeasible(found.versions)
                return
            failed += 1
            if found.bound is not None and found.bound > top + 1e-6 * abs(top):
                top, self.events, failed = found.bound, events, 0
                yield from self._better(relaxation.unit, math.ceil(found.bound), found.versions)
            elif found.bound is not None and found.bound >= top - 1e-9 * abs(top) and len(events) < len(self.events):
                self.events = events  # as good, and smaller
            if waiting:
                events = sorted({*self.events, waiting.pop(0)})
            else:
                events = self._neighbour(rng, over, excess)

    def _relaxation(self, events: list[int]) -> StageRelaxation:
        return (TransferRelaxation if self.problem.can_move else StageRelaxation)(self.problem, events)

    def _built(self, relaxation: StageRelaxation, deadline: Deadline) -> Model:
        """Build the model; raise `OverdueError` at the deadline, or if the model does not fit into memory."""
        model = relaxation.build(deadline)
        if why := lacks_memory(model, self.memory_limit):
            self.best = replace(self.best, note=why)
            raise OverdueError
        return model

    def _neighbour(self, rng: random.Random, over: list[int], excess: list[int]) -> list[int]:
        """Add, move or remove one of the best events so far."""
        events, kind = set(self.events), rng.random()
        if kind < 0.5 or not events:
            events.add(rng.choices(over, excess)[0])
            return sorted(events)
        event = rng.choice(sorted(events))
        events.remove(event)
        if kind < 0.75 or not events:
            events.add(min(max(event + rng.choice([-3, -2, -1, 1, 2, 3]), 0), len(self.memory) - 1))
        return sorted(events)

    def integer(self) -> Iterator[Bound]:
        """Yield bounds of integer programmes, from the events of the best linear relaxation to all events."""
        best, n = set(self.events), len(self.memory)
        after, before = {min(k + 1, n - 1) for k in best}, {max(k - 1, 0) for k in best}
        every = best | after | before | set(np.flatnonzero(self.memory > self.above).tolist())
        if not best:
            after = {min(k + 1, n - 1) for k in every}
        plan = [sorted(which) for which in (best, best | after, best | after | before, every | after) if which]
        most = MOST_WORK // n
        plan = [events for k, events in enumerate(plan) if len(events) <= most and events not in plan[:k]]
        for left, events in zip(range(len(plan) - 1, -1, -1), plan, strict=True):
            if self.done:
                return
            seconds = self.clock.remaining / (1 if left == 0 else 3)
            if math.isinf(seconds):
                seconds = PATIENCE
            call = SolveOptions(self.clock.earlier(seconds), self.threads)
            relaxation = self._relaxation(events)
            base, unit = self.best.base_cost, relaxation.unit
            try:
                model = self._built(relaxation, call.deadline)
                linear = None if self.enough is None else Highs().relax(model, call)
            except OverdueError:
                continue
            if self.enough is not None and linear is not None:
                if linear.infeasible:
                    yield self._infeasible(linear.versions)
                    return
                model = cheaper_than(model, linear, (self.enough - 1 - base) // unit)
                if call.deadline.expired:
                    continue
            result = Highs().solve(model, call)
            if result.status is Status.INFEASIBLE and self.enough is None:
                yield self._infeasible(result.versions)
                return
            extra = None if result.bound is None else whole_units(result.bound)
            if result.status is Status.INFEASIBLE and self.enough is not None:
                extra = -(-(self.enough - base) // unit)
            if extra is not None:
                yield from self._better(unit, extra, result.versions)

    def _better(self, unit: int, extra: int, versions: object) -> Iterator[Bound]:
        value = self.best.base_cost + unit * max(0, extra)
        if self.enough is not None:
            value = min(value, max(self.enough, self.best.base_cost))
        if self.best.value is not None and value > self.best.value:
            yield self._found(value=value, versions=versions)

    def _infeasible(self, versions: object) -> Bound:
        return self._found(value=None, infeasible=True, versions=versions)

    def _found(self, **changes: object) -> Bound:
        self.best = replace(self.best, seconds=time.monotonic() - self.began, **changes)  # type: ignore[arg-type]
        return self.best


def _worst(over: Float, events: list[int]) -> list[int]:
    """Return the positions with the largest excess of memory, at most one between two events."""
    ends = [-1, *events, len(over)]
    best = [a + 1 + int(over[a + 1 : b].argmax()) for a, b in pairwise(ends) if b > a + 1]
    best.sort(key=lambda k: -over[k])
    return [k for k in best[:MOST_NEW] if over[k] > max(0, LEAST_EXCESS * over[best[0]])]
