"""Ordered bound: lower bound on cost for any order, from several first computes in every order the graph allows."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from remat.backends.highs import Highs
from remat.bounds.base import Bound, cost_unit, lacks_memory, whole_units
from remat.bounds.bound_search import PATIENCE
from remat.bounds.flow import BoundaryNetwork
from remat.bounds.ordered_programme import OrderedProgramme
from remat.bounds.peak_bounds import cut_at, step_memory
from remat.problem import Problem
from remat.problem.scope import scope_within_limits
from remat.runtime.deadline import Deadline, OverdueError
from remat.runtime.solve_options import SolveOptions, Status
from remat.schedule import OrderRule

#: Ops of the largest graph. On more, one linear relaxation takes seconds.
MOST_OPS = 5_000
#: Number of ops whose cuts are computed, those with the most memory in the reference order first; of them, those with
#: the largest cuts may become events.
CUTS, CANDIDATES = 1_000, 25
#: Share of the time for linear relaxations. Integer programmes of the weakest orders follow.
LINEAR_SHARE = 0.5
#: Share of the remaining time for one integer programme.
INTEGER_SHARE = 0.3
#: Bound of a case without a schedule, above every cost.
NEVER = 2**62


@dataclass(eq=False)
class Case:
    """Schedules with the same order of some first computes, and a bound on their cost in cost units."""

    value: int
    events: tuple[int, ...]
    solved: bool = False
    """True if the integer programme is solved, or had its time."""


def ordered_bound(
    problem: Problem,
    *,
    enough: int | None = None,
    deadline: float | Deadline | None = None,
    threads: int | None = None,
    memory_limit: int | None = None,
) -> Bound:
    """Return a bound on cost for any order and any recomputation, from the memory of several first computes.

    In each schedule some ops, the *events*, run for the first time in one of several orders. For each of these cases,
    :class:`remat.bounds.ordered_programme.OrderedProgramme` bounds the cost, and the least of these bounds holds for
    all schedules. The search begins with the op whose cut (:func:`remat.bounds.peak_bounds.cut_bound`) is largest. It
    divides the weakest case by a further event, one case for each place in the order, and chooses the event whose
    weakest case is strongest, by linear relaxations. Integer programmes of the weakest cases follow.

    Parameters
    ----------
    enough : int, optional
        Cost of a known schedule; cases that reach it are dropped.
    deadline : float, Deadline or None
        At the deadline, the bound so far is returned; without one the search has
        :data:`remat.bounds.bound_search.PATIENCE` seconds.
    memory_limit : int, optional
        As for :func:`remat.bounds.joint.joint_bound`.

    Examples
    --------
    >>> from remat.graphs.families import unit_chain
    >>> ordered_bound(Problem(unit_chain(8), 5), deadline=10).value
    22
    """
    began, clock = time.monotonic(), Deadline.of(deadline)
    if not math.isfinite(clock.seconds):
        clock = clock.earlier(PATIENCE)
    problem, _ = problem.relaxed
    base, unit = problem.graph.base_cost, cost_unit(problem)
    search = Search(problem, clock, threads, memory_limit)
    if enough is not None:
        search.most = -(-enough // unit)
    if problem.budget_bytes is not None and len(problem.graph.ops) <= MOST_OPS:
        with suppress(OverdueError):
            search.run()
    value = search.value
    return Bound(
        None if value is None else max(base, unit * value),
        "the ordered bound",
        scope_within_limits(problem, OrderRule.FREE),
        base,
        value is None,
        seconds=time.monotonic() - began,
        versions=search.versions,
        note=search.note,
    )


class Search:
    """Division of all schedules into cases by the order of a growing list of first computes."""

    def __init__(self, problem: Problem, clock: Deadline, threads: int | None, memory_limit: int | None) -> None:
        self.problem, self.clock, self.threads, self.memory_limit = problem, clock, threads, memory_limit
        self.base = problem.graph.base_cost // cost_unit(problem)
        self.most = NEVER
        """Cost of a known schedule."""
        self.cases: list[Case] = []
        self.dropped = False
        """True if a case was dropped since it reaches the known cost."""
        self.versions: dict[str, str] = {}
        self.note = ""
        self.known: dict[tuple[int, ...], int] = {}
        """Bounds of the linear relaxations so far."""
        self.candidates: list[int] = []

    @property
    def value(self) -> int | None:
        """Bound so far in cost units; None if no schedule exists."""
        if self.cases:
            return min(case.value for case in self.cases)
        if self.dropped:
            return self.most
        return None if self.known else self.base

    def run(self) -> None:
        """Divide and strengthen the weakest case until the deadline, or until nothing helps."""
        self.candidates = list(self._largest_cuts())
        if not self.candidates:
            return
        first = (self.candidates[0],)
        self._keep(Case(max(self._relaxed(first), self.base), first))
        linear = self.clock.share(LINEAR_SHARE)
        while self.cases and not self.clock.expired:
            weakest = min(self.cases, key=lambda case: case.value)
            if not linear.expired and self._divide(weakest):
                continue
            if weakest.solved:
                return
            self._solve(weakest)

    def _largest_cuts(self) -> Iterator[int]:
        """Yield the ops with the largest cuts, largest first; none if no cut exceeds the budget."""
        problem, arrays = self.problem, self.problem.graph.arrays
        network = BoundaryNetwork.of(problem)
        found: list[tuple[int, int]] = []
        for op in arrays.order[np.argsort(-step_memory(problem), kind="stable")][:CUTS].tolist():
            if self.clock.expired:
                return
            found.append((cut_at(problem, network, op), op))
        found.sort(key=lambda pair: -pair[0])
        if found and found[0][0] > (problem.budget_bytes or 0):
            yield from (op for _, op in found[:CANDIDATES])

    def _places(self, events: tuple[int, ...], op: int) -> list[tuple[int, ...]]:
        """Return the events with `op` at each place that the graph allows."""
        arrays = self.problem.graph.arrays
        before, after = set(arrays.op_predecessors.reachable(op)), set(arrays.op_successors.reachable(op))
        low = max((i + 1 for i, event in enumerate(events) if event in before), default=0)
        high = min((i for i, event in enumerate(events) if event in after), default=len(events))
        return [(*events[:i], op, *events[i:]) for i in range(low, high + 1)]

    def _divide(self, case: Case) -> bool:
        """Replace a case by those of a further event, if that strengthens all of them by linear relaxations."""
        best, chosen = case.value, list[Case]()
        for op in self.candidates:
            if op in case.events:
                continue
            parts = list[Case]()
            for events in self._places(case.events, op):
                parts.append(Case(max(self._relaxed(events), case.value), events))
                if parts[-1].value <= best:
                    break
            else:
                best, chosen = min(part.value for part in parts), parts
        if not chosen:
            return False
        self.cases.remove(case)
        for part in chosen:
            self._keep(part)
        return True

    def _keep(self, case: Case) -> None:
        """Add a case, unless it has no schedule or reaches the known cost."""
        if case.value < self.most:
            self.cases.append(case)
        elif case.value < NEVER:
            self.dropped = True

    def _relaxed(self, events: tuple[int, ...]) -> int:
        """Return the bound of the linear relaxation of a case."""
        if events not in self.known:
            self.clock.check()
            model = OrderedProgramme(self.problem, events).model
            self.note = lacks_memory(model, self.memory_limit)
            if self.note:
                raise OverdueError
            found = Highs().relax(model, SolveOptions(self.clock, self.threads))
            self.versions = dict(found.versions)
            known = self.base if found.bound is None else whole_units(found.bound)
            self.known[events] = NEVER if found.infeasible else known
        return self.known[events]

    def _solve(self, case: Case) -> None:
        """Strengthen a case by its integer programme."""
        model = OrderedProgramme(self.problem, case.events).model
        result = Highs().solve(model, SolveOptions(self.clock.share(INTEGER_SHARE), self.threads))
        self.cases.remove(case)
        case.solved = True
        if result.status is Status.INFEASIBLE:
            case.value = NEVER
        elif result.bound is not None:
            case.value = max(case.value, whole_units(result.bound))
        self._keep(case)
