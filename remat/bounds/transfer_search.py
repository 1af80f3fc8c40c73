"""Search for the transfer bound, on a machine with a host, by relaxations with more and more events."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from remat.backends.highs import Highs
from remat.bounds.base import Bound, Measure, without_tolerance
from remat.bounds.bound_search import MOST_WORK, PATIENCE, BoundSearch
from remat.bounds.implied_memory import implied_memory
from remat.bounds.link_room import LinkRoom
from remat.bounds.path_cuts import tightened
from remat.bounds.peak_bounds import step_memory
from remat.bounds.reduced_costs import cheaper_than
from remat.bounds.stage_programmes import StageProgrammes
from remat.bounds.stage_relaxation import prominent_peaks
from remat.bounds.stage_search import StageSearch
from remat.bounds.transfer_relaxation import TransferRelaxation
from remat.modeling import Model
from remat.runtime.arrays import Float
from remat.runtime.deadline import Deadline, OverdueError
from remat.runtime.solve_options import SolveOptions, Status

#: Share of time for linear relaxations, and number of ops times squared events of all of them.
SHARE, LINEAR_WORK = 0.6, 100_000
#: Consecutive linear relaxations without improvement after which they stop.
TRIALS = 3
#: Number of ops up to which the last integer programme has all steps as events.
SMALL = 40
#: Share of the time left for each integer programme but the last, and factor of the time for another try. The first,
#: smallest programmes bring most: the first one of U-Net at 35 % takes 10 s; with less time the bound is 1.4 % lower.
PART, LONGER = 0.8, 1.5
#: Largest bytes that the links can save at an event, as a share of the budget, for programmes in one larger memory.
LINK_ROOM = 0.06
#: Events added at once, and the least excess of memory for one, as a share of the largest.
MOST_NEW, LEAST_EXCESS = 2, 0.3


@dataclass(eq=False)
class TransferSearch(BoundSearch):
    """Search for the transfer bound.

    Attributes
    ----------
    solutions : list of (TransferRelaxation, float64 array)
        Relaxations, linear and with integers, and their solutions in the order in which they were found.
    likely : set of int
        Events of programmes that found schedules in one memory. Over a slow link their programmes follow the first one:
        ResNet-50 at 20 % then needs 3 instead of 20 s.
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
        self._per_event = 0.0
        """Seconds of the last linear relaxation by the square of its events; 6 to 9 ms on 250 to 300 ops."""
        self._planned: list[int] | None = None
        self._plan: dict[tuple[int, ...], float] = {}
        """Events of integer programmes, and the seconds in which each was not decided; infinite if it was."""
        self.solutions: list[tuple[TransferRelaxation, Float]] = []
        self._linked: StageProgrammes | None = None
        self.likely: set[int] = set()

    def resumed(
        self, enough: int | None, clock: Deadline, threads: int | None, memory_limit: int | None
    ) -> TransferSearch:
        """Return this search with other limits."""
        self.enough, self.clock, self.threads, self.memory_limit = enough, clock, threads, memory_limit
        return self

    def go(self, integer: bool) -> Iterator[Bound]:
        if self.peaks:
            if integer:
                yield from self._by_link_room()
            yield from self.relax(self.clock.earlier(SHARE * self.clock.remaining))
            if integer:
                yield from self._integer()

    def _by_link_room(self) -> Iterator[Bound]:
        """Yield bounds in one memory that is larger by what a slow link can save; a later call continues.

        They need no variables for transfers, so their programmes can have many more events.
        """
        budget, limited = self.problem.budget_bytes, LinkRoom.applies(self.problem)
        if self.enough is None or budget is None or not (limited and self.problem.objective.includes_time):
            return
        link = LinkRoom.of(self.problem, self.enough)
        if link.room.max() > LINK_ROOM * budget:
            return
        programmes = self._linked = self._linked or StageProgrammes(self.problem.one_memory)
        programmes.link, programmes.likely = link, self.likely
        clock = self.clock.share(SHARE)
        search = StageSearch(programmes.problem, self.enough, clock, self.threads, self.memory_limit, programmes)
        with contextlib.suppress(OverdueError):
            for bound in search.go(True):
                value = self.enough if bound.value is None else bound.value
                yield from self.raised(value, bound.versions)

    def continue_relaxing(self, deadline: Deadline) -> None:
        """Solve more linear relaxations than the last call until a deadline."""
        self.clock = deadline
        with contextlib.suppress(OverdueError):
            for _ in self.relax(deadline):
                pass

    def relax(self, share: Deadline) -> Iterator[Bound]:
        """Yield bounds of linear relaxations, with events added where the last solution implies too much memory.

        After the first one they stop before one that would take longer than until the deadline `share`: interrupted,
        it would bring nothing. A later call continues.
        """
        n = len(self.memory)
        while self._added and self._failed < TRIALS and self._work <= LINEAR_WORK and not self.done:
            events = sorted([*self._tried, *self._added])
            relaxation = TransferRelaxation(self.problem, events)
            limit = share if self.events else self.clock
            began = limit.elapsed
            if self._linear_seconds(events) > limit.remaining:
                return
            try:
                found = Highs().relax(self._built(relaxation, limit), SolveOptions(limit, self.threads))
            except OverdueError:
                return
            if found.infeasible:
                yield self.infeasible(found.versions)
                return
            used = (limit.elapsed - began) * (LONGER if found.values is None else 1)
            self._per_event = used / len(events) ** 2
            raised: list[Bound] = []
            if found.bound is not None:
                raised = list(self._better(relaxation, found.bound, found.versions))
            if raised or not self.events:
                self.events = events
            yield from raised
            if found.values is None:
                return
            self.solutions.append((relaxation, found.values))
            self._tried, self._failed = events, 0 if raised else self._failed + 1
            self._work += n * len(events) ** 2
            self._added = _worst(self._excess(relaxation, found.values), events)

    def _linear_seconds(self, events: Sequence[int]) -> float:
        """Return the expected seconds of a linear relaxation, by those of the last one."""
        return self._per_event * len(events) ** 2

    def _built(self, relaxation: TransferRelaxation, deadline: Deadline) -> Model:
        """Build the model; raise `OverdueError` at the deadline, or if the model does not fit into memory."""
        model = relaxation.build(deadline)
        self.check_memory(model)
        return model

    def _integer(self) -> Iterator[Bound]:
        """Yield bounds of integer programmes; a later call continues with those that were not decided.

        Where a solution implies too much memory, events are added. Each programme has most of the time left.
        """
        if self._planned != self.events:
            self._planned, self._plan = self.events, dict.fromkeys(self._event_sets(), 0.0)
        waiting = list(self._plan)
        while waiting and not self.done:
            events = waiting.pop(0)
            least, left = max(LONGER * self._plan[events], self._linear_seconds(events)), self.clock.remaining
            if left < least:
                continue
            seconds = PATIENCE if math.isinf(left) else max(PART * left, least) if waiting else left
            relaxation = TransferRelaxation(self.problem, events, whole=True)
            try:
                values, decided = yield from self._solved(relaxation, seconds)
            except OverdueError:
                continue
            self._plan[events] = math.inf if decided else max(seconds, left - self.clock.remaining)
            if values is not None:
                self.solutions.append((relaxation, values))
                wider = tuple(sorted([*events, *_worst(self._excess(relaxation, values), list(events))]))
                if wider not in self._plan and len(wider) <= self._most_events:
                    self._plan[wider] = 0.0
                    waiting.insert(0, wider)

    @property
    def _most_events(self) -> int:
        """Largest number of events of an integer programme."""
        return MOST_WORK // len(self.memory)

    def _event_sets(self) -> list[tuple[int, ...]]:
        """Return the events of integer programmes, from those of the best linear relaxation to all."""
        best, n = set(self.events), len(self.memory)
        after, before = {min(k + 1, n - 1) for k in best}, {max(k - 1, 0) for k in best}
        every = best | after | before | set(np.flatnonzero(self.memory > self.above).tolist())
        if not best:
            after = {min(k + 1, n - 1) for k in every}
        plan = [best, best | after, best | after | before, every | after]
        if n <= SMALL:
            plan.append(set(range(n)))
        return [tuple(sorted(which)) for which in plan if 0 < len(which) <= self._most_events]

    def _solved(
        self, relaxation: TransferRelaxation, seconds: float
    ) -> Generator[Bound, None, tuple[Float | None, bool]]:
        """Solve an integer programme with path cuts, and yield the bounds of its linear relaxation and of itself.

        Return its solution, and true if it was decided.
        """
        call = SolveOptions(self.clock.earlier(seconds), self.threads)
        found = tightened(relaxation, self._built(relaxation, call.deadline), call)
        if found.linear.infeasible:
            yield self.infeasible(found.linear.versions)
            return None, True
        if found.linear.bound is not None:
            yield from self._better(relaxation, found.linear.bound, found.linear.versions)
        model = found.lean
        if self.enough is not None:
            most = (self.enough - 1 - self.best.base_cost) / relaxation.unit
            model = cheaper_than(found.full, found.linear, most, model)
            call.deadline.check()
        result = Highs().solve(model, call)
        if result.status is Status.INFEASIBLE:
            if self.enough is None:
                yield self.infeasible(result.versions)
            else:
                yield from self.raised(self.enough, result.versions)
        elif result.bound is not None:
            yield from self._better(relaxation, without_tolerance(result.bound), result.versions)
        return result.values, result.status in (Status.OPTIMAL, Status.INFEASIBLE)

    def _excess(self, relaxation: TransferRelaxation, values: Float) -> Float:
        """Return the bytes above the budget that a solution implies at each first compute."""
        return implied_memory(relaxation, values) - self.above + self.problem.constant_bytes

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
