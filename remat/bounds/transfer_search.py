"""Search for the transfer bound, on a machine with a host, by relaxations with more and more events."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from remat.backends.highs import Highs
from remat.bounds.base import Bound, Measure, without_tolerance
from remat.bounds.bound_search import MOST_WORK, PATIENCE, BoundSearch
from remat.bounds.implied_memory import implied_memory
from remat.bounds.peak_bounds import step_memory
from remat.bounds.reduced_costs import cheaper_than
from remat.bounds.stage_relaxation import prominent_peaks
from remat.bounds.transfer_relaxation import TransferRelaxation
from remat.modeling import Model
from remat.runtime.arrays import Float
from remat.runtime.deadline import Deadline, OverdueError
from remat.runtime.solve_options import SolveOptions, Status

#: Share of time for linear relaxations, and number of ops times squared events of all of them.
SHARE, LINEAR_WORK = 0.6, 100_000
#: Consecutive ones without improvement before they stop.
TRIALS = 3
#: Events added at once, and the least excess of memory for one, as a share of the largest.
MOST_NEW, LEAST_EXCESS = 2, 0.3


@dataclass(eq=False)
class TransferSearch(BoundSearch):
    """Search for the transfer bound.

    Attributes
    ----------
    solution : tuple of TransferRelaxation and float64 array, or None
        Last linear relaxation, and its solution: the one with the most events.
    """

    kind = "the transfer bound"
    measure = Measure.TIME

    def __post_init__(self) -> None:
        super().__post_init__()
        self.memory = step_memory(self.problem)
        self.above = self.problem.reference_peak if self.problem.budget_bytes is None else self.problem.budget_bytes
        self.peaks = prominent_peaks(self.memory, self.above)
        self.events: list[int] = []
        self._tried: list[int] = []
        self._added = self.peaks[:1]
        self._work = self._failed = 0
        self.solution: tuple[TransferRelaxation, Float] | None = None

    def go(self, integer: bool) -> Iterator[Bound]:
        if self.peaks:
            yield from self.relax(self.clock.earlier(SHARE * self.clock.remaining))
            if integer:
                yield from self._integer()

    def continue_relaxing(self, deadline: Deadline) -> bool:
        """Solve more linear relaxations than the last call until a deadline; return true if one was solved."""
        self.clock, before = deadline, self.solution
        with contextlib.suppress(OverdueError):
            for _ in self.relax(deadline):
                pass
        return self.solution is not before

    def relax(self, share: Deadline) -> Iterator[Bound]:
        """Yield bounds of linear relaxations, with events added where the last solution implies too much memory.

        After the first one they stop at the deadline `share`, and a later call continues.
        """
        n = len(self.memory)
        while self._added and self._failed < TRIALS and self._work <= LINEAR_WORK and not self.done:
            events = sorted([*self._tried, *self._added])
            relaxation = TransferRelaxation(self.problem, events)
            limit = share if self.events else self.clock
            try:
                found = Highs().relax(self._built(relaxation, limit), SolveOptions(limit, self.threads))
            except OverdueError:
                return
            if found.infeasible:
                yield self.infeasible(found.versions)
                return
            raised: list[Bound] = []
            if found.bound is not None:
                raised = list(self._better(relaxation, found.bound, found.versions))
            if raised or not self.events:
                self.events = events
            yield from raised
            if found.values is None:
                return
            self.solution = relaxation, found.values
            self._tried, self._failed = events, 0 if raised else self._failed + 1
            self._work += n * len(events) ** 2
            over = implied_memory(relaxation, found.values) - self.above + self.problem.constant_bytes
            self._added = _worst(over, events)

    def _built(self, relaxation: TransferRelaxation, deadline: Deadline) -> Model:
        """Build the model; raise `OverdueError` at the deadline, or if the model does not fit into memory."""
        model = relaxation.build(deadline)
        self.check_memory(model)
        return model

    def _integer(self) -> Iterator[Bound]:
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
            relaxation = TransferRelaxation(self.problem, events)
            try:
                model = self._built(relaxation, call.deadline)
                linear = None if self.enough is None else Highs().relax(model, call)
            except OverdueError:
                continue
            if self.enough is not None and linear is not None:
                if linear.infeasible:
                    yield self.infeasible(linear.versions)
                    return
                model = cheaper_than(model, linear, (self.enough - 1 - self.best.base_cost) / relaxation.unit)
                if call.deadline.expired:
                    continue
            result = Highs().solve(model, call)
            if result.status is Status.INFEASIBLE and self.enough is None:
                yield self.infeasible(result.versions)
                return
            if result.status is Status.INFEASIBLE and self.enough is not None:
                yield from self.raised(self.enough, result.versions)
            elif result.bound is not None:
                yield from self._better(relaxation, without_tolerance(result.bound), result.versions)

    def _better(self, relaxation: TransferRelaxation, bound: float, versions: object) -> Iterator[Bound]:
        """Yield a bound on the objective of a relaxation if it is better; in units of 1 it is rounded up."""
        units = math.ceil(bound) if relaxation.unit == 1 else math.floor(bound)
        return self.raised(self.best.base_cost + relaxation.unit * max(0, units), versions)


def _worst(over: Float, events: list[int]) -> list[int]:
    """Return the positions with the largest excess of memory, at most one between two events."""
    ends = [-1, *events, len(over)]
    best = [a + 1 + int(over[a + 1 : b].argmax()) for a, b in pairwise(ends) if b > a + 1]
    best.sort(key=lambda k: -over[k])
    return [k for k in best[:MOST_NEW] if over[k] > max(0, LEAST_EXCESS * over[best[0]])]
